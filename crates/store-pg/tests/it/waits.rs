//! Waits for locks: what a statement decides after one, it decides by what it finds then.

use std::time::Duration;

use switchboard_model::Timestamp;
use switchboard_model::auth_session::NewAuthSession;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::{InstanceId, RunId, SessionId, TaskId, WebhookSecretId};
use switchboard_model::lease::NewLease;
use switchboard_model::run::{NewRun, Trigger};
use switchboard_model::secret_text::SecretHash;
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_model::user::{NewUser, UserEdit, UserRole};
use switchboard_model::webhook::{NewWebhookSecret, SecretPurpose};
use switchboard_store_api::{
    AcquireOutcome, LeaseRenewal, LeaseRequest, LimitTake, RenewOutcome, Renewal, Stores, TaskUpdateOutcome,
    TriggerOutcome, UserUpdateOutcome, WorkerKind, WriteContext,
};
use switchboard_store_conformance::Backend as _;
use switchboard_testkit::wait_until;

use crate::backend::PgBackend;

/// Longer than any test takes.
const LEASE: Span = Span::from_secs(600);

const DISABLED: UserEdit = UserEdit { role: UserRole::User, is_disabled: true };

fn context() -> WriteContext {
    WriteContext::system("test")
}

/// Waits until a session of this database waits for a lock.
pub(crate) async fn until_blocked(backend: &PgBackend) {
    let blocked = async {
        loop {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            .fetch_one(backend.database.pool())
            .await
            .unwrap();
            if waiting > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), blocked).await.unwrap();
}

/// Runs `first` in a transaction, lets `second` run into its lock, commits, and returns what `second` gave.
async fn behind<T: Send + 'static>(
    backend: &PgBackend,
    first: &'static str,
    second: impl Future<Output = T> + Send + 'static,
) -> T {
    let mut transaction = backend.database.pool().begin().await.unwrap();
    sqlx::raw_sql(first).execute(&mut *transaction).await.unwrap();
    let mut going = tokio::task::JoinSet::new();
    going.spawn(second);
    until_blocked(backend).await;
    transaction.commit().await.unwrap();
    going.join_next().await.unwrap().unwrap()
}

async fn rows(backend: &PgBackend, count: &'static str) -> i64 {
    sqlx::query_scalar(count).fetch_one(backend.database.pool()).await.unwrap()
}

async fn create_ann(stores: &Stores) {
    let (id, name) = ("ann".parse().unwrap(), "ann".parse().unwrap());
    let user = NewUser { id, name, role: UserRole::User, password: None };
    stores.users.create(&context(), &user).await.unwrap().now().unwrap();
}

fn new_session(id: SessionId) -> NewAuthSession {
    let (idle_ttl, ttl) = (Span::from_secs(600), Span::from_secs(600));
    NewAuthSession {
        id,
        user_id: "ann".parse().unwrap(),
        user_version: None,
        client: None,
        refresh: SecretHash::of("t"),
        idle_ttl,
        ttl,
    }
}

async fn create_task(stores: &Stores) -> TaskId {
    let id = TaskId::new();
    let spec = r#"{"name":"t","action":{"system":{"function":"nothing"}},"overlap":"skip"}"#;
    stores.tasks.create(&context(), id, &serde_json::from_str(spec).unwrap()).await.unwrap().now().unwrap();
    id
}

fn new_run(task_id: TaskId, trigger: Trigger) -> NewRun {
    NewRun {
        id: RunId::new(),
        task_id,
        trigger,
        input: None,
        delay: Span::default(),
        dedupe_key: None,
        dedupe_scope: Default::default(),
    }
}

#[tokio::test]
async fn no_session_starts_behind_the_end_of_its_user() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    create_ann(&stores).await;
    let start = async move { stores.auth_sessions.start(&context(), &new_session(SessionId::new())).await.unwrap() };
    assert_eq!(behind(&backend, "UPDATE switchboard.users SET is_disabled = true", start).await, None);
    assert_eq!(rows(&backend, "SELECT count(*) FROM switchboard.refresh_tokens").await, 0);
    backend.close().await;
}

#[tokio::test]
async fn a_session_that_starts_before_the_end_of_its_user_ends_with_it() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    create_ann(&stores).await;
    let starting = "SELECT FROM switchboard.users FOR SHARE;
        INSERT INTO switchboard.auth_sessions
            (id, user_id, latest, created_at, refreshed_at, expires_at, ends_at)
        SELECT gen_random_uuid(), 'ann', 'token', now(), now(), now() + interval '1 hour', now() + interval '1 hour';
        INSERT INTO switchboard.refresh_tokens (hash, session_id)
        SELECT latest, id FROM switchboard.auth_sessions";
    let disable = async move { stores.users.update(&context(), &"ann".parse().unwrap(), 1, &DISABLED).await.unwrap() };
    assert!(matches!(behind(&backend, starting, disable).await, UserUpdateOutcome::Updated(_)));
    assert_eq!(rows(&backend, "SELECT count(*) FROM switchboard.auth_sessions").await, 0);
    assert_eq!(rows(&backend, "SELECT count(*) FROM switchboard.refresh_tokens").await, 0);
    backend.close().await;
}

