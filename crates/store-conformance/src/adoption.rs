//! Deliveries of webhooks: each message makes one run or is carried out by one that has not started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::{Ending, NewRun, RunState, Trigger};
use switchboard_model::task::{Concurrency, Overlap};
use switchboard_store_api::{RunFilter, Stores, TaskUpdateOutcome, TriggerOutcome, Written};

use crate::Backend;
use crate::fixtures::{
    HOUR, LONG, Patience, contend, create, database_time, finish, lease, lease_one, list, new_run, now, once, replayed,
    replicas, run, spec, states, system, trigger,
};

/// A run that a webhook asks for.
fn delivery(task: TaskId) -> NewRun {
    NewRun { trigger: Trigger::Webhook, ..new_run(task) }
}

/// Delivers a message with a body.
async fn deliver(stores: &Stores, task: TaskId, message: &str, body: u8) -> Written<TriggerOutcome> {
    stores.runs.trigger(&once(message, body, HOUR), &delivery(task)).await.unwrap()
}

/// Makes a task that has one run at a time.
async fn exclusive(stores: &Stores, name: &str) -> TaskId {
    create(stores, &spec(name, |spec| spec.overlap = Overlap::Skip)).await.id
}

/// Delivers a message that must make a run.
async fn made(stores: &Stores, task: TaskId, message: &str) -> RunId {
    let outcome = deliver(stores, task, message, 1).await;
    let Written::Now(TriggerOutcome::Created(id)) = outcome else { panic!("not created: {outcome:?}") };
    id
}

fn adopted(id: RunId) -> Written<TriggerOutcome> {
    Written::Now(TriggerOutcome::Adopted(id))
}

pub(crate) async fn a_run_that_has_not_started_adopts_further_messages(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = exclusive(&stores, "deploy").await;
    let id = made(&stores, task, "m1").await;
    assert_eq!(run(&stores, id).await.trigger, Trigger::Webhook);
    for message in ["m2", "m3"] {
        assert_eq!(deliver(&stores, task, message, 1).await, adopted(id));
    }
    for message in ["m1", "m2", "m3"] {
        assert_eq!(deliver(&stores, task, message, 1).await, replayed(id.as_uuid()));
        assert_eq!(deliver(&stores, task, message, 2).await, Written::Mismatch);
    }
    let unkeyed = now(stores.runs.trigger(&system(), &delivery(task)).await.unwrap());
    assert_eq!(unkeyed, TriggerOutcome::Adopted(id));
    let manual = now(stores.runs.trigger(&system(), &new_run(task)).await.unwrap());
    assert_eq!(manual, TriggerOutcome::Active(id), "only webhooks are adopted");
    assert_eq!(list(&stores, RunFilter::default()).await.len(), 1);

    let leased = lease_one(&stores, LONG).await;
    finish(&stores, &leased, Ending::Succeeded(None)).await;
    assert_eq!(deliver(&stores, task, "m2", 1).await, replayed(id.as_uuid()), "also after the run has ended");
    assert_ne!(made(&stores, task, "m4").await, id);
}

pub(crate) async fn a_run_that_somebody_else_asked_for_adopts_too(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = exclusive(&stores, "deploy").await;
    let delayed = trigger(&stores, NewRun { delay: LONG, ..new_run(task) }).await;
    assert_eq!(deliver(&stores, task, "m1", 1).await, adopted(delayed));
    let delayed = run(&stores, delayed).await;
    assert_eq!((delayed.state, delayed.trigger), (RunState::Scheduled, Trigger::Manual), "it stays as it was");
    stores.runs.cancel(&system(), delayed.id).await.unwrap();
    let queued = trigger(&stores, new_run(task)).await;
    assert_eq!(deliver(&stores, task, "m2", 1).await, adopted(queued));
}

pub(crate) async fn a_waiting_run_adopts(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let keyed = |name: &str| {
        let concurrency = Concurrency { key: "k".parse().unwrap(), max: 1 };
        spec(name, |spec| spec.concurrency = Some(concurrency))
    };
    let holder = create(&stores, &keyed("holder")).await.id;
    let task = create(&stores, &keyed("waiting")).await.id;
    let ids = [trigger(&stores, new_run(holder)).await, trigger(&stores, new_run(task)).await];
    lease_one(&stores, LONG).await;
    assert_eq!(states(&stores, &ids).await, [RunState::Running, RunState::Waiting]);
    let lone = spec("waiting", |spec| spec.overlap = Overlap::Skip);
    let outcome = stores.tasks.update(&system(), task, 1, &lone).await.unwrap();
    assert!(matches!(outcome, TaskUpdateOutcome::Updated(_)), "{outcome:?}");
    assert_eq!(deliver(&stores, task, "m1", 1).await, adopted(ids[1]));
}

