//! The outbox: what applications have left in their transactions takes effect here.
//!
//! The relay takes entries in one transaction with what they bring about, so that each takes effect exactly once. Of
//! triggers it locks the entries first and passes over those of another relay, then makes their runs as any trigger
//! does. Of events it locks the rooms ([`events`]).

mod events;

use std::error::Error as _;
use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::identity::NameError;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::outbox::FailedEntry;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{DedupeScope, NewRun, Trigger, clean_error};
use switchboard_model::span::Span;
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{OutboxStore, RelayReport, StoreError, StoreResult, TriggerOutcome};
use uuid::Uuid;

use crate::connect::{Database, Tx};
use crate::context::{collided, twice};
use crate::error::fault;
use crate::rows::{json, parsed};
use crate::runs::trigger;

pub(crate) struct Outbox(pub(crate) Arc<Database>);

#[async_trait]
impl OutboxStore for Outbox {
    #[tracing::instrument(name = "db.outbox.relay", level = "debug", skip_all)]
    async fn relay(&self, limit: u32) -> StoreResult<RelayReport> {
        let runs = with_care(|care| relay(&self.0, limit, care)).await;
        // Whatever is in the way of a trigger is in the way of no event.
        let events = with_care(|care| events::relay(&self.0, limit, care)).await;
        Ok(runs?.and(events?))
    }

    #[tracing::instrument(name = "db.outbox.failed", level = "debug", skip_all)]
    async fn failed(&self, page: &PageRequest) -> StoreResult<Page<FailedEntry>> {
        let before: Option<i64> =
            page.after.as_deref().map(|after| parsed(StoreError::PAGE_CURSOR, after)).transpose()?;
        let mut session = self.0.session().await?;
        let rows: Vec<FailedRow> = sqlx::query_as(
            "-- outbox.failed
             SELECT id, kind, subject, error, created_at, failed_at FROM switchboard.outbox_failed
             WHERE $1 IS NULL OR id < $1 ORDER BY id DESC LIMIT $2",
        )
        .bind(before)
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let entries = rows.into_iter().map(FailedEntry::from).collect();
        Ok(Page::from_rows(entries, page.limit, |entry: &FailedEntry| entry.id.to_string()))
    }

    #[tracing::instrument(name = "db.outbox.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        let statement = "-- outbox.sweep
             WITH old AS MATERIALIZED (
                 SELECT id FROM switchboard.outbox_failed
                 WHERE failed_at < statement_timestamp() - $1 * interval '1 millisecond'
                 ORDER BY failed_at LIMIT $2 FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.outbox_failed AS entry USING old WHERE entry.id = old.id";
        self.0.delete_old(statement, age, limit).await
    }
}

/// How much one entry may take along when a statement fails.
#[derive(Clone, Copy)]
enum Care {
    /// The whole batch; nothing is relayed then.
    Batch,
    /// Itself.
    Each,
}

async fn with_care<F: Future<Output = StoreResult<RelayReport>>>(
    relay: impl Fn(Care) -> F,
) -> StoreResult<RelayReport> {
    match twice(|| relay(Care::Batch)).await {
        // A statement failed, and with it the transaction: this time an entry takes no other along.
        Err(error) if !error.is_transient() => twice(|| relay(Care::Each)).await,
        outcome => outcome,
    }
}

async fn relay(database: &Arc<Database>, limit: u32, care: Care) -> StoreResult<RelayReport> {
    let mut tx = database.begin().await?;
    let entries = take(&mut tx, limit).await?;
    if entries.is_empty() {
        return tx.undo(RelayReport::default()).await;
    }
    let failed = match apply(&mut tx, &entries, care).await {
        Ok(failed) => failed,
        // At once, for whoever tries again passes over what is locked.
        Err(error) => return tx.undo(Err(error)).await?,
    };
    fail_point::hit(FailPoint::BeforeTriggerCommit);
    tx.commit().await?;
    fail_point::hit(FailPoint::AfterTriggerCommit);
    Ok(report(entries.len(), failed, limit))
}

fn report(taken: usize, failed: u64, limit: u32) -> RelayReport {
    let taken = taken as u64;
    RelayReport { applied: taken - failed, failed, more: taken >= u64::from(limit) }
}

#[derive(sqlx::FromRow)]
struct Entry {
    id: i64,
    kind: String,
    task_id: Option<Uuid>,
    run_id: Option<Uuid>,
    input: Option<String>,
    dedupe_key: Option<String>,
}

