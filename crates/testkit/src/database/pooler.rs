//! A transaction pooler before the server of a database.

use anyhow::Context as _;
use sqlx::ConnectOptions as _;
use switchboard_testkit_postgres::PgBouncer;

use super::{TestDatabase, options};
use crate::must::Must as _;

/// A PgBouncer in transaction mode. Dropping it ends it and the connections through it.
#[derive(Debug)]
pub struct Pooler {
    url: String,
    _bouncer: PgBouncer,
}

impl Pooler {
    /// Starts a pooler before a database.
    ///
    /// # Panics
    /// Panics when this machine has no PgBouncer and no way to get it.
    pub async fn before(database: &TestDatabase) -> Self {
        Self::start(database.url().to_owned()).await.must("starting PgBouncer")
    }

    async fn start(url: String) -> anyhow::Result<Self> {
        let options = options(&url)?;
        let mut target =
            format!("host={} port={} user={}", options.get_host(), options.get_port(), options.get_username());
        if let Some(password) = options.to_url_lossy().password() {
            target += &format!(" password={password}");
        }
        let started = tokio::task::spawn_blocking(move || PgBouncer::start(&target));
        let bouncer = started.await.context("starting the pooler panicked")??;
        let url = options.host("127.0.0.1").port(bouncer.port()).to_url_lossy().to_string();
        Ok(Self { url, _bouncer: bouncer })
    }

    /// Returns the URL of the database, through the pooler.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}
