//! Edits, pauses and repairs: which of them move the next occurrence, and that no occurrence is lost by any.

use std::collections::BTreeMap;

use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::fire::{MISFIRE_GRACE, plan as plan_due};
use switchboard_model::ids::TaskId;
use switchboard_model::run::{Ending, LeasedRun, NewRun, RunState, SkipCause, SkipRange};
use switchboard_model::schedule::Schedule;
use switchboard_model::span::Span;
use switchboard_model::task::{
    Action, Backoff, Concurrency, MissedPolicy, Overlap, PullAction, RateLimit, Task, TaskSpec,
};
use switchboard_model::timetable::{Cron, DayMatch, DstGap, DstOverlap};
use switchboard_store_api::{
    FinishOutcome, LeaseRequest, OccurrenceRange, Stores, TaskUpdateOutcome, UnarmedReport, WorkerKind,
};

use crate::Backend;
use crate::fixtures::{
    ALL, HOUR, LONG, Reader, contend, create, database_time, every, finish, lease, lease_one, new_run, occurrence,
    plan, replicas, request, run, scheduled, spec, states, system, task, trigger, wait_past,
};

const TICK: Span = Span::from_millis(100);
/// How far ahead an instant is that has not come before a case has done what must come before it.
const SOON: Span = Span::from_secs(4);

async fn update(stores: &Stores, before: &Task, wanted: &TaskSpec) -> Task {
    match stores.tasks.update(&system(), before.id, before.version, wanted).await.unwrap() {
        TaskUpdateOutcome::Updated(task) => task,
        other => panic!("edit not accepted: {other:?}"),
    }
}

async fn skips(stores: &Stores, id: TaskId) -> Vec<SkipRange> {
    stores.tasks.skips(id, &ALL).await.unwrap().items
}

/// A change of one field, and whether it moves the next occurrence.
type Row = (&'static str, bool, fn(&mut TaskSpec));

fn change_cron(spec: &mut TaskSpec, change: impl FnOnce(&mut Cron)) {
    let Some(Schedule::Cron(cron)) = &mut spec.schedule else { panic!("a calendar expected") };
    change(cron);
}

const MATRIX: [Row; 20] = [
    ("name", false, |spec| spec.name = "renamed".parse().unwrap()),
    ("expression", true, |spec| change_cron(spec, |cron| *cron = Cron::new("0 3 1 1 *", "UTC"))),
    ("zone", true, |spec| change_cron(spec, |cron| *cron = Cron::new("0 0 1 1 *", "Asia/Tokyo"))),
    ("dst_gap", true, |spec| change_cron(spec, |cron| cron.dst_gap = DstGap::Skip)),
    ("dst_overlap", true, |spec| change_cron(spec, |cron| cron.dst_overlap = DstOverlap::Both)),
    ("day_match", true, |spec| change_cron(spec, |cron| cron.day_match = DayMatch::And)),
    ("schedule", true, |spec| spec.schedule = every(Span::from_secs(86_400))),
    ("missed", true, |spec| spec.missed = MissedPolicy::Skip),
    ("overlap", true, |spec| spec.overlap = Overlap::Skip),
    ("action", false, |spec| spec.action = Action::Pull(PullAction {})),
    ("queue_max", false, |spec| spec.queue_max = 7),
    ("start_deadline", false, |spec| spec.start_deadline = Some(LONG)),
    ("timeout", false, |spec| spec.timeout = Some(LONG)),
    ("max_attempts", false, |spec| spec.max_attempts = 9),
    ("backoff", false, |spec| spec.backoff = Backoff { cap: HOUR, ..Backoff::default() }),
    ("priority", false, |spec| spec.priority = 4),
    ("pool", false, |spec| spec.pool = "heavy".parse().unwrap()),
    ("concurrency", false, |spec| spec.concurrency = Some(Concurrency { key: "db".parse().unwrap(), max: 2 })),
    ("rate_limit", false, |spec| spec.rate_limit = Some(RateLimit { key: None, rate: "10/1s".parse().unwrap() })),
    ("retention", false, |spec| spec.retention = Some(LONG)),
];

pub(crate) async fn every_field_moves_the_next_occurrence_or_does_not(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for (field, moves, change) in MATRIX {
        let yearly = spec(&format!("edit-{field}"), |spec| {
            spec.schedule = Some(Schedule::Cron(Cron::new("0 0 1 1 *", "UTC")));
        });
        let before = create(&stores, &yearly).await;
        // Firing moves the task away from where a recomputation would put it.
        stores.tasks.fire(&[plan(&before, 0, 1)]).await.unwrap();
        let fired = task(&stores, before.id).await;
        assert_eq!(update(&stores, &fired, &yearly).await, fired, "saving {field} unchanged changes nothing");

        let mut wanted = yearly.clone();
        change(&mut wanted);
        let after = update(&stores, &fired, &wanted).await;
        assert_eq!((after.version, &after.spec), (2, &wanted), "{field}");
        let recomputed = wanted.schedule.as_ref().unwrap().next_after(after.updated_at);
        assert_ne!(recomputed, fired.next_run_at);
        assert_eq!(after.next_run_at, if moves { recomputed } else { fired.next_run_at }, "{field}");
        assert_eq!(skips(&stores, before.id).await, [], "{field}");
        assert_eq!(task(&stores, before.id).await, after);
    }
    assert_eq!(stores.tasks.count_unarmed().await.unwrap(), 0);
}

pub(crate) async fn what_was_due_at_an_edit_is_recorded_as_missed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = spec("ticking", |spec| spec.schedule = every(TICK));
    let before = create(&stores, &wanted).await;
    let first = before.next_run_at.unwrap();
    wait_past(&stores, first + TICK.to_delta() * 3).await;
    let renamed = update(&stores, &before, &TaskSpec { priority: 1, ..wanted.clone() }).await;
    assert_eq!((renamed.next_run_at, skips(&stores, before.id).await), (Some(first), vec![]), "it is still due");

    let slower = update(&stores, &renamed, &scheduled("ticking", |_| {})).await;
    let missed = before.spec.schedule.as_ref().unwrap().between(first, slower.updated_at).unwrap();
    assert_eq!(skips(&stores, before.id).await, [missed.skipped(SkipCause::Missed)]);
    assert_eq!(stores.tasks.due(10).await.unwrap().tasks, []);
}

