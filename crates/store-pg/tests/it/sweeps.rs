//! Sweeps of rows that no trait can age.

use switchboard_model::identity::PoolName;
use switchboard_model::ids::InstanceId;
use switchboard_model::setting::{FleetSettings, PoolSettings};
use switchboard_model::span::Span;
use switchboard_store_api::{LeaseRequest, WorkerKind, WriteContext};
use switchboard_store_conformance::Backend as _;
use switchboard_testkit::{TestDatabase, wait_until};

use crate::backend::PgBackend;

#[tokio::test]
async fn all_expired_message_ids_are_forgotten_and_counted() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    sqlx::query(
        "INSERT INTO switchboard.room_dedupe (room_id, sender, msg_id, pos, expires_at)
         SELECT gen_random_uuid(), 'sender', n::text, 1, now() - interval '1 hour'
         FROM generate_series(1, 12345) AS n
         UNION ALL SELECT gen_random_uuid(), 'sender', 'live', 1, now() + interval '1 hour'",
    )
    .execute(backend.database.pool())
    .await
    .unwrap();
    let mut total = 0;
    loop {
        match stores.rooms.sweep(10).await.unwrap() {
            0 => break,
            deleted => total += deleted,
        }
    }
    assert_eq!(total, 12_345);
    let left: Vec<String> = sqlx::query_scalar("SELECT msg_id FROM switchboard.room_dedupe")
        .fetch_all(backend.database.pool())
        .await
        .unwrap();
    assert_eq!(left, ["live"]);
    backend.close().await;
}

#[tokio::test]
async fn permit_keys_that_nothing_needs_are_forgotten_unless_somebody_holds_their_lock() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let max = |max_running| PoolSettings { max_running };
    let pools = [("limited", max(Some(3))), ("paused", max(Some(0))), ("named", max(None))];
    let pools = pools.into_iter().map(|(pool, max)| (pool.parse().unwrap(), max)).collect();
    let fleet = FleetSettings { pools, ..FleetSettings::default() };
    stores.settings.put_fleet(&WriteContext::system("test"), 0, &fleet).await.unwrap();
    sqlx::raw_sql(
        "INSERT INTO switchboard.run_keys (key)
             SELECT unnest(ARRAY ['key:held', 'key:awaited', 'key:locked', 'key:unused', 'task:unused', 'pool:unused',
                                  'pool:limited', 'pool:paused', 'pool:named',
                                  'task:00000000-0000-0000-0000-000000000001',
                                  'task:00000000-0000-0000-0000-000000000002',
                                  'task:00000000-0000-0000-0000-000000000003']);
         INSERT INTO switchboard.tasks (id, name, spec, has_schedule, is_active, created_at, updated_at, deleted_at)
             VALUES ('00000000-0000-0000-0000-000000000001', 'there', '{}', false, true, now(), now(), NULL),
                    ('00000000-0000-0000-0000-000000000002', 'deleted', '{}', false, true, now(), now(), now());
         INSERT INTO switchboard.run_holds (key, run_id) VALUES ('key:held', gen_random_uuid());
         INSERT INTO switchboard.runs
             (id, task_id, state, trigger, pool, priority, run_at, max_attempts, created_at, key, key_max)
             VALUES (gen_random_uuid(), gen_random_uuid(), 'waiting', 'manual', 'p', 0, now(), 1, now(), 'key:awaited', 1),
                    (gen_random_uuid(), gen_random_uuid(), 'queued', 'manual', 'p', 0, now(), 1, now(), 'key:unused', 1)",
    )
    .execute(backend.database.pool())
    .await
    .unwrap();
    let mut holder = backend.database.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM switchboard.run_keys WHERE key = 'key:locked' FOR UPDATE")
        .execute(&mut *holder)
        .await
        .unwrap();
    for deleted in [5, 2, 0] {
        assert_eq!(stores.runs.sweep(Span::from_secs(60), 5).await.unwrap(), deleted);
    }
    holder.rollback().await.unwrap();
    assert_eq!(stores.runs.sweep(Span::from_secs(60), 2).await.unwrap(), 1);
    let left: Vec<String> = sqlx::query_scalar("SELECT key FROM switchboard.run_keys ORDER BY key")
        .fetch_all(backend.database.pool())
        .await
        .unwrap();
    let task = "task:00000000-0000-0000-0000-000000000001";
    assert_eq!(left, ["key:awaited", "key:held", "pool:limited", task]);
    backend.close().await;
}

