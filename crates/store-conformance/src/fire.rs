//! Firing: plans become runs and skipped ranges exactly once, under the overlap policy.

use chrono::TimeDelta;
use switchboard_model::fire::{MISFIRE_GRACE, PlannedRun, plan as plan_due};
use switchboard_model::ids::TaskId;
use switchboard_model::page::PageRequest;
use switchboard_model::run::{Ending, Run, RunState, SkipCause, SkipRange, Trigger};
use switchboard_model::schedule::Schedule;
use switchboard_model::span::Span;
use switchboard_model::task::Overlap;
use switchboard_store_api::{FireReport, RunFilter, Stores, TaskUpdateOutcome};

use crate::Backend;
use crate::fixtures::{
    ALL, LONG, create, database_time, every, finish, fired, lease_one, list, occurrence, plan, run, scheduled, spec,
    system, task, until, wait_past,
};

/// Reads the runs of a task, oldest occurrence first.
async fn runs_of(stores: &Stores, id: TaskId) -> Vec<Run> {
    let mut runs = list(stores, RunFilter { task_id: Some(id), state: None }).await;
    runs.sort_by_key(|run| run.scheduled_for);
    runs
}

/// Reads how many occurrences were skipped for one cause.
async fn skipped(stores: &Stores, id: TaskId, cause: SkipCause) -> u64 {
    let skips = stores.tasks.skips(id, &ALL).await.unwrap().items;
    skips.iter().filter(|skip| skip.cause == cause).map(|skip| skip.count).sum()
}

pub(crate) async fn due_returns_the_longest_due_first_and_nothing_early(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let start = database_time(&stores).await;
    let mut ids = Vec::new();
    for (name, after_ms) in [("third", 500), ("first", 300), ("second", 400)] {
        let at = start + TimeDelta::milliseconds(after_ms);
        let made = create(&stores, &spec(name, |spec| spec.schedule = Some(Schedule::At(at)))).await;
        ids.push(made.id);
    }
    create(&stores, &scheduled("later", |_| {})).await;
    wait_past(&stores, start + TimeDelta::milliseconds(500)).await;

    let due = stores.tasks.due(10).await.unwrap();
    assert!(due.tasks.iter().all(|task| task.next_run_at <= due.now));
    let found: Vec<_> = due.tasks.iter().map(|task| task.id).collect();
    assert_eq!(found, [ids[1], ids[2], ids[0]]);
    let longest = stores.tasks.due(1).await.unwrap().tasks;
    assert_eq!(longest.len(), 1);
    assert_eq!(longest[0], due.tasks[0]);
}

pub(crate) async fn a_plan_inserts_its_runs_and_skips_and_advances_the_task(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = scheduled("fired", |spec| {
        spec.priority = 7;
        spec.pool = "heavy".parse().unwrap();
        spec.max_attempts = 4;
    });
    let before = create(&stores, &wanted).await;
    let mut plan = plan(&before, 2, 2);
    plan.runs.insert(0, PlannedRun { scheduled_for: occurrence(1), is_catch_up: true });
    let missed = SkipRange { from: occurrence(0), to: occurrence(0), count: 1, cause: SkipCause::Missed };
    plan.skips.push(missed.clone());
    let report = stores.tasks.fire(std::slice::from_ref(&plan)).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 3, skipped: 1 });

    let after = task(&stores, before.id).await;
    assert_eq!((after.next_run_at, after.spec.is_active), (plan.next_run_at, true));
    assert_eq!(stores.tasks.skips(before.id, &ALL).await.unwrap().items, [missed]);
    let runs = runs_of(&stores, before.id).await;
    let triggers: Vec<_> = runs.iter().map(|run| (run.scheduled_for, run.trigger)).collect();
    assert_eq!(
        triggers,
        [
            (Some(occurrence(1)), Trigger::CatchUp),
            (Some(occurrence(2)), Trigger::Schedule),
            (Some(occurrence(3)), Trigger::Schedule),
        ]
    );
    for run in &runs {
        assert_eq!((run.state, run.attempt, run.max_attempts), (RunState::Queued, 0, 4));
        assert_eq!((run.priority, run.pool.as_str(), run.input.as_ref()), (7, "heavy", None));
    }
}

