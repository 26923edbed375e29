//! What became of occurrences, as the stores keep it: runs, skipped ranges, and the schedules they are counted by.

use chrono::TimeDelta;
use switchboard_model::Timestamp;
use switchboard_model::fire::{FirePlan, MISFIRE_GRACE, plan as plan_due};
use switchboard_model::run::{RunState, SkipCause, SkipRange, Trigger};
use switchboard_model::span::Span;
use switchboard_model::task::{MissedPolicy, Overlap, Task, TaskSpec};
use switchboard_store_api::{OccurrenceRange, RunFilter, Stores, TaskUpdateOutcome};

use crate::Backend;
use crate::fixtures::{ALL, create, database_time, every, list, occurrence, plan, scheduled, spec, system, task};

fn range(from: u32, to: u32, limit: u32) -> OccurrenceRange {
    OccurrenceRange { from: occurrence(from), to: occurrence(to), limit }
}

pub(crate) async fn runs_and_skips_of_a_range_are_found(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let made = create(&stores, &scheduled("found", |_| {})).await;
    let skip = |from, to| SkipRange {
        from: occurrence(from),
        to: occurrence(to),
        count: u64::from(to - from) + 1,
        cause: SkipCause::Missed,
    };
    for (first, skipped) in [(0, skip(5, 9)), (10, skip(15, 19))] {
        let fired = FirePlan { skips: vec![skipped], ..plan(&task(&stores, made.id).await, first, 5) };
        stores.tasks.fire(&[fired]).await.unwrap();
    }
    let runs = stores.runs.of_occurrences(made.id, &range(3, 12, 100)).await.unwrap();
    let found: Vec<_> = runs.iter().map(|run| (run.scheduled_for, run.state, run.trigger)).collect();
    let queued = |n| (occurrence(n), RunState::Queued, Trigger::Schedule);
    assert_eq!(found, [12, 11, 10, 4, 3].map(queued));
    assert_eq!(stores.runs.of_occurrences(made.id, &range(3, 12, 2)).await.unwrap(), runs[..2]);

    let between = async |from, to, limit| {
        let skips = stores.tasks.skips_between(made.id, &range(from, to, limit)).await.unwrap();
        assert!(skips.iter().all(|skip| skip.schedule == made.spec.schedule), "the schedule is kept");
        skips.into_iter().map(|skip| skip.range).collect::<Vec<_>>()
    };
    assert_eq!(between(9, 15, 10).await, [skip(15, 19), skip(5, 9)]);
    assert_eq!(between(9, 15, 1).await, [skip(15, 19)]);
    assert_eq!(between(6, 7, 10).await, [skip(5, 9)]);
    assert_eq!(between(10, 14, 10).await, []);
    let whole = OccurrenceRange { from: Timestamp::MIN_UTC, to: Timestamp::MAX_UTC, limit: 100 };
    assert_eq!(stores.runs.of_occurrences(made.id, &whole).await.unwrap().len(), 10);
    assert_eq!(stores.tasks.skips_between(made.id, &whole).await.unwrap().len(), 2);
}

pub(crate) async fn a_range_grows_under_the_same_schedule_only(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = spec("grows", |spec| (spec.schedule, spec.overlap) = (every(Span::from_secs(1)), Overlap::Skip));
    let made = create(&stores, &wanted).await;
    stores.tasks.fire(&[plan(&made, 0, 3)]).await.unwrap();
    stores.tasks.fire(&[plan(&task(&stores, made.id).await, 3, 2)]).await.unwrap();
    let overlap =
        |from, to, count| SkipRange { from: occurrence(from), to: occurrence(to), count, cause: SkipCause::Overlap };
    assert_eq!(stores.tasks.skips(made.id, &ALL).await.unwrap().items, [overlap(1, 4, 4)]);

    let before = task(&stores, made.id).await;
    let half = TaskSpec { schedule: every(Span::from_millis(500)), ..wanted };
    let outcome = stores.tasks.update(&system(), made.id, before.version, &half).await.unwrap();
    let TaskUpdateOutcome::Updated(edited) = outcome else { panic!("edit not accepted: {outcome:?}") };
    stores.tasks.fire(&[plan(&edited, 5, 1)]).await.unwrap();
    let found = stores.tasks.skips_between(made.id, &range(0, 9, 10)).await.unwrap();
    assert_eq!(found.iter().map(|skip| skip.range.clone()).collect::<Vec<_>>(), [overlap(5, 5, 1), overlap(1, 4, 4)]);
    assert_eq!([&found[0].schedule, &found[1].schedule], [&half.schedule, &made.spec.schedule]);
}