/// Fires what is due and returns how often each occurrence from `from` on has a run or was skipped, up to the next one.
async fn ledger(stores: &Stores, id: TaskId) -> BTreeMap<Timestamp, u32> {
    let due = stores.tasks.due(10).await.unwrap();
    let plans: Vec<_> = due.tasks.into_iter().map(|task| plan_due(task, due.now, MISFIRE_GRACE)).collect();
    stores.tasks.fire(&plans).await.unwrap();
    let all = OccurrenceRange { from: occurrence(0), to: due.now, limit: 10_000 };
    let mut ledger = BTreeMap::new();
    for run in stores.runs.of_occurrences(id, &all).await.unwrap() {
        *ledger.entry(run.scheduled_for).or_default() += 1;
    }
    for skip in stores.tasks.skips_between(id, &all).await.unwrap() {
        let schedule = skip.schedule.expect("the schedule is kept");
        let skipped = schedule.between(skip.range.from, skip.range.to).unwrap();
        assert_eq!(skipped.count, skip.range.count);
        for at in skipped.iter() {
            *ledger.entry(at).or_default() += 1;
        }
    }
    ledger
}

pub(crate) async fn a_resume_follows_the_missed_policy(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let catch_up = |max| MissedPolicy::CatchUp { max, window: LONG };
    let policies = [(MissedPolicy::Skip, 0), (MissedPolicy::Coalesce, 1), (catch_up(3), 3), (catch_up(100), 100)];
    for (n, (missed, kept)) in policies.into_iter().enumerate() {
        for is_update in [false, true] {
            let wanted = spec(&format!("paused-{n}-{is_update}"), |spec| {
                (spec.missed, spec.schedule) = (missed, every(TICK));
            });
            let before = create(&stores, &wanted).await;
            let first = before.next_run_at.unwrap();
            let set = async |version: i64, active| {
                if is_update {
                    let wanted = TaskSpec { is_active: active, ..wanted.clone() };
                    update(&stores, &Task { version, ..before.clone() }, &wanted).await
                } else {
                    stores.tasks.set_active(&system(), before.id, active).await.unwrap().unwrap()
                }
            };
            let paused = set(1, false).await;
            assert_eq!((paused.next_run_at, paused.paused_from), (None, Some(first)));
            wait_past(&stores, first + TICK.to_delta() * 6).await;
            let resumed = set(2, true).await;
            assert_eq!((resumed.paused_from, resumed.version), (None, 3));
            let held_back = wanted.schedule.as_ref().unwrap().between(first, resumed.updated_at).unwrap();
            let kept = held_back.count.min(kept);
            let dropped = held_back.take(held_back.count - kept).map(|all| all.skipped(SkipCause::Paused));
            assert_eq!(skips(&stores, before.id).await, dropped.into_iter().collect::<Vec<_>>(), "{missed:?}");

            let ledger = ledger(&stores, before.id).await;
            let next = task(&stores, before.id).await.next_run_at.unwrap();
            let all = wanted.schedule.as_ref().unwrap().between(first, next - TICK.to_delta()).unwrap();
            let once_each: BTreeMap<_, _> = all.iter().map(|at| (at, 1)).collect();
            assert_eq!(ledger, once_each, "each is run or skipped once under {missed:?}");
            stores.tasks.delete(&system(), before.id).await.unwrap();
        }
    }
}

