//! A database behind a proxy, with a journal of all that happens to runs, and what must be true of it.

use std::collections::BTreeSet;
use std::time::Duration;

use switchboard_model::Timestamp;
use switchboard_model::feed::TickRequest;
use switchboard_model::ids::TaskId;
use switchboard_model::page::PageRequest;
use switchboard_model::run::{Run, SkipRange};
use switchboard_model::span::Span;
use switchboard_model::task::Task;
use switchboard_store_api::{RunFilter, Stores, TaskCreateOutcome, WriteContext};
use switchboard_store_conformance::Backend as _;
use switchboard_store_pg::{HintTransport, PgOptions};
use switchboard_testkit::ledger;
use switchboard_testkit::proxy::FaultProxy;
use tokio::time::Instant;
use uuid::Uuid;

use super::replica::{Replica, moment};
use crate::backend::{PgBackend, options};

/// How long leases hold: shorter than any test waits, longer than any step takes.
pub(super) const HELD: Span = Span::from_millis(1_500);
/// How long everything may take to end.
const SETTLED_IN: Duration = Duration::from_secs(60);

/// Writes down every step of every run, and every hold too many.
const JOURNAL: &str = "
    CREATE TABLE public.journal (
        seq bigserial PRIMARY KEY, run uuid, was text, state text, attempt integer, fence bigint
    );
    CREATE TABLE public.excess (key text, holds bigint);
    CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO public.journal (run, was, state, attempt, fence)
            VALUES (NEW.id, NULL, NEW.state, NEW.attempt, NEW.fence);
        ELSIF (OLD.state, OLD.attempt, OLD.fence) IS DISTINCT FROM (NEW.state, NEW.attempt, NEW.fence) THEN
            INSERT INTO public.journal (run, was, state, attempt, fence)
            VALUES (NEW.id, OLD.state, NEW.state, NEW.attempt, NEW.fence);
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE ON switchboard.runs FOR EACH ROW EXECUTE FUNCTION public.note();
    CREATE FUNCTION public.count_holds() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.excess (key, holds)
        SELECT NEW.key, holds.n FROM (SELECT count(*) AS n FROM switchboard.run_holds WHERE key = NEW.key) AS holds
        WHERE holds.n > (SELECT key_max FROM switchboard.runs WHERE id = NEW.run_id);
        RETURN NULL;
    END $$;
    CREATE TRIGGER count_holds AFTER INSERT ON switchboard.run_holds
        FOR EACH ROW EXECUTE FUNCTION public.count_holds()";

/// Names whatever must not be in the journal, or left in the tables.
const FAULTS: &str = "
    WITH steps AS (
        SELECT *, lag(attempt, 1, 0) OVER of_run AS attempt_before, lag(fence, 1, 0::bigint) OVER of_run AS fence_before
        FROM public.journal WINDOW of_run AS (PARTITION BY run ORDER BY seq)
    )
    SELECT format('run %s went from %s to %s with attempt %s after %s', run, was, state, attempt, attempt_before)
    FROM steps
    WHERE attempt <> attempt_before + CASE
        WHEN state = 'running' THEN 1
        WHEN was = 'running' AND state = 'queued' AND attempt < attempt_before THEN -1
        ELSE 0
    END
    UNION ALL
    SELECT format('run %s was leased with fence %s after %s', run, fence, fence_before)
    FROM steps WHERE state = 'running' AND (fence <= fence_before OR was = 'running')
    UNION ALL
    SELECT format('run %s went on from %s to %s', run, was, state)
    FROM steps WHERE was IN ('succeeded', 'failed', 'cancelled', 'dead')
    UNION ALL
    SELECT format('run %s is %s', id, state)
    FROM switchboard.runs WHERE state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')
    UNION ALL
    SELECT format('task %s was due once and has %s runs', name, runs.n)
    FROM switchboard.tasks AS task
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM switchboard.runs WHERE task_id = task.id) AS runs
    WHERE name LIKE 'due%' AND runs.n <> 1
    UNION ALL
    SELECT format('key %s had %s holds', key, holds) FROM public.excess
    UNION ALL
    SELECT format('key %s is still held by run %s', key, run_id) FROM switchboard.run_holds";

