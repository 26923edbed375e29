//! Cancelling: at once before the start, an intent afterwards.

use switchboard_model::ids::RunId;
use switchboard_model::run::{Ending, NewRun, RunState};
use switchboard_model::span::Span;
use switchboard_store_api::{CancelOutcome, FinishOutcome, RecoverReport, RenewOutcome, Renewal, WorkerKind};

use crate::Backend;
use crate::fixtures::{
    LONG, SHORT, create, expire, finish, lease, lease_one, new_run, run, spec, system, trigger, triggered,
};

pub(crate) async fn a_run_that_has_not_started_is_cancelled_at_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("early", |_| {})).await;
    let queued = trigger(&stores, new_run(task.id)).await;
    let delayed = trigger(&stores, NewRun { delay: LONG, ..new_run(task.id) }).await;
    for id in [queued, delayed] {
        assert_eq!(stores.runs.cancel(&system(), id).await.unwrap(), CancelOutcome::Cancelled);
        let run = run(&stores, id).await;
        assert_eq!((run.state, run.attempt), (RunState::Cancelled, 0));
        assert!(run.finished_at.is_some());
        let again = stores.runs.cancel(&system(), id).await.unwrap();
        assert_eq!(again, CancelOutcome::Ended(RunState::Cancelled));
    }
    assert_eq!(lease(&stores, 10, LONG).await, []);
    assert_eq!(stores.runs.cancel(&system(), RunId::new()).await.unwrap(), CancelOutcome::NotFound);
}

pub(crate) async fn the_holder_of_a_running_run_is_asked_to_stop(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("running", |_| {}), 1).await;
    let leased = lease_one(&stores, LONG).await;
    assert_eq!(stores.runs.cancel(&system(), leased.id).await.unwrap(), CancelOutcome::Requested);
    let asked = run(&stores, leased.id).await;
    assert_eq!((asked.state, asked.fence), (RunState::Running, leased.fence));
    let first = asked.cancel_requested_at.unwrap();
    assert_eq!(stores.runs.cancel(&system(), leased.id).await.unwrap(), CancelOutcome::Requested);
    assert_eq!(run(&stores, leased.id).await.cancel_requested_at, Some(first), "the first request counts");

    let renewal = Renewal { id: leased.id, fence: leased.fence };
    assert_eq!(
        stores.runs.renew(WorkerKind::Replica, &[renewal], LONG).await.unwrap(),
        [RenewOutcome::CancelRequested]
    );
    let outcome = finish(&stores, &leased, Ending::Cancelled).await;
    assert_eq!(outcome, FinishOutcome::Accepted(RunState::Cancelled));
    let again = stores.runs.cancel(&system(), leased.id).await.unwrap();
    assert_eq!(again, CancelOutcome::Ended(RunState::Cancelled));
}

pub(crate) async fn work_that_was_done_despite_the_request_counts(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("done", |_| {}), 1).await;
    let leased = lease_one(&stores, LONG).await;
    stores.runs.cancel(&system(), leased.id).await.unwrap();
    let outcome = finish(&stores, &leased, Ending::Succeeded(None)).await;
    assert_eq!(outcome, FinishOutcome::Accepted(RunState::Succeeded));
}

pub(crate) async fn a_run_to_be_cancelled_gets_no_further_attempt(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let retry = Ending::Retry { error: "no".to_owned(), delay: Span::default() };
    for (name, ending) in [("retried", retry), ("released", Ending::Released)] {
        triggered(&stores, &spec(name, |_| {}), 1).await;
        let leased = lease_one(&stores, LONG).await;
        stores.runs.cancel(&system(), leased.id).await.unwrap();
        assert_eq!(finish(&stores, &leased, ending).await, FinishOutcome::Accepted(RunState::Cancelled));
        assert!(run(&stores, leased.id).await.finished_at.is_some());
    }
}

pub(crate) async fn recovering_a_run_to_be_cancelled_cancels_it(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("lost", |_| {}), 1).await;
    let leased = lease_one(&stores, SHORT).await;
    stores.runs.cancel(&system(), leased.id).await.unwrap();
    expire(&stores, leased.id).await;
    let report = stores.runs.recover(10).await.unwrap();
    assert_eq!(report, RecoverReport { cancelled: 1, ..RecoverReport::default() });
    assert_eq!(run(&stores, leased.id).await.state, RunState::Cancelled);
}
