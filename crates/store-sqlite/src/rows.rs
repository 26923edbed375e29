//! Between columns and entities: how values are stored, and how rows are read back.

use std::str::FromStr;

use serde::de::DeserializeOwned;
use sqlx::error::BoxDynError;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _};
use switchboard_model::Timestamp;
use switchboard_model::api_key::ApiKey;
use switchboard_model::audit::AuditRecord;
use switchboard_model::auth_session::{AuthSession, Credential, SignedIn};
use switchboard_model::connection::Connection;
use switchboard_model::fire::{Arming, DueTask};
use switchboard_model::identity::UserId;
use switchboard_model::ids::{
    ApiKeyId, AuditId, ConnectionId, Fence, InstanceId, RoomId, RunId, SessionId, TaskId, WebhookSecretId,
};
use switchboard_model::instance::{Instance, UncoveredPool};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::PageRequest;
use switchboard_model::presence::PresentUser;
use switchboard_model::room::{Epoch, Retention, Room, RoomKind, StoredEvent};
use switchboard_model::run::{OccurrenceRun, Run, SkipRange, StoredSkip};
use switchboard_model::span::Span;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_model::ticket::Ticket;
use switchboard_model::user::User;
use switchboard_model::webhook::WebhookSecret;
use switchboard_store_api::StoreError;
use uuid::Uuid;

use crate::error::DbResult;

/// The database has no timeline of its own, so an epoch ends with the row of its room only.
const TIMELINE: &str = "0";

/// Returns an instant as it is stored.
pub(crate) fn micros(at: Timestamp) -> i64 {
    at.timestamp_micros()
}

/// Returns the stored instant that lies a span after another.
pub(crate) fn later(from: i64, span: Span) -> i64 {
    from.saturating_add(span.as_millis_i64().saturating_mul(1_000))
}

/// Returns the stored instant that lies a span before another.
pub(crate) fn earlier(from: i64, span: Span) -> i64 {
    from.saturating_sub(span.as_millis_i64().saturating_mul(1_000))
}

/// Reads a stored instant.
pub(crate) fn instant(micros: i64) -> DbResult<Timestamp> {
    Timestamp::from_timestamp_micros(micros)
        .ok_or_else(|| StoreError::corrupt("instant", format_args!("{micros} is out of range")).into())
}

/// Returns the epoch that a room shows for the one in its row.
pub(crate) fn epoch(stored: &str) -> Epoch {
    Epoch::new(stored, TIMELINE)
}

/// Reads the cursor of a page, or starts at `first`.
pub(crate) fn cursor<T: FromStr>(page: &PageRequest, first: T) -> DbResult<T> {
    match &page.after {
        None => Ok(first),
        Some(text) => {
            text.parse().map_err(|_| StoreError::corrupt(StoreError::PAGE_CURSOR, "it was not made here").into())
        }
    }
}

/// An entity that converts from a row.
pub(crate) struct Stored<T>(pub(crate) T);

impl<T> Stored<T> {
    /// Returns the entity.
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

/// Converts a column, blaming it for what it does not hold.
pub(crate) fn convert<'r, C, T, E>(
    row: &'r SqliteRow,
    column: &str,
    read: impl FnOnce(C) -> Result<T, E>,
) -> sqlx::Result<T>
where
    C: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    E: Into<BoxDynError>,
{
    read(row.try_get(column)?)
        .map_err(|error| sqlx::Error::ColumnDecode { index: column.to_owned(), source: error.into() })
}

/// Parses a text column.
pub(crate) fn parsed<T: FromStr<Err: Into<BoxDynError>>>(row: &SqliteRow, column: &str) -> sqlx::Result<T> {
    convert(row, column, |text: &str| text.parse())
}

pub(crate) fn parsed_option<T: FromStr<Err: Into<BoxDynError>>>(
    row: &SqliteRow,
    column: &str,
) -> sqlx::Result<Option<T>> {
    convert(row, column, |text: Option<&str>| text.map(str::parse).transpose())
}

fn decoded<T: DeserializeOwned>(row: &SqliteRow, column: &str) -> sqlx::Result<T> {
    convert(row, column, |text: &str| serde_json::from_str(text))
}

/// Decodes a JSON column that may be absent.
pub(crate) fn decoded_option<T: DeserializeOwned>(row: &SqliteRow, column: &str) -> sqlx::Result<Option<T>> {
    convert(row, column, |text: Option<&str>| text.map(serde_json::from_str).transpose())
}

/// Reads a column of opaque JSON.
pub(crate) fn json(row: &SqliteRow, column: &str) -> sqlx::Result<JsonText> {
    convert(row, column, |text: String| JsonText::parse(text))
}

/// Reads a column of opaque JSON that may be absent.
pub(crate) fn json_option(row: &SqliteRow, column: &str) -> sqlx::Result<Option<JsonText>> {
    convert(row, column, |text: Option<String>| text.map(JsonText::parse).transpose())
}

