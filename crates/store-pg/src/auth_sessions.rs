//! Sign-in sessions and their refresh tokens. A token changes only under the lock on its session, and a session
//! starts only under a lock on its user.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::auth_session::{AuthSession, Credential, NewAuthSession, SignedIn};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::UserId;
use switchboard_model::ids::SessionId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::secret_text::SecretHash;
use switchboard_model::span::Span;
use switchboard_store_api::{AuthSessionStore, RefreshOutcome, StoreError, StoreResult, WriteContext};
use uuid::Uuid;

use crate::connect::{Database, Tx};
use crate::context::audit;
use crate::error::fault;
use crate::rows::{after_id, parsed, storable};
use crate::users::UserRow;

/// The most characters that are kept of what a client calls itself.
const CLIENT_CHARS: usize = 200;

pub(crate) struct AuthSessions(pub(crate) Arc<Database>);

/// A session, with names of its own for the columns that users have too.
#[derive(sqlx::FromRow)]
struct SessionRow {
    session_id: Uuid,
    user_id: String,
    client: Option<String>,
    started_at: Timestamp,
    refreshed_at: Timestamp,
    expires_at: Timestamp,
    ends_at: Timestamp,
}

impl TryFrom<SessionRow> for AuthSession {
    type Error = StoreError;

    fn try_from(row: SessionRow) -> StoreResult<Self> {
        Ok(Self {
            id: SessionId::from_uuid(row.session_id),
            user_id: parsed("sign-in session", &row.user_id)?,
            client: row.client,
            created_at: row.started_at,
            refreshed_at: row.refreshed_at,
            expires_at: row.expires_at,
            ends_at: row.ends_at,
        })
    }
}

#[derive(sqlx::FromRow)]
struct SignedInRow {
    #[sqlx(flatten)]
    user: UserRow,
    #[sqlx(flatten)]
    session: SessionRow,
}

impl TryFrom<SignedInRow> for SignedIn {
    type Error = StoreError;

    fn try_from(row: SignedInRow) -> StoreResult<Self> {
        Ok(Self { user: row.user.try_into()?, session: row.session.try_into()? })
    }
}

#[async_trait]
impl AuthSessionStore for AuthSessions {
    #[tracing::instrument(name = "db.auth_sessions.start", level = "debug", skip_all)]
    async fn start(&self, context: &WriteContext, session: &NewAuthSession) -> StoreResult<Option<AuthSession>> {
        let client = session.client.as_deref().map(|name| name.chars().take(CLIENT_CHARS).collect::<String>());
        let mut tx = self.0.begin().await?;
        // The locked row is as it is after the wait, and the time is read after it.
        let started: Option<SessionRow> = sqlx::query_as(
            "-- auth_sessions.start
             WITH person AS MATERIALIZED (
                 SELECT id FROM switchboard.users WHERE id = $2 AND NOT is_disabled AND version = coalesce($7, version) FOR SHARE
             ),
             moment AS MATERIALIZED (SELECT clock_timestamp() AS now FROM person),
             token AS (
                 INSERT INTO switchboard.refresh_tokens (hash, session_id) SELECT $4, $1 FROM moment
             )
             INSERT INTO switchboard.auth_sessions
                 (id, user_id, client, latest, created_at, refreshed_at, expires_at, ends_at)
             SELECT $1, $2, $3, $4, now, now, now + least($5, $6) * interval '1 millisecond',
                    now + $6 * interval '1 millisecond'
             FROM moment
             RETURNING id AS session_id, user_id, client, created_at AS started_at, refreshed_at, expires_at, ends_at",
        )
        .bind(session.id.as_uuid())
        .bind(session.user_id.as_str())
        .bind(client.as_deref().map(storable))
        .bind(session.refresh.as_bytes())
        .bind(session.idle_ttl.as_millis_i64())
        .bind(session.ttl.as_millis_i64())
        .bind(session.user_version)
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(started) = started else { return tx.undo(None).await };
        audit(&mut tx, context).await?;
        tx.commit().await?;
        started.try_into().map(Some)
    }

