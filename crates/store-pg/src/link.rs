//! One connection of a pool, on which nothing waits longer than a server that lives would take.
//!
//! The server ends what takes too long, but a network that swallows every answer would be waited for until
//! its connections are given up by the operating system, which takes minutes or for ever. Knows no table.

use std::io;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use sqlx::error::BoxDynError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnection, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Describe, Either, Error, Execute, Executor, Postgres, SqlStr};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// How long an answer may take: longer than any statement may, by the setting of its session.
const PATIENCE: Duration = Duration::from_secs(12);
/// How long a connection may take to come back to its pool, when nobody waits for it.
const RETURN_PATIENCE: Duration = Duration::from_secs(3);

/// What becomes of prepared statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statements {
    /// They are kept by name for the next time.
    Kept,
    /// They have no name: behind a transaction pooler the session that knows it may be anybody's next.
    Unnamed,
}

/// A connection that gives up on a silent server; then it is closed, and its place in the pool is free.
#[derive(Debug)]
pub(crate) struct Link {
    /// Taken by the drop only.
    inner: Option<PoolConnection<Postgres>>,
    statements: Statements,
    is_in_transaction: bool,
    tracker: TaskTracker,
}

impl Link {
    /// Takes over a connection; what it needs after its drop is done on `tracker`.
    pub(crate) const fn new(
        connection: PoolConnection<Postgres>,
        statements: Statements,
        tracker: TaskTracker,
    ) -> Self {
        Self { inner: Some(connection), statements, is_in_transaction: false, tracker }
    }

    /// Begins a transaction, which is rolled back when the connection is dropped.
    pub(crate) async fn begin(&mut self, statement: &'static str) -> Result<(), Error> {
        // Said before: whether a statement that is dropped on its way took effect is unknown.
        self.is_in_transaction = true;
        sqlx::raw_sql(statement).execute(self).await.map(|_| ())
    }

    /// Commits the transaction if there is one.
    pub(crate) async fn commit(&mut self) -> Result<(), Error> {
        self.end("COMMIT").await
    }

    /// Rolls the transaction back if there is one.
    pub(crate) async fn rollback(&mut self) -> Result<(), Error> {
        self.end("ROLLBACK").await
    }

    async fn end(&mut self, statement: &'static str) -> Result<(), Error> {
        if self.is_in_transaction {
            sqlx::raw_sql(statement).execute(&mut *self).await?;
            self.is_in_transaction = false;
        }
        Ok(())
    }

    // Nothing but the drop takes the connection, and nothing comes after that.
    #[expect(clippy::expect_used, reason = "it is there until the drop")]
    fn connection(&mut self) -> &mut PgConnection {
        self.inner.as_mut().expect("the connection is there until the drop")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(connection) = self.inner.take() {
            self.tracker.spawn(give_back(connection, self.is_in_transaction));
        }
    }
}

/// Returns a connection to its pool, or closes it when the server does not answer. The pool alone would wait for that
/// answer however long it takes, and the place of the connection with it.
async fn give_back(mut connection: PoolConnection<Postgres>, is_in_transaction: bool) {
    if is_in_transaction {
        let rollback = sqlx::raw_sql("ROLLBACK").execute(&mut *connection);
        if in_time(RETURN_PATIENCE, rollback).await.is_err() {
            return connection.close_on_drop();
        }
    }
    let returned = timeout(RETURN_PATIENCE, connection.return_to_pool()).await;
    if returned.is_err() {
        tracing::debug!("a silent connection was closed");
    }
}

impl<'c> Executor<'c> for &'c mut Link {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let rows = match self.statements {
            Statements::Kept => self.connection().fetch_many(query),
            Statements::Unnamed => self.connection().fetch_many(Unnamed(query)),
        };
        stream::try_unfold(rows, |mut rows| async {
            Ok(in_time(PATIENCE, rows.try_next()).await?.map(|row| (row, rows)))
        })
        .boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let row = match self.statements {
            Statements::Kept => self.connection().fetch_optional(query),
            Statements::Unnamed => self.connection().fetch_optional(Unnamed(query)),
        };
        Box::pin(in_time(PATIENCE, row))
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'c: 'e,
    {
        Box::pin(in_time(PATIENCE, self.connection().prepare_with(sql, parameters)))
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, Error>>
    where
        'c: 'e,
    {
        Box::pin(in_time(PATIENCE, self.connection().describe(sql)))
    }
}

/// A query whose statement gets no name. The driver names it otherwise, also when it keeps none.
struct Unnamed<E>(E);

impl<'q, E: Execute<'q, Postgres>> Execute<'q, Postgres> for Unnamed<E> {
    fn sql(self) -> SqlStr {
        self.0.sql()
    }

    fn statement(&self) -> Option<&PgStatement> {
        self.0.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<PgArguments>, BoxDynError> {
        self.0.take_arguments()
    }

    fn persistent(&self) -> bool {
        false
    }
}

/// Gives work up that is not done in time.
pub(crate) async fn in_time<T>(patience: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Err(Error::Io(io::ErrorKind::TimedOut.into()));
    timeout(patience, work).await.unwrap_or_else(late)
}