pub(crate) async fn a_plan_takes_effect_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let before = create(&stores, &scheduled("once", |_| {})).await;
    let plan = plan(&before, 0, 3);
    assert_eq!(stores.tasks.fire(std::slice::from_ref(&plan)).await.unwrap().fired, 1);
    let again = stores.tasks.fire(std::slice::from_ref(&plan)).await.unwrap();
    assert_eq!(again, FireReport { fired: 0, lost: 1, runs: 0, skipped: 0 });
    assert_eq!(runs_of(&stores, before.id).await.len(), 3);
}

pub(crate) async fn an_occurrence_that_has_a_run_gets_no_second_one(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let before = fired(&stores, &scheduled("twice", |_| {}), 3).await;
    let report = stores.tasks.fire(&[plan(&task(&stores, before.id).await, 2, 2)]).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 1, skipped: 0 });
    assert_eq!(runs_of(&stores, before.id).await.len(), 4);
}

pub(crate) async fn plans_of_tasks_that_changed_are_dropped_and_the_others_applied(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut plans = Vec::new();
    let mut tasks = Vec::new();
    for name in ["kept", "edited", "paused", "deleted"] {
        let made = create(&stores, &scheduled(name, |_| {})).await;
        plans.push(plan(&made, 0, 2));
        tasks.push(made);
    }
    let edit = scheduled("edited", |spec| spec.priority = 1);
    let outcome = stores.tasks.update(&system(), tasks[1].id, 1, &edit).await.unwrap();
    assert!(matches!(outcome, TaskUpdateOutcome::Updated(_)));
    stores.tasks.set_active(&system(), tasks[2].id, false).await.unwrap();
    stores.tasks.delete(&system(), tasks[3].id).await.unwrap();

    let report = stores.tasks.fire(&plans).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 3, runs: 2, skipped: 0 });
    for (task, expected) in tasks.iter().zip([2, 0, 0, 0]) {
        assert_eq!(runs_of(&stores, task.id).await.len(), expected, "{}", task.spec.name);
    }
}

pub(crate) async fn a_task_without_a_next_occurrence_is_deactivated(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let at = database_time(&stores).await + TimeDelta::hours(1);
    let before = create(&stores, &spec("once", |spec| spec.schedule = Some(Schedule::At(at)))).await;
    assert_eq!(before.next_run_at, Some(at));
    let mut plan = plan(&before, 0, 1);
    plan.next_run_at = None;
    assert_eq!(stores.tasks.fire(&[plan]).await.unwrap().fired, 1);
    let after = task(&stores, before.id).await;
    assert_eq!((after.spec.is_active, after.next_run_at), (false, None));
    assert_eq!(stores.tasks.count_unarmed().await.unwrap(), 0);
}

pub(crate) async fn a_due_task_fires_by_its_own_schedule(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let made = create(&stores, &spec("ticking", |spec| spec.schedule = every(Span::from_millis(100)))).await;
    let due = until(|| async { stores.tasks.due(10).await.unwrap() }, |due| due.tasks.len() == 1).await;
    let plan = plan_due(due.tasks[0].clone(), due.now, MISFIRE_GRACE);
    let expected: Vec<_> = plan.runs.iter().map(|run| Some(run.scheduled_for)).collect();
    assert_eq!(expected[0], made.next_run_at);
    let report = stores.tasks.fire(std::slice::from_ref(&plan)).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: expected.len() as u64, skipped: 0 });
    let found: Vec<_> = runs_of(&stores, made.id).await.iter().map(|run| run.scheduled_for).collect();
    assert_eq!(found, expected);
    assert_eq!(task(&stores, made.id).await.next_run_at, plan.next_run_at);
}

pub(crate) async fn overlap_allow_inserts_beside_active_runs(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let made = fired(&stores, &scheduled("allow", |_| {}), 2).await;
    let report = stores.tasks.fire(&[plan(&task(&stores, made.id).await, 2, 2)]).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 2, skipped: 0 });
}

