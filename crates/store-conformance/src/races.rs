//! Races of several replicas for one name, version, once-key, ticket or occurrence: one of them wins.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use switchboard_model::Timestamp;
use switchboard_model::fire::{MISFIRE_GRACE, plan};
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::{Run, RunState};
use switchboard_model::setting::FleetSettings;
use switchboard_model::span::Span;
use switchboard_model::task::{Overlap, Task};
use switchboard_store_api::{
    BurnOutcome, PutOutcome, RoomCreateOutcome, RunFilter, Stores, TaskCreateOutcome, TaskUpdateOutcome,
    TriggerOutcome, Written,
};

use crate::Backend;
use crate::accounts::{issue, new_api_key, new_ticket};
use crate::fixtures::{
    ALL, LONG, contend, create, eventually, every, list, new_room, new_run, now, once, replayed, replicas, spec,
    system, task, until,
};

pub(crate) async fn equal_once_keys_have_one_effect(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let task = create(&stores[0], &spec("once", |_| {})).await;
    let outcomes = contend(&stores, 20, |stores, _| async move {
        stores.runs.trigger(&once("k", 1, LONG), &new_run(task.id)).await.unwrap()
    })
    .await;
    let runs = list(&stores[0], RunFilter::default()).await;
    assert_eq!(runs.len(), 1);
    let id = runs[0].id;
    let made = Written::Now(TriggerOutcome::Created(id));
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == made).count(), 1);
    let replayed = replayed(id.as_uuid());
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == replayed).count(), 19);
}

pub(crate) async fn one_of_many_parallel_burns_gets_the_ticket(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let ticket = new_ticket("one", LONG);
    issue(&stores[0], &ticket).await;
    let hash = ticket.hash;
    let outcomes = contend(&stores, 100, |stores, _| async move { stores.tickets.burn(hash).await.unwrap() }).await;
    assert_eq!(outcomes.iter().filter(|outcome| matches!(outcome, BurnOutcome::Burned(_))).count(), 1);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == BurnOutcome::Unknown).count(), 99);
}

pub(crate) async fn one_task_gets_a_contended_name(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let outcomes = contend(&stores, 20, |stores, _| async move {
        now(stores.tasks.create(&system(), TaskId::new(), &spec("wanted", |_| {})).await.unwrap())
    })
    .await;
    let winner = stores[0].tasks.list(&ALL).await.unwrap().items;
    assert_eq!(winner.len(), 1);
    let created = TaskCreateOutcome::Created(winner[0].clone());
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == created).count(), 1);
    let taken = TaskCreateOutcome::NameTaken(winner[0].id);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == taken).count(), 19);
}

pub(crate) async fn one_room_gets_a_contended_name(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let outcomes = contend(&stores, 20, |stores, _| async move {
        now(stores.rooms.create(&system(), &new_room("wanted")).await.unwrap())
    })
    .await;
    let winner = stores[0].rooms.list(&ALL).await.unwrap().items;
    assert_eq!(winner.len(), 1);
    let created = RoomCreateOutcome::Created(winner[0].clone());
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == created).count(), 1);
    let taken = RoomCreateOutcome::NameTaken(winner[0].clone());
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == taken).count(), 19);
}

pub(crate) async fn replicas_that_install_one_key_agree_on_it(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let keys = contend(&stores, 12, |stores, _| async move {
        now(stores.api_keys.create(&system(), &new_api_key("root")).await.unwrap())
    })
    .await;
    let stored = stores[0].api_keys.list(&ALL).await.unwrap().items;
    assert_eq!(stored.len(), 1);
    assert!(keys.iter().all(|key| *key == stored[0]));
}

pub(crate) async fn one_of_many_edits_of_a_version_wins(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let before = create(&stores[0], &spec("edited", |_| {})).await;
    let outcomes = contend(&stores, 10, |stores, n| async move {
        let edit = spec("edited", |spec| spec.priority = i16::try_from(n).unwrap() + 1);
        stores.tasks.update(&system(), before.id, 1, &edit).await.unwrap()
    })
    .await;
    let after = task(&stores[0], before.id).await;
    assert_eq!(after.version, 2);
    let updated = TaskUpdateOutcome::Updated(after);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == updated).count(), 1);
    let mismatch = TaskUpdateOutcome::VersionMismatch(2);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == mismatch).count(), 9);

    let outcomes = contend(&stores, 10, |stores, n| async move {
        let value = FleetSettings { pause_all: n % 2 == 0, ..FleetSettings::default() };
        stores.settings.put_fleet(&system(), 0, &value).await.unwrap()
    })
    .await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == PutOutcome::Written(1)).count(), 1);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == PutOutcome::VersionMismatch(1)).count(), 9);
}

pub(crate) async fn one_of_many_renames_gets_the_name(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    for round in 0..5 {
        let mut tasks = Vec::new();
        for n in 0..12 {
            tasks.push(create(&stores[0], &spec(&format!("t{round}.{n}"), |_| {})).await.id);
        }
        let wanted = spec(&format!("wanted{round}"), |_| {});
        let outcomes = contend(&stores, 12, |stores, n| {
            let (id, wanted) = (tasks[n], wanted.clone());
            async move { stores.tasks.update(&system(), id, 1, &wanted).await.unwrap() }
        })
        .await;
        let winner = stores[0].tasks.find(&wanted.name).await.unwrap().unwrap();
        let taken = TaskUpdateOutcome::NameTaken(winner.id);
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == taken).count(), 11);
        assert!(outcomes.contains(&TaskUpdateOutcome::Updated(winner)));
    }
}

