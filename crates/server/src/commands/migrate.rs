//! `migrate`: brings the schema up to date.

use switchboard_model::ids::InstanceId;

use crate::config::Config;
use crate::database::Database;
use crate::output;

/// Applies the migrations that are missing.
pub(crate) async fn run(config: &Config) -> anyhow::Result<()> {
    let report = match Database::of(config, InstanceId::boot("migrate"))? {
        Database::Sqlite(options) => switchboard_store_sqlite::migrate(&options).await?,
        Database::Postgres(options) => switchboard_store_pg::migrate(&options).await?,
    };
    if report.after > report.known {
        let (after, known) = (report.after, report.known);
        output::line(format_args!("The schema has version {after}, newer than {known} of this binary."))
    } else if report.after == report.before {
        output::line(format_args!("The schema is up to date at version {}.", report.after))
    } else {
        output::line(format_args!("Migrated the schema from version {} to {}.", report.before, report.after))
    }
}
