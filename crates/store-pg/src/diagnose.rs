//! Facts about the server for the safety check; it draws no conclusions.

use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use switchboard_model::Timestamp;

use crate::connect::{ACQUIRE_TIMEOUT, OpenError, PgOptions, connect_once};
use crate::migrate::applied_version;

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
    /// The most connections that the server takes.
    pub max_connections: i64,
    /// How many of them only superusers get.
    pub superuser_reserved_connections: i64,
    /// Whether a notification sent over the pool's URL reaches a session that listens over the direct
    /// URL, or over the pool's where there is no pooler. Behind a pooler without a direct URL nobody listens.
    pub listen_works: bool,
    /// Database time of the check.
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
    let schema_version = applied_version(&mut transaction).await.map_err(failed)?;
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
        max_connections: facts.max_connections,
        superuser_reserved_connections: facts.superuser_reserved_connections,
        listen_works,
        now: facts.now,
    })
}

/// Listens over one connection, notifies over another, and waits for what it sent.
async fn echo(target: PgConnectOptions, sender: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
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