pub(crate) async fn triggers_under_a_policy_admit_no_more_than_it_says(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let skip = create(&stores[0], &spec("skip", |spec| spec.overlap = Overlap::Skip)).await.id;
    let queue = spec("queue", |spec| {
        spec.overlap = Overlap::Queue;
        spec.queue_max = 5;
    });
    let queue = create(&stores[0], &queue).await.id;
    let keyed = create(&stores[0], &spec("keyed", |_| {})).await.id;
    let outcomes = contend(&stores, 60, |stores, n| async move {
        let mut run = new_run([skip, queue, keyed][n % 3]);
        run.dedupe_key = (n % 3 == 2).then(|| "k".parse().unwrap());
        now(stores.runs.trigger(&system(), &run).await.unwrap())
    })
    .await;
    let active = async |task_id| list(&stores[0], RunFilter { task_id: Some(task_id), state: None }).await;
    let only = |runs: Vec<Run>| -> RunId {
        assert_eq!(runs.len(), 1);
        runs[0].id
    };
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    assert_eq!(count(TriggerOutcome::Active(only(active(skip).await))), 19);
    assert_eq!(count(TriggerOutcome::Duplicate(only(active(keyed).await))), 19);
    assert_eq!(count(TriggerOutcome::QueueFull), 15);
    assert_eq!(active(queue).await.len(), 5);
}

const INTERVAL: Span = Span::from_millis(100);
const ROUNDS: i32 = 5;

/// Fires what is due until told to stop; counts what the reports say.
async fn fire_until(stores: Stores, stop: Arc<AtomicBool>, runs: Arc<AtomicU64>, skipped: Arc<AtomicU64>) {
    eventually(async || {
        let due = stores.tasks.due(100).await.unwrap();
        let plans: Vec<_> = due.tasks.into_iter().map(|task| plan(task, due.now, MISFIRE_GRACE)).collect();
        let report = stores.tasks.fire(&plans).await.unwrap();
        runs.fetch_add(report.runs, Ordering::SeqCst);
        skipped.fetch_add(report.skipped, Ordering::SeqCst);
        if stop.load(Ordering::SeqCst) { Ok(()) } else { Err(report) }
    })
    .await;
}

/// Counts how often each occurrence of a task is in the ledger, as a run or as a skip.
async fn occurrences(stores: &Stores, id: TaskId) -> BTreeMap<Timestamp, u32> {
    let mut found = BTreeMap::new();
    for run in list(stores, RunFilter { task_id: Some(id), state: None }).await {
        *found.entry(run.scheduled_for.expect("only the schedule made runs")).or_default() += 1;
    }
    let skips = stores.tasks.skips(id, &ALL).await.unwrap();
    assert_eq!(skips.next_cursor, None);
    for skip in skips.items {
        for n in 0..i32::try_from(skip.count).unwrap() {
            *found.entry(skip.from + INTERVAL.to_delta() * n).or_default() += 1;
        }
        assert_eq!(skip.to, skip.from + INTERVAL.to_delta() * (i32::try_from(skip.count).unwrap() - 1));
    }
    found
}

pub(crate) async fn replicas_fire_every_occurrence_once(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let policies = [Overlap::Allow, Overlap::Skip, Overlap::Queue, Overlap::Replace];
    let mut tasks: Vec<Task> = Vec::new();
    for n in 0..16 {
        let wanted = spec(&format!("t{n}"), |spec| {
            spec.schedule = every(INTERVAL);
            spec.overlap = policies[n % 4];
            spec.queue_max = 2;
        });
        tasks.push(create(&stores[0], &wanted).await);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (runs, skipped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let watch = async {
        for made in &tasks {
            let enough = made.next_run_at.map(|first| first + INTERVAL.to_delta() * ROUNDS);
            until(|| task(&stores[0], made.id), |now| now.next_run_at >= enough).await;
        }
        stop.store(true, Ordering::SeqCst);
    };
    let firing = contend(&stores, 4, |stores, _| fire_until(stores, stop.clone(), runs.clone(), skipped.clone()));
    futures_util::future::join(watch, firing).await;

    let (mut all_runs, mut all_skips) = (0, 0);
    for before in &tasks {
        let after = task(&stores[0], before.id).await;
        let end = after.next_run_at.unwrap();
        let mut expected = BTreeMap::new();
        let mut at = before.next_run_at.unwrap();
        while at < end {
            expected.insert(at, 1);
            at += INTERVAL.to_delta();
        }
        assert_eq!(occurrences(&stores[0], before.id).await, expected, "{:?}", before.spec.overlap);
        let made = list(&stores[0], RunFilter { task_id: Some(before.id), state: None }).await;
        let active = made.iter().filter(|run| run.state == RunState::Queued).count();
        match before.spec.overlap {
            Overlap::Allow => assert_eq!((made.len(), active), (expected.len(), expected.len())),
            Overlap::Skip => assert_eq!((made.len(), active), (1, 1)),
            Overlap::Queue => assert_eq!((made.len(), active), (2, 2)),
            Overlap::Replace => assert_eq!(active, 1),
        }
        all_runs += made.len();
        all_skips += expected.len() - made.len();
    }
    assert_eq!((runs.load(Ordering::SeqCst), skipped.load(Ordering::SeqCst)), (all_runs as u64, all_skips as u64));
}
