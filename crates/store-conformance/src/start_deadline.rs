//! Start deadlines: a run that was not leased in time is not leased any more.

use switchboard_model::ids::RunId;
use switchboard_model::run::{Ending, NewRun, RunState};
use switchboard_model::span::Span;
use switchboard_model::task::{Concurrency, Overlap, RateLimit, TaskSpec};
use switchboard_store_api::{PromoteReport, Stores};

use crate::Backend;
use crate::fixtures::{
    LONG, SHORT, create, finish, in_state, lease, lease_one, new_run, replicas, run, spec, states, system, together,
    trigger, triggered, wait_past,
};

/// A start deadline that has not passed before a case has done what must come before it.
const SOON: Span = Span::from_secs(6);

/// A task whose runs must start soon.
fn hurried(name: &str, change: impl FnOnce(&mut TaskSpec)) -> TaskSpec {
    spec(name, |spec| {
        spec.start_deadline = Some(SHORT);
        change(spec);
    })
}

/// Waits until the start deadline of a run has passed.
async fn miss(stores: &Stores, id: RunId) {
    wait_past(stores, run(stores, id).await.start_by.expect("it has a start deadline")).await;
}

async fn expired(stores: &Stores, limit: u32) -> u64 {
    let report = stores.runs.promote(limit).await.unwrap();
    assert_eq!(report, PromoteReport { expired: report.expired, ..PromoteReport::default() });
    report.expired
}

pub(crate) async fn a_run_that_comes_too_late_is_cancelled(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &hurried("hurried", |_| {}), 3).await;
    let patient = triggered(&stores, &spec("patient", |spec| spec.start_deadline = Some(LONG)), 1).await;
    miss(&stores, ids[2]).await;
    assert_eq!(lease_one(&stores, LONG).await.id, patient[0], "what is too late is not leased");
    for cancelled in [2, 1, 0] {
        assert_eq!(expired(&stores, 2).await, cancelled);
    }
    assert_eq!(states(&stores, &ids).await, [RunState::Cancelled; 3]);
    let late = run(&stores, ids[0]).await;
    assert_eq!(late.error.as_deref(), Some("not started within its start deadline"));
    assert!(late.finished_at.is_some());
    assert_eq!(late.attempt, 0);
}

pub(crate) async fn the_deadline_counts_from_when_the_run_is_due(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &hurried("later", |_| {})).await;
    let delayed = trigger(&stores, NewRun { delay: LONG, ..new_run(task.id) }).await;
    let due = run(&stores, delayed).await;
    assert_eq!(due.start_by, Some(due.run_at + SHORT.to_delta()));
    assert_eq!(expired(&stores, 10).await, 0);
}

pub(crate) async fn the_first_lease_ends_the_deadline(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &hurried("hurried", |spec| spec.start_deadline = Some(SOON))).await;
    let id = trigger(&stores, new_run(task.id)).await;
    let start_by = run(&stores, id).await.start_by.unwrap();
    let first = lease_one(&stores, LONG).await;
    assert_eq!(run(&stores, id).await.start_by, None);
    finish(&stores, &first, Ending::Released).await;
    wait_past(&stores, start_by).await;
    assert_eq!(expired(&stores, 10).await, 0);
    assert_eq!(lease_one(&stores, LONG).await.id, id);
}

