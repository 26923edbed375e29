//! Rate limits: the rule is the model's; for a single key it is said once more in SQL, so that one statement
//! decides on the row as it is under its lock and by the time as it is then.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::postgres::types::PgInterval;
use switchboard_model::Timestamp;
use switchboard_model::limit::Decision;
use switchboard_store_api::{LimitStore, LimitTake, StoreResult};

use crate::connect::{Database, Tx};
use crate::error::fault;

pub(crate) struct Limits(pub(crate) Arc<Database>);

#[async_trait]
impl LimitStore for Limits {
    #[tracing::instrument(name = "db.limits.take", level = "debug", skip_all)]
    async fn take(&self, takes: &[LimitTake]) -> StoreResult<Vec<Decision>> {
        match takes {
            [] => Ok(Vec::new()),
            [take] => take_one(&self.0, take).await.map(|decision| vec![decision]),
            _ => take_all(&self.0, takes).await,
        }
    }

    #[tracing::instrument(name = "db.limits.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        let mut session = self.0.session().await?;
        // Locking looks again at a row that was used in between.
        let deleted = sqlx::query(
            "-- limits.sweep
             WITH unused AS MATERIALIZED (
                 SELECT key FROM switchboard.rate_limits WHERE tat <= statement_timestamp()
                 LIMIT $1 FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.rate_limits AS known USING unused WHERE known.key = unused.key",
        )
        .bind(i64::from(limit))
        .execute(&mut *session)
        .await
        .map_err(fault)?
        .rows_affected();
        session.commit().await?;
        Ok(deleted)
    }
}

/// What the statement for one key found and did.
#[derive(sqlx::FromRow)]
struct TakenRow {
    /// The arrival time as it was seen before any wait for the row.
    seen: Option<Timestamp>,
    /// The new arrival time, if the units were given.
    taken: Option<Timestamp>,
    now: Timestamp,
}

/// An arrival time never goes back, so what was seen suffices to deny, and denying locks nothing. It does not
/// suffice when somebody else took the last units in between: then the next look sees what that one left.
async fn take_one(database: &Arc<Database>, take: &LimitTake) -> StoreResult<Decision> {
    loop {
        let found = try_take(database, take).await?;
        if let Some(taken) = found.taken {
            return Ok(take.rate.decided(true, micros(taken) - micros(found.now), take.cost));
        }
        let (decision, next) = take.rate.take(found.seen.map(micros), micros(found.now), take.cost);
        if next.is_none() {
            return Ok(decision);
        }
    }
}

async fn try_take(database: &Arc<Database>, take: &LimitTake) -> StoreResult<TakenRow> {
    let mut session = database.session().await?;
    // The clock is read anew after the wait for the row. It only goes on between the condition and the new
    // value, which gives no more than the condition allows.
    let row = sqlx::query_as(
        "-- limits.take
         WITH seen AS MATERIALIZED (
             SELECT tat FROM switchboard.rate_limits WHERE key = $1
         ),
         taken AS (
             INSERT INTO switchboard.rate_limits AS known (key, tat)
             SELECT $1, clock_timestamp() + $2
             WHERE $2 <= $3 AND NOT EXISTS (SELECT FROM seen WHERE tat + $2 > clock_timestamp() + $3)
             ON CONFLICT (key) DO UPDATE SET tat = greatest(known.tat, clock_timestamp()) + $2
                 WHERE known.tat + $2 <= clock_timestamp() + $3
             RETURNING tat
         )
         SELECT seen.tat AS seen, taken.tat AS taken, clock_timestamp() AS now
         FROM (SELECT) AS always LEFT JOIN taken ON true LEFT JOIN seen ON true",
    )
    .bind(&take.key)
    .bind(interval(take.rate.cost_us(take.cost)))
    .bind(interval(take.rate.cost_us(take.rate.burst())))
    .fetch_one(&mut *session)
    .await
    .map_err(fault)?;
    session.commit().await?;
    Ok(row)
}

/// Takes of all keys or of none, under the locks on all of them.
async fn take_all(database: &Arc<Database>, takes: &[LimitTake]) -> StoreResult<Vec<Decision>> {
    let keys: Vec<&str> = takes.iter().map(|take| take.key.as_str()).collect();
    let mut tx = database.begin().await?;
    let (known, now) = lock(&mut tx, &keys).await?;
    let (decisions, next): (Vec<_>, Vec<_>) =
        takes.iter().zip(known).map(|(take, tat)| take.rate.take(Some(tat), now, take.cost)).unzip();
    let next: Option<Vec<i64>> = next.into_iter().collect();
    let Some(next) = next else { return tx.undo(decisions).await };
    put(&mut tx, &keys.into_iter().zip(next).collect::<Vec<_>>()).await?;
    tx.commit().await?;
    Ok(decisions)
}

/// Makes the rows that are missing and locks the others, in the order of their keys; then reads the arrival times, in
/// the order of `keys`, and the time, all in microseconds.
pub(crate) async fn lock(tx: &mut Tx, keys: &[&str]) -> StoreResult<(Vec<i64>, i64)> {
    // A row that is there is locked by the conflict, and not written.
    sqlx::query(
        "-- limits.lock
         INSERT INTO switchboard.rate_limits (key, tat)
         SELECT key, clock_timestamp() FROM unnest($1::text[]) AS given (key) ORDER BY key COLLATE \"C\"
         ON CONFLICT (key) DO UPDATE SET tat = excluded.tat WHERE false",
    )
    .bind(keys)
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    let (known, now): (Vec<Timestamp>, Timestamp) = sqlx::query_as(
        "-- limits.read
         SELECT array_agg(known.tat ORDER BY given.place), clock_timestamp()
         FROM unnest($1::text[]) WITH ORDINALITY AS given (key, place)
         JOIN switchboard.rate_limits AS known ON known.key = given.key",
    )
    .bind(keys)
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)?;
    Ok((known.into_iter().map(micros).collect(), micros(now)))
}

/// Writes arrival times, in microseconds, of rows that [`lock`] has locked.
pub(crate) async fn put(tx: &mut Tx, taken: &[(&str, i64)]) -> StoreResult<()> {
    if taken.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "-- limits.put
         UPDATE switchboard.rate_limits AS known SET tat = given.tat
         FROM unnest($1::text[], $2::timestamptz[]) AS given (key, tat) WHERE known.key = given.key",
    )
    .bind(taken.iter().map(|(key, _)| *key).collect::<Vec<_>>())
    .bind(taken.iter().map(|(_, tat)| instant(*tat)).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}

/// An interval of microseconds, none of which gets lost on the way.
fn interval(us: i64) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: us }
}

fn micros(instant: Timestamp) -> i64 {
    instant.timestamp_micros()
}

/// Costs end far below the range of instants.
fn instant(us: i64) -> Timestamp {
    Timestamp::from_timestamp_micros(us).unwrap_or(Timestamp::MAX_UTC)
}
