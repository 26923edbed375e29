//! Task definitions: creation, edits, pausing, deletion and lists.

use chrono::TimeDelta;
use switchboard_model::ids::TaskId;
use switchboard_model::page::PageRequest;
use switchboard_model::run::{RunState, SkipCause};
use switchboard_model::schedule::Schedule;
use switchboard_model::span::Span;
use switchboard_model::task::{MissedPolicy, Overlap};
use switchboard_store_api::{TaskCreateOutcome, TaskUpdateOutcome, TriggerOutcome};

use crate::Backend;
use crate::fixtures::{
    ALL, LONG, create, every, lease_one, new_run, now, plan, run, scheduled, spec, system, task, trigger, wait_past,
};

pub(crate) async fn a_created_task_reads_back_as_it_was_given(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = scheduled("nightly/report", |spec| {
        spec.missed = MissedPolicy::CatchUp { max: 7, window: Span::from_secs(3600) };
        spec.overlap = Overlap::Queue;
        spec.queue_max = 3;
        spec.timeout = Some(Span::from_millis(1_500));
        spec.max_attempts = 9;
        spec.priority = -4;
        spec.pool = "heavy".parse().unwrap();
    });
    let created = create(&stores, &wanted).await;
    assert_eq!(created.spec, wanted);
    assert_eq!((created.version, &created.parked), (1, &None));
    assert_eq!(created.created_at, created.updated_at);
    assert_eq!(task(&stores, created.id).await, created);
    assert_eq!(stores.tasks.find(&wanted.name).await.unwrap(), Some(created));
    assert_eq!(stores.tasks.get(TaskId::new()).await.unwrap(), None);
    assert_eq!(stores.tasks.find(&"other".parse().unwrap()).await.unwrap(), None);
}

pub(crate) async fn creation_arms_the_schedule_and_anchors_it(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let hourly = create(&stores, &spec("hourly", |spec| spec.schedule = every(Span::from_secs(3600)))).await;
    let next = hourly.next_run_at.unwrap();
    assert_eq!(Some(next), hourly.spec.schedule.clone().unwrap().next_after(hourly.created_at));

    let unanchored: Schedule = serde_json::from_str(r#"{"every":{"interval":"1h"}}"#).unwrap();
    let anchored = create(&stores, &spec("anchored", |spec| spec.schedule = Some(unanchored))).await;
    assert_eq!(anchored.next_run_at, Some(anchored.created_at + TimeDelta::hours(1)));
    let Some(Schedule::Every(stored)) = anchored.spec.schedule else { panic!("an interval expected") };
    assert_eq!(stored.anchor, Some(anchored.created_at));

    let triggered_only = create(&stores, &spec("triggered", |_| {})).await;
    assert_eq!(triggered_only.next_run_at, None);
    let paused = create(&stores, &scheduled("paused", |spec| spec.is_active = false)).await;
    assert!(!paused.spec.is_active);
    assert_eq!(stores.tasks.count_unarmed().await.unwrap(), 0);
}

pub(crate) async fn names_are_unique_among_tasks_that_are_not_deleted(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let first = create(&stores, &spec("name", |_| {})).await;
    let again = spec("name", |spec| spec.priority = 5);
    let outcome = now(stores.tasks.create(&system(), TaskId::new(), &again).await.unwrap());
    assert_eq!(outcome, TaskCreateOutcome::NameTaken(first.id));
    assert_eq!(task(&stores, first.id).await, first);

    assert!(stores.tasks.delete(&system(), first.id).await.unwrap());
    let second = create(&stores, &again).await;
    assert_eq!(stores.tasks.find(&again.name).await.unwrap(), Some(second));
}

pub(crate) async fn a_refused_definition_names_its_field_and_stores_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let bad = spec("bad", |spec| spec.max_attempts = 0);
    let TaskCreateOutcome::Refused(error) = now(stores.tasks.create(&system(), TaskId::new(), &bad).await.unwrap())
    else {
        panic!("the definition must be refused")
    };
    assert_eq!(error.field, "max_attempts");
    assert_eq!(stores.tasks.find(&bad.name).await.unwrap(), None);

    let good = create(&stores, &spec("good", |_| {})).await;
    let short = spec("good", |spec| spec.schedule = every(Span::from_millis(1)));
    let outcome = stores.tasks.update(&system(), good.id, 1, &short).await.unwrap();
    let TaskUpdateOutcome::Refused(error) = outcome else { panic!("the edit must be refused: {outcome:?}") };
    assert_eq!(error.field, "schedule");
    assert_eq!(task(&stores, good.id).await, good);
}