pub(crate) async fn a_pause_under_another_schedule_loses_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = spec("paused", |spec| (spec.schedule, spec.is_active) = (every(TICK), false));
    let before = create(&stores, &wanted).await;
    let first = before.paused_from.unwrap();
    wait_past(&stores, first + TICK.to_delta() * 2).await;
    let slower = scheduled("paused", |spec| spec.is_active = false);
    let edited = update(&stores, &before, &slower).await;
    let so_far = wanted.schedule.as_ref().unwrap().between(first, edited.updated_at).unwrap();
    let so_far = [so_far.skipped(SkipCause::Paused)];
    assert_eq!(skips(&stores, before.id).await, so_far);
    let resumed = stores.tasks.set_active(&system(), before.id, true).await.unwrap().unwrap();
    assert_eq!(resumed.next_run_at, slower.schedule.unwrap().next_after(resumed.updated_at));
    assert_eq!(skips(&stores, before.id).await, so_far, "nothing is recorded twice");
}

pub(crate) async fn a_schedule_that_is_over_stays_paused(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let at = database_time(&stores).await + SOON.to_delta();
    let wanted = spec("once", |spec| (spec.schedule, spec.missed) = (Some(Schedule::At(at)), MissedPolicy::Skip));
    let before = create(&stores, &wanted).await;
    let paused = stores.tasks.set_active(&system(), before.id, false).await.unwrap().unwrap();
    wait_past(&stores, at).await;
    assert_eq!(stores.tasks.set_active(&system(), before.id, true).await.unwrap(), Some(paused.clone()));
    let outcome = stores.tasks.update(&system(), before.id, paused.version, &wanted).await.unwrap();
    assert!(matches!(&outcome, TaskUpdateOutcome::Refused(error) if error.never_fires), "{outcome:?}");

    let late = TaskSpec { missed: MissedPolicy::Coalesce, ..wanted };
    let resumed = update(&stores, &paused, &late).await;
    assert_eq!((resumed.next_run_at, resumed.spec.is_active), (Some(at), true), "the latest one is kept");
}

pub(crate) async fn active_runs_follow_an_action_of_external_workers(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let builtin = spec("moved", |_| {});
    let pull = spec("moved", |spec| spec.action = Action::Pull(PullAction {}));
    let before = create(&stores, &builtin).await;
    let queued = trigger(&stores, new_run(before.id)).await;
    trigger(&stores, NewRun { delay: LONG, ..new_run(before.id) }).await;
    let mut signals = Reader::start(&stores).await;
    let external = update(&stores, &before, &pull).await;
    let changed = [(SignalKind::PoolQueued, "default".to_owned()), (SignalKind::TaskChanged, before.id.to_string())];
    assert_eq!(signals.changes().await, changed);
    assert_eq!(lease(&stores, 10, LONG).await, []);
    let asked = LeaseRequest { kind: WorkerKind::External, ..request(10, LONG) };
    let leased = stores.runs.lease(&asked).await.unwrap().runs;
    assert_eq!(leased.iter().map(|run| run.id).collect::<Vec<_>>(), [queued]);

    // Its next attempt follows too.
    update(&stores, &external, &builtin).await;
    finish(&stores, &leased[0], Ending::Released).await;
    assert_eq!(lease_one(&stores, LONG).await.id, queued);
}