/// Locks the oldest entries that nobody else is relaying, events aside.
async fn take(tx: &mut Tx, limit: u32) -> StoreResult<Vec<Entry>> {
    sqlx::query_as(
        "-- outbox.take
         SELECT id, kind, task_id, run_id, input, dedupe_key FROM switchboard.outbox
         WHERE kind <> 'publish' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED",
    )
    .bind(i64::from(limit))
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

/// Lets entries take effect and takes them out; returns how many could not and are kept.
async fn apply(tx: &mut Tx, entries: &[Entry], care: Care) -> StoreResult<u64> {
    let (mut ids, mut runs, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        match entry.run() {
            Ok(run) => {
                ids.push(entry.id);
                runs.push(run);
            }
            Err(error) => failures.push((entry.id, error)),
        }
    }
    match care {
        Care::Batch => {
            let outcomes = trigger::place(tx, &runs).await?;
            failures.extend(ids.into_iter().zip(&outcomes).filter_map(|(id, outcome)| Some((id, refusal(outcome)?))));
        }
        Care::Each => {
            for (id, run) in ids.into_iter().zip(runs) {
                let refused = match place_or_undo(tx, run).await {
                    Err(error) if error.is_transient() => return Err(error),
                    Err(error) => Some(with_causes(&error)),
                    Ok(outcome) => refusal(&outcome),
                };
                failures.extend(refused.map(|error| (id, error)));
            }
        }
    }
    remove(tx, entries.iter().map(|entry| entry.id), &failures).await?;
    Ok(failures.len() as u64)
}

/// Makes a run, and leaves the transaction as it was where that fails.
async fn place_or_undo(tx: &mut Tx, run: NewRun) -> StoreResult<TriggerOutcome> {
    set_savepoint(tx).await?;
    let placed = trigger::place(tx, &[run]).await;
    end_savepoint(tx, &placed).await?;
    placed?.pop().ok_or_else(collided)
}

async fn set_savepoint(tx: &mut Tx) -> StoreResult<()> {
    sqlx::raw_sql("SAVEPOINT entry").execute(&mut **tx).await.map_err(fault)?;
    Ok(())
}

/// Leaves the transaction as it was at the savepoint where that which came after it has failed.
async fn end_savepoint<T>(tx: &mut Tx, outcome: &StoreResult<T>) -> StoreResult<()> {
    let end = if outcome.is_ok() { "RELEASE entry" } else { "ROLLBACK TO entry; RELEASE entry" };
    sqlx::raw_sql(end).execute(&mut **tx).await.map_err(fault)?;
    Ok(())
}

impl Entry {
    /// Reads what the entry asks for.
    fn run(&self) -> Result<NewRun, String> {
        let (Some(task), Some(run), "trigger") = (self.task_id, self.run_id, self.kind.as_str()) else {
            return Err(format!("this version does not know entries of the kind {}", self.kind));
        };
        let input = json("input", self.input.clone()).map_err(|error| error.to_string())?;
        let dedupe_key = self.dedupe_key.as_deref().map(str::parse).transpose();
        Ok(NewRun {
            id: RunId::from_uuid(run),
            task_id: TaskId::from_uuid(task),
            trigger: Trigger::Sql,
            input,
            delay: Span::default(),
            dedupe_key: dedupe_key.map_err(|error: NameError| error.to_string())?,
            dedupe_scope: DedupeScope::Active,
        })
    }
}

fn with_causes(error: &StoreError) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Says in which outcomes nothing carries out what the entry asked for.
fn refusal(outcome: &TriggerOutcome) -> Option<String> {
    match outcome {
        TriggerOutcome::Created(_) | TriggerOutcome::Duplicate(_) | TriggerOutcome::Adopted(_) => None,
        TriggerOutcome::TaskNotFound => Some("the task has been deleted".to_owned()),
        TriggerOutcome::Active(run) => {
            Some(format!("run {run} of the task was active, and its overlap policy is skip"))
        }
        TriggerOutcome::QueueFull => Some("as many runs of the task were waiting as its queue_max allows".to_owned()),
    }
}

/// Takes the entries out, and keeps those that could not take effect.
async fn remove(tx: &mut Tx, taken: impl Iterator<Item = i64>, failures: &[(i64, String)]) -> StoreResult<()> {
    let taken: Vec<i64> = taken.collect();
    let (failed, errors): (Vec<i64>, Vec<String>) =
        failures.iter().map(|(id, error)| (*id, clean_error(error))).unzip();
    sqlx::query(
        "-- outbox.remove
         WITH removed AS (
             DELETE FROM switchboard.outbox WHERE id = ANY ($1) RETURNING *
         )
         INSERT INTO switchboard.outbox_failed
             (id, kind, subject, task_id, run_id, input, dedupe_key, event, msg_id, created_at, error)
         SELECT removed.id, kind, subject, task_id, run_id, input, dedupe_key, event, msg_id, created_at, failure.error
         FROM removed JOIN unnest($2::bigint[], $3::text[]) AS failure (id, error) ON failure.id = removed.id",
    )
    .bind(taken)
    .bind(failed)
    .bind(errors)
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}

#[derive(sqlx::FromRow)]
struct FailedRow {
    id: i64,
    kind: String,
    subject: String,
    error: String,
    created_at: Timestamp,
    failed_at: Timestamp,
}

impl From<FailedRow> for FailedEntry {
    fn from(row: FailedRow) -> Self {
        let FailedRow { id, kind, subject, error, created_at, failed_at } = row;
        Self { id, kind, subject, error, created_at, failed_at }
    }
}