pub(crate) async fn runs_that_wait_come_too_late_as_well(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let limit = Some(Concurrency { key: "narrow".parse().unwrap(), max: 1 });
    let holder = triggered(&stores, &spec("holder", |spec| spec.concurrency = limit.clone()), 1).await;
    let first = lease_one(&stores, LONG).await;
    assert_eq!(first.id, holder[0]);
    let waiting = hurried("waiting", |spec| {
        spec.concurrency = limit;
        spec.start_deadline = Some(SOON);
    });
    let waiting = triggered(&stores, &waiting, 2).await;
    let paced = hurried("paced", |spec| {
        spec.rate_limit = Some(RateLimit { key: None, rate: "1/1h burst 1".parse().unwrap() });
        spec.start_deadline = Some(SOON);
    });
    let paced = triggered(&stores, &paced, 2).await;
    assert_eq!(lease_one(&stores, LONG).await.id, paced[0]);
    assert_eq!(states(&stores, &[waiting[0], waiting[1], paced[1]]).await, [RunState::Waiting; 3]);
    miss(&stores, paced[1]).await;
    assert_eq!(expired(&stores, 10).await, 3);
    assert_eq!(states(&stores, &[waiting[0], waiting[1], paced[1]]).await, [RunState::Cancelled; 3]);
    finish(&stores, &first, Ending::Succeeded(None)).await;
    assert_eq!(lease(&stores, 10, LONG).await, []);
}

pub(crate) async fn a_permit_passes_by_those_that_come_too_late(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("one", |spec| spec.overlap = Overlap::Queue)).await;
    trigger(&stores, new_run(task.id)).await;
    let first = lease_one(&stores, LONG).await;
    let version = task.version;
    let edited = TaskSpec { start_deadline: Some(SOON), ..task.spec.clone() };
    stores.tasks.update(&system(), task.id, version, &edited).await.unwrap();
    let late = trigger(&stores, new_run(task.id)).await;
    stores.tasks.update(&system(), task.id, version + 1, &task.spec).await.unwrap();
    let patient = trigger(&stores, new_run(task.id)).await;
    assert_eq!(lease(&stores, 10, LONG).await, []);
    assert_eq!(states(&stores, &[late, patient]).await, [RunState::Waiting; 2]);
    miss(&stores, late).await;
    // The permit goes to the one that is too late, which cannot start; its end must free it for the other.
    finish(&stores, &first, Ending::Succeeded(None)).await;
    assert_eq!(lease(&stores, 10, LONG).await, []);
    let report = stores.runs.promote(10).await.unwrap();
    assert_eq!((report.expired, report.permitted), (1, 1));
    assert_eq!(lease_one(&stores, LONG).await.id, patient);
}

pub(crate) async fn a_retried_run_can_start_again(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let hurried = hurried("hurried", |spec| spec.start_deadline = Some(SOON));
    let ids = triggered(&stores, &hurried, 1).await;
    miss(&stores, ids[0]).await;
    assert_eq!(expired(&stores, 10).await, 1);
    stores.runs.retry(&system(), ids[0]).await.unwrap();
    assert_eq!(expired(&stores, 10).await, 0);
    assert_eq!(lease_one(&stores, LONG).await.id, ids[0]);
}

pub(crate) async fn a_run_is_leased_in_time_or_cancelled_but_not_both(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let soon = |n: u64| Some(Span::from_millis(100 + 7 * n));
    let mut all = Vec::new();
    for n in 0..40 {
        all.extend(triggered(&stores[0], &hurried(&format!("t{n}"), |spec| spec.start_deadline = soon(n)), 1).await);
    }
    miss(&stores[0], all[0]).await;
    let leasing = together(stores.iter().cloned().map(|stores| async move {
        let mut leased = Vec::new();
        for _ in 0..10 {
            leased.extend(lease(&stores, 1, LONG).await);
        }
        leased
    }));
    let expiring = together(stores.iter().cloned().map(|stores| async move {
        let mut expired = 0;
        for _ in 0..20 {
            expired += stores.runs.promote(2).await.unwrap().expired;
        }
        expired
    }));
    let (leased, expired) = futures_util::future::join(leasing, expiring).await;
    let leased: Vec<_> = leased.into_iter().flatten().collect();
    assert!(!leased.iter().any(|leased| leased.id == all[0]), "its deadline had passed");
    for leased in &leased {
        assert_eq!(run(&stores[0], leased.id).await.state, RunState::Running);
    }
    let cancelled = in_state(&stores[0], RunState::Cancelled).await;
    assert_eq!(cancelled.len() as u64, expired.iter().sum::<u64>());
    assert_eq!(in_state(&stores[0], RunState::Running).await.len(), leased.len());
}