pub(crate) async fn a_running_run_refuses_and_keeps_no_claim(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = exclusive(&stores, "deploy").await;
    let id = made(&stores, task, "m1").await;
    let leased = lease_one(&stores, LONG).await;
    for _ in 0..2 {
        assert_eq!(deliver(&stores, task, "m2", 1).await, Written::Now(TriggerOutcome::Active(id)));
    }
    assert_eq!(deliver(&stores, task, "m1", 1).await, replayed(id.as_uuid()), "it made this run");
    finish(&stores, &leased, Ending::Retry { error: "no".to_owned(), delay: LONG }).await;
    assert_eq!(run(&stores, id).await.state, RunState::Scheduled);
    let refused = deliver(&stores, task, "m2", 1).await;
    assert_eq!(refused, Written::Now(TriggerOutcome::Active(id)), "a run in back-off has started");
    stores.runs.cancel(&system(), id).await.unwrap();
    let second = made(&stores, task, "m2").await;
    assert_eq!(deliver(&stores, task, "m2", 1).await, replayed(second.as_uuid()));
}

pub(crate) async fn other_policies_adopt_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let allow = create(&stores, &spec("allow", |_| {})).await.id;
    let replace = create(&stores, &spec("replace", |spec| spec.overlap = Overlap::Replace)).await.id;
    let queue = spec("queue", |spec| {
        spec.overlap = Overlap::Queue;
        spec.queue_max = 2;
    });
    let queue = create(&stores, &queue).await.id;
    let mut ids = Vec::new();
    for (name, task) in [("allow", allow), ("queue", queue), ("replace", replace)] {
        for n in 0..2 {
            ids.push(made(&stores, task, &format!("{name} {n}")).await);
        }
    }
    assert_eq!(states(&stores, &ids[..4]).await, [RunState::Queued; 4]);
    assert_eq!(states(&stores, &ids[4..]).await, [RunState::Cancelled, RunState::Queued]);
    for _ in 0..2 {
        assert_eq!(deliver(&stores, queue, "full", 1).await, Written::Now(TriggerOutcome::QueueFull));
    }
    stores.runs.cancel(&system(), ids[2]).await.unwrap();
    made(&stores, queue, "full").await;
}

pub(crate) async fn equal_deliveries_make_one_run(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let allow = create(&stores[0], &spec("allow", |_| {})).await.id;
    let skip = exclusive(&stores[0], "skip").await;
    for task in [allow, skip] {
        let outcomes =
            contend(&stores, 20, |stores, _| async move { deliver(&stores, task, &task.to_string(), 1).await }).await;
        let runs = list(&stores[0], RunFilter { task_id: Some(task), state: None }).await;
        assert_eq!(runs.len(), 1);
        let created = Written::Now(TriggerOutcome::Created(runs[0].id));
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == created).count(), 1);
        let replayed = replayed(runs[0].id.as_uuid());
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == replayed).count(), 19);
    }
}

pub(crate) async fn different_messages_at_once_share_one_run(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let task = exclusive(&stores[0], "deploy").await;
    let outcomes =
        contend(&stores, 20, |stores, n| async move { deliver(&stores, task, &format!("m{n}"), 1).await }).await;
    let runs = list(&stores[0], RunFilter::default()).await;
    assert_eq!(runs.len(), 1);
    let id = runs[0].id;
    let created = Written::Now(TriggerOutcome::Created(id));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == created).count(), 1);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == adopted(id)).count(), 19);
    for n in 0..20 {
        assert_eq!(deliver(&stores[1], task, &format!("m{n}"), 1).await, replayed(id.as_uuid()));
    }
}

/// Executes runs until told to stop.
async fn work(stores: Stores, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        let leased = lease(&stores, 1, LONG).await;
        for leased in &leased {
            finish(&stores, leased, Ending::Succeeded(None)).await;
        }
        Patience::new().wait(&leased).await;
    }
}

pub(crate) async fn an_adopted_message_is_carried_out_by_a_run_that_starts_later(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let task = exclusive(&stores[0], "deploy").await;
    let stop = Arc::new(AtomicBool::new(false));
    let delivering = async {
        let carried = contend(&stores, 6, |stores, n| async move {
            let mut carried = Vec::new();
            for message in 0..15 {
                let before = database_time(&stores).await;
                match now(deliver(&stores, task, &format!("{n}.{message}"), 1).await) {
                    TriggerOutcome::Created(id) | TriggerOutcome::Adopted(id) => carried.push((id, before)),
                    TriggerOutcome::Active(_) => {}
                    other => panic!("neither carried out nor refused: {other:?}"),
                }
            }
            carried
        })
        .await;
        stop.store(true, Ordering::SeqCst);
        carried
    };
    let (carried, ()) = futures_util::future::join(delivering, work(stores[1].clone(), stop.clone())).await;
    for (id, before) in carried.into_iter().flatten() {
        let started_at = run(&stores[0], id).await.started_at;
        assert!(started_at.is_none_or(|at| at >= before), "{started_at:?} is before {before}");
    }
}