#[tokio::test]
async fn the_end_of_a_session_takes_along_the_token_of_a_refresh_before_it() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    create_ann(&stores).await;
    let id = SessionId::new();
    stores.auth_sessions.start(&context(), &new_session(id)).await.unwrap().unwrap();
    let refreshing = "SELECT FROM switchboard.auth_sessions FOR UPDATE;
        INSERT INTO switchboard.refresh_tokens (hash, session_id) SELECT 'next', id FROM switchboard.auth_sessions";
    let end = async move { stores.auth_sessions.end(&context(), &"ann".parse().unwrap(), id).await.unwrap() };
    assert!(behind(&backend, refreshing, end).await);
    assert_eq!(rows(&backend, "SELECT count(*) FROM switchboard.refresh_tokens").await, 0);
    backend.close().await;
}

#[tokio::test]
async fn a_deleted_task_takes_along_the_secret_that_was_added_before() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let task_id = create_task(&stores).await;
    let (id, purpose) = (WebhookSecretId::new(), SecretPurpose::Receive);
    let secret = NewWebhookSecret { id, task_id, purpose, sealed: vec![1], ttl: None };
    stores.webhooks.add(&context(), &secret).await.unwrap().now().unwrap();
    let adding = "SELECT FROM switchboard.tasks FOR NO KEY UPDATE;
        INSERT INTO switchboard.webhook_secrets (id, task_id, sealed, created_at)
        SELECT gen_random_uuid(), id, 'sealed', now() FROM switchboard.tasks";
    let delete = async move { stores.tasks.delete(&context(), task_id).await.unwrap() };
    assert!(behind(&backend, adding, delete).await);
    assert_eq!(rows(&backend, "SELECT count(*) FROM switchboard.webhook_secrets").await, 0);
    backend.close().await;
}

#[tokio::test]
async fn a_webhook_is_refused_by_a_run_that_is_just_being_leased() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let run = new_run(create_task(&stores).await, Trigger::Manual);
    stores.runs.trigger(&context(), &run).await.unwrap();
    let delivery = new_run(run.task_id, Trigger::Webhook);
    let deliver = async move { stores.runs.trigger(&context(), &delivery).await.unwrap().now().unwrap() };
    let leasing = "UPDATE switchboard.runs SET state = 'running', started_at = now()";
    assert_eq!(behind(&backend, leasing, deliver).await, TriggerOutcome::Active(run.id));
    backend.close().await;
}

#[tokio::test]
async fn a_webhook_makes_a_run_behind_the_end_of_the_one_before() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let run = new_run(create_task(&stores).await, Trigger::Manual);
    stores.runs.trigger(&context(), &run).await.unwrap();
    let delivery = new_run(run.task_id, Trigger::Webhook);
    let id = delivery.id;
    let deliver = async move { stores.runs.trigger(&context(), &delivery).await.unwrap().now().unwrap() };
    let ending = "UPDATE switchboard.runs SET state = 'succeeded', finished_at = now()";
    assert_eq!(behind(&backend, ending, deliver).await, TriggerOutcome::Created(id));
    backend.close().await;
}

#[tokio::test]
async fn an_edit_waits_for_a_trigger_that_has_read_the_task() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let id = create_task(&stores).await;
    let spec = stores.tasks.get(id).await.unwrap().unwrap().spec;
    let wanted = TaskSpec { priority: 7, ..spec };
    let edit = async move { stores.tasks.update(&context(), id, 1, &wanted).await.unwrap() };
    // As a trigger does before it inserts what it has read.
    let reading = "SELECT spec FROM switchboard.tasks FOR KEY SHARE";
    assert!(matches!(behind(&backend, reading, edit).await, TaskUpdateOutcome::Updated(_)));
    backend.close().await;
}

#[tokio::test]
async fn a_trigger_behind_an_edit_goes_by_what_was_edited() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let run = new_run(create_task(&stores).await, Trigger::Manual);
    let runs = stores.runs.clone();
    let (id, trigger) = (run.id, async move { runs.trigger(&context(), &run).await.unwrap().now().unwrap() });
    let editing = r#"SELECT FROM switchboard.tasks FOR UPDATE;
        UPDATE switchboard.tasks
        SET version = 2, spec = (spec::jsonb || '{"pool": "moved", "priority": 7, "max_attempts": 9}')::text"#;
    assert_eq!(behind(&backend, editing, trigger).await, TriggerOutcome::Created(id));
    let made = stores.runs.get(id).await.unwrap().unwrap();
    assert_eq!((made.pool.as_str(), made.priority, made.max_attempts), ("moved", 7, 9));
    backend.close().await;
}

