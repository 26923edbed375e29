//! The worker of the guide: the very file that people copy, against live servers.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::{Value, json};
use switchboard_client::Client;
use switchboard_model::ids::{Fence, RunId, TaskId};
use switchboard_model::run::{Run, RunState};
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use switchboard_model::wire::rest::{ApiKeyRequest, TriggerRequest};
use switchboard_model::wire::work::{PoolLeaseRequest, PulledRun};
use switchboard_testkit::{Cluster, ledger, wait_until};
use tempfile::TempDir;
use uuid::Uuid;

use crate::fixtures::{create_task, ended, json as payload, on_both_databases, runs, started};

on_both_databases! {
    runs_are_executed_once_by_many_workers,
    a_killed_worker_loses_its_run_to_another_one,
    a_worker_that_is_stopped_gives_its_run_back,
    a_cancelled_run_stops_in_the_middle,
    a_lost_answer_loses_no_run,
}

/// Workers as processes, and what they print.
struct Workers {
    folder: TempDir,
    key: SecretText,
    processes: BTreeMap<&'static str, Child>,
}

impl Workers {
    /// Makes the task that the worker knows, and a key that may do no more than work on its pool.
    async fn of(cluster: &Cluster) -> (Self, TaskId) {
        let spec = json!({"name": "count-words", "action": {"pull": {}}, "pool": "words", "max_attempts": 5});
        let task = create_task(cluster.any(), spec).await;
        let request = ApiKeyRequest { name: "words".into(), scopes: vec!["work:words".parse().unwrap()], ttl: None };
        let key = cluster.any().create_api_key(&request).await.unwrap();
        let key = SecretText::from_presented(key.secret);
        (Self { folder: tempfile::tempdir().unwrap(), key, processes: BTreeMap::new() }, task.id)
    }

    /// Starts a worker against one of the replicas whose leases outlive any pause of a busy machine.
    fn start(&mut self, name: &'static str, url: &str) {
        self.start_leasing(name, url, "60");
    }

