//! The migrated database that others are cloned from. Its name tells the migrations, so a change makes a new one.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use anyhow::Context as _;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnection;
use switchboard_model::ids::InstanceId;
use switchboard_store_pg::{HintTransport, PgOptions};

use super::{administrator, execute, options};

/// The advisory lock under which templates are made: every test may run in a process of its own.
const LOCK: i64 = 0x7377_6974_6368_7470;

/// Returns the name of the template, after making it if it does not exist.
pub(super) async fn ensure(server_url: &str) -> anyhow::Result<String> {
    let name = template_name();
    let mut admin = administrator(server_url).await?;
    if state(&mut admin, &name).await? == State::Complete {
        return Ok(name);
    }
    // Ending the session frees the lock.
    sqlx::query("SELECT pg_advisory_lock($1)").bind(LOCK).execute(&mut admin).await?;
    match state(&mut admin, &name).await? {
        State::Complete => return Ok(name),
        State::Missing => {}
        State::Unfinished => execute(&mut admin, format!("DROP DATABASE {name} WITH (FORCE)")).await?,
    }
    execute(&mut admin, format!("CREATE DATABASE {name}")).await?;
    migrate(server_url, &name).await?;
    // The mark of a template that is complete, which also keeps it as it is.
    execute(&mut admin, format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await?;
    Ok(name)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Missing,
    /// Whoever made it has died, or is still at it.
    Unfinished,
    Complete,
}

async fn state(admin: &mut PgConnection, name: &str) -> anyhow::Result<State> {
    let query = sqlx::query_scalar("SELECT datallowconn FROM pg_database WHERE datname = $1");
    Ok(match query.bind(name).fetch_optional(admin).await? {
        None => State::Missing,
        Some(true) => State::Unfinished,
        Some(false) => State::Complete,
    })
}

async fn migrate(server_url: &str, name: &str) -> anyhow::Result<()> {
    let options = PgOptions {
        url: options(server_url)?.database(name).to_url_lossy().to_string(),
        direct_url: None,
        pool_size: 1,
        pooled: false,
        notify: HintTransport::Off,
        instance: InstanceId::boot("template"),
        schedule_clock: Default::default(),
    };
    switchboard_store_pg::migrate(&options).await.map(drop).context("cannot migrate the template")
}

fn template_name() -> String {
    let mut hasher = DefaultHasher::new();
    for migration in sqlx::migrate!("../../migrations/postgres").iter() {
        (migration.version, &migration.checksum).hash(&mut hasher);
    }
    format!("switchboard_template_{:016x}", hasher.finish())
}
