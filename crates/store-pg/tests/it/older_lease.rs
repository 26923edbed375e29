//! The lease of an earlier release beside the one of today on one queue: what a rolling update is to runs.

use std::collections::BTreeSet;

use switchboard_model::ids::{Fence, InstanceId, RunId, TaskId};
use switchboard_model::run::{Ending, Finish, NewRun, RunState, Trigger};
use switchboard_model::span::Span;
use switchboard_store_api::{FinishOutcome, LeaseRequest, Stores, WorkerKind, WriteContext};
use switchboard_store_conformance::Backend as _;
use switchboard_testkit::{TestDatabase, wait_until};
use uuid::Uuid;

use crate::backend::PgBackend;

/// The statements of the release before the run terms (migration 7), as it sent them.
const LEASE: &str = "-- runs.lease
    WITH picked AS MATERIALIZED (
        SELECT ready.*
        FROM unnest($1::text[]) AS served (pool)
        CROSS JOIN LATERAL (
            SELECT id, task_id, priority, run_at, scheduled_for, attempt, max_attempts, is_reclaimed, timeout_ms,
                   key, key_max
            FROM switchboard.runs
            WHERE state = 'queued' AND pool = served.pool
              AND NOT EXISTS (
                  SELECT FROM switchboard.settings
                  WHERE name = 'fleet' AND value::jsonb @> '{\"pause_all\": true}'
              )
            ORDER BY priority, run_at, id
            LIMIT $2
            FOR UPDATE SKIP LOCKED
        ) AS ready
        ORDER BY ready.priority, ready.run_at, ready.id
        LIMIT $2
    ),
    moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
    leased AS (
        UPDATE switchboard.runs AS run
        SET state = 'running', attempt = run.attempt + 1, fence = nextval('switchboard.fences'),
            leased_by = $3, started_at = moment.now,
            lease_until = moment.now + $4 * interval '1 millisecond',
            deadline_at = moment.now + run.timeout_ms * interval '1 millisecond'
        FROM moment
        WHERE run.id = ANY (ARRAY (SELECT id FROM picked WHERE key IS NULL))
        RETURNING run.id, run.fence
    )
    SELECT picked.id, leased.fence FROM picked CROSS JOIN moment JOIN leased ON leased.id = picked.id";
const LOCK: &str = "-- runs.lock
    SELECT id, state, fence, attempt, max_attempts, key,
           cancel_requested_at IS NOT NULL AS is_to_be_cancelled,
           coalesce(deadline_at <= clock_timestamp(), false) AS is_past_deadline
    FROM switchboard.runs WHERE id = ANY ($1) ORDER BY id FOR UPDATE";
const SETTLE: &str = "-- runs.settle
    WITH moved AS (
        UPDATE switchboard.runs AS run
        SET state = given.state, attempt = given.attempt,
            run_at = coalesce(clock_timestamp() + given.delay_ms * interval '1 millisecond', run.run_at),
            is_reclaimed = run.is_reclaimed OR given.is_reclaimed,
            lease_until = NULL, deadline_at = NULL,
            finished_at = CASE WHEN given.state IN ('succeeded', 'failed', 'cancelled', 'dead')
                               THEN clock_timestamp() END
        FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::bigint[], $5::boolean[])
            AS given (id, state, attempt, delay_ms, is_reclaimed)
        WHERE run.id = given.id
        RETURNING run.state, run.pool
    )
    SELECT DISTINCT pool FROM moved WHERE state = 'queued'";

/// How many runs there are, and how many a worker takes at a time.
const RUNS: usize = 1_000;
const BATCH: u32 = 10;

#[derive(sqlx::FromRow)]
struct LockedRow {
    id: Uuid,
    state: String,
    fence: i64,
}

/// A held run.
type Held = (RunId, Fence);

/// A worker of the earlier release.
struct Older<'a>(&'a TestDatabase);

impl Older<'_> {
    async fn lease(&self, lease: Span) -> Vec<Held> {
        let rows: Vec<(Uuid, i64)> = sqlx::query_as(LEASE)
            .bind(vec!["default"])
            .bind(i64::from(BATCH))
            .bind("older-1")
            .bind(lease.as_millis_i64())
            .fetch_all(self.0.pool())
            .await
            .unwrap();
        rows.into_iter().map(|(id, fence)| (RunId::from_uuid(id), Fence(fence))).collect()
    }

    /// Ends first attempts well; returns those that were accepted.
    async fn finish(&self, held: &[Held]) -> Vec<RunId> {
        let ids: Vec<Uuid> = held.iter().map(|(id, _)| id.as_uuid()).collect();
        let mut tx = self.0.pool().begin().await.unwrap();
        let locked: Vec<LockedRow> = sqlx::query_as(LOCK).bind(&ids).fetch_all(&mut *tx).await.unwrap();
        let is_held = |(id, fence): &&Held| {
            let is_it = |row: &LockedRow| row.id == id.as_uuid() && row.state == "running" && row.fence == fence.0;
            locked.iter().any(is_it)
        };
        let accepted: Vec<RunId> = held.iter().filter(is_held).map(|(id, _)| *id).collect();
        let count = accepted.len();
        sqlx::query(SETTLE)
            .bind(accepted.iter().map(|id| id.as_uuid()).collect::<Vec<_>>())
            .bind(vec!["succeeded"; count])
            .bind(vec![1; count])
            .bind(vec![None::<i64>; count])
            .bind(vec![false; count])
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        accepted
    }
}