    /// Starts a worker whose leases hold for so many seconds.
    fn start_leasing(&mut self, name: &'static str, url: &str, lease: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/pull_worker.py");
        let output = File::create(self.log_of(name)).unwrap();
        let errors = output.try_clone().unwrap();
        let child = Command::new("python3")
            .arg(script)
            .args(["words", "--name", name, "--lease", lease, "--wait", "5"])
            .env("SWITCHBOARD_URL", url)
            .env("SWITCHBOARD_API_KEY", self.key.expose())
            .env("NO_PROXY", "*")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("this test runs docs/guides/pull_worker.py and needs python3: {error}"));
        self.processes.insert(name, child);
    }

    fn log_of(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn said(&self, name: &str) -> String {
        std::fs::read_to_string(self.log_of(name)).unwrap()
    }

    fn kill(&mut self, name: &str) {
        let mut child = self.processes.remove(name).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks a worker to stop and waits until it has.
    async fn stop(&mut self, name: &str) -> ExitStatus {
        let mut child = self.processes.remove(name).unwrap();
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        wait_until("the end of a worker", async || child.try_wait().unwrap()).await
    }

    /// Reads from what the workers print which ends the server has accepted from them.
    fn accepted(&self, names: &[&str]) -> Vec<(RunId, Fence)> {
        let logs: String = names.iter().map(|name| self.said(name)).collect();
        let read = |line: &str| {
            let line = line.strip_suffix(" ended by finish: succeeded")?.strip_prefix("run ")?;
            let (run, fence) = line.split_once(" fence ")?;
            Some((run.parse().unwrap(), Fence(fence.parse().unwrap())))
        };
        logs.lines().filter_map(read).collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in self.processes.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn trigger(client: &Client, task: TaskId, input: Value) -> RunId {
    let request = TriggerRequest { input: Some(payload(input)), ..TriggerRequest::default() };
    client.trigger_task(task, &request).await.unwrap().run_id
}

fn result(run: &Run) -> Value {
    serde_json::from_str(run.result.as_ref().unwrap().as_str()).unwrap()
}

async fn runs_are_executed_once_by_many_workers(cluster: Cluster) {
    let (mut workers, task) = Workers::of(&cluster).await;
    let urls = cluster.base_urls();
    workers.start("one", &urls[0]);
    workers.start("two", urls.last().unwrap());
    for words in 1..=30_usize {
        trigger(cluster.any(), task, json!({"text": vec!["word"; words].join(" ")})).await;
    }
    wait_until("all ends", async || {
        let ended = runs(cluster.any(), task).await.iter().filter(|run| run.state == RunState::Succeeded).count();
        if ended == 30 { Ok(()) } else { Err(ended) }
    })
    .await;
    let all = runs(cluster.any(), task).await;
    let mut counted: Vec<_> = all.iter().map(|run| result(run)["words"].as_u64().unwrap()).collect();
    counted.sort_unstable();
    assert_eq!(counted, (1..=30).collect::<Vec<_>>());
    assert!(all.iter().all(|run| run.attempt == 1));
    assert!(workers.stop("one").await.success() && workers.stop("two").await.success());
    ledger::endings(&all, &workers.accepted(&["one", "two"])).unwrap();
}

async fn a_killed_worker_loses_its_run_to_another_one(cluster: Cluster) {
    let (mut workers, task) = Workers::of(&cluster).await;
    let urls = cluster.base_urls();
    workers.start_leasing("first", &urls[0], "5");
    // Longer than it takes to see that it has begun.
    let id = trigger(cluster.any(), task, json!({"text": "a b c", "seconds": 15})).await;
    let before = started(cluster.any(), id).await;
    workers.kill("first");
    workers.start("second", urls.last().unwrap());
    let after = ended(cluster.any(), id).await;
    assert_eq!((after.state, after.attempt, result(&after)), (RunState::Succeeded, 2, json!({"words": 3})));
    assert!(after.fence > before.fence);
    assert_eq!(after.leased_by.as_ref().unwrap().as_str(), "worker:second");
    assert!(workers.stop("second").await.success());
    let said = workers.said("second");
    assert!(said.contains(&format!("run {id} fence {} starts attempt 2, taken over", after.fence.0)), "{said}");
    ledger::endings(&[after], &workers.accepted(&["first", "second"])).unwrap();
}

async fn a_worker_that_is_stopped_gives_its_run_back(cluster: Cluster) {
    let (mut workers, task) = Workers::of(&cluster).await;
    workers.start("one", &cluster.base_urls()[0]);
    let id = trigger(cluster.any(), task, json!({"text": "a", "seconds": 600})).await;
    started(cluster.any(), id).await;
    let status = workers.stop("one").await;
    assert!(status.success(), "{status}: {}", workers.said("one"));
    let run = cluster.any().get_run(id).await.unwrap();
    assert_eq!((run.state, run.attempt), (RunState::Queued, 0), "{}", workers.said("one"));

    // One that waits for work ends at once, too.
    workers.start("idle", &cluster.base_urls()[0]);
    let run = started(cluster.any(), id).await;
    assert_eq!(run.attempt, 1);
    assert!(workers.stop("idle").await.success());
}

async fn a_cancelled_run_stops_in_the_middle(cluster: Cluster) {
    let (mut workers, task) = Workers::of(&cluster).await;
    workers.start("one", &cluster.base_urls()[0]);
    let id = trigger(cluster.any(), task, json!({"text": "a", "seconds": 600})).await;
    started(cluster.any(), id).await;
    cluster.any().cancel_run(id).await.unwrap();
    assert_eq!(ended(cluster.any(), id).await.state, RunState::Cancelled);
    let next = trigger(cluster.any(), task, json!({"text": "a b"})).await;
    assert_eq!(result(&ended(cluster.any(), next).await), json!({"words": 2}), "the worker goes on");
    let wrong = trigger(cluster.any(), task, json!({})).await;
    let run = ended(cluster.any(), wrong).await;
    assert_eq!((run.state, run.error.as_deref()), (RunState::Failed, Some("the input has no text")));
}

async fn a_lost_answer_loses_no_run(cluster: Cluster) {
    let (mut workers, task) = Workers::of(&cluster).await;
    let client = |index| cluster.client(index).with_credential(Some(workers.key.clone()));
    for words in ["a", "a b", "a b c"] {
        trigger(cluster.any(), task, json!({"text": words})).await;
    }
    let pool = "words".parse().unwrap();
    let request = PoolLeaseRequest {
        request_id: Uuid::new_v4(),
        worker: "test".parse().unwrap(),
        max: 2,
        lease: Some(Span::from_secs(15)),
        wait: None,
    };
    let lost = client(0).lease_runs(&pool, &request).await.unwrap();
    let again = client(cluster.size() - 1).lease_runs(&pool, &request).await.unwrap();
    let names = |runs: &[PulledRun]| runs.iter().map(|run| (run.id, run.fence)).collect::<Vec<_>>();
    assert_eq!((lost.len(), names(&lost)), (2, names(&again)));
    // Nobody works on them, so the worker gets what is left, and then these.
    workers.start("one", &cluster.base_urls()[0]);
    for run in &lost {
        let run = ended(cluster.any(), run.id).await;
        assert_eq!((run.state, run.attempt), (RunState::Succeeded, 2));
    }
    let all: Vec<Run> = wait_until("all ends", async || {
        let all = runs(cluster.any(), task).await;
        all.iter().all(|run| run.state == RunState::Succeeded).then_some(all)
    })
    .await;
    assert!(workers.stop("one").await.success());
    ledger::endings(&all, &workers.accepted(&["one"])).unwrap();
}
