//! Recovery of runs whose lease has expired.

use switchboard_model::run::{Ending, RunState};
use switchboard_model::span::Span;
use switchboard_store_api::{FinishOutcome, RecoverReport, RenewOutcome, Renewal, WorkerKind};

use crate::Backend;
use crate::fixtures::{LONG, SHORT, expire, finish, lease, lease_one, run, spec, states, triggered};

pub(crate) async fn an_expired_run_is_queued_again_and_knows_it(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &spec("lost", |_| {}), 1).await;
    let first = lease_one(&stores, SHORT).await;
    expire(&stores, first.id).await;
    let report = stores.runs.recover(10).await.unwrap();
    assert_eq!(report, RecoverReport { requeued: 1, ..RecoverReport::default() });
    let requeued = run(&stores, ids[0]).await;
    assert_eq!((requeued.state, requeued.attempt, requeued.finished_at), (RunState::Queued, 1, None));
    let second = lease_one(&stores, LONG).await;
    assert_eq!((second.id, second.attempt, second.reclaimed), (ids[0], 2, true));
    assert!(second.fence > first.fence);
}

pub(crate) async fn a_run_that_lost_its_last_attempt_is_dead(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("fatal", |spec| spec.max_attempts = 1), 1).await;
    let leased = lease_one(&stores, SHORT).await;
    expire(&stores, leased.id).await;
    let report = stores.runs.recover(10).await.unwrap();
    assert_eq!(report, RecoverReport { dead: 1, ..RecoverReport::default() });
    let dead = run(&stores, leased.id).await;
    assert_eq!((dead.state, dead.attempt), (RunState::Dead, 1));
    assert!(dead.finished_at.is_some());
    assert_eq!(stores.runs.recover(10).await.unwrap(), RecoverReport::default());
}

pub(crate) async fn runs_past_their_deadline_are_counted_apart(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut ids = Vec::new();
    for (name, max_attempts) in [("again", 2), ("dead", 1)] {
        let wanted = spec(name, |spec| {
            spec.timeout = Some(Span::from_millis(1));
            spec.max_attempts = max_attempts;
        });
        ids.extend(triggered(&stores, &wanted, 1).await);
    }
    let leased = lease(&stores, 2, SHORT).await;
    expire(&stores, leased[1].id).await;
    let report = stores.runs.recover(10).await.unwrap();
    assert_eq!(report, RecoverReport { timed_out: 2, ..RecoverReport::default() });
    assert_eq!(states(&stores, &ids).await, [RunState::Queued, RunState::Dead]);
    assert!(run(&stores, leased[1].id).await.error.is_some_and(|error| error.contains("timed out")));
}

pub(crate) async fn live_leases_are_left_alone(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("mixed", |_| {}), 4).await;
    let live = lease(&stores, 2, LONG).await;
    let lost = lease(&stores, 2, SHORT).await;
    let before = run(&stores, live[0].id).await;
    expire(&stores, lost[1].id).await;
    assert_eq!(stores.runs.recover(10).await.unwrap().requeued, 2);
    assert_eq!(run(&stores, before.id).await, before);
    let renewal = Renewal { id: live[1].id, fence: live[1].fence };
    assert_eq!(stores.runs.renew(WorkerKind::Replica, &[renewal], LONG).await.unwrap(), [RenewOutcome::Renewed]);
}

pub(crate) async fn recovery_takes_at_most_what_it_is_asked(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &spec("many", |_| {}), 5).await;
    let leased = lease(&stores, 5, SHORT).await;
    expire(&stores, leased[4].id).await;
    for expected in [2, 2, 1, 0] {
        assert_eq!(stores.runs.recover(2).await.unwrap().requeued, expected);
    }
    assert_eq!(states(&stores, &ids).await, [RunState::Queued; 5]);
}

pub(crate) async fn a_late_finish_is_accepted_until_somebody_recovers(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("late", |_| {}), 2).await;
    let leased = lease(&stores, 2, SHORT).await;
    expire(&stores, leased[1].id).await;
    let outcome = finish(&stores, &leased[0], Ending::Succeeded(None)).await;
    assert_eq!(outcome, FinishOutcome::Accepted(RunState::Succeeded));
    assert_eq!(stores.runs.recover(10).await.unwrap().requeued, 1);

    let before = run(&stores, leased[1].id).await;
    assert_eq!(finish(&stores, &leased[1], Ending::Succeeded(None)).await, FinishOutcome::Fenced);
    let renewal = Renewal { id: leased[1].id, fence: leased[1].fence };
    assert_eq!(stores.runs.renew(WorkerKind::Replica, &[renewal], LONG).await.unwrap(), [RenewOutcome::Lost]);
    assert_eq!(run(&stores, before.id).await, before);

    let again = lease_one(&stores, LONG).await;
    assert_eq!(finish(&stores, &leased[1], Ending::Succeeded(None)).await, FinishOutcome::Fenced);
    assert_eq!(stores.runs.renew(WorkerKind::Replica, &[renewal], LONG).await.unwrap(), [RenewOutcome::Lost]);
    let holder = finish(&stores, &again, Ending::Succeeded(None)).await;
    assert_eq!(holder, FinishOutcome::Accepted(RunState::Succeeded));
}
