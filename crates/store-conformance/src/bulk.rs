//! Many runs and many tasks in one commit: outcomes in order, each seeing the ones before it.

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::{NewRun, RunState};
use switchboard_model::span::Span;
use switchboard_model::task::{Overlap, TaskSpec};
use switchboard_store_api::{Stores, TaskCreateOutcome, TriggerOutcome, WriteContext, Written};

use crate::Backend;
use crate::fixtures::{
    ALL, HOUR, LONG, Reader, contend, create, in_state, new_run, now, once, replicas, run, scheduled, spec, states,
    system, task, trigger,
};

async fn trigger_many(stores: &Stores, runs: &[NewRun]) -> Vec<TriggerOutcome> {
    now(stores.runs.trigger_many(&system(), runs).await.unwrap())
}

fn keyed(task: TaskId, key: &str) -> NewRun {
    NewRun { dedupe_key: Some(key.parse().unwrap()), ..new_run(task) }
}

pub(crate) async fn many_runs_are_made_in_order_each_seeing_the_ones_before(backend: &dyn Backend) {
    let stores = backend.stores().await;
    assert_eq!(trigger_many(&stores, &[]).await, []);
    let heavy = create(&stores, &spec("heavy", |spec| spec.pool = "heavy".parse().unwrap())).await;
    let plain = create(&stores, &spec("plain", |_| {})).await;
    let before = trigger(&stores, keyed(plain.id, "old")).await;
    let runs = [
        new_run(plain.id),
        new_run(TaskId::new()),
        keyed(plain.id, "new"),
        keyed(heavy.id, "new"),
        keyed(plain.id, "new"),
        keyed(plain.id, "old"),
        NewRun { delay: LONG, ..new_run(heavy.id) },
    ];
    let mut signals = Reader::start(&stores).await;
    let created = |n: usize| TriggerOutcome::Created(runs[n].id);
    assert_eq!(
        trigger_many(&stores, &runs).await,
        [
            created(0),
            TriggerOutcome::TaskNotFound,
            created(2),
            created(3),
            TriggerOutcome::Duplicate(runs[2].id),
            TriggerOutcome::Duplicate(before),
            created(6),
        ]
    );
    let made = states(&stores, &[runs[0].id, runs[2].id, runs[3].id, runs[6].id]).await;
    assert_eq!(made, [RunState::Queued, RunState::Queued, RunState::Queued, RunState::Scheduled]);
    assert_eq!(run(&stores, runs[3].id).await.pool.as_str(), "heavy");
    for n in [1, 4, 5] {
        assert_eq!(stores.runs.get(runs[n].id).await.unwrap(), None);
    }
    let pools = ["default", "heavy"].map(|pool| (SignalKind::PoolQueued, pool.to_owned()));
    assert_eq!(signals.changes().await, pools);
}

pub(crate) async fn policies_hold_within_one_request_too(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let of = async |name: &str, overlap, queue_max| {
        let wanted = spec(name, |spec| (spec.overlap, spec.queue_max) = (overlap, queue_max));
        create(&stores, &wanted).await.id
    };
    let (skip, queue) = (of("skip", Overlap::Skip, 1).await, of("queue", Overlap::Queue, 2).await);
    let replace = of("replace", Overlap::Replace, 1).await;
    let runs = [skip, queue, replace, skip, queue, replace, queue].map(new_run);
    let created = |n: usize| TriggerOutcome::Created(runs[n].id);
    let outcomes = trigger_many(&stores, &runs).await;
    let active = TriggerOutcome::Active(runs[0].id);
    let expected = [created(0), created(1), created(2), active, created(4), created(5), TriggerOutcome::QueueFull];
    assert_eq!(outcomes, expected);
    assert_eq!(states(&stores, &[runs[2].id, runs[5].id]).await, [RunState::Cancelled, RunState::Queued]);
}

pub(crate) async fn a_repeated_request_for_many_runs_is_replayed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let plain = create(&stores, &spec("plain", |_| {})).await;
    let first = [new_run(plain.id), new_run(TaskId::new())];
    let outcomes = now(stores.runs.trigger_many(&once("k", 1, HOUR), &first).await.unwrap());
    assert_eq!(outcomes, [TriggerOutcome::Created(first[0].id), TriggerOutcome::TaskNotFound]);
    let second = [new_run(plain.id), new_run(TaskId::new())];
    let Written::Replayed(record) = stores.runs.trigger_many(&once("k", 1, HOUR), &second).await.unwrap() else {
        panic!("the second request is a repetition")
    };
    assert_eq!(record.result.unwrap().decode::<Vec<TriggerOutcome>>().unwrap(), outcomes);
    assert_eq!(stores.runs.trigger_many(&once("k", 2, HOUR), &second).await.unwrap(), Written::Mismatch);
    assert_eq!(in_state(&stores, RunState::Queued).await.len(), 1);
}

pub(crate) async fn a_request_that_makes_nothing_keeps_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let plain = create(&stores, &spec("plain", |_| {})).await;
    let outcomes = now(stores.runs.trigger_many(&once("k", 1, HOUR), &[new_run(TaskId::new())]).await.unwrap());
    assert_eq!(outcomes, [TriggerOutcome::TaskNotFound]);
    let run = new_run(plain.id);
    let outcomes = now(stores.runs.trigger_many(&once("k", 1, HOUR), std::slice::from_ref(&run)).await.unwrap());
    assert_eq!(outcomes, [TriggerOutcome::Created(run.id)]);
}