pub(crate) async fn an_edit_needs_the_version_that_was_read(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let before = create(&stores, &spec("edited", |_| {})).await;
    let wanted = spec("renamed", |spec| spec.priority = 3);
    let outcome = stores.tasks.update(&system(), before.id, 2, &wanted).await.unwrap();
    assert_eq!(outcome, TaskUpdateOutcome::VersionMismatch(1));
    assert_eq!(task(&stores, before.id).await, before);

    let TaskUpdateOutcome::Updated(after) = stores.tasks.update(&system(), before.id, 1, &wanted).await.unwrap() else {
        panic!("the edit must be accepted")
    };
    assert_eq!((after.version, &after.spec, after.created_at), (2, &wanted, before.created_at));
    assert!(after.updated_at >= before.updated_at);
    assert_eq!(task(&stores, before.id).await, after);
    assert_eq!(stores.tasks.find(&before.spec.name).await.unwrap(), None);
    let outcome = stores.tasks.update(&system(), TaskId::new(), 1, &wanted).await.unwrap();
    assert_eq!(outcome, TaskUpdateOutcome::NotFound);
}

pub(crate) async fn an_edit_cannot_take_the_name_of_another_task(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let first = create(&stores, &spec("first", |_| {})).await;
    let second = create(&stores, &spec("second", |_| {})).await;
    let outcome = stores.tasks.update(&system(), second.id, 1, &spec("first", |_| {})).await.unwrap();
    assert_eq!(outcome, TaskUpdateOutcome::NameTaken(first.id));
    assert_eq!(task(&stores, second.id).await, second);
}

pub(crate) async fn an_edit_moves_the_next_occurrence_only_if_schedule_or_policy_changed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let old = scheduled("moving", |_| {});
    let before = create(&stores, &old).await;
    let update = async |expected: i64, wanted| match stores
        .tasks
        .update(&system(), before.id, expected, wanted)
        .await
        .unwrap()
    {
        TaskUpdateOutcome::Updated(task) => task,
        other => panic!("edit not accepted: {other:?}"),
    };
    assert_eq!(update(1, &old).await, before, "an edit without a change changes nothing");

    // Firing moved the task away from where a recomputation would put it.
    stores.tasks.fire(&[plan(&before, 0, 1)]).await.unwrap();
    let moved = task(&stores, before.id).await;
    let unrelated = scheduled("moving", |spec| spec.priority = 1);
    let after = update(moved.version, &unrelated).await;
    assert_eq!((after.next_run_at, after.version), (moved.next_run_at, moved.version + 1));

    let policy = scheduled("moving", |spec| spec.missed = MissedPolicy::Skip);
    let after = update(after.version, &policy).await;
    assert_eq!(after.next_run_at, before.next_run_at, "recomputed from now");

    let hourly = spec("moving", |spec| spec.schedule = every(Span::from_secs(3600)));
    let after = update(after.version, &hourly).await;
    assert_eq!(after.next_run_at, after.spec.schedule.clone().unwrap().next_after(after.updated_at));

    let none = update(after.version, &spec("moving", |_| {})).await;
    assert_eq!(none.next_run_at, None);
    assert_eq!(stores.tasks.count_unarmed().await.unwrap(), 0);
}

