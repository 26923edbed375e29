//! Rows as they are stored, and their conversion into entities. Knows no statement.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

use serde_json::from_str;
use switchboard_model::Timestamp;
use switchboard_model::api_key::ApiKey;
use switchboard_model::auth_session::Credential;
use switchboard_model::fire::Arming;
use switchboard_model::identity::{RoomName, UserId};
use switchboard_model::ids::{ApiKeyId, Fence, InstanceId, RoomId, RunId, SessionId, TaskId};
use switchboard_model::instance::Instance;
use switchboard_model::json_text::JsonText;
use switchboard_model::page::PageRequest;
use switchboard_model::room::{Epoch, Retention, Room, RoomKind, StoredEvent};
use switchboard_model::run::{OccurrenceRun, Run, SkipRange, StoredSkip};
use switchboard_model::span::Span;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_model::ticket::Ticket;
use switchboard_store_api::{StoreError, StoreResult};
use uuid::Uuid;

/// Parses a stored text, or says which kind of row has it wrong.
pub(crate) fn parsed<T: FromStr<Err: Display>>(what: &'static str, text: &str) -> StoreResult<T> {
    text.parse().map_err(|error| StoreError::corrupt(what, error))
}

fn parsed_opt<T: FromStr<Err: Display>>(what: &'static str, text: Option<&str>) -> StoreResult<Option<T>> {
    text.map(|text| parsed(what, text)).transpose()
}

/// Reads stored opaque JSON.
pub(crate) fn json(what: &'static str, text: Option<String>) -> StoreResult<Option<JsonText>> {
    text.map(|text| JsonText::parse(text).map_err(|error| StoreError::corrupt(what, error))).transpose()
}

/// Reads a count that the schema keeps from being negative.
pub(crate) fn count(value: i64) -> u64 {
    value.max(0).cast_unsigned()
}

/// Writes a count into a column of 32 bits; what is larger is as good as no bound.
pub(crate) fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Reads the cursor of a list that goes by id.
pub(crate) fn after_id(page: &PageRequest) -> StoreResult<Option<Uuid>> {
    after_name(page)
}

/// Reads the cursor of a list that goes by names.
pub(crate) fn after_name<T: FromStr<Err: Display>>(page: &PageRequest) -> StoreResult<Option<T>> {
    parsed_opt(StoreError::PAGE_CURSOR, page.after.as_deref())
}

/// Replaces the one character that the database does not store.
pub(crate) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// Moves an instant that the database cannot hold to the nearest one that is far enough away from everything.
pub(crate) fn storable_instant(at: Timestamp) -> Timestamp {
    let bound = |seconds| Timestamp::from_timestamp(seconds, 0).unwrap_or_default();
    // The years -4700 and 200000; PostgreSQL goes from 4713 before our era to 294276.
    at.clamp(bound(-210_500_000_000), bound(6_249_000_000_000))
}

