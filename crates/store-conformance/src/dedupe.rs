//! Deduplication keys that hold for ever.

use switchboard_model::ids::TaskId;
use switchboard_model::run::{DedupeScope, Ending, NewRun, RunState};
use switchboard_model::span::Span;
use switchboard_model::task::Overlap;
use switchboard_store_api::TriggerOutcome;

use crate::Backend;
use crate::fixtures::{
    LONG, contend, create, database_time, finish, in_state, lease_one, new_run, now, replicas, spec, system, trigger,
    wait_past,
};

fn for_ever(task: TaskId, key: &str) -> NewRun {
    NewRun { dedupe_key: Some(key.parse().unwrap()), dedupe_scope: DedupeScope::Forever, ..new_run(task) }
}

pub(crate) async fn a_key_for_ever_outlives_its_run(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("orders", |_| {})).await.id;
    let other = create(&stores, &spec("others", |_| {})).await.id;
    let first = trigger(&stores, for_ever(task, "order-7")).await;
    let again = async || now(stores.runs.trigger(&system(), &for_ever(task, "order-7")).await.unwrap());
    assert_eq!(again().await, TriggerOutcome::Duplicate(first));
    let leased = lease_one(&stores, LONG).await;
    finish(&stores, &leased, Ending::Succeeded(None)).await;
    assert_eq!(again().await, TriggerOutcome::Duplicate(first));
    wait_past(&stores, database_time(&stores).await).await;
    assert_eq!(stores.runs.sweep(Span::default(), 10).await.unwrap(), 1);
    assert_eq!(stores.once.sweep(10).await.unwrap(), 0);
    assert_eq!(again().await, TriggerOutcome::Duplicate(first), "also after that run was pruned");
    trigger(&stores, for_ever(other, "order-7")).await;
    trigger(&stores, for_ever(task, "order-8")).await;
    let active = NewRun { dedupe_scope: DedupeScope::Active, ..for_ever(task, "order-7") };
    trigger(&stores, active).await;
}

pub(crate) async fn a_key_for_ever_counts_within_one_request(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let plain = create(&stores, &spec("plain", |_| {})).await.id;
    let queue = create(&stores, &spec("queue", |spec| spec.overlap = Overlap::Queue)).await.id;
    let before = trigger(&stores, for_ever(plain, "old")).await;
    let runs = [
        for_ever(plain, "new"),
        for_ever(queue, "new"),
        for_ever(plain, "new"),
        for_ever(plain, "old"),
        for_ever(queue, "new"),
    ];
    let outcomes = now(stores.runs.trigger_many(&system(), &runs).await.unwrap());
    assert_eq!(
        outcomes,
        [
            TriggerOutcome::Created(runs[0].id),
            TriggerOutcome::Created(runs[1].id),
            TriggerOutcome::Duplicate(runs[0].id),
            TriggerOutcome::Duplicate(before),
            TriggerOutcome::Duplicate(runs[1].id),
        ]
    );
}

pub(crate) async fn a_refused_run_keeps_no_key_for_ever(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let skip = create(&stores, &spec("skip", |spec| spec.overlap = Overlap::Skip)).await.id;
    let plain = create(&stores, &spec("plain", |_| {})).await.id;
    let active = trigger(&stores, new_run(skip)).await;
    let refused = now(stores.runs.trigger(&system(), &for_ever(skip, "k")).await.unwrap());
    assert_eq!(refused, TriggerOutcome::Active(active));
    let runs = [for_ever(skip, "k"), new_run(plain)];
    let outcomes = now(stores.runs.trigger_many(&system(), &runs).await.unwrap());
    assert_eq!(outcomes, [TriggerOutcome::Active(active), TriggerOutcome::Created(runs[1].id)]);
    stores.runs.cancel(&system(), active).await.unwrap();
    trigger(&stores, for_ever(skip, "k")).await;
}

pub(crate) async fn equal_triggers_for_ever_make_one_run(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    let task = create(&stores[0], &spec("raced", |_| {})).await.id;
    let outcomes = contend(&stores, 20, move |stores, n| async move {
        let run = for_ever(task, "k");
        if n % 2 == 0 {
            now(stores.runs.trigger(&system(), &run).await.unwrap())
        } else {
            now(stores.runs.trigger_many(&system(), &[run]).await.unwrap()).remove(0)
        }
    })
    .await;
    let made = in_state(&stores[0], RunState::Queued).await;
    assert_eq!(made.len(), 1);
    let created = |outcome: &&TriggerOutcome| **outcome == TriggerOutcome::Created(made[0].id);
    assert_eq!(outcomes.iter().filter(created).count(), 1);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == TriggerOutcome::Duplicate(made[0].id)).count(), 19);
}

pub(crate) async fn a_key_for_ever_goes_with_its_task(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("gone", |_| {})).await.id;
    let run = trigger(&stores, for_ever(task, "k")).await;
    stores.runs.cancel(&system(), run).await.unwrap();
    assert!(stores.tasks.delete(&system(), task).await.unwrap());
    wait_past(&stores, database_time(&stores).await).await;
    assert_eq!(stores.tasks.sweep(Span::default(), 10).await.unwrap(), 0, "its run is still there");
    assert_eq!(stores.runs.sweep(Span::default(), 10).await.unwrap(), 1);
    assert_eq!(stores.tasks.sweep(Span::default(), 10).await.unwrap(), 1);
    assert_eq!(stores.tasks.sweep(Span::default(), 10).await.unwrap(), 0);
}