/// A worker of this release.
struct Newer<'a>(&'a Stores);

impl Newer<'_> {
    async fn lease(&self, lease: Span) -> Vec<Held> {
        let request = LeaseRequest {
            holder: InstanceId::boot("newer"),
            kind: WorkerKind::Replica,
            pools: vec!["default".parse().unwrap()],
            limit: BATCH,
            lease,
            request: None,
        };
        self.0.runs.lease(&request).await.unwrap().runs.into_iter().map(|run| (run.id, run.fence)).collect()
    }

    async fn finish(&self, held: &[Held]) -> Vec<RunId> {
        let finish = |(id, fence): &Held| Finish { id: *id, fence: *fence, ending: Ending::Succeeded(None) };
        let finishes: Vec<_> = held.iter().map(finish).collect();
        let outcomes = self.0.runs.finish(&finishes).await.unwrap();
        let accepted = held.iter().zip(outcomes).filter(|(_, outcome)| matches!(outcome, FinishOutcome::Accepted(_)));
        accepted.map(|((id, _), _)| *id).collect()
    }
}

async fn queue(stores: &Stores, count: usize) {
    let context = WriteContext::system("test");
    let spec = serde_json::from_str(r#"{"name":"t","action":{"system":{"function":"nothing"}}}"#).unwrap();
    let task = TaskId::new();
    stores.tasks.create(&context, task, &spec).await.unwrap().now().unwrap();
    for _ in 0..count {
        let run = NewRun {
            id: RunId::new(),
            task_id: task,
            trigger: Trigger::Manual,
            input: None,
            delay: Span::default(),
            dedupe_key: None,
            dedupe_scope: Default::default(),
        };
        stores.runs.trigger(&context, &run).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_runs_end_once_each_under_both_leases() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    queue(&stores, RUNS).await;
    let (older, newer) = (Older(&backend.database), Newer(&stores));
    let long = Span::from_secs(600);
    // Both hold runs at the same time, whoever is faster afterwards.
    let (held_by_older, held_by_newer) = (older.lease(long).await, newer.lease(long).await);
    assert_eq!((held_by_older.len(), held_by_newer.len()), (BATCH as usize, BATCH as usize));
    let of_older = async {
        let (mut held, mut ended) = (held_by_older, Vec::new());
        while !held.is_empty() {
            ended.extend(older.finish(&held).await.into_iter().zip(held.iter().map(|(_, fence)| *fence)));
            held = older.lease(long).await;
        }
        ended
    };
    let of_newer = async {
        let (mut held, mut ended) = (held_by_newer, Vec::new());
        while !held.is_empty() {
            ended.extend(newer.finish(&held).await.into_iter().zip(held.iter().map(|(_, fence)| *fence)));
            held = newer.lease(long).await;
        }
        ended
    };
    let (of_older, of_newer) = tokio::join!(of_older, of_newer);
    let ended: Vec<_> = of_older.iter().chain(&of_newer).collect();
    assert_eq!(ended.len(), RUNS, "each end was accepted once");
    assert_eq!(ended.iter().map(|(run, _)| run).collect::<BTreeSet<_>>().len(), RUNS, "of another run each time");
    assert_eq!(ended.iter().map(|(_, fence)| fence).collect::<BTreeSet<_>>().len(), RUNS, "no fence came twice");
    let right = backend
        .database
        .count("SELECT count(*) FROM switchboard.runs WHERE state = 'succeeded' AND attempt = 1 AND NOT is_reclaimed");
    assert_eq!(right.await, 1_000, "no run was executed twice");
}

#[tokio::test]
async fn a_lease_lost_to_the_other_release_changes_nothing() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    queue(&stores, 4).await;
    let (older, newer) = (Older(&backend.database), Newer(&stores));
    let lost = older.lease(Span::from_millis(1)).await;
    assert_eq!(lost.len(), 4);
    wait_until("the leases to expire", async || {
        let requeued = stores.runs.recover(100).await.unwrap().requeued;
        if requeued > 0 { Ok(requeued) } else { Err("none has") }
    })
    .await;
    let held = newer.lease(Span::from_secs(600)).await;
    assert_eq!(older.finish(&lost).await, []);
    assert_eq!(newer.finish(&held).await.len(), held.len());
    for (run, _) in held {
        let run = stores.runs.get(run).await.unwrap().unwrap();
        assert_eq!((run.state, run.attempt), (RunState::Succeeded, 2));
    }
}