/// A database, a way to it that fails, and one that does not.
pub(super) struct Bed {
    backend: PgBackend,
    pub(super) proxy: FaultProxy,
    pub(super) direct: Stores,
}

/// The tasks of a bed.
pub(super) struct Tasks {
    /// Those with occurrences, as they were created.
    scheduled: Vec<Task>,
    /// One that only runs when it is triggered, one run at a time.
    pub(super) keyed: Task,
    /// One that only runs when it is triggered, without a limit.
    pub(super) triggered: Task,
}

impl Bed {
    pub(super) async fn new() -> Self {
        let backend = PgBackend::create().await;
        let proxy = FaultProxy::start(backend.database.url()).await;
        sqlx::raw_sql(JOURNAL).execute(backend.database.pool()).await.unwrap();
        let direct = backend.open(&quiet(backend.database.url())).await;
        Self { backend, proxy, direct }
    }

    /// Opens stores of a replica that reaches the database through the proxy.
    pub(super) async fn through_proxy(&self) -> Stores {
        self.backend.open(&quiet(self.proxy.url())).await
    }

    /// Creates a task of each kind.
    pub(super) async fn create_tasks(&self) -> Tasks {
        let every = |name: &str, milliseconds: u32, rest: &str| {
            format!(r#""name":"{name}","schedule":{{"every":{{"interval":"{milliseconds}ms"}}}}{rest}"#)
        };
        let scheduled = vec![
            self.create(&every("often", 400, "")).await,
            self.create(&every("skips", 500, r#","overlap":"skip""#)).await,
            self.create(&every("queues", 600, r#","overlap":"queue","queue_max":3"#)).await,
            self.create(&every("limited", 700, r#","concurrency":{"key":"shared","max":2}"#)).await,
        ];
        Tasks {
            scheduled,
            keyed: self.create(r#""name":"keyed","concurrency":{"key":"alone","max":1}"#).await,
            triggered: self.create(r#""name":"triggered","concurrency":{"key":"shared","max":2}"#).await,
        }
    }

    /// Creates a task that is due, and then not for an hour.
    pub(super) async fn create_due(&self, name: &str) {
        let now = self.now().await.to_rfc3339();
        let task = self
            .create(&format!(r#""name":"{name}","schedule":{{"every":{{"interval":"1h","anchor":"{now}"}}}}"#))
            .await;
        // Back to the anchor, which is an occurrence too.
        sqlx::query("UPDATE switchboard.tasks SET next_run_at = next_run_at - interval '1 hour' WHERE id = $1")
            .bind(task.id.as_uuid())
            .execute(self.backend.database.pool())
            .await
            .unwrap();
    }

    async fn create(&self, fields: &str) -> Task {
        let text = format!(
            r#"{{{fields},"action":{{"system":{{"function":"nothing"}}}},"max_attempts":4,
                "backoff":{{"base":"1ms","cap":"5ms","jitter":0}}}}"#
        );
        let (spec, id) = (serde_json::from_str(&text).unwrap(), TaskId::new());
        let outcome = self.direct.tasks.create(&WriteContext::system("cuts"), id, &spec).await.unwrap();
        match outcome.now() {
            Some(TaskCreateOutcome::Created(task)) => task,
            other => panic!("not created: {other:?}"),
        }
    }

    async fn now(&self) -> Timestamp {
        self.direct.feed.tick(None, &TickRequest::default()).await.unwrap().now
    }

    pub(super) async fn wait_past(&self, instant: Timestamp) {
        while self.now().await <= instant {
            moment().await;
        }
    }

    /// Ends the schedules.
    pub(super) async fn pause(&self, tasks: &Tasks) {
        for task in &tasks.scheduled {
            self.direct.tasks.set_active(&WriteContext::system("cuts"), task.id, false).await.unwrap().unwrap();
        }
    }

    /// Takes the faults away, and waits until the runs have ended and the tasks rest.
    pub(super) async fn settle(&self, tasks: &Tasks, replicas: &mut [Replica]) {
        assert_eq!(self.direct.tasks.count_unarmed().await.unwrap(), 0, "every task is armed");
        self.check_occurrences(tasks).await;
        self.pause(tasks).await;
        for replica in &mut *replicas {
            replica.heal(self);
        }
        self.idle(replicas).await;
    }

    /// Lets replicas work until every run has ended.
    pub(super) async fn idle(&self, replicas: &mut [Replica]) {
        let deadline = Instant::now() + SETTLED_IN;
        loop {
            for replica in &mut *replicas {
                replica.until_idle().await;
            }
            let active = "SELECT count(*) FROM switchboard.runs
                WHERE state NOT IN ('succeeded', 'failed', 'cancelled', 'dead')";
            let active: i64 = sqlx::query_scalar(active).fetch_one(self.backend.database.pool()).await.unwrap();
            if active == 0 {
                return;
            }
            assert!(Instant::now() < deadline, "{active} runs never end");
            moment().await;
        }
    }

    /// Checks that each occurrence so far is a run or a skip.
    async fn check_occurrences(&self, tasks: &Tasks) {
        for created in &tasks.scheduled {
            let task = self.direct.tasks.get(created.id).await.unwrap().unwrap();
            let (Some(first), Some(next)) = (created.next_run_at, task.next_run_at) else { continue };
            let skips = self.skips(task.id).await;
            let runs = self.runs(task.id).await;
            let last = next - chrono::TimeDelta::microseconds(1);
            let schedule = task.spec.schedule.as_ref().unwrap();
            if let Err(faults) = ledger::occurrences(schedule, first..=last, &runs, &skips) {
                panic!("{}: {faults}", task.spec.name);
            }
        }
    }

    /// Checks the journal once everything has ended.
    pub(super) async fn check(&self, tasks: &Tasks, triggered: u64) {
        let faults: Vec<String> = sqlx::query_scalar(FAULTS).fetch_all(self.backend.database.pool()).await.unwrap();
        assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
        let made = self.runs(tasks.keyed.id).await.len() + self.runs(tasks.triggered.id).await.len();
        assert_eq!(made as u64, triggered, "each trigger made one run");
    }

    /// Checks that what replicas were told happened, and that nothing ended a run which no replica had asked for.
    pub(super) async fn check_reports(&self, replicas: &[Replica]) {
        let endings = "SELECT run, fence, state FROM public.journal WHERE state IN ('succeeded', 'failed', 'dead')";
        let endings: Vec<(Uuid, i64, String)> =
            sqlx::query_as(endings).fetch_all(self.backend.database.pool()).await.unwrap();
        let written: BTreeSet<_> = endings.iter().map(|(run, fence, state)| (*run, *fence, state.as_str())).collect();
        for (run, fence, state) in replicas.iter().flat_map(|replica| &replica.accepted) {
            let is_written = !state.is_terminal() || written.contains(&(run.as_uuid(), fence.0, state.as_str()));
            assert!(is_written, "run {run} did not end as {state} under {fence:?}");
        }
        let reports = replicas.iter().flat_map(|replica| &replica.reported);
        let reported: BTreeSet<_> =
            reports.map(|(run, fence, state)| (run.as_uuid(), fence.0, state.as_str())).collect();
        // A run whose holders are gone is dead without a report.
        let unasked: Vec<_> = written.difference(&reported).filter(|(_, _, state)| *state != "dead").collect();
        assert!(unasked.is_empty(), "nobody reported {unasked:?}");
    }

    async fn runs(&self, task: TaskId) -> Vec<Run> {
        let filter = RunFilter { task_id: Some(task), state: None };
        let (mut after, mut runs) = (None, Vec::new());
        loop {
            let page = self.direct.runs.list(&filter, &PageRequest { after, limit: 500 }).await.unwrap();
            runs.extend(page.items);
            after = page.next_cursor;
            if after.is_none() {
                return runs;
            }
        }
    }

    async fn skips(&self, task: TaskId) -> Vec<SkipRange> {
        self.direct.tasks.skips(task, &PageRequest { after: None, limit: 500 }).await.unwrap().items
    }
}

/// The options of a small replica that sends no hints.
fn quiet(url: &str) -> PgOptions {
    PgOptions { pool_size: 2, notify: HintTransport::Off, ..options(url) }
}