/// Writes a short list of names, none of which has a comma.
pub(crate) fn join<T: Display>(names: &[T]) -> String {
    names.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// Reads the names that this binary knows.
fn split<T: FromStr>(names: &str) -> Vec<T> {
    names.split(',').filter_map(|name| name.parse().ok()).collect()
}

#[derive(sqlx::FromRow)]
pub(crate) struct TaskRow {
    pub(crate) id: Uuid,
    pub(crate) spec: String,
    pub(crate) is_active: bool,
    pub(crate) next_run_at: Option<Timestamp>,
    pub(crate) version: i64,
    pub(crate) paused_at: Option<Timestamp>,
    pub(crate) parked: Option<String>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
}

impl TaskRow {
    /// Reads the definition; the column says whether it is in force.
    pub(crate) fn spec(&self) -> Result<TaskSpec, serde_json::Error> {
        from_str::<TaskSpec>(&self.spec).map(|spec| TaskSpec { is_active: self.is_active, ..spec })
    }

    /// Returns how the task is armed.
    pub(crate) const fn arming(&self) -> Arming {
        Arming { is_active: self.is_active, next_run_at: self.next_run_at, paused_from: self.paused_at }
    }
}

impl TryFrom<TaskRow> for Task {
    type Error = StoreError;

    fn try_from(row: TaskRow) -> StoreResult<Self> {
        Ok(Self {
            id: TaskId::from_uuid(row.id),
            spec: row.spec().map_err(|error| StoreError::corrupt("task", error))?,
            next_run_at: row.next_run_at,
            version: row.version,
            paused_from: row.paused_at,
            parked: row.parked,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

#[derive(sqlx::FromRow)]
pub(crate) struct SkipRow {
    from_at: Timestamp,
    to_at: Timestamp,
    count: i64,
    cause: String,
    schedule: Option<String>,
}

impl TryFrom<SkipRow> for StoredSkip {
    type Error = StoreError;

    /// A schedule that this binary cannot read is as good as one that was not kept.
    fn try_from(row: SkipRow) -> StoreResult<Self> {
        let cause = parsed("skipped range", &row.cause)?;
        let range = SkipRange { from: row.from_at, to: row.to_at, count: count(row.count), cause };
        Ok(Self { range, schedule: row.schedule.and_then(|schedule| from_str(&schedule).ok()) })
    }
}

#[derive(sqlx::FromRow)]
pub(crate) struct OccurrenceRow {
    id: Uuid,
    scheduled_for: Timestamp,
    state: String,
    trigger: String,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    error: Option<String>,
}

impl TryFrom<OccurrenceRow> for OccurrenceRun {
    type Error = StoreError;

    fn try_from(row: OccurrenceRow) -> StoreResult<Self> {
        Ok(Self {
            id: RunId::from_uuid(row.id),
            scheduled_for: row.scheduled_for,
            state: parsed("run", &row.state)?,
            trigger: parsed("run", &row.trigger)?,
            started_at: row.started_at,
            finished_at: row.finished_at,
            error: row.error,
        })
    }
}

#[derive(sqlx::FromRow)]
pub(crate) struct RunRow {
    id: Uuid,
    task_id: Uuid,
    state: String,
    trigger: String,
    pool: String,
    priority: i16,
    run_at: Timestamp,
    scheduled_for: Option<Timestamp>,
    attempt: i32,
    max_attempts: i32,
    fence: i64,
    leased_by: Option<String>,
    lease_until: Option<Timestamp>,
    deadline_at: Option<Timestamp>,
    cancel_requested_at: Option<Timestamp>,
    key: Option<String>,
    pace_key: Option<String>,
    start_by: Option<Timestamp>,
    dedupe_key: Option<String>,
    created_at: Timestamp,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    input: Option<String>,
    result: Option<String>,
    error: Option<String>,
}

impl TryFrom<RunRow> for Run {
    type Error = StoreError;

    fn try_from(row: RunRow) -> StoreResult<Self> {
        Ok(Self {
            id: RunId::from_uuid(row.id),
            task_id: TaskId::from_uuid(row.task_id),
            state: parsed("run", &row.state)?,
            trigger: parsed("run", &row.trigger)?,
            pool: parsed("run", &row.pool)?,
            priority: row.priority,
            run_at: row.run_at,
            scheduled_for: row.scheduled_for,
            attempt: row.attempt.cast_unsigned(),
            max_attempts: row.max_attempts.cast_unsigned(),
            fence: Fence(row.fence),
            leased_by: row.leased_by.map(InstanceId::from_stored),
            lease_until: row.lease_until,
            deadline_at: row.deadline_at,
            cancel_requested_at: row.cancel_requested_at,
            key: row.key,
            pace_key: row.pace_key,
            start_by: row.start_by,
            dedupe_key: parsed_opt("run", row.dedupe_key.as_deref())?,
            created_at: row.created_at,
            started_at: row.started_at,
            finished_at: row.finished_at,
            input: json("run", row.input)?,
            result: json("run", row.result)?,
            error: row.error,
        })
    }
}

/// A room together with the timeline of the database, read by the same statement.
#[derive(sqlx::FromRow)]
pub(crate) struct RoomRow {
    id: Uuid,
    name: String,
    kind: String,
    epoch: String,
    top: i64,
    first_kept: i64,
    max_count: i64,
    max_age_ms: i64,
    max_bytes: i64,
    created_at: Timestamp,
    timeline: String,
}

impl TryFrom<RoomRow> for Room {
    type Error = StoreError;

    fn try_from(row: RoomRow) -> StoreResult<Self> {
        Ok(Self {
            id: RoomId::from_uuid(row.id),
            name: parsed::<RoomName>("room", &row.name)?,
            kind: RoomKind::from_stored(&row.kind)
                .ok_or_else(|| StoreError::corrupt("room", format!("unknown kind {:?}", row.kind)))?,
            epoch: Epoch::new(&row.epoch, &row.timeline),
            top: row.top,
            first_kept: row.first_kept,
            retention: Retention {
                max_count: row.max_count,
                max_age: Span::from_millis(count(row.max_age_ms)),
                max_bytes: row.max_bytes,
            },
            created_at: row.created_at,
        })
    }
}

#[derive(sqlx::FromRow)]
pub(crate) struct EventRow {
    pos: i64,
    event: String,
    payload: String,
    msg_id: String,
    sender: String,
    at: Timestamp,
}

impl TryFrom<EventRow> for StoredEvent {
    type Error = StoreError;

    fn try_from(row: EventRow) -> StoreResult<Self> {
        Ok(Self {
            offset: row.pos,
            event: parsed("event", &row.event)?,
            payload: JsonText::parse(row.payload).map_err(|error| StoreError::corrupt("event", error))?,
            msg_id: row.msg_id,
            sender: row.sender,
            at: row.at,
        })
    }
}

#[derive(sqlx::FromRow)]
pub(crate) struct TicketRow {
    user_id: String,
    session_id: Option<Uuid>,
    key_id: Option<Uuid>,
    origin: Option<String>,
    grants: String,
    expires_at: Timestamp,
    pub(crate) is_valid: bool,
}

impl TryFrom<TicketRow> for Ticket {
    type Error = StoreError;

    fn try_from(row: TicketRow) -> StoreResult<Self> {
        let user_id: UserId = parsed("ticket", &row.user_id)?;
        let minted_by = match (row.session_id, row.key_id) {
            (Some(id), _) => Credential::Session(SessionId::from_uuid(id)),
            (None, Some(id)) => Credential::ApiKey(ApiKeyId::from_uuid(id)),
            (None, None) => Credential::User(user_id.clone()),
        };
        Ok(Self {
            user_id,
            minted_by,
            origin: row.origin,
            grants: from_str(&row.grants).map_err(|error| StoreError::corrupt("ticket", error))?,
            expires_at: row.expires_at,
        })
    }
}

#[derive(sqlx::FromRow)]
pub(crate) struct InstanceRow {
    id: String,
    name: String,
    version: String,
    schema_version: i64,
    roles: String,
    pools: String,
    pool_size: i32,
    started_at: Timestamp,
    expires_at: Timestamp,
    key_check: String,
}

impl From<InstanceRow> for Instance {
    /// Leaves out roles and pools that a newer release announced and this binary does not know.
    fn from(row: InstanceRow) -> Self {
        Self {
            id: InstanceId::from_stored(row.id),
            name: row.name,
            version: row.version,
            schema_version: row.schema_version,
            roles: split(&row.roles),
            pools: split(&row.pools),
            pool_size: row.pool_size.cast_unsigned(),
            started_at: row.started_at,
            expires_at: row.expires_at,
            key_check: row.key_check,
        }
    }
}

#[derive(sqlx::FromRow)]
pub(crate) struct ApiKeyRow {
    id: Uuid,
    name: String,
    scopes: String,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    revoked_at: Option<Timestamp>,
}

impl TryFrom<ApiKeyRow> for ApiKey {
    type Error = StoreError;

    fn try_from(row: ApiKeyRow) -> StoreResult<Self> {
        Ok(Self {
            id: ApiKeyId::from_uuid(row.id),
            name: row.name,
            scopes: from_str(&row.scopes).map_err(|error| StoreError::corrupt("API key", error))?,
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
        })
    }
}
