//! A replica behind a proxy: what it gives up when nothing is answered, and how much it lets itself be told.

use std::time::Duration;

use switchboard_model::identity::PoolName;
use switchboard_model::ids::{InstanceId, RunId, TaskId};
use switchboard_model::run::{NewRun, Trigger};
use switchboard_model::span::Span;
use switchboard_store_api::{LeaseRequest, Stores, WorkerKind, WriteContext};
use switchboard_store_conformance::Backend as _;
use switchboard_store_pg::{HintTransport, PgOptions};
use switchboard_testkit::proxy::{Direction, FaultProxy, Traffic, Unit};
use switchboard_testkit::wait_until;
use uuid::Uuid;

use crate::backend::{PgBackend, options};

/// Ten times what it takes to give up a call.
const GIVEN_UP: Duration = Duration::from_secs(120);

struct Bed {
    backend: PgBackend,
    proxy: FaultProxy,
    /// What reaches the database through the proxy.
    stores: Stores,
}

impl Bed {
    async fn new() -> Self {
        let backend = PgBackend::create().await;
        let proxy = FaultProxy::start(backend.database.url()).await;
        let stores = backend.open(&PgOptions { notify: HintTransport::Off, ..options(proxy.url()) }).await;
        Self { backend, proxy, stores }
    }

    async fn create(&self, fields: &str) -> TaskId {
        let id = TaskId::new();
        let text = format!(r#"{{"name":"t","action":{{"system":{{"function":"nothing"}}}}{fields}}}"#);
        let spec = serde_json::from_str(&text).unwrap();
        self.stores.tasks.create(&WriteContext::system("test"), id, &spec).await.unwrap().now().unwrap();
        id
    }

    /// Triggers runs of a task in one request; returns how many bytes the database has sent for that.
    async fn trigger(&self, task_id: TaskId, count: usize) -> u64 {
        let run = |_| NewRun {
            id: RunId::new(),
            task_id,
            trigger: Trigger::Manual,
            input: None,
            delay: Span::default(),
            dedupe_key: None,
            dedupe_scope: Default::default(),
        };
        let runs: Vec<_> = (0..count).map(run).collect();
        let told = || self.proxy.passed(Direction::ToClient, Unit::Byte);
        let before = told();
        let made = self.stores.runs.trigger_many(&WriteContext::system("test"), &runs).await.unwrap();
        assert_eq!(made.now().map(|made| made.len()), Some(count));
        told() - before
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_never_answered_is_given_up_and_can_be_asked_for_again() {
    let bed = Bed::new().await;
    let task = bed.create("").await;
    bed.trigger(task, 3).await;
    let request = LeaseRequest {
        holder: InstanceId::boot("test"),
        kind: WorkerKind::Replica,
        pools: vec![PoolName::default_pool()],
        limit: 10,
        lease: Span::from_secs(600),
        request: Some(Uuid::new_v4()),
    };
    bed.proxy.set(Traffic::Swallowed);
    let answer = tokio::time::timeout(GIVEN_UP, bed.stores.runs.lease(&request)).await.expect("nobody waits for ever");
    let error = answer.expect_err("nothing is answered");
    assert!(error.is_transient(), "{error:?}");

    bed.proxy.set(Traffic::Flows);
    let leased = wait_until("the same request", async || bed.stores.runs.lease(&request).await).await.runs;
    assert_eq!(leased.iter().map(|run| (run.task_id, run.attempt)).collect::<Vec<_>>(), [(task, 1); 3]);
    bed.backend.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_counts_queued_runs_without_listing_them() {
    let bed = Bed::new().await;
    let task = bed.create(r#","overlap":"queue","queue_max":1000"#).await;
    // The first one prepares the statements.
    bed.trigger(task, 20).await;
    let beside_few = bed.trigger(task, 20).await;
    bed.trigger(task, 800).await;
    let beside_many = bed.trigger(task, 20).await;
    assert!(beside_many < beside_few * 2, "{beside_few} bytes became {beside_many}");
    bed.backend.close().await;
}