/// Reads an instant.
pub(crate) fn time(row: &SqliteRow, column: &str) -> sqlx::Result<Timestamp> {
    convert(row, column, |micros: i64| Timestamp::from_timestamp_micros(micros).ok_or("instant out of range"))
}

/// Reads an instant that may be absent.
pub(crate) fn time_option(row: &SqliteRow, column: &str) -> sqlx::Result<Option<Timestamp>> {
    convert(row, column, |micros: Option<i64>| {
        micros.map(|micros| Timestamp::from_timestamp_micros(micros).ok_or("instant out of range")).transpose()
    })
}

/// A row of `tasks` whose definition may be unreadable.
#[derive(FromRow)]
pub(crate) struct TaskRow {
    pub(crate) id: Uuid,
    pub(crate) spec: String,
    pub(crate) is_active: bool,
    pub(crate) next_run_at: Option<i64>,
    pub(crate) version: i64,
    pub(crate) parked: Option<String>,
    pub(crate) paused_at: Option<i64>,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
}

impl TaskRow {
    /// Reads the definition; whether it is active stands in the column beside it.
    pub(crate) fn spec(&self) -> Result<TaskSpec, serde_json::Error> {
        serde_json::from_str(&self.spec).map(|spec| TaskSpec { is_active: self.is_active, ..spec })
    }

    /// Returns how the task is armed.
    pub(crate) fn arming(&self) -> DbResult<Arming> {
        Ok(Arming {
            is_active: self.is_active,
            next_run_at: self.next_run_at.map(instant).transpose()?,
            paused_from: self.paused_at.map(instant).transpose()?,
        })
    }
}

impl TryFrom<TaskRow> for Task {
    type Error = crate::error::DbError;

    fn try_from(row: TaskRow) -> DbResult<Self> {
        Ok(Self {
            id: TaskId::from_uuid(row.id),
            spec: row.spec().map_err(|error| StoreError::corrupt("task", error))?,
            next_run_at: row.next_run_at.map(instant).transpose()?,
            version: row.version,
            paused_from: row.paused_at.map(instant).transpose()?,
            parked: row.parked,
            created_at: instant(row.created_at)?,
            updated_at: instant(row.updated_at)?,
        })
    }
}

impl TryFrom<&TaskRow> for DueTask {
    type Error = crate::error::DbError;

    fn try_from(row: &TaskRow) -> DbResult<Self> {
        let spec = row.spec().map_err(|error| StoreError::corrupt("task", error))?;
        let next_run_at = row.next_run_at.ok_or_else(|| StoreError::corrupt("task", "it is not armed"))?;
        let task = Self::new(TaskId::from_uuid(row.id), spec, instant(next_run_at)?, row.version);
        Ok(task.map_err(|error| StoreError::corrupt("task", error))?)
    }
}

