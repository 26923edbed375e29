//! Redriving: many ended runs are queued again in one commit.

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::{Ending, NewRun, RunState};
use switchboard_model::task::{Action, Overlap, PullAction};
use switchboard_store_api::{LeaseRequest, Redrive, RedriveReport, Stores, TaskUpdateOutcome, WorkerKind};

use crate::Backend;
use crate::fixtures::{
    LONG, Reader, create, finish, lease, new_run, request, run, spec, states, system, trigger, triggered,
};

const FAILED: Redrive = Redrive { task_id: None, state: RunState::Failed, after: None };

/// Makes runs and lets them fail, oldest first.
async fn failed(stores: &Stores, runs: Vec<NewRun>) -> Vec<RunId> {
    let mut ids = Vec::new();
    for run in runs {
        ids.push(trigger(stores, run).await);
        for leased in lease(stores, 10, LONG).await {
            finish(stores, &leased, Ending::Failed("no".to_owned())).await;
        }
    }
    ids
}

async fn redrive(stores: &Stores, which: Redrive, limit: u32) -> RedriveReport {
    stores.runs.redrive(&system(), &which, limit).await.unwrap()
}

pub(crate) async fn ended_runs_are_queued_again_oldest_first_in_pages(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("work", |_| {})).await.id;
    let other = create(&stores, &spec("other", |_| {})).await.id;
    let ids = failed(&stores, (0..5).map(|_| new_run(task)).collect()).await;
    let others = failed(&stores, vec![new_run(other)]).await;
    assert_eq!(redrive(&stores, Redrive { state: RunState::Dead, ..FAILED }, 10).await, RedriveReport::default());
    assert_eq!(redrive(&stores, Redrive { state: RunState::Queued, ..FAILED }, 10).await, RedriveReport::default());

    let of_task = Redrive { task_id: Some(task), ..FAILED };
    let first = redrive(&stores, of_task, 2).await;
    assert_eq!(first, RedriveReport { queued: 2, refused: 0, last: Some(ids[1]) });
    assert_eq!(states(&stores, &ids[1..3]).await, [RunState::Queued, RunState::Failed]);
    let rest = redrive(&stores, Redrive { after: first.last, ..of_task }, 10).await;
    assert_eq!(rest, RedriveReport { queued: 3, refused: 0, last: None });
    assert_eq!(states(&stores, &others).await, [RunState::Failed]);

    let again = run(&stores, ids[0]).await;
    assert_eq!((again.attempt, again.error, again.finished_at, again.started_at), (0, None, None, None));
    let leased: Vec<_> = lease(&stores, 10, LONG).await;
    assert_eq!(leased.iter().map(|run| run.id).collect::<Vec<_>>(), ids);
    assert!(leased.iter().all(|run| run.retries == 1 && run.effect_id() == format!("{}.1", run.id)));
}

pub(crate) async fn a_redrive_respects_overlap_and_dedupe_keys(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let skip = create(&stores, &spec("skip", |spec| spec.overlap = Overlap::Skip)).await.id;
    let plain = create(&stores, &spec("plain", |_| {})).await.id;
    let keyed = |task: TaskId| NewRun { dedupe_key: Some("k".parse().unwrap()), ..new_run(task) };
    let ids = failed(&stores, vec![new_run(skip), new_run(skip), keyed(plain), keyed(plain), new_run(plain)]).await;
    assert_eq!(redrive(&stores, FAILED, 10).await, RedriveReport { queued: 3, refused: 2, last: None });
    let (again, refused) = (RunState::Queued, RunState::Failed);
    assert_eq!(states(&stores, &ids).await, [again, refused, again, refused, again], "the oldest one goes first");
}

pub(crate) async fn a_redrive_follows_the_action_of_the_task_and_signals_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let before = spec("work", |_| {});
    let ids = triggered(&stores, &before, 3).await;
    for leased in lease(&stores, 10, LONG).await {
        finish(&stores, &leased, Ending::Failed("no".to_owned())).await;
    }
    let task = run(&stores, ids[0]).await.task_id;
    let pull = spec("work", |spec| spec.action = Action::Pull(PullAction {}));
    let outcome = stores.tasks.update(&system(), task, 1, &pull).await.unwrap();
    assert!(matches!(outcome, TaskUpdateOutcome::Updated(_)));
    let mut signals = Reader::start(&stores).await;
    assert_eq!(redrive(&stores, FAILED, 10).await.queued, 3);
    assert_eq!(signals.changes().await, [(SignalKind::PoolQueued, "default".to_owned())]);
    assert_eq!(lease(&stores, 10, LONG).await, []);
    let external = LeaseRequest { kind: WorkerKind::External, ..request(10, LONG) };
    assert_eq!(stores.runs.lease(&external).await.unwrap().runs.len(), 3);
}