#[tokio::test]
async fn a_renewal_of_an_external_worker_that_waits_holds_up_no_replica() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let mut renewals = Vec::new();
    for (name, action, kind) in [
        ("pulled", r#"{"pull":{}}"#, WorkerKind::External),
        ("executed", r#"{"system":{"function":"nothing"}}"#, WorkerKind::Replica),
    ] {
        let id = TaskId::new();
        let spec = format!(r#"{{"name":"{name}","action":{action}}}"#);
        stores.tasks.create(&context(), id, &serde_json::from_str(&spec).unwrap()).await.unwrap().now().unwrap();
        stores.runs.trigger(&context(), &new_run(id, Trigger::Manual)).await.unwrap();
        let request = LeaseRequest {
            holder: InstanceId::boot("test"),
            kind,
            pools: vec![PoolName::default_pool()],
            limit: 1,
            lease: LEASE,
            request: None,
        };
        let leased = stores.runs.lease(&request).await.unwrap().runs.remove(0);
        renewals.push([Renewal { id: leased.id, fence: leased.fence }]);
    }
    let (pulled, executed) = (renewals[0], renewals[1]);
    let mut transaction = backend.database.pool().begin().await.unwrap();
    let lock = "SELECT FROM switchboard.runs WHERE is_pull FOR UPDATE";
    sqlx::query(lock).execute(&mut *transaction).await.unwrap();
    let mut going = tokio::task::JoinSet::new();
    let runs = stores.runs.clone();
    going.spawn(async move { runs.renew(WorkerKind::External, &pulled, LEASE).await });
    until_blocked(&backend).await;
    let renewed = stores.runs.renew(WorkerKind::Replica, &executed, LEASE).await.unwrap();
    assert_eq!((renewed, going.is_empty()), (vec![RenewOutcome::Renewed], false));
    assert!(going.try_join_next().is_none(), "the other one still waits, on a connection of its own");
    transaction.commit().await.unwrap();
    let waited = going.join_next().await.unwrap().unwrap();
    // It is given up when the lock is held for seconds.
    assert!(waited.as_ref().map_or_else(|error| error.is_transient(), |outcomes| *outcomes == [RenewOutcome::Renewed]));
    backend.close().await;
}

fn one_a_second() -> LimitTake {
    LimitTake { key: "k".to_owned(), rate: "1/1s burst 1".parse().unwrap(), cost: 1 }
}

#[tokio::test]
async fn a_take_goes_by_the_time_after_its_wait() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let pool = backend.database.pool();
    sqlx::query("INSERT INTO switchboard.rate_limits VALUES ('k', now())").execute(pool).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    let used_until: Timestamp = sqlx::query_scalar(
        "UPDATE switchboard.rate_limits SET tat = clock_timestamp() + interval '100 milliseconds' RETURNING tat",
    )
    .fetch_one(&mut *transaction)
    .await
    .unwrap();
    let mut going = tokio::task::JoinSet::new();
    going.spawn(async move { stores.limits.take(&[one_a_second()]).await.unwrap()[0] });
    until_blocked(&backend).await;
    let mut committed_at = used_until;
    while committed_at <= used_until {
        tokio::time::sleep(Duration::from_millis(2)).await;
        committed_at = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(pool).await.unwrap();
    }
    transaction.commit().await.unwrap();
    assert!(going.join_next().await.unwrap().unwrap().allowed);
    let next: Timestamp = sqlx::query_scalar("SELECT tat FROM switchboard.rate_limits").fetch_one(pool).await.unwrap();
    assert!(next > committed_at + Span::from_secs(1).to_delta(), "the wait is no gift");
    backend.close().await;
}

#[tokio::test]
async fn a_denial_neither_waits_nor_writes() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let hourly = LimitTake { rate: "1/1h burst 1".parse().unwrap(), ..one_a_second() };
    assert!(stores.limits.take(std::slice::from_ref(&hourly)).await.unwrap()[0].allowed);
    let mut transaction = backend.database.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM switchboard.rate_limits FOR UPDATE").execute(&mut *transaction).await.unwrap();
    assert!(!stores.limits.take(&[hourly]).await.unwrap()[0].allowed);
    transaction.rollback().await.unwrap();
    backend.close().await;
}

#[tokio::test]
async fn a_lease_that_ends_while_its_renewal_waits_is_lost() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let (key, ttl) = ("k".parse().unwrap(), Span::from_millis(1_500));
    let new = NewLease { key, holder: "h".parse().unwrap(), ttl, meta: None };
    let AcquireOutcome::Acquired(lease) = stores.leases.acquire(&new).await.unwrap() else { panic!("it is free") };
    let mut transaction = backend.database.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM switchboard.leases FOR UPDATE").execute(&mut *transaction).await.unwrap();
    let (leases, hold) = (stores.leases.clone(), lease.hold());
    let mut going = tokio::task::JoinSet::new();
    going.spawn(async move { leases.renew(&hold, LEASE).await.unwrap() });
    until_blocked(&backend).await;
    wait_until("the end of the lease", async || {
        let held = stores.leases.holder(&lease.key).await.unwrap();
        if held.is_none() { Ok(()) } else { Err(held) }
    })
    .await;
    transaction.rollback().await.unwrap();
    assert_eq!(going.join_next().await.unwrap().unwrap(), LeaseRenewal::Lost(None), "nobody has changed the row");
    backend.close().await;
}
