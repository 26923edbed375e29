//! Sweeps of the history of runs; every other sweep is beside what it sweeps.

use switchboard_model::run::{Ending, RunState, SkipCause, SkipRange};
use switchboard_model::span::Span;

use crate::Backend;
use crate::fixtures::{
    ALL, LONG, create, database_time, finish, lease, occurrence, plan, run, scheduled, spec, states, triggered,
    wait_past,
};

pub(crate) async fn old_runs_that_ended_are_deleted_in_batches(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &spec("history", |_| {}), 6).await;
    let leased = lease(&stores, 5, LONG).await;
    for leased in &leased[..4] {
        finish(&stores, leased, Ending::Succeeded(None)).await;
    }
    wait_past(&stores, database_time(&stores).await).await;
    assert_eq!(stores.runs.sweep(LONG, 10).await.unwrap(), 0, "nothing is that old");
    for expected in [3, 1, 0] {
        assert_eq!(stores.runs.sweep(Span::default(), 3).await.unwrap(), expected);
    }
    for id in &ids[..4] {
        assert_eq!(stores.runs.get(*id).await.unwrap(), None);
    }
    assert_eq!(states(&stores, &ids[4..]).await, [RunState::Running, RunState::Queued]);
}

pub(crate) async fn a_run_in_back_off_has_not_ended(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("backing-off", |_| {}), 1).await;
    let leased = lease(&stores, 1, LONG).await.remove(0);
    finish(&stores, &leased, Ending::Retry { error: "no".to_owned(), delay: LONG }).await;
    wait_past(&stores, database_time(&stores).await).await;
    assert_eq!(stores.runs.sweep(Span::default(), 10).await.unwrap(), 0);
    assert_eq!(run(&stores, leased.id).await.state, RunState::Scheduled);
}

pub(crate) async fn old_skipped_ranges_are_deleted(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &scheduled("gaps", |_| {})).await;
    let recent = database_time(&stores).await;
    let mut plan = plan(&task, 1, 1);
    let old = SkipRange { from: occurrence(0), to: occurrence(0), count: 1, cause: SkipCause::Missed };
    let new = SkipRange { from: recent, to: recent, count: 1, cause: SkipCause::Limit };
    plan.skips.extend([old, new.clone()]);
    stores.tasks.fire(&[plan]).await.unwrap();
    stores.runs.sweep(Span::from_secs(86_400), 10).await.unwrap();
    assert_eq!(stores.tasks.skips(task.id, &ALL).await.unwrap().items, [new]);
}
