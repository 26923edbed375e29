//! Migrations: the schema that this binary knows, applied at boot or on demand.

use sqlx::migrate::{Migrate as _, Migrator};
use sqlx::{Connection as _, SqliteConnection};
use switchboard_store_api::MigrateReport;

use crate::connect::{self, SqliteOptions};
use crate::error::OpenError;

static KNOWN: Migrator = sqlx::migrate!("../../migrations/sqlite");

/// Returns the newest migration that this binary knows.
#[must_use]
pub fn schema_version() -> i64 {
    KNOWN.iter().map(|migration| migration.version).max().unwrap_or_default()
}

/// Applies the migrations that the database lacks, while no other process has it open.
///
/// # Errors
/// [`OpenError`] says what stands in the way.
pub async fn migrate(options: &SqliteOptions) -> Result<MigrateReport, OpenError> {
    let _lock = connect::lock(&options.path)?;
    let mut connection = connect::writer(options).await?;
    let report = run(&mut connection).await?;
    connection.close().await?;
    Ok(report)
}

/// Applies what is missing over the connection of the writer.
pub(crate) async fn run(connection: &mut SqliteConnection) -> Result<MigrateReport, OpenError> {
    // Migrations of a newer binary are compatible by rule, so an older one runs beside them.
    let migrator = Migrator { migrations: KNOWN.migrations.clone(), ignore_missing: true, ..Migrator::DEFAULT };
    connection.ensure_migrations_table(&migrator.table_name).await?;
    let before = applied_version(connection, &migrator).await?;
    // The public `run` is not general enough over lifetimes for a future that must be `Send`.
    migrator.run_direct(None, connection, false).await?;
    let after = applied_version(connection, &migrator).await?;
    Ok(MigrateReport { before, after, known: schema_version() })
}

async fn applied_version(connection: &mut SqliteConnection, migrator: &Migrator) -> Result<i64, OpenError> {
    let applied = connection.list_applied_migrations(&migrator.table_name).await?;
    Ok(applied.iter().map(|migration| migration.version).max().unwrap_or_default())
}
