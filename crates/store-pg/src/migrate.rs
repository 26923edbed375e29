//! Migrations: applied over one direct connection, by one process at a time, tolerant of newer schemas.

use std::time::Duration;

#[cfg(debug_assertions)]
use sqlx::migrate::Migration;
use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};
use switchboard_store_api::MigrateReport;
use tokio::time::Instant;

use crate::connect::{OpenError, PgOptions, connect_once};

/// The advisory lock of migrations: "switchbd" in ASCII.
const LOCK: i64 = 0x7377_6974_6368_6264;
/// How long a process tries to get the lock, and how long it pauses between two tries.
const LOCK_PATIENCE: Duration = Duration::from_secs(120);
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Returns the version of the newest migration that this binary knows.
#[must_use]
pub fn schema_version() -> i64 {
    migrator().iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Brings the schema up to date.
///
/// # Errors
/// [`OpenError`] says what is in the way.
pub async fn migrate(options: &PgOptions) -> Result<MigrateReport, OpenError> {
    let Some(target) = options.direct_target()? else {
        let found = version_behind_pooler(options).await?;
        return Err(OpenError::MigrationBehindPooler { found, known: schema_version() });
    };
    let mut connection = connect_once(&target).await?;
    lock(&mut connection).await?;
    let report = apply(&mut connection).await;
    // Ending the session frees the lock, whatever happened.
    connection.close().await.map_err(failed)?;
    let report = report?;
    if report.after > report.known {
        tracing::warn!(applied = report.after, known = report.known, "the schema is newer than this binary");
    }
    Ok(report)
}

/// Migrates where that is possible; behind a pooler, makes sure that there is nothing to migrate.
pub(crate) async fn prepare(options: &PgOptions) -> Result<(), OpenError> {
    if options.direct_target()?.is_none() && version_behind_pooler(options).await? >= schema_version() {
        return Ok(());
    }
    migrate(options).await.map(|_| ())
}

/// Reads the newest version that is applied; 0 for an empty database.
pub(crate) async fn applied_version(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    // Without names, since this may be asked behind a pooler.
    let is_empty: bool = sqlx::query_scalar("SELECT to_regclass('switchboard._sqlx_migrations') IS NULL")
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?;
    if is_empty {
        return Ok(0);
    }
    sqlx::query_scalar(
        "-- migrations.applied_version
         SELECT coalesce(max(version), 0) FROM switchboard._sqlx_migrations WHERE success",
    )
    .persistent(false)
    .fetch_one(connection)
    .await
}

/// Finds the migrations that were applied half only, or in another form than this binary knows.
pub(crate) async fn damaged_versions(connection: &mut PgConnection, applied: i64) -> Result<Vec<i64>, sqlx::Error> {
    let migrator = migrator();
    let known = || migrator.iter().filter(|known| known.version <= applied);
    if applied == 0 {
        return Ok(Vec::new());
    }
    sqlx::query_scalar(
        "-- migrations.damaged_versions
         SELECT applied.version
         FROM switchboard._sqlx_migrations AS applied
         LEFT JOIN unnest($1::bigint[], $2::bytea[]) AS known (version, checksum) USING (version)
         WHERE NOT applied.success OR known.checksum <> applied.checksum
         ORDER BY 1",
    )
    .bind(known().map(|known| known.version).collect::<Vec<_>>())
    .bind(known().map(|known| known.checksum.to_vec()).collect::<Vec<_>>())
    .persistent(false)
    .fetch_all(connection)
    .await
}

async fn version_behind_pooler(options: &PgOptions) -> Result<i64, OpenError> {
    let mut connection = connect_once(&options.pool_target()?).await?;
    // Two statements without a prepared name need the same server, hence one transaction.
    let mut transaction = connection.begin().await.map_err(failed)?;
    let version = applied_version(&mut transaction).await.map_err(failed)?;
    transaction.rollback().await.map_err(failed)?;
    Ok(version)
}

/// Migrations of a next release that is made up for a test. Only in debug builds.
#[cfg(debug_assertions)]
static NEXT_RELEASE: std::sync::OnceLock<Vec<Migration>> = std::sync::OnceLock::new();

/// Lets this process be of a next release that has the migrations of a folder too. For tests, in debug builds only.
///
/// # Errors
/// Says what is wrong with the folder.
#[cfg(debug_assertions)]
pub async fn pretend_next_release(folder: &std::path::Path) -> Result<(), String> {
    let next = Migrator::new(folder).await.map_err(|error| error.to_string())?;
    NEXT_RELEASE.set(next.iter().cloned().collect()).map_err(|_| "there is a next release already".to_owned())
}

fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!("../../migrations/postgres");
    #[cfg(debug_assertions)]
    migrator.migrations.to_mut().extend(NEXT_RELEASE.get().into_iter().flatten().cloned());
    // The driver's own lock waits inside a statement, and so deadlocks with an index that is built
    // concurrently; a newer schema is the normal state of a rolling update.
    migrator.set_locking(false).set_ignore_missing(true);
    migrator
}

/// Tries to get the lock, again and again, without ever waiting inside a statement.
async fn lock(connection: &mut PgConnection) -> Result<(), OpenError> {
    let give_up = Instant::now() + LOCK_PATIENCE;
    loop {
        let locked: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
            .bind(LOCK)
            .fetch_one(&mut *connection)
            .await
            .map_err(failed)?;
        if locked {
            return Ok(());
        }
        if Instant::now() >= give_up {
            return Err(OpenError::MigrationBusy(LOCK_PATIENCE));
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

async fn apply(connection: &mut PgConnection) -> Result<MigrateReport, OpenError> {
    // Creating a schema asks for a right on the database even where the schema exists.
    let is_missing: bool = sqlx::query_scalar("SELECT to_regnamespace('switchboard') IS NULL")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    if is_missing {
        connection.execute("CREATE SCHEMA switchboard").await.map_err(failed)?;
    }
    connection.execute("SET search_path = switchboard").await.map_err(failed)?;
    let before = applied_version(connection).await.map_err(failed)?;
    migrator().run_direct(None, connection, false).await.map_err(|error| OpenError::Migrate(error.into()))?;
    let after = applied_version(connection).await.map_err(failed)?;
    Ok(MigrateReport { before, after, known: schema_version() })
}

fn failed(error: sqlx::Error) -> OpenError {
    OpenError::Migrate(error.into())
}
