//! Many writers on one file: all are served, and what running work depends on goes first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use switchboard_model::identity::{Actor, PoolName};
use switchboard_model::ids::{InstanceId, RoomId, RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{MessageId, NewEvent, NewRoom, Retention, RoomKind};
use switchboard_model::run::{Ending, Finish, LeasedRun, NewRun, RunState, Trigger};
use switchboard_model::span::Span;
use switchboard_store_api::{FinishOutcome, LeaseRequest, RenewOutcome, Renewal, Stores, WorkerKind, WriteContext};
use switchboard_store_conformance::Backend as _;
use tokio_util::task::TaskTracker;

use crate::SqliteBackend;

/// Longer than any test takes.
const LEASE: Span = Span::from_secs(600);

fn context() -> WriteContext {
    WriteContext::system("tests")
}

/// Makes a task of its own pool.
async fn create(stores: &Stores, name: &str, action: &str) -> TaskId {
    let id = TaskId::new();
    let text = format!(r#"{{"name":"{name}","pool":"{name}","action":{action}}}"#);
    let spec = serde_json::from_str(&text).unwrap();
    stores.tasks.create(&context(), id, &spec).await.unwrap().now().unwrap();
    id
}

async fn trigger(stores: &Stores, task_id: TaskId) {
    let run = NewRun {
        id: RunId::new(),
        task_id,
        trigger: Trigger::Manual,
        input: None,
        delay: Span::default(),
        dedupe_key: None,
        dedupe_scope: Default::default(),
    };
    stores.runs.trigger(&context(), &run).await.unwrap().now().unwrap();
}

async fn lease(stores: &Stores, kind: WorkerKind, pool: &str) -> Vec<LeasedRun> {
    let pools: Vec<PoolName> = vec![pool.parse().unwrap()];
    let request =
        LeaseRequest { holder: InstanceId::boot("test"), kind, pools, limit: 100, lease: LEASE, request: None };
    stores.runs.lease(&request).await.unwrap().runs
}

async fn renew(stores: &Stores, kind: WorkerKind, run: &LeasedRun) {
    let renewal = Renewal { id: run.id, fence: run.fence };
    assert_eq!(stores.runs.renew(kind, &[renewal], LEASE).await.unwrap(), [RenewOutcome::Renewed]);
}

/// Makes runs, executes them to their end and tells of each.
async fn work(stores: Stores, writer: usize) {
    let name = format!("writer{writer}");
    let task = create(&stores, &name, r#"{"system":{"function":"nothing"}}"#).await;
    for _ in 0..10 {
        trigger(&stores, task).await;
        let [run] = <[LeasedRun; 1]>::try_from(lease(&stores, WorkerKind::Replica, &name).await).unwrap();
        renew(&stores, WorkerKind::Replica, &run).await;
        let event = NewEvent {
            room: "lobby".parse().unwrap(),
            event: "note".parse().unwrap(),
            payload: JsonText::null(),
            msg_id: MessageId::given_or_new(None),
            sender: Actor::System("tests"),
        };
        stores.rooms.append(&[event]).await.unwrap();
        let finish = Finish { id: run.id, fence: run.fence, ending: Ending::Succeeded(None) };
        let expected = [FinishOutcome::Accepted(RunState::Succeeded)];
        assert_eq!(stores.runs.finish(&[finish]).await.unwrap(), expected);
        assert_eq!(stores.runs.recover(10).await.unwrap().requeued, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_writers_of_every_kind_never_find_the_file_locked() {
    let backend = SqliteBackend::create().await;
    let stores = backend.stores().await;
    let (id, kind, retention) = (RoomId::new(), RoomKind::Public, Retention::default());
    let lobby = NewRoom { id, name: "lobby".parse().unwrap(), kind, retention };
    stores.rooms.create(&context(), &lobby).await.unwrap();
    let writers = TaskTracker::new();
    let working: Vec<_> = (0..50).map(|writer| writers.spawn(work(stores.clone(), writer))).collect();
    for finished in join_all(working).await {
        finished.unwrap();
    }
    assert_eq!(stores.rooms.history(&lobby.name, 0, 1).await.unwrap().unwrap().top, 500);
    backend.close().await;
}

#[tokio::test]
async fn a_renewal_of_a_replica_goes_before_those_of_external_workers() {
    let backend = SqliteBackend::create().await;
    let stores = backend.stores().await;
    let pull = create(&stores, "pulled", r#"{"pull":{}}"#).await;
    for _ in 0..60 {
        trigger(&stores, pull).await;
    }
    trigger(&stores, create(&stores, "executed", r#"{"system":{"function":"nothing"}}"#).await).await;
    let pulled = lease(&stores, WorkerKind::External, "pulled").await;
    let executed = lease(&stores, WorkerKind::Replica, "executed").await.remove(0);
    assert_eq!(pulled.len(), 60);

    // On one thread all are asked for before the first one is carried out.
    let (going, done) = (TaskTracker::new(), Arc::new(AtomicUsize::new(0)));
    let ask = |kind, run: LeasedRun| {
        let (stores, done) = (stores.clone(), done.clone());
        going.spawn(async move {
            renew(&stores, kind, &run).await;
            done.fetch_add(1, Ordering::SeqCst)
        })
    };
    let external: Vec<_> = pulled.into_iter().map(|run| ask(WorkerKind::External, run)).collect();
    let place = ask(WorkerKind::Replica, executed).await.unwrap();
    for renewed in join_all(external).await {
        renewed.unwrap();
    }
    assert!(place < 5, "{place} came before it, though it was asked for last");
    backend.close().await;
}