    #[tracing::instrument(name = "db.auth_sessions.refresh", level = "debug", skip_all)]
    async fn refresh(
        &self,
        context: &WriteContext,
        presented: SecretHash,
        successor: SecretHash,
        idle_ttl: Span,
    ) -> StoreResult<RefreshOutcome> {
        let mut tx = self.0.begin().await?;
        let Some(found) = lock_presented(&mut tx, presented).await? else {
            return tx.undo(RefreshOutcome::Invalid).await;
        };
        let signed_in = SignedIn::try_from(found.signed_in)?;
        if found.is_current {
            let step = Step { presented, latest: &found.latest, successor, idle_ttl };
            let session = succeed(&mut tx, signed_in.session.id, &step).await?;
            tx.commit().await?;
            return Ok(RefreshOutcome::Refreshed(SignedIn { session, ..signed_in }));
        }
        let session = signed_in.session;
        forget(&mut tx, &[session.id], None).await?;
        tx.signal(SignalKind::SessionRevoked, &session.id);
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(RefreshOutcome::Reused(session))
    }

    #[tracing::instrument(name = "db.auth_sessions.find_valid", level = "debug", skip_all)]
    async fn find_valid(&self, id: SessionId) -> StoreResult<Option<SignedIn>> {
        let mut session = self.0.session().await?;
        let row: Option<SignedInRow> = sqlx::query_as(
            "-- auth_sessions.find_valid
             SELECT person.id, name, role, password IS NOT NULL AS has_password, is_disabled, version,
                    person.created_at, updated_at,
                    session.id AS session_id, user_id, client, session.created_at AS started_at, refreshed_at,
                    expires_at, ends_at
             FROM switchboard.auth_sessions AS session JOIN switchboard.users AS person ON person.id = user_id
             WHERE session.id = $1 AND expires_at > clock_timestamp() AND NOT is_disabled",
        )
        .bind(id.as_uuid())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(SignedIn::try_from).transpose()
    }

    #[tracing::instrument(name = "db.auth_sessions.list", level = "debug", skip_all)]
    async fn list(&self, user: &UserId, page: &PageRequest) -> StoreResult<Page<AuthSession>> {
        let after = after_id(page)?;
        let mut session = self.0.session().await?;
        let rows: Vec<SessionRow> = sqlx::query_as(
            "-- auth_sessions.list
             SELECT id AS session_id, user_id, client, created_at AS started_at, refreshed_at, expires_at, ends_at
             FROM switchboard.auth_sessions
             WHERE user_id = $1 AND id > $2 AND expires_at > clock_timestamp() ORDER BY id LIMIT $3",
        )
        .bind(user.as_str())
        .bind(after.unwrap_or_default())
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let sessions = rows.into_iter().map(AuthSession::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(sessions, page.limit, |session| session.id.to_string()))
    }

    #[tracing::instrument(name = "db.auth_sessions.end", level = "debug", skip_all)]
    async fn end(&self, context: &WriteContext, user: &UserId, id: SessionId) -> StoreResult<bool> {
        let mut tx = self.0.begin().await?;
        if !lock_live(&mut tx, user, id).await? {
            return tx.undo(false).await;
        }
        end_locked(tx, context, &[id]).await?;
        Ok(true)
    }

    #[tracing::instrument(name = "db.auth_sessions.end_all", level = "debug", skip_all)]
    async fn end_all(&self, context: &WriteContext, user: &UserId, keep: Option<SessionId>) -> StoreResult<u64> {
        let mut tx = self.0.begin().await?;
        let sessions = lock_of_user(&mut tx, user, keep).await?;
        if sessions.is_empty() {
            return tx.undo(0).await;
        }
        end_locked(tx, context, &sessions).await?;
        Ok(sessions.len() as u64)
    }

    #[tracing::instrument(name = "db.auth_sessions.revoked", level = "debug", skip_all)]
    async fn revoked(&self, credentials: &[Credential]) -> StoreResult<Vec<Credential>> {
        revoked(&self.0, credentials).await
    }

