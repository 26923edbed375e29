//! Fresh databases on a real PostgreSQL server, each for one test and gone after it.

mod pooler;
mod server;
mod template;

use std::sync::Arc;

use anyhow::Context as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Postgres, Transaction};
use switchboard_model::Timestamp;
use switchboard_testkit_postgres::{Durability, PostgresServer};

use crate::must::Must as _;
pub use pooler::Pooler;

/// A database of its own. Dropping it removes the database, whoever is connected.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    url: String,
    pool: PgPool,
    server: Arc<PostgresServer>,
}

impl TestDatabase {
    /// Creates a database with the current schema.
    ///
    /// # Panics
    /// Panics when there is no server or the migrations fail.
    pub async fn create() -> Self {
        let server = server::shared(Durability::Fast).await.must("finding PostgreSQL");
        let template = template::ensure(server.url()).await.must("making the template database");
        let suffix = format!(" TEMPLATE {template} STRATEGY file_copy");
        Self::on(server, &suffix).await.must("cloning the template database")
    }

    /// Creates a database without anything in it.
    ///
    /// # Panics
    /// Panics when there is no server.
    pub async fn empty() -> Self {
        Self::empty_on(Durability::Fast).await
    }

    /// Creates an empty database on a server that keeps what was committed through a crash.
    ///
    /// # Panics
    /// Panics when there is no server.
    pub async fn empty_durable() -> Self {
        Self::empty_on(Durability::Durable).await
    }

    /// Creates an empty database on a server of its own, which can be restarted.
    ///
    /// # Panics
    /// Panics when this machine has no server binaries.
    pub async fn empty_on_own_server() -> Self {
        let server = server::start_own().await.must("starting PostgreSQL");
        Self::on(Arc::new(server), "").await.must("creating a database")
    }

    async fn empty_on(durability: Durability) -> Self {
        let server = server::shared(durability).await.must("finding PostgreSQL");
        Self::on(server, "").await.must("creating a database")
    }

    async fn on(server: Arc<PostgresServer>, suffix: &str) -> anyhow::Result<Self> {
        let name = format!("switchboard_test_{:016x}", rand::random::<u64>());
        let mut admin = administrator(server.url()).await?;
        execute(&mut admin, format!("CREATE DATABASE {name}{suffix}")).await?;
        admin.close().await?;
        let options = options(server.url())?.database(&name);
        let url = options.to_url_lossy().to_string();
        let pool = PgPoolOptions::new().connect_lazy_with(options.options([("search_path", "switchboard,public")]));
        Ok(Self { name, url, pool, server })
    }

    /// Returns the URL for a superuser.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Crashes the server and starts it again.
    ///
    /// # Panics
    /// Panics when the server is not this database's own.
    pub fn restart_server(&mut self) {
        self.own_server().restart().must("restarting PostgreSQL");
    }

    /// Lets all processes of the server stand still, as on a machine that hangs.
    ///
    /// # Panics
    /// Panics when the server is not this database's own.
    pub fn pause_server(&mut self) {
        self.own_server().pause().must("pausing PostgreSQL");
    }

    /// Lets a paused server go on.
    ///
    /// # Panics
    /// Panics when the server is not this database's own.
    pub fn resume_server(&mut self) {
        self.own_server().resume().must("resuming PostgreSQL");
    }

    fn own_server(&mut self) -> &mut PostgresServer {
        let Some(server) = Arc::get_mut(&mut self.server) else {
            panic!("other databases are on this server");
        };
        server
    }

    /// Executes a statement, such as one that takes a table away.
    ///
    /// # Panics
    /// Panics when the statement fails.
    pub async fn execute(&self, statement: &'static str) {
        sqlx::query(statement)
            .execute(&self.pool)
            .await
            .map(drop)
            .with_context(|| statement)
            .must("changing a database");
    }

    /// Executes several statements, as `psql` does.
    ///
    /// # Panics
    /// Panics when one fails.
    pub async fn script(&self, statements: &'static str) {
        let run = sqlx::raw_sql(statements).execute(&self.pool).await;
        run.map(drop).with_context(|| statements).must("running a script");
    }

    /// Begins a transaction, executes a statement in it, and leaves it open.
    ///
    /// # Panics
    /// Panics when the statement fails.
    pub async fn hold(&self, statement: &'static str) -> OpenTransaction {
        let mut transaction = self.pool.begin().await.must("beginning a transaction");
        sqlx::query(statement)
            .execute(&mut *transaction)
            .await
            .with_context(|| statement)
            .must("holding a transaction");
        OpenTransaction(transaction)
    }

    /// Counts what a query counts.
    ///
    /// # Panics
    /// Panics when the query fails.
    pub async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&self.pool).await.with_context(|| query).must("counting")
    }

    /// Returns database time.
    ///
    /// # Panics
    /// Panics when the database does not answer.
    pub async fn now(&self) -> Timestamp {
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&self.pool).await.must("reading the time")
    }

    /// Returns a pool for statements of the test itself; the tables are on its search path.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }
}

/// A transaction of an application that stands idle. Dropping it rolls it back.
#[derive(Debug)]
pub struct OpenTransaction(Transaction<'static, Postgres>);

impl OpenTransaction {
    /// Commits it.
    ///
    /// # Panics
    /// Panics when that fails.
    pub async fn commit(self) {
        self.0.commit().await.must("committing a transaction");
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let url = self.server.url().to_owned();
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // The test's own runtime cannot be waited for from here, so the work has one of its own.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut admin = administrator(&url).await?;
                execute(&mut admin, statement).await
            })
        });
        if let Ok(Err(error)) = dropped.join() {
            eprintln!("the database {} is left behind: {error:#}", self.name);
        }
    }
}

fn options(url: &str) -> anyhow::Result<PgConnectOptions> {
    url.parse().context("the URL of the server cannot be read")
}

/// Connects to the maintenance database.
async fn administrator(url: &str) -> anyhow::Result<PgConnection> {
    PgConnection::connect_with(&options(url)?).await.context("cannot connect to the server")
}

/// Executes a statement that takes no parameters, such as one about a database. The names in it are made here, of
/// letters and digits only.
async fn execute(connection: &mut PgConnection, statement: String) -> anyhow::Result<()> {
    let query = sqlx::query(AssertSqlSafe(statement.clone())).persistent(false);
    query.execute(connection).await.map(drop).with_context(|| statement)
}