pub(crate) async fn an_unarmed_task_is_armed_again(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let armed = create(&stores, &scheduled("armed", |_| {})).await;
    let lost = create(&stores, &scheduled("lost", |_| {})).await;
    let at = database_time(&stores).await + SOON.to_delta();
    let over = create(&stores, &spec("over", |spec| spec.schedule = Some(Schedule::At(at)))).await;
    assert_eq!(stores.tasks.repair_unarmed(10).await.unwrap(), UnarmedReport::default());
    backend.unarm(lost.id).await;
    backend.unarm(over.id).await;
    wait_past(&stores, at).await;
    assert_eq!(stores.tasks.count_unarmed().await.unwrap(), 2);
    let mut signals = Reader::start(&stores).await;
    assert_eq!(stores.tasks.repair_unarmed(1).await.unwrap(), UnarmedReport { found: 1, repaired: 1 });
    assert_eq!(stores.tasks.repair_unarmed(10).await.unwrap(), UnarmedReport { found: 1, repaired: 1 });
    assert_eq!(stores.tasks.count_unarmed().await.unwrap(), 0);
    let mut changed = [lost.id, over.id].map(|id| (SignalKind::TaskChanged, id.to_string()));
    changed.sort();
    assert_eq!(signals.changes().await, changed);
    assert_eq!(task(&stores, armed.id).await, armed);
    assert_eq!(task(&stores, lost.id).await, lost);
    let over = task(&stores, over.id).await;
    assert_eq!((over.spec.is_active, over.next_run_at), (false, None));
}

pub(crate) async fn a_deleted_task_leaves_when_nothing_refers_to_it(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let before = create(&stores, &scheduled("doomed", |_| {})).await;
    let mut fired = plan(&before, 1, 0);
    fired.skips.push(SkipRange { from: occurrence(0), to: occurrence(0), count: 1, cause: SkipCause::Missed });
    stores.tasks.fire(&[fired]).await.unwrap();
    let id = trigger(&stores, new_run(before.id)).await;
    let leased = lease_one(&stores, LONG).await;
    assert!(stores.tasks.delete(&system(), before.id).await.unwrap());
    wait_past(&stores, database_time(&stores).await).await;
    let sweep = async || stores.tasks.sweep(Span::default(), 10).await.unwrap();
    assert_eq!(sweep().await, 0);
    stores.runs.sweep(Span::default(), 10).await.unwrap();
    assert_eq!(sweep().await, 0, "its run goes on");
    assert_eq!(states(&stores, &[id]).await, [RunState::Running]);
    let outcome = finish(&stores, &leased, Ending::Succeeded(None)).await;
    assert_eq!(outcome, FinishOutcome::Accepted(RunState::Succeeded));
    wait_past(&stores, database_time(&stores).await).await;
    stores.runs.sweep(Span::default(), 10).await.unwrap();
    assert_eq!(stores.tasks.sweep(LONG, 10).await.unwrap(), 0, "it was deleted just now");
    assert_eq!(sweep().await, 1);
}

/// How many runs are triggered beside each edit.
const RUNS: usize = 7 * 3;

async fn leased_by(stores: &Stores, kind: WorkerKind) -> Vec<LeasedRun> {
    stores.runs.lease(&LeaseRequest { kind, ..request(100, LONG) }).await.unwrap().runs
}

pub(crate) async fn a_run_that_is_made_beside_an_edit_goes_by_one_definition(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let builtin = spec("moved", |spec| (spec.priority, spec.max_attempts) = (1, 1));
    let pull = spec("moved", |spec| {
        spec.action = Action::Pull(PullAction {});
        (spec.priority, spec.max_attempts) = (2, 2);
    });
    let mut task = create(&stores[0], &builtin).await;
    for round in 0..20 {
        let (wanted, theirs, others) = match round % 2 {
            0 => (&pull, WorkerKind::External, WorkerKind::Replica),
            _ => (&builtin, WorkerKind::Replica, WorkerKind::External),
        };
        let outcomes = contend(&stores, 8, |stores, n| {
            let (before, wanted) = (task.clone(), wanted.clone());
            async move {
                if n == 0 {
                    return Some(update(&stores, &before, &wanted).await);
                }
                for _ in 0..3 {
                    trigger(&stores, new_run(before.id)).await;
                }
                None
            }
        })
        .await;
        task = outcomes.into_iter().flatten().next().expect("one of them has edited the task");
        assert_eq!(leased_by(&stores[0], others).await, [], "no run is left with the action from before");
        let all = leased_by(&stores[0], theirs).await;
        assert_eq!(all.len(), RUNS);
        for leased in all {
            let made = run(&stores[0], leased.id).await;
            assert!([(1, 1), (2, 2)].contains(&(made.priority, made.max_attempts)), "half of either: {made:?}");
            finish(&stores[0], &leased, Ending::Succeeded(None)).await;
        }
    }
}