    #[tracing::instrument(name = "db.auth_sessions.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        let mut tx = self.0.begin().await?;
        let expired: Vec<Uuid> = sqlx::query_scalar(
            "-- auth_sessions.lock_expired
             SELECT id FROM switchboard.auth_sessions WHERE expires_at <= statement_timestamp()
             ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED",
        )
        .bind(i64::from(limit))
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        if expired.is_empty() {
            return tx.undo(0).await;
        }
        let expired: Vec<_> = expired.into_iter().map(SessionId::from_uuid).collect();
        forget(&mut tx, &expired, None).await?;
        tx.commit().await?;
        Ok(expired.len() as u64)
    }
}

/// Asks about each credential by its place in the list, each by the index of its own kind.
async fn revoked(database: &Arc<Database>, credentials: &[Credential]) -> StoreResult<Vec<Credential>> {
    let (mut sessions, mut keys, mut users) = (Vec::new(), Vec::new(), Vec::new());
    for credential in credentials {
        let (session, key, user) = match credential {
            Credential::Session(id) => (Some(id.as_uuid()), None, None),
            Credential::ApiKey(id) => (None, Some(id.as_uuid()), None),
            Credential::User(id) => (None, None, Some(id.as_str())),
        };
        sessions.push(session);
        keys.push(key);
        users.push(user);
    }
    let mut session = database.session().await?;
    let places: Vec<i64> = sqlx::query_scalar(
        "-- auth_sessions.revoked
         SELECT place - 1
         FROM unnest($1::uuid[], $2::uuid[], $3::text[]) WITH ORDINALITY AS asked (session, key, person, place)
         WHERE CASE
             WHEN asked.session IS NOT NULL THEN NOT EXISTS (
                 SELECT FROM switchboard.auth_sessions AS session
                 JOIN switchboard.users AS person ON person.id = session.user_id
                 WHERE session.id = asked.session AND session.expires_at > clock_timestamp() AND NOT person.is_disabled
             )
             WHEN asked.key IS NOT NULL THEN NOT EXISTS (
                 SELECT FROM switchboard.api_keys
                 WHERE id = asked.key AND revoked_at IS NULL
                   AND (expires_at IS NULL OR expires_at > clock_timestamp())
             )
             ELSE EXISTS (SELECT FROM switchboard.users WHERE id = asked.person AND is_disabled)
         END
         ORDER BY place",
    )
    .bind(sessions)
    .bind(keys)
    .bind(users)
    .fetch_all(&mut *session)
    .await
    .map_err(fault)?;
    Ok(places.into_iter().filter_map(|place| credentials.get(usize::try_from(place).ok()?).cloned()).collect())
}

/// A presented refresh token of a live session, under the lock on the session.
#[derive(sqlx::FromRow)]
struct PresentedRow {
    #[sqlx(flatten)]
    signed_in: SignedInRow,
    latest: Vec<u8>,
    /// Whether it is the latest token or its predecessor.
    is_current: bool,
}

/// Locks a session of this user and tells whether it is there and has not ended.
pub(crate) async fn lock_live(tx: &mut Tx, user: &UserId, id: SessionId) -> StoreResult<bool> {
    let is_live: Option<bool> = sqlx::query_scalar(
        "-- auth_sessions.lock
         WITH locked AS MATERIALIZED (
             SELECT expires_at FROM switchboard.auth_sessions WHERE id = $1 AND user_id = $2 FOR UPDATE
         )
         SELECT expires_at > clock_timestamp() FROM locked",
    )
    .bind(id.as_uuid())
    .bind(user.as_str())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(is_live == Some(true))
}

async fn lock_presented(tx: &mut Tx, presented: SecretHash) -> StoreResult<Option<PresentedRow>> {
    let locked = sqlx::query(
        "-- auth_sessions.lock_by_token
         SELECT FROM switchboard.auth_sessions
         WHERE id = (SELECT session_id FROM switchboard.refresh_tokens WHERE hash = $1) FOR UPDATE",
    )
    .bind(presented.as_bytes())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)?;
    if locked.is_none() {
        return Ok(None);
    }
    sqlx::query_as(
        "-- auth_sessions.find_by_token
         SELECT person.id, name, role, password IS NOT NULL AS has_password, is_disabled, version, person.created_at,
                updated_at,
                session.id AS session_id, user_id, client, session.created_at AS started_at, refreshed_at,
                expires_at, ends_at,
                latest, coalesce(hash = latest OR successor = latest, false) AS is_current
         FROM switchboard.refresh_tokens
         JOIN switchboard.auth_sessions AS session ON session.id = session_id
         JOIN switchboard.users AS person ON person.id = user_id
         WHERE hash = $1 AND expires_at > clock_timestamp() AND NOT is_disabled",
    )
    .bind(presented.as_bytes())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)
}