pub(crate) async fn ten_thousand_runs_of_many_tasks_are_made_at_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut tasks = Vec::new();
    for n in 0..10 {
        tasks.push(create(&stores, &spec(&format!("task-{n}"), |_| {})).await.id);
    }
    let run = |n: usize| match n % 2 {
        0 => new_run(tasks[n % 10]),
        _ => keyed(tasks[n % 10], &format!("key-{n}")),
    };
    let runs: Vec<NewRun> = (0..10_000).map(run).collect();
    let expected: Vec<_> = runs.iter().map(|run| TriggerOutcome::Created(run.id)).collect();
    assert_eq!(trigger_many(&stores, &runs).await, expected);
    assert_eq!(in_state(&stores, RunState::Queued).await.len(), runs.len());
}

pub(crate) async fn a_full_queue_refuses_thousands_at_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let longest = spec("queue", |spec| (spec.overlap, spec.queue_max) = (Overlap::Queue, TaskSpec::MOST_QUEUED));
    let task = create(&stores, &longest).await.id;
    let runs: Vec<NewRun> = (0..4_000).map(|_| new_run(task)).collect();
    let (made, refused) = runs.split_at(TaskSpec::MOST_QUEUED as usize);
    let mut expected: Vec<_> = made.iter().map(|run| TriggerOutcome::Created(run.id)).collect();
    expected.extend(refused.iter().map(|_| TriggerOutcome::QueueFull));
    assert_eq!(trigger_many(&stores, &runs).await, expected);
    assert_eq!(in_state(&stores, RunState::Queued).await.len(), made.len());
}

async fn create_many(
    stores: &Stores,
    context: &WriteContext,
    specs: &[TaskSpec],
) -> (Vec<TaskId>, Written<Vec<TaskCreateOutcome>>) {
    let tasks: Vec<_> = specs.iter().map(|spec| (TaskId::new(), spec.clone())).collect();
    let outcomes = stores.tasks.create_many(context, &tasks).await.unwrap();
    (tasks.into_iter().map(|(id, _)| id).collect(), outcomes)
}

pub(crate) async fn many_tasks_are_created_in_order_each_seeing_the_ones_before(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let taken = create(&stores, &spec("taken", |_| {})).await;
    let specs = [
        scheduled("a", |_| {}),
        spec("taken", |_| {}),
        spec("bad", |spec| spec.max_attempts = 0),
        spec("a", |_| {}),
        scheduled("b", |spec| spec.is_active = false),
        spec("bad", |_| {}),
    ];
    let mut signals = Reader::start(&stores).await;
    let (ids, outcomes) = create_many(&stores, &system(), &specs).await;
    let outcomes = now(outcomes);
    for n in [0, 4, 5] {
        let TaskCreateOutcome::Created(created) = &outcomes[n] else { panic!("{n} must be created") };
        assert_eq!((created.id, &created.spec), (ids[n], &specs[n]));
        assert_eq!(task(&stores, ids[n]).await, *created);
    }
    assert_eq!(outcomes[1], TaskCreateOutcome::NameTaken(taken.id));
    assert!(matches!(&outcomes[2], TaskCreateOutcome::Refused(error) if error.field == "max_attempts"));
    assert_eq!(outcomes[3], TaskCreateOutcome::NameTaken(ids[0]));
    assert!(task(&stores, ids[0]).await.next_run_at.is_some());
    assert_eq!(signals.changes().await, [(SignalKind::TaskChanged, "*".to_owned())]);
}

pub(crate) async fn a_repeated_request_for_many_tasks_is_replayed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let specs = [spec("a", |_| {}), spec("a", |_| {}), spec("b", |_| {})];
    let (ids, _) = create_many(&stores, &once("k", 1, HOUR), &specs).await;
    let (_, again) = create_many(&stores, &once("k", 1, HOUR), &specs).await;
    let Written::Replayed(record) = again else { panic!("the second request is a repetition") };
    assert_eq!(record.result_id, ids[0].as_uuid());
    let remembered: Vec<Option<TaskId>> = record.result.unwrap().decode().unwrap();
    assert_eq!(remembered, [Some(ids[0]), None, Some(ids[2])]);
    assert_eq!(stores.tasks.list(&ALL).await.unwrap().items.len(), 2);
}

pub(crate) async fn racing_requests_for_the_same_keys_agree(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    let task = create(&stores[0], &spec("raced", |_| {})).await.id;
    let key = |n: usize| format!("key-{}", n % 50);
    let outcomes = contend(&stores, 6, move |stores, contender| async move {
        // Half of them ask in the opposite order.
        let order = (0..100).map(|n| if contender % 2 == 0 { n } else { 99 - n });
        let runs: Vec<NewRun> = order.map(|n| NewRun { delay: Span::default(), ..keyed(task, &key(n)) }).collect();
        trigger_many(&stores, &runs).await
    })
    .await;
    let made: Vec<RunId> = in_state(&stores[0], RunState::Queued).await.into_iter().map(|run| run.id).collect();
    assert_eq!(made.len(), 50);
    for outcome in outcomes.into_iter().flatten() {
        let (TriggerOutcome::Created(id) | TriggerOutcome::Duplicate(id)) = outcome else {
            panic!("unexpected {outcome:?}")
        };
        assert!(made.contains(&id), "every answer names a run that exists");
    }
}
