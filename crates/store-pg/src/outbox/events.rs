//! Events of the outbox, appended to their rooms.
//!
//! The relay locks the rooms and then looks: what it finds for them nobody else is relaying, and the entries of a room
//! are appended in the order in which they were left.

use std::sync::Arc;

use switchboard_model::identity::{Actor, NameError, RoomName};
use switchboard_model::room::{MessageId, NewEvent};
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{AppendOutcome, RelayReport, StoreError, StoreResult};
use uuid::Uuid;

use super::{Care, end_savepoint, remove, report, set_savepoint, with_causes};
use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::rooms::append::{all, append_locked};
use crate::rooms::lock::{Held, lock, make, missing, stored_rooms};
use crate::rows::json;

/// Whose message ids these are: those of applications that share the database.
const SENDER: Actor = Actor::System("sql");

/// Among how many of the oldest entries rooms are looked for, so that one with many hides no other.
const LOOKED_AT: i64 = 10_000;

/// For how many rooms that somebody else holds one relay waits; triggers wait behind it.
const WAITED_FOR: usize = 3;

/// Relays for the rooms that are free, then for those that somebody else holds.
pub(super) async fn relay(database: &Arc<Database>, limit: u32, care: Care) -> StoreResult<RelayReport> {
    let (mut report, mut busy) = (RelayReport::default(), Vec::new());
    loop {
        let waiting = waiting(database, limit, &busy).await?;
        if waiting.is_empty() {
            break;
        }
        let is_full = waiting.len() >= limit as usize;
        let (relayed, passed_over) = pass(database, waiting, Pass { limit, care, held: Held::PassOver }).await?;
        let has_relayed = relayed != RelayReport::default();
        report = report.and(relayed);
        busy.extend(passed_over);
        if !is_full {
            break;
        }
        if has_relayed {
            // Who comes next finds the rest.
            report.more = true;
            break;
        }
        // All of these were held by somebody: behind them there may be rooms that are free.
    }
    // One room after another, so that none is held while another is waited for.
    for room in busy.into_iter().take(WAITED_FOR) {
        match pass(database, vec![room], Pass { limit, care, held: Held::Wait }).await {
            Ok((waited, _)) => report = report.and(waited),
            // The feed says that there are entries until they are relayed.
            Err(StoreError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(report)
}

/// Reads for which rooms there are entries beside those that were passed over, at most `limit`, those with the oldest
/// entries first.
async fn waiting(database: &Arc<Database>, limit: u32, passed_over: &[String]) -> StoreResult<Vec<String>> {
    let mut session = database.session().await?;
    sqlx::query_scalar(
        "-- outbox.waiting_rooms
         SELECT subject FROM (
             SELECT id, subject FROM switchboard.outbox
             WHERE kind = 'publish' AND subject <> ALL ($3) ORDER BY id LIMIT $1
         ) AS oldest
         GROUP BY subject ORDER BY min(id) LIMIT $2",
    )
    .bind(LOOKED_AT)
    .bind(i64::from(limit))
    .bind(passed_over)
    .fetch_all(&mut *session)
    .await
    .map_err(fault)
}

/// How one transaction relays.
#[derive(Clone, Copy)]
struct Pass {
    limit: u32,
    care: Care,
    held: Held,
}

/// Relays entries of some rooms in one transaction; returns the rooms that were passed over, too.
async fn pass(database: &Arc<Database>, subjects: Vec<String>, pass: Pass) -> StoreResult<(RelayReport, Vec<String>)> {
    let mut tx = database.begin().await?;
    match apply(&mut tx, subjects, pass).await {
        Ok(done) => {
            fail_point::hit(FailPoint::BeforeAppendCommit);
            tx.commit().await?;
            fail_point::hit(FailPoint::AfterAppendCommit);
            Ok(done)
        }
        Err(error) => tx.undo(Err(error)).await?,
    }
}

#[derive(sqlx::FromRow)]
struct Entry {
    id: i64,
    subject: String,
    event: Option<String>,
    input: Option<String>,
    dedupe_key: Option<String>,
    msg_id: Option<Uuid>,
}

async fn apply(tx: &mut Tx, subjects: Vec<String>, pass: Pass) -> StoreResult<(RelayReport, Vec<String>)> {
    let Pass { limit, care, held } = pass;
    let rooms: Vec<RoomName> = subjects.iter().filter_map(|subject| subject.parse().ok()).collect();
    let names = stored_rooms(rooms.iter());
    let mut locked = lock(tx, &names, held).await?;
    let missing = missing(&names, &locked);
    if !missing.is_empty() {
        // Only other inserters of the same rooms wait for these rows.
        make(tx, &missing).await?;
        locked = lock(tx, &names, held).await?;
    }
    let (busy, free): (Vec<String>, Vec<String>) = subjects.into_iter().partition(|subject| locked.is_busy(subject));
    let entries = take(tx, &free, limit).await?;
    if entries.is_empty() {
        return Ok((RelayReport::default(), busy));
    }
    let (mut ids, mut events, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for entry in &entries {
        match entry.event() {
            Ok(event) => {
                ids.push(entry.id);
                events.push(event);
            }
            Err(error) => failures.push((entry.id, error)),
        }
    }
    match care {
        Care::Batch => {
            let outcomes = all(append_locked(tx, &events, &names, locked).await?);
            failures.extend(ids.into_iter().zip(&outcomes).filter_map(|(id, outcome)| Some((id, refusal(outcome)?))));
        }
        Care::Each => {
            for (id, event) in ids.into_iter().zip(events) {
                let refused = match append_or_undo(tx, event).await {
                    Err(error) if error.is_transient() => return Err(error),
                    Err(error) => Some(with_causes(&error)),
                    Ok(outcomes) => outcomes.iter().find_map(refusal),
                };
                failures.extend(refused.map(|error| (id, error)));
            }
        }
    }
    remove(tx, entries.iter().map(|entry| entry.id), &failures).await?;
    // The hub of this replica is not at hand here: it hears of the events from its feed.
    tx.has_signalled();
    Ok((report(entries.len(), failures.len() as u64, limit), busy))
}

/// Reads the oldest entries of locked rooms.
async fn take(tx: &mut Tx, subjects: &[String], limit: u32) -> StoreResult<Vec<Entry>> {
    sqlx::query_as(
        "-- outbox.take_events
         SELECT id, subject, event, input, dedupe_key, msg_id FROM switchboard.outbox
         WHERE kind = 'publish' AND subject = ANY ($1) ORDER BY id LIMIT $2",
    )
    .bind(subjects)
    .bind(i64::from(limit))
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

/// Appends an event, and leaves the transaction as it was where that fails.
async fn append_or_undo(tx: &mut Tx, event: NewEvent) -> StoreResult<Vec<AppendOutcome>> {
    set_savepoint(tx).await?;
    let names = stored_rooms(std::iter::once(&event.room));
    let appended = match lock(tx, &names, Held::Wait).await {
        Ok(rooms) => append_locked(tx, std::slice::from_ref(&event), &names, rooms).await,
        Err(error) => Err(error),
    };
    end_savepoint(tx, &appended).await?;
    Ok(all(appended?))
}

impl Entry {
    /// Reads what the entry asks for.
    fn event(&self) -> Result<NewEvent, String> {
        let of_name = |error: NameError| error.to_string();
        let (Some(event), Some(payload)) =
            (&self.event, json("payload", self.input.clone()).map_err(|error| error.to_string())?)
        else {
            return Err("the entry has no event or no payload".to_owned());
        };
        let msg_id = match (&self.dedupe_key, self.msg_id) {
            (Some(given), _) => MessageId::Given(given.parse().map_err(of_name)?),
            (None, Some(made)) => MessageId::Generated(made),
            (None, None) => return Err("the entry has no message id".to_owned()),
        };
        Ok(NewEvent {
            room: self.subject.parse().map_err(of_name)?,
            event: event.parse().map_err(of_name)?,
            payload,
            msg_id,
            sender: SENDER,
        })
    }
}

/// Says in which outcomes nothing was published.
fn refusal(outcome: &AppendOutcome) -> Option<String> {
    match outcome {
        AppendOutcome::Appended { .. } | AppendOutcome::Duplicate(_) => None,
        AppendOutcome::Refused(ErrorCode::NotFound) => Some("the room has been deleted".to_owned()),
        AppendOutcome::Refused(code) => Some(format!("the event was refused: {}", code.as_str())),
    }
}
