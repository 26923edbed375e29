//! The server of this process: found or started with the first database, stopped after the last one; and servers that
//! one database has for itself.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::Context as _;
use switchboard_testkit_postgres::{Durability, PostgresServer, find_binaries};

static FAST: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
static DURABLE: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());

/// Returns the server that the databases of this process share.
pub(super) async fn shared(durability: Durability) -> anyhow::Result<Arc<PostgresServer>> {
    tokio::task::spawn_blocking(move || find_or_start(durability)).await.context("starting the server panicked")?
}

/// Starts a server for one database, which keeps what was committed through a crash.
pub(super) async fn start_own() -> anyhow::Result<PostgresServer> {
    let start = || {
        let binaries = find_binaries().context("a server of its own needs the server binaries on this machine")?;
        anyhow::Ok(PostgresServer::start(&binaries, Durability::Durable)?)
    };
    tokio::task::spawn_blocking(start).await.context("starting the server panicked")?
}

fn find_or_start(durability: Durability) -> anyhow::Result<Arc<PostgresServer>> {
    let slot = match durability {
        Durability::Fast => &FAST,
        Durability::Durable => &DURABLE,
    };
    // A test that failed while it started a server has left the slot as it was.
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = slot.upgrade() {
        return Ok(server);
    }
    let server = Arc::new(PostgresServer::find_or_start(durability)?);
    *slot = Arc::downgrade(&server);
    Ok(server)
}