pub(crate) async fn a_schedule_given_without_an_anchor_keeps_the_one_it_had(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let unanchored = |interval: &str| {
        let text = format!(r#"{{"every":{{"interval":"{interval}"}}}}"#);
        spec("anchored", |spec| spec.schedule = Some(serde_json::from_str(&text).unwrap()))
    };
    let before = create(&stores, &unanchored("1h")).await;
    let outcome = stores.tasks.update(&system(), before.id, 1, &unanchored("1h")).await.unwrap();
    assert_eq!(outcome, TaskUpdateOutcome::Updated(before.clone()));

    let outcome = stores.tasks.update(&system(), before.id, 1, &unanchored("2h")).await.unwrap();
    let TaskUpdateOutcome::Updated(after) = outcome else { panic!("edit not accepted: {outcome:?}") };
    let Some(Schedule::Every(every)) = &after.spec.schedule else { panic!("an interval expected") };
    assert_eq!(every.anchor, Some(after.updated_at));
    assert_eq!(after.next_run_at, Some(after.updated_at + TimeDelta::hours(2)));
}

pub(crate) async fn a_pause_is_recorded_as_one_skipped_range(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let interval = Span::from_millis(200);
    let wanted = spec("paused", |spec| (spec.schedule, spec.missed) = (every(interval), MissedPolicy::Skip));
    let before = create(&stores, &wanted).await;
    let first = before.next_run_at.unwrap();
    let paused = stores.tasks.set_active(&system(), before.id, false).await.unwrap().unwrap();
    assert!(!paused.spec.is_active);
    wait_past(&stores, first + interval.to_delta() * 2).await;
    assert_eq!(stores.tasks.due(10).await.unwrap().tasks, [], "a paused task is never due");

    let resumed = stores.tasks.set_active(&system(), before.id, true).await.unwrap().unwrap();
    assert!(resumed.spec.is_active);
    let next = resumed.next_run_at.unwrap();
    assert!(next > first + interval.to_delta() * 2);
    let skips = stores.tasks.skips(before.id, &ALL).await.unwrap().items;
    let [skip] = skips.as_slice() else { panic!("one range expected, found {skips:?}") };
    assert_eq!((skip.cause, skip.from, skip.to), (SkipCause::Paused, first, next - interval.to_delta()));
    assert_eq!(skip.count, (next - first).num_milliseconds().unsigned_abs() / interval.as_millis());
    assert_eq!(stores.tasks.count_unarmed().await.unwrap(), 0);
    assert_eq!(stores.tasks.set_active(&system(), TaskId::new(), true).await.unwrap(), None);
}

pub(crate) async fn pausing_twice_and_resuming_twice_change_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let before = create(&stores, &scheduled("paused", |_| {})).await;
    let resumed = stores.tasks.set_active(&system(), before.id, true).await.unwrap().unwrap();
    assert_eq!(resumed.next_run_at, before.next_run_at);
    for _ in 0..2 {
        let paused = stores.tasks.set_active(&system(), before.id, false).await.unwrap().unwrap();
        assert!(!paused.spec.is_active);
    }
    for _ in 0..2 {
        let resumed = stores.tasks.set_active(&system(), before.id, true).await.unwrap().unwrap();
        assert_eq!((resumed.spec.is_active, resumed.next_run_at), (true, before.next_run_at));
    }
    assert_eq!(stores.tasks.skips(before.id, &ALL).await.unwrap().items, []);
}

pub(crate) async fn a_paused_task_can_be_triggered(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let paused = create(&stores, &scheduled("paused", |spec| spec.is_active = false)).await;
    let id = trigger(&stores, new_run(paused.id)).await;
    assert_eq!(lease_one(&stores, LONG).await.id, id);
}

pub(crate) async fn a_deleted_task_is_gone_but_its_active_runs_go_on(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let doomed = create(&stores, &scheduled("doomed", |_| {})).await;
    let id = trigger(&stores, new_run(doomed.id)).await;
    assert!(stores.tasks.delete(&system(), doomed.id).await.unwrap());
    assert!(!stores.tasks.delete(&system(), doomed.id).await.unwrap());

    assert_eq!(stores.tasks.get(doomed.id).await.unwrap(), None);
    assert_eq!(stores.tasks.find(&doomed.spec.name).await.unwrap(), None);
    assert_eq!(stores.tasks.list(&ALL).await.unwrap().items, []);
    let outcome = stores.tasks.update(&system(), doomed.id, 1, &doomed.spec).await.unwrap();
    assert_eq!(outcome, TaskUpdateOutcome::NotFound);
    let outcome = now(stores.runs.trigger(&system(), &new_run(doomed.id)).await.unwrap());
    assert_eq!(outcome, TriggerOutcome::TaskNotFound);
    assert_eq!(stores.tasks.count_unarmed().await.unwrap(), 0);

    let leased = lease_one(&stores, LONG).await;
    assert_eq!((leased.id, leased.task_name), (id, doomed.spec.name));
    assert_eq!(run(&stores, id).await.state, RunState::Running);
}

pub(crate) async fn lists_go_through_all_tasks_in_the_order_of_creation(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut created = Vec::new();
    for name in ["d", "a", "c", "b", "e"] {
        created.push(create(&stores, &spec(name, |_| {})).await);
    }
    let mut page = PageRequest { after: None, limit: 2 };
    let mut found = Vec::new();
    for expected in [2, 2, 1] {
        let next = stores.tasks.list(&page).await.unwrap();
        assert_eq!(next.items.len(), expected);
        found.extend(next.items);
        page.after = next.next_cursor;
    }
    assert_eq!(page.after, None);
    assert_eq!(found, created);
}