impl FromRow<'_, SqliteRow> for Stored<StoredSkip> {
    /// A schedule that this binary cannot read is as good as one that was not kept.
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        let range = SkipRange {
            from: time(row, "from_at")?,
            to: time(row, "to_at")?,
            count: row.try_get("count")?,
            cause: parsed(row, "cause")?,
        };
        let schedule: Option<&str> = row.try_get("schedule")?;
        Ok(Self(StoredSkip { range, schedule: schedule.and_then(|schedule| serde_json::from_str(schedule).ok()) }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<OccurrenceRun> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(OccurrenceRun {
            id: RunId::from_uuid(row.try_get("id")?),
            scheduled_for: time(row, "scheduled_for")?,
            state: parsed(row, "state")?,
            trigger: parsed(row, "trigger")?,
            started_at: time_option(row, "started_at")?,
            finished_at: time_option(row, "finished_at")?,
            error: row.try_get("error")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<Run> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(Run {
            id: RunId::from_uuid(row.try_get("id")?),
            task_id: TaskId::from_uuid(row.try_get("task_id")?),
            state: parsed(row, "state")?,
            trigger: parsed(row, "trigger")?,
            pool: parsed(row, "pool")?,
            priority: row.try_get("priority")?,
            run_at: time(row, "run_at")?,
            scheduled_for: time_option(row, "scheduled_for")?,
            attempt: row.try_get("attempt")?,
            max_attempts: row.try_get("max_attempts")?,
            fence: Fence(row.try_get("fence")?),
            leased_by: row.try_get::<Option<String>, _>("leased_by")?.map(InstanceId::from_stored),
            lease_until: time_option(row, "lease_until")?,
            deadline_at: time_option(row, "deadline_at")?,
            cancel_requested_at: time_option(row, "cancel_requested_at")?,
            key: row.try_get("key")?,
            pace_key: row.try_get("pace_key")?,
            start_by: time_option(row, "start_by")?,
            dedupe_key: parsed_option(row, "dedupe_key")?,
            created_at: time(row, "created_at")?,
            started_at: time_option(row, "started_at")?,
            finished_at: time_option(row, "finished_at")?,
            input: json_option(row, "input")?,
            result: json_option(row, "result")?,
            error: row.try_get("error")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<Room> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(Room {
            id: RoomId::from_uuid(row.try_get("id")?),
            name: parsed(row, "name")?,
            kind: convert(row, "kind", |text| RoomKind::from_stored(text).ok_or("unknown kind of room"))?,
            epoch: epoch(row.try_get("epoch")?),
            top: row.try_get("top")?,
            first_kept: row.try_get("first_kept")?,
            retention: Retention {
                max_count: row.try_get("max_count")?,
                max_age: Span::from_millis(row.try_get("max_age_ms")?),
                max_bytes: row.try_get("max_bytes")?,
            },
            created_at: time(row, "created_at")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<StoredEvent> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(StoredEvent {
            offset: row.try_get("pos")?,
            event: parsed(row, "event")?,
            payload: json(row, "payload")?,
            msg_id: row.try_get("msg_id")?,
            sender: row.try_get("sender")?,
            at: time(row, "at")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<Ticket> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        let user_id: UserId = parsed(row, "user_id")?;
        let minted_by = match (row.try_get("session_id")?, row.try_get("key_id")?) {
            (Some(id), _) => Credential::Session(SessionId::from_uuid(id)),
            (None, Some(id)) => Credential::ApiKey(ApiKeyId::from_uuid(id)),
            (None, None) => Credential::User(user_id.clone()),
        };
        Ok(Self(Ticket {
            user_id,
            minted_by,
            origin: row.try_get("origin")?,
            grants: decoded(row, "grants")?,
            expires_at: time(row, "expires_at")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<Instance> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(Instance {
            id: InstanceId::from_stored(row.try_get("id")?),
            name: row.try_get("name")?,
            version: row.try_get("version")?,
            schema_version: row.try_get("schema_version")?,
            roles: decoded(row, "roles")?,
            pools: decoded(row, "pools")?,
            pool_size: row.try_get("pool_size")?,
            started_at: time(row, "started_at")?,
            expires_at: time(row, "expires_at")?,
            key_check: row.try_get("key_check")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<UncoveredPool> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(UncoveredPool { pool: parsed(row, "pool")?, queued: row.try_get::<i64, _>("queued")?.unsigned_abs() }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<ApiKey> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(ApiKey {
            id: ApiKeyId::from_uuid(row.try_get("id")?),
            name: row.try_get("name")?,
            scopes: decoded(row, "scopes")?,
            created_at: time(row, "created_at")?,
            expires_at: time_option(row, "expires_at")?,
            revoked_at: time_option(row, "revoked_at")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<User> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(User {
            id: parsed(row, "id")?,
            name: parsed(row, "name")?,
            role: parsed(row, "role")?,
            has_password: row.try_get::<Option<&str>, _>("password")?.is_some(),
            is_disabled: row.try_get("is_disabled")?,
            version: row.try_get("version")?,
            created_at: time(row, "created_at")?,
            updated_at: time(row, "updated_at")?,
        }))
    }
}

/// The statement names the columns that `users` has too: `session_id` and `started_at`.
impl FromRow<'_, SqliteRow> for Stored<AuthSession> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(AuthSession {
            id: SessionId::from_uuid(row.try_get("session_id")?),
            user_id: parsed(row, "user_id")?,
            client: row.try_get("client")?,
            created_at: time(row, "started_at")?,
            refreshed_at: time(row, "refreshed_at")?,
            expires_at: time(row, "expires_at")?,
            ends_at: time(row, "ends_at")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<SignedIn> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        let (Stored(user), Stored(session)) = (FromRow::from_row(row)?, FromRow::from_row(row)?);
        Ok(Self(SignedIn { user, session }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<WebhookSecret> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(WebhookSecret {
            id: WebhookSecretId::from_uuid(row.try_get("id")?),
            task_id: TaskId::from_uuid(row.try_get("task_id")?),
            purpose: parsed(row, "purpose")?,
            created_at: time(row, "created_at")?,
            expires_at: time_option(row, "expires_at")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<AuditRecord> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(AuditRecord {
            id: AuditId::from_uuid(row.try_get("id")?),
            at: time(row, "at")?,
            actor: row.try_get("actor")?,
            request_id: row.try_get("request_id")?,
            action: row.try_get("action")?,
            subject: row.try_get("subject")?,
            before: json_option(row, "before")?,
            after: json_option(row, "after")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<Connection> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(Connection {
            id: ConnectionId::from_uuid(row.try_get("id")?),
            instance: InstanceId::from_stored(row.try_get("instance_id")?),
            user_id: parsed(row, "user_id")?,
            since: time(row, "since")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<PresentUser> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(PresentUser { user_id: parsed(row, "user_id")?, since: time(row, "since")? }))
    }
}
