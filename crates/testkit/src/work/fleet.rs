//! The replicas as workloads see them: clients through the proxies, asked again until one answers.

use std::future::Future;
use std::time::Duration;

use anyhow::Context as _;
use rand::seq::IndexedRandom as _;
use sqlx::postgres::PgPool;
use switchboard_client::{Client, ClientError};
use tokio::time::{Instant, sleep, timeout};

use crate::must::Must as _;

/// How long one replica may take to answer before another one is asked.
pub(crate) const PATIENCE: Duration = Duration::from_secs(4);

/// How long all of them together may take; many times what any fault lasts.
pub(crate) const LONG: Duration = Duration::from_secs(180);

/// How long to pause after a vain try.
const PAUSE: Duration = Duration::from_millis(50);

/// What a workload works on.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    replicas: Vec<Client>,
    pool: PgPool,
    seed: u64,
}

impl Fleet {
    pub(crate) fn new(replicas: Vec<Client>, pool: &PgPool, seed: u64) -> Self {
        Self { replicas, pool: pool.clone(), seed }
    }

    /// Returns clients of all replicas.
    pub(crate) fn replicas(&self) -> &[Client] {
        &self.replicas
    }

    /// Returns the addresses of all replicas.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.base_url().to_owned()).collect()
    }

    /// Returns a client of some replica, which may be down.
    pub(crate) fn any(&self) -> Client {
        self.replicas.choose(&mut rand::rng()).cloned().context("no replica").must("choosing a replica")
    }

    /// Returns the way past all faults but those of the database itself.
    pub(crate) const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Returns what randomness is drawn from.
    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    /// Asks one replica once; a silent one is as good as none.
    pub(crate) async fn try_once<T, F>(&self, ask: impl FnOnce(Client) -> F + Send) -> Option<Result<T, ClientError>>
    where
        F: Future<Output = Result<T, ClientError>> + Send,
    {
        timeout(PATIENCE, ask(self.any())).await.ok()
    }

    /// Asks one replica after the other until one answers. The request must be one that may be repeated.
    ///
    /// # Errors
    /// What was refused for good, or the last error after a long time.
    pub(crate) async fn insist<T, F>(&self, ask: impl Fn(Client) -> F + Send + Sync) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>> + Send,
    {
        let give_up = Instant::now() + LONG;
        loop {
            match self.try_once(&ask).await {
                Some(Err(error)) if !error.is_retryable() || Instant::now() >= give_up => return Err(error),
                Some(Ok(value)) => return Ok(value),
                Some(Err(_)) | None => sleep(PAUSE).await,
            }
        }
    }
}