/// Creates a task that has not fired for a while, and returns it with the first occurrence that it missed.
async fn overdue(stores: &Stores, wanted: &TaskSpec, since: TimeDelta) -> (Task, Timestamp) {
    let made = create(stores, wanted).await;
    let first = wanted.schedule.as_ref().unwrap().next_after(database_time(stores).await - since).unwrap();
    let back = FirePlan { next_run_at: Some(first), ..plan(&made, 0, 0) };
    assert_eq!(stores.tasks.fire(&[back]).await.unwrap().fired, 1);
    (task(stores, made.id).await, first)
}

/// Fires a task until nothing of it is due; checks that each of its occurrences from `first` on ran or was skipped, and
/// returns how many ran.
async fn caught_up(stores: &Stores, overdue: &Task, first: Timestamp) -> u64 {
    let schedule = overdue.spec.schedule.as_ref().unwrap();
    loop {
        let due = stores.tasks.due(10).await.unwrap();
        if due.tasks.is_empty() {
            break;
        }
        let plans: Vec<_> = due.tasks.into_iter().map(|task| plan_due(task, due.now, MISFIRE_GRACE)).collect();
        stores.tasks.fire(&plans).await.unwrap();
    }
    let next = task(stores, overdue.id).await.next_run_at.unwrap();
    let filter = RunFilter { task_id: Some(overdue.id), state: None };
    let runs: Vec<_> = list(stores, filter).await.into_iter().filter_map(|run| run.scheduled_for).collect();
    let skips = stores.tasks.skips(overdue.id, &ALL).await.unwrap().items;
    assert!(runs.iter().all(|at| !skips.iter().any(|skip| skip.from <= *at && *at <= skip.to)));
    let skipped: u64 = skips.iter().map(|skip| skip.count).sum();
    let all = schedule.between(first, next - TimeDelta::microseconds(1)).unwrap().count;
    assert_eq!(runs.len() as u64 + skipped, all, "each occurrence ran or was skipped");
    runs.len() as u64
}

pub(crate) async fn fourteen_days_down_are_complete_under_each_policy(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let catch_up = |max| MissedPolicy::CatchUp { max, window: Span::from_secs(7_200) };
    for (name, missed, kept) in [
        ("skip", MissedPolicy::Skip, 0),
        ("coalesce", MissedPolicy::Coalesce, 0),
        ("few", catch_up(50), 50),
        ("many", catch_up(1_100), 1_100),
    ] {
        let wanted = spec(name, |spec| (spec.missed, spec.schedule) = (missed, every(Span::from_secs(5))));
        let (task, first) = overdue(&stores, &wanted, TimeDelta::days(14)).await;
        let runs = caught_up(&stores, &task, first).await;
        assert!(runs >= kept + 11, "{name}: {runs}");
        stores.tasks.delete(&system(), task.id).await.unwrap();
    }
}

pub(crate) async fn what_is_past_its_start_deadline_is_not_started(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = spec("deadline", |spec| {
        spec.schedule = every(Span::from_secs(10));
        spec.missed = MissedPolicy::CatchUp { max: 1_000, window: Span::from_secs(7_200) };
        spec.start_deadline = Some(Span::from_secs(300));
    });
    let (late, first) = overdue(&stores, &wanted, TimeDelta::hours(1)).await;
    let runs = caught_up(&stores, &late, first).await;
    assert!(runs >= 25, "those of the last five minutes run: {runs}");
    let skips = stores.tasks.skips(late.id, &ALL).await.unwrap().items;
    assert!(skips.iter().all(|skip| skip.cause == SkipCause::Deadline), "{skips:?}");
    assert!(skips.iter().map(|skip| skip.count).sum::<u64>() >= 300);
}