/// The step from a token of a session to the next one.
struct Step<'a> {
    presented: SecretHash,
    latest: &'a [u8],
    successor: SecretHash,
    idle_ttl: Span,
}

/// Makes the successor the latest token and prolongs the session; an unused successor from before is forgotten.
async fn succeed(tx: &mut Tx, session: SessionId, step: &Step<'_>) -> StoreResult<AuthSession> {
    let row: SessionRow = sqlx::query_as(
        "-- auth_sessions.refresh
         WITH used AS (
             UPDATE switchboard.refresh_tokens SET successor = $4 WHERE hash = $2
         ),
         replaced AS (
             DELETE FROM switchboard.refresh_tokens WHERE hash = $3 AND hash <> $2 AND hash <> $4
         ),
         given AS (
             INSERT INTO switchboard.refresh_tokens (hash, session_id) VALUES ($4, $1) ON CONFLICT (hash) DO NOTHING
         )
         UPDATE switchboard.auth_sessions
         SET latest = $4, refreshed_at = moment.now,
             expires_at = least(moment.now + $5 * interval '1 millisecond', ends_at)
         FROM (SELECT clock_timestamp() AS now) AS moment
         WHERE id = $1
         RETURNING id AS session_id, user_id, client, created_at AS started_at, refreshed_at, expires_at, ends_at",
    )
    .bind(session.as_uuid())
    .bind(step.presented.as_bytes())
    .bind(step.latest)
    .bind(step.successor.as_bytes())
    .bind(step.idle_ttl.as_millis_i64())
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)?;
    row.try_into()
}

/// Ends locked sessions before their time, and commits.
async fn end_locked(mut tx: Tx, context: &WriteContext, sessions: &[SessionId]) -> StoreResult<()> {
    forget(&mut tx, sessions, None).await?;
    for session in sessions {
        tx.signal(SignalKind::SessionRevoked, session);
    }
    audit(&mut tx, context).await?;
    tx.commit().await
}

/// Locks the sessions of a user that have not ended, but `keep`, in the order of their ids.
pub(crate) async fn lock_of_user(tx: &mut Tx, user: &UserId, keep: Option<SessionId>) -> StoreResult<Vec<SessionId>> {
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "-- auth_sessions.lock_of_user
         WITH locked AS MATERIALIZED (
             SELECT id, expires_at FROM switchboard.auth_sessions
             WHERE user_id = $1 AND id IS DISTINCT FROM $2 ORDER BY id FOR UPDATE
         )
         SELECT id FROM locked WHERE expires_at > clock_timestamp()",
    )
    .bind(user.as_str())
    .bind(keep.map(|id| id.as_uuid()))
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(ids.into_iter().map(SessionId::from_uuid).collect())
}

/// Forgets locked sessions with their refresh tokens and tickets, and all other tickets of `user`.
pub(crate) async fn forget(tx: &mut Tx, sessions: &[SessionId], user: Option<&UserId>) -> StoreResult<()> {
    sqlx::query(
        "-- auth_sessions.forget
         WITH tokens AS (
             DELETE FROM switchboard.refresh_tokens WHERE session_id = ANY ($1)
         ),
         minted AS MATERIALIZED (
             SELECT hash FROM switchboard.tickets WHERE session_id = ANY ($1) OR user_id = $2
             ORDER BY hash FOR UPDATE
         ),
         tickets AS (
             DELETE FROM switchboard.tickets AS ticket USING minted WHERE ticket.hash = minted.hash
         )
         DELETE FROM switchboard.auth_sessions WHERE id = ANY ($1)",
    )
    .bind(sessions.iter().map(|id| id.as_uuid()).collect::<Vec<_>>())
    .bind(user.map(UserId::as_str))
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}
