//! How long ended runs are kept: as their task said, or as the operator does; and keys that nothing needs.

use switchboard_model::ids::RunId;
use switchboard_model::run::{Ending, RunState};
use switchboard_model::span::Span;
use switchboard_model::task::{Concurrency, Overlap, TaskSpec};
use switchboard_store_api::Stores;

use crate::Backend;
use crate::fixtures::{
    HOUR, LONG, SHORT, contend, database_time, expire, finish, in_state, lease, lease_one, replicas, request, run,
    spec, states, system, triggered, until, wait_past,
};

fn kept_for(name: &str, retention: Span) -> TaskSpec {
    spec(name, |spec| spec.retention = Some(retention))
}

async fn exists(stores: &Stores, id: RunId) -> bool {
    stores.runs.get(id).await.unwrap().is_some()
}

/// Waits until what was kept for a millisecond only is past that.
async fn pass_a_moment(stores: &Stores) {
    let moment = Span::from_millis(2).to_delta();
    wait_past(stores, database_time(stores).await + moment).await;
}

pub(crate) async fn a_run_is_kept_as_long_as_its_task_said(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut ids = triggered(&stores, &kept_for("brief", Span::from_millis(1)), 1).await;
    ids.extend(triggered(&stores, &kept_for("long", LONG), 1).await);
    ids.extend(triggered(&stores, &spec("usual", |_| {}), 1).await);
    for leased in lease(&stores, 10, LONG).await {
        finish(&stores, &leased, Ending::Succeeded(None)).await;
    }
    pass_a_moment(&stores).await;
    assert_eq!(stores.runs.sweep(HOUR, 10).await.unwrap(), 1, "the operator keeps runs for an hour");
    assert!(!exists(&stores, ids[0]).await);
    assert_eq!(stores.runs.sweep(Span::default(), 10).await.unwrap(), 1);
    assert_eq!((exists(&stores, ids[1]).await, exists(&stores, ids[2]).await), (true, false));
}

pub(crate) async fn every_end_starts_the_retention(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let brief = |name: &str| TaskSpec { max_attempts: 1, ..kept_for(name, Span::from_millis(1)) };
    let failing = triggered(&stores, &brief("failing"), 2).await;
    let leased = lease(&stores, 2, LONG).await;
    finish(&stores, &leased[0], Ending::Failed("no".to_owned())).await;
    let retry = Ending::Retry { error: "no".to_owned(), delay: LONG };
    finish(&stores, &leased[1], retry).await;
    let cancelled = triggered(&stores, &brief("cancelled"), 1).await;
    stores.runs.cancel(&system(), cancelled[0]).await.unwrap();
    let late = TaskSpec { start_deadline: Some(Span::from_millis(1)), ..brief("late") };
    let late = triggered(&stores, &late, 1).await;
    pass_a_moment(&stores).await;
    assert_eq!(stores.runs.promote(10).await.unwrap().expired, 1);
    let limit = Some(Concurrency { key: "narrow".parse().unwrap(), max: 1 });
    let lost = triggered(&stores, &TaskSpec { concurrency: limit, ..brief("lost") }, 1).await;
    let leased = lease_one(&stores, SHORT).await;
    expire(&stores, leased.id).await;
    assert_eq!(stores.runs.recover(10).await.unwrap().dead, 1);
    pass_a_moment(&stores).await;
    while stores.runs.sweep(HOUR, 2).await.unwrap() > 0 {}
    for id in [failing, cancelled, late, lost].concat() {
        assert!(!exists(&stores, id).await);
    }
}

pub(crate) async fn a_run_that_is_retried_is_kept(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &kept_for("brief", Span::from_millis(1)), 1).await;
    let leased = lease_one(&stores, LONG).await;
    finish(&stores, &leased, Ending::Failed("no".to_owned())).await;
    stores.runs.retry(&system(), ids[0]).await.unwrap();
    pass_a_moment(&stores).await;
    assert_eq!(stores.runs.sweep(Span::default(), 10).await.unwrap(), 0);
    let again = lease_one(&stores, LONG).await;
    let retry = Ending::Retry { error: "no".to_owned(), delay: LONG };
    finish(&stores, &again, retry).await;
    pass_a_moment(&stores).await;
    assert_eq!(stores.runs.sweep(Span::default(), 10).await.unwrap(), 0, "it has not ended");
    assert_eq!(run(&stores, ids[0]).await.state, RunState::Scheduled);
}

pub(crate) async fn a_batch_deletes_no_more_than_it_is_asked(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &kept_for("brief", Span::from_millis(1)), 3).await;
    triggered(&stores, &spec("usual", |_| {}), 2).await;
    for leased in lease(&stores, 10, LONG).await {
        finish(&stores, &leased, Ending::Succeeded(None)).await;
    }
    pass_a_moment(&stores).await;
    for deleted in [2, 2, 1, 0] {
        assert_eq!(stores.runs.sweep(Span::default(), 2).await.unwrap(), deleted);
    }
}

pub(crate) async fn a_sweep_of_keys_disturbs_no_permit(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let mut all = Vec::new();
    for n in 0..10 {
        let queueing = spec(&format!("t{n}"), |spec| spec.overlap = Overlap::Queue);
        all.extend(triggered(&stores[0], &queueing, 3).await);
    }
    contend(&stores, 6, |stores, n| async move {
        if n < 2 {
            // What the sweep finds between one run and the next of a task is a key that nobody holds.
            for _ in 0..60 {
                stores.runs.sweep(HOUR, 100).await.unwrap();
            }
            return;
        }
        for _ in 0..60 {
            for leased in stores.runs.lease(&request(5, LONG)).await.unwrap().runs {
                let of_task = in_state(&stores, RunState::Running).await;
                assert_eq!(of_task.iter().filter(|run| run.task_id == leased.task_id).count(), 1, "one at a time");
                finish(&stores, &leased, Ending::Succeeded(None)).await;
            }
        }
    })
    .await;
    until(
        async || {
            stores[0].runs.sweep(HOUR, 100).await.unwrap();
            stores[0].runs.promote(100).await.unwrap();
            for leased in lease(&stores[0], 100, LONG).await {
                finish(&stores[0], &leased, Ending::Succeeded(None)).await;
            }
            states(&stores[0], &all).await
        },
        |states| states.iter().all(|state| *state == RunState::Succeeded),
    )
    .await;
}