pub(crate) async fn overlap_skip_admits_one_run_and_records_the_rest(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = spec("skip", |spec| {
        spec.overlap = Overlap::Skip;
        spec.schedule = every(Span::from_secs(1));
    });
    let made = create(&stores, &wanted).await;
    let report = stores.tasks.fire(&[plan(&made, 0, 3)]).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 1, skipped: 2 });
    let report = stores.tasks.fire(&[plan(&task(&stores, made.id).await, 3, 2)]).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 0, skipped: 2 });
    let runs = runs_of(&stores, made.id).await;
    assert_eq!(runs.iter().map(|run| run.scheduled_for).collect::<Vec<_>>(), [Some(occurrence(0))]);
    let skips = stores.tasks.skips(made.id, &ALL).await.unwrap().items;
    let gone_on = SkipRange { from: occurrence(1), to: occurrence(4), count: 4, cause: SkipCause::Overlap };
    assert_eq!(skips, [gone_on], "a range is extended while its cause goes on");

    let leased = lease_one(&stores, LONG).await;
    finish(&stores, &leased, Ending::Succeeded(None)).await;
    let report = stores.tasks.fire(&[plan(&task(&stores, made.id).await, 5, 1)]).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 1, skipped: 0 });
}

pub(crate) async fn overlap_queue_inserts_up_to_its_maximum(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = scheduled("queue", |spec| {
        spec.overlap = Overlap::Queue;
        spec.queue_max = 3;
    });
    let made = create(&stores, &wanted).await;
    let report = stores.tasks.fire(&[plan(&made, 0, 2)]).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 2, skipped: 0 });
    let report = stores.tasks.fire(&[plan(&task(&stores, made.id).await, 2, 3)]).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 1, skipped: 2 });
    let runs = runs_of(&stores, made.id).await;
    assert_eq!(runs.iter().map(|run| run.scheduled_for).collect::<Vec<_>>(), [0, 1, 2].map(|n| Some(occurrence(n))));
    assert_eq!(skipped(&stores, made.id, SkipCause::Limit).await, 2);
}

pub(crate) async fn overlap_replace_cancels_active_runs_and_keeps_the_last(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let made = fired(&stores, &scheduled("replace", |spec| spec.overlap = Overlap::Replace), 1).await;
    let running = lease_one(&stores, LONG).await;
    let report = stores.tasks.fire(&[plan(&task(&stores, made.id).await, 1, 3)]).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 1, skipped: 2 });
    assert_eq!(skipped(&stores, made.id, SkipCause::Overlap).await, 2);
    let asked = run(&stores, running.id).await;
    assert_eq!(asked.state, RunState::Running);
    assert!(asked.cancel_requested_at.is_some());

    let report = stores.tasks.fire(&[plan(&task(&stores, made.id).await, 4, 1)]).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 1, skipped: 0 });
    let found: Vec<_> = runs_of(&stores, made.id).await.iter().map(|run| (run.scheduled_for, run.state)).collect();
    assert_eq!(
        found,
        [
            (Some(occurrence(0)), RunState::Running),
            (Some(occurrence(3)), RunState::Cancelled),
            (Some(occurrence(4)), RunState::Queued),
        ],
        "a replaced run that had not started ends at once"
    );
}

pub(crate) async fn skipped_ranges_are_listed_newest_first(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let made = create(&stores, &scheduled("gaps", |_| {})).await;
    let range = |n: u32| SkipRange { from: occurrence(n), to: occurrence(n + 4), count: 5, cause: SkipCause::Missed };
    for n in [0, 10, 20] {
        let mut plan = plan(&task(&stores, made.id).await, n + 5, 1);
        plan.skips.push(range(n));
        assert_eq!(stores.tasks.fire(&[plan]).await.unwrap().skipped, 5);
    }
    let first = stores.tasks.skips(made.id, &PageRequest { after: None, limit: 2 }).await.unwrap();
    assert_eq!(first.items, [range(20), range(10)]);
    let page = PageRequest { after: first.next_cursor, limit: 2 };
    let second = stores.tasks.skips(made.id, &page).await.unwrap();
    assert_eq!((second.items, second.next_cursor), (vec![range(0)], None));
}