#[tokio::test]
async fn the_key_of_an_idle_pool_is_made_once() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let pool: PoolName = "limited".parse().unwrap();
    let pools = [(pool.clone(), PoolSettings { max_running: Some(3) })].into();
    let fleet = FleetSettings { pools, ..FleetSettings::default() };
    stores.settings.put_fleet(&WriteContext::system("test"), 0, &fleet).await.unwrap();
    let request = LeaseRequest {
        holder: InstanceId::boot("worker"),
        kind: WorkerKind::Replica,
        pools: vec![pool],
        limit: 1,
        lease: Span::from_secs(60),
        request: None,
    };
    let row = async || -> Vec<(String, String)> {
        let query = sqlx::query_as("SELECT key, ctid::text FROM switchboard.run_keys");
        query.fetch_all(backend.database.pool()).await.unwrap()
    };
    stores.runs.lease(&request).await.unwrap();
    let made = row().await;
    assert_eq!(made, [("pool:limited".to_owned(), "(0,1)".to_owned())]);
    stores.runs.sweep(Span::from_secs(60), 10).await.unwrap();
    stores.runs.lease(&request).await.unwrap();
    assert_eq!(row().await, made);
    backend.close().await;
}

#[tokio::test]
async fn leases_are_forgotten_a_minute_after_they_are_over() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    sqlx::query(
        "INSERT INTO switchboard.leases (key, holder, fence, expires_at)
         SELECT 'old' || n, 'h', n, now() - interval '61 seconds' FROM generate_series(1, 7) AS n
         UNION ALL VALUES ('rests', 'h', 8, now() - interval '10 seconds'), ('held', 'h', 9, now() + interval '1 hour')",
    )
    .execute(backend.database.pool())
    .await
    .unwrap();
    for deleted in [5, 2, 0] {
        assert_eq!(stores.leases.sweep(5).await.unwrap(), deleted);
    }
    let left: Vec<String> = sqlx::query_scalar("SELECT key FROM switchboard.leases ORDER BY key")
        .fetch_all(backend.database.pool())
        .await
        .unwrap();
    assert_eq!(left, ["held", "rests"]);
    backend.close().await;
}

#[tokio::test]
async fn a_sweep_that_finds_nothing_writes_nothing() {
    let backend = PgBackend::on(TestDatabase::empty_on_own_server().await);
    let stores = backend.stores().await;
    let position = async || -> String {
        let query = sqlx::query_scalar("SELECT pg_current_wal_insert_lsn()::text");
        query.fetch_one(backend.database.pool()).await.unwrap()
    };
    let (age, limit) = (Span::from_secs(3_600), 10);
    // The server itself writes too, but not all the time; a sweep that writes does so each time.
    wait_until("a sweep beside which nothing is written", async || {
        let before = position().await;
        assert_eq!(stores.runs.sweep(age, limit).await.unwrap(), 0);
        assert_eq!(stores.outbox.sweep(age, limit).await.unwrap(), 0);
        assert_eq!(stores.audit.sweep(age, limit).await.unwrap(), 0);
        assert_eq!(stores.tickets.sweep(limit).await.unwrap(), 0);
        assert_eq!(stores.once.sweep(limit).await.unwrap(), 0);
        assert_eq!(stores.leases.sweep(limit).await.unwrap(), 0);
        assert_eq!(stores.state.sweep(limit).await.unwrap(), 0);
        assert_eq!(stores.auth_sessions.sweep(limit).await.unwrap(), 0);
        assert_eq!(stores.webhooks.sweep(limit).await.unwrap(), 0);
        assert_eq!(stores.limits.sweep(limit).await.unwrap(), 0);
        assert_eq!(stores.rooms.sweep(limit).await.unwrap(), 0);
        assert_eq!(stores.feed.sweep(limit).await.unwrap(), 0);
        assert_eq!(stores.tasks.repair_unarmed(limit).await.unwrap().found, 0);
        assert_eq!(stores.tasks.sweep(age, limit).await.unwrap(), 0);
        assert!(stores.instances.sweep().await.unwrap().is_empty());
        let after = position().await;
        if after == before { Ok(()) } else { Err(format!("{before} became {after}")) }
    })
    .await;
    backend.close().await;
}
