//! Facts about the server for the safety check; it draws no conclusions.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions};
use sqlx::{Connection as _, Executor as _, Row as _};
use switchboard_model::Timestamp;
use switchboard_model::instance::Instance;
use tokio::time::Instant;

use crate::connect::{ACQUIRE_TIMEOUT, OpenError, PgOptions, connect_once};
use crate::migrate::{applied_version, damaged_versions};
use crate::rows::InstanceRow;

/// How long the self-test waits for its own notification.
const ECHO_PATIENCE: Duration = Duration::from_secs(2);
const ECHO_CHANNEL: &str = "switchboard_self_test";

/// What the server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgDiagnosis {
    /// The version of the server, as it calls itself.
    pub server_version: String,
    /// The newest migration that is applied; 0 for an empty database.
    pub schema_version: i64,
    /// The migrations that were applied half only, or in another form than this binary knows.
    pub damaged_versions: Vec<i64>,
    /// The replicas that are alive.
    pub live: Vec<Instance>,
    /// The most connections that the server takes.
    pub max_connections: i64,
    /// How many of them only superusers get.
    pub superuser_reserved_connections: i64,
    /// Whether a notification sent over the pool's URL reaches a session that listens over the direct
    /// URL, or over the pool's where there is no pooler. Behind a pooler without a direct URL nobody listens.
    pub listen_works: bool,
    /// Whether sessions over the pool's URL share the processes of the server, as behind a transaction pooler.
    pub shares_sessions: bool,
    /// Whether those over the direct URL do, where there is another one.
    pub shares_direct_sessions: bool,
    /// Database time at the end of the diagnosis, to about the time of a round trip.
    pub now: Timestamp,
}

#[derive(sqlx::FromRow)]
struct FactsRow {
    server_version: String,
    max_connections: i64,
    superuser_reserved_connections: i64,
    now: Timestamp,
}

/// Asks the server for the facts that a safety check needs.
///
/// # Errors
/// Fails when the server cannot be reached or does not answer.
pub async fn diagnose(options: &PgOptions) -> Result<PgDiagnosis, OpenError> {
    let target = options.pool_target()?;
    let listen_target = options.direct_target()?;
    // Before any statement is prepared, which fails where sessions are shared.
    let shares_sessions = shares_sessions(&target).await?;
    let shares_direct_sessions = match &listen_target {
        Some(direct) if options.direct_url.is_some() => self::shares_sessions(direct).await?,
        _ => false,
    };
    let mut connection = connect_once(&target).await?;
    let mut transaction = connection.begin().await.map_err(failed)?;
    let facts: FactsRow = sqlx::query_as(
        "-- server.facts
         SELECT current_setting('server_version') AS server_version,
                current_setting('max_connections')::bigint AS max_connections,
                current_setting('superuser_reserved_connections')::bigint AS superuser_reserved_connections,
                clock_timestamp() AS now",
    )
    .persistent(false)
    .fetch_one(&mut *transaction)
    .await
    .map_err(failed)?;
    let read_at = Instant::now();
    let schema_version = applied_version(&mut transaction).await.map_err(failed)?;
    let damaged_versions = damaged_versions(&mut transaction, schema_version).await.map_err(failed)?;
    let live = live(&mut transaction).await.map_err(failed)?;
    transaction.rollback().await.map_err(failed)?;
    let listen_works = match listen_target {
        Some(target) => {
            let echo = tokio::time::timeout(ECHO_PATIENCE, echo(target, &mut connection)).await;
            matches!(echo, Ok(Ok(())))
        }
        // The session that was made to listen would go on to others, who expect no notifications.
        None => false,
    };
    connection.close().await.map_err(failed)?;
    Ok(PgDiagnosis {
        server_version: facts.server_version,
        schema_version,
        damaged_versions,
        live,
        max_connections: facts.max_connections,
        superuser_reserved_connections: facts.superuser_reserved_connections,
        listen_works,
        shares_sessions,
        shares_direct_sessions,
        now: facts.now + read_at.elapsed(),
    })
}

/// Reads the live replicas from a schema of any release: a column that it does not have counts as empty.
async fn live(connection: &mut PgConnection) -> Result<Vec<Instance>, sqlx::Error> {
    let is_missing: bool = sqlx::query_scalar("SELECT to_regclass('switchboard.instances') IS NULL")
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?;
    if is_missing {
        return Ok(Vec::new());
    }
    let rows: Vec<InstanceRow> = sqlx::query_as(
        "-- instances.list_of_any_release
         SELECT id, name, version, schema_version, roles, pools, pool_size, started_at, expires_at,
                coalesce(to_jsonb(instance) ->> 'key_check', '') AS key_check
         FROM switchboard.instances AS instance WHERE expires_at > clock_timestamp() ORDER BY started_at, id",
    )
    .persistent(false)
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(Instance::from).collect())
}

/// Tells whether two sessions get the same process of the server one after the other, which no direct ones do.
async fn shares_sessions(target: &PgConnectOptions) -> Result<bool, OpenError> {
    let (mut one, mut other) = (connect_once(target).await?, connect_once(target).await?);
    let before = process(&mut one).await?;
    other.execute("BEGIN").await.map_err(failed)?;
    let taken = process(&mut other).await?;
    // A pooler may have no second process to give while the other session keeps the first.
    let shares = before == taken || before != process(&mut one).await?;
    other.execute("ROLLBACK").await.map_err(failed)?;
    one.close().await.map_err(failed)?;
    other.close().await.map_err(failed)?;
    Ok(shares)
}

async fn process(connection: &mut PgConnection) -> Result<i32, OpenError> {
    let row = connection.fetch_one(sqlx::raw_sql("SELECT pg_backend_pid()")).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

/// Listens over one connection, notifies over another, and waits for what it sent.
async fn echo(target: PgConnectOptions, sender: &mut PgConnection) -> Result<(), sqlx::Error> {
    let token = uuid::Uuid::new_v4().to_string();
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(ACQUIRE_TIMEOUT).connect_lazy_with(target);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(ECHO_CHANNEL).await?;
    // A pooler that lends a session per transaction gives it away only when another one begins.
    let mut transaction = sender.begin().await?;
    let notify = sqlx::query("SELECT pg_notify($1, $2)").persistent(false).bind(ECHO_CHANNEL).bind(&token);
    notify.execute(&mut *transaction).await?;
    transaction.commit().await?;
    while listener.recv().await?.payload() != token {}
    Ok(())
}

fn failed(error: sqlx::Error) -> OpenError {
    OpenError::Connect(error.into())
}
