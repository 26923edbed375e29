//! Sign-in sessions and their refresh tokens.
//!
//! What every request asks goes over the readers; the writer sees only what changes something.

use async_trait::async_trait;
use sqlx::FromRow;
use switchboard_model::auth_session::{AuthSession, Credential, NewAuthSession, SignedIn};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::UserId;
use switchboard_model::ids::SessionId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::secret_text::SecretHash;
use switchboard_model::span::Span;
use switchboard_store_api::{AuthSessionStore, RefreshOutcome, StoreResult, WriteContext};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, cursor, instant, later};
use crate::writer::{Change, Lane};
use crate::{Database, connect, context};

/// The most characters that are kept of what a client calls itself.
const CLIENT_CHARS: usize = 200;

async fn start(change: &mut Change, context: WriteContext, session: NewAuthSession) -> DbResult<Option<AuthSession>> {
    let client = session.client.as_deref().map(shortened);
    let ends_at = later(change.now, session.ttl);
    let expires_at = later(change.now, session.idle_ttl).min(ends_at);
    let started = sqlx::query(
        "-- auth_sessions.start
        INSERT INTO auth_sessions (id, user_id, client, latest, created_at, refreshed_at, expires_at, ends_at)
        SELECT ?1, id, ?2, ?3, ?4, ?4, ?5, ?6 FROM users
        WHERE id = ?7 AND NOT is_disabled AND version = coalesce(?8, version)",
    )
    .bind(session.id.as_uuid())
    .bind(&client)
    .bind(session.refresh.as_bytes())
    .bind(change.now)
    .bind(expires_at)
    .bind(ends_at)
    .bind(session.user_id.as_str())
    .bind(session.user_version)
    .execute(&mut change.connection)
    .await?;
    if started.rows_affected() == 0 {
        return Ok(None);
    }
    insert_token(change, session.id, session.refresh).await?;
    context::audit(change, &context).await?;
    let now = instant(change.now)?;
    Ok(Some(AuthSession {
        id: session.id,
        user_id: session.user_id,
        client,
        created_at: now,
        refreshed_at: now,
        expires_at: instant(expires_at)?,
        ends_at: instant(ends_at)?,
    }))
}

/// Tells whether a session of this user has not ended.
pub(crate) async fn is_live(change: &mut Change, user: &UserId, id: SessionId) -> DbResult<bool> {
    let found: Option<i64> = sqlx::query_scalar(
        "-- auth_sessions.is_live
        SELECT 1 FROM auth_sessions WHERE id = ? AND user_id = ? AND expires_at > ?",
    )
    .bind(id.as_uuid())
    .bind(user.as_str())
    .bind(change.now)
    .fetch_optional(&mut change.connection)
    .await?;
    Ok(found.is_some())
}

/// Cuts what a client calls itself. A NUL, which not every tool reads back from SQLite, gives way.
fn shortened(client: &str) -> String {
    client.chars().take(CLIENT_CHARS).map(|c| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Stores a refresh token that nobody has used; one that is there already stays.
async fn insert_token(change: &mut Change, session: SessionId, hash: SecretHash) -> DbResult<()> {
    sqlx::query(
        "-- auth_sessions.insert_token
        INSERT INTO refresh_tokens (hash, session_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
    )
    .bind(hash.as_bytes())
    .bind(session.as_uuid())
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

/// What a presented refresh token belongs to.
#[derive(FromRow)]
struct Presented {
    #[sqlx(flatten)]
    signed_in: Stored<SignedIn>,
    /// The hash of the latest token of the session.
    latest: Vec<u8>,
    /// The hash of the token that succeeded the presented one, if it was used before.
    successor: Option<Vec<u8>>,
}

async fn refresh(
    change: &mut Change,
    context: WriteContext,
    (presented, successor): (SecretHash, SecretHash),
    idle_ttl: Span,
) -> DbResult<RefreshOutcome> {
    let found: Option<Presented> = sqlx::query_as(
        "-- auth_sessions.find_token
        SELECT users.*, auth_sessions.id AS session_id, user_id, client, auth_sessions.created_at AS started_at,
            refreshed_at, expires_at, ends_at, latest, successor
        FROM refresh_tokens JOIN auth_sessions ON auth_sessions.id = refresh_tokens.session_id
            JOIN users ON users.id = user_id
        WHERE hash = ? AND expires_at > ? AND NOT is_disabled",
    )
    .bind(presented.as_bytes())
    .bind(change.now)
    .fetch_optional(&mut change.connection)
    .await?;
    let Some(Presented { signed_in: Stored(SignedIn { user, session }), latest, successor: known }) = found else {
        return Ok(RefreshOutcome::Invalid);
    };
    if latest != presented.as_bytes() {
        if known.as_ref() != Some(&latest) {
            end_one(change, &session.user_id, session.id).await?;
            context::audit(change, &context).await?;
            return Ok(RefreshOutcome::Reused(session));
        }
        if latest != successor.as_bytes() {
            delete_token(change, &latest).await?;
        }
    }
    succeed(change, presented, successor).await?;
    insert_token(change, session.id, successor).await?;
    let session = prolong(change, session, successor, idle_ttl).await?;
    Ok(RefreshOutcome::Refreshed(SignedIn { user, session }))
}

/// Forgets a token that was never used, because another takes its place.
async fn delete_token(change: &mut Change, hash: &[u8]) -> DbResult<()> {
    sqlx::query(
        "-- auth_sessions.delete_token
        DELETE FROM refresh_tokens WHERE hash = ?",
    )
    .bind(hash)
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

/// Marks a token as used.
async fn succeed(change: &mut Change, used: SecretHash, successor: SecretHash) -> DbResult<()> {
    sqlx::query(
        "-- auth_sessions.succeed_token
        UPDATE refresh_tokens SET successor = ? WHERE hash = ?",
    )
    .bind(successor.as_bytes())
    .bind(used.as_bytes())
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

/// Lets a session live on under its latest token, not beyond its end.
async fn prolong(
    change: &mut Change,
    session: AuthSession,
    latest: SecretHash,
    idle_ttl: Span,
) -> DbResult<AuthSession> {
    let expires_at: i64 = sqlx::query_scalar(
        "-- auth_sessions.prolong
        UPDATE auth_sessions SET latest = ?, refreshed_at = ?, expires_at = MIN(?, ends_at) WHERE id = ?
        RETURNING expires_at",
    )
    .bind(latest.as_bytes())
    .bind(change.now)
    .bind(later(change.now, idle_ttl))
    .bind(session.id.as_uuid())
    .fetch_one(&mut change.connection)
    .await?;
    Ok(AuthSession { refreshed_at: instant(change.now)?, expires_at: instant(expires_at)?, ..session })
}

async fn find_valid(database: &Database, id: SessionId) -> DbResult<Option<SignedIn>> {
    let found: Option<Stored<SignedIn>> = sqlx::query_as(
        "-- auth_sessions.find_valid
        SELECT users.*, auth_sessions.id AS session_id, user_id, client, auth_sessions.created_at AS started_at,
            refreshed_at, expires_at, ends_at
        FROM auth_sessions JOIN users ON users.id = user_id
        WHERE auth_sessions.id = ? AND expires_at > ? AND NOT is_disabled",
    )
    .bind(id.as_uuid())
    .bind(connect::now())
    .fetch_optional(&database.readers)
    .await?;
    Ok(found.map(Stored::into_inner))
}

async fn list(database: &Database, user: &UserId, page: &PageRequest) -> DbResult<Page<AuthSession>> {
    let rows: Vec<Stored<AuthSession>> = sqlx::query_as(
        "-- auth_sessions.list
        SELECT id AS session_id, user_id, client, created_at AS started_at, refreshed_at, expires_at, ends_at
        FROM auth_sessions WHERE user_id = ? AND id > ? AND expires_at > ? ORDER BY id LIMIT ?",
    )
    .bind(user.as_str())
    .bind(cursor(page, Uuid::nil())?)
    .bind(connect::now())
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(session)| session.id.to_string()).map(Stored::into_inner))
}

async fn end(change: &mut Change, context: WriteContext, user: UserId, id: SessionId) -> DbResult<bool> {
    let is_ended = end_one(change, &user, id).await?;
    if is_ended {
        context::audit(change, &context).await?;
    }
    Ok(is_ended)
}

/// Ends a session of this user, if it has not ended, and signals it.
async fn end_one(change: &mut Change, user: &UserId, id: SessionId) -> DbResult<bool> {
    let deleted = sqlx::query(
        "-- auth_sessions.end
        DELETE FROM auth_sessions WHERE id = ? AND user_id = ? AND expires_at > ?",
    )
    .bind(id.as_uuid())
    .bind(user.as_str())
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    forget(change, id).await?;
    change.signal(SignalKind::SessionRevoked, id.to_string(), 0);
    Ok(true)
}

async fn end_all(change: &mut Change, context: WriteContext, user: UserId, keep: Option<SessionId>) -> DbResult<u64> {
    let ended = delete_of_user(change, &user, keep).await?;
    for session in &ended {
        change.signal(SignalKind::SessionRevoked, session.to_string(), 0);
    }
    if !ended.is_empty() {
        context::audit(change, &context).await?;
    }
    Ok(ended.len() as u64)
}

/// Deletes all sessions of a user that have not ended, but `keep`, and returns which they were.
pub(crate) async fn delete_of_user(
    change: &mut Change,
    user: &UserId,
    keep: Option<SessionId>,
) -> DbResult<Vec<SessionId>> {
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "-- auth_sessions.delete_of_user
        DELETE FROM auth_sessions WHERE user_id = ? AND id IS NOT ? AND expires_at > ? RETURNING id",
    )
    .bind(user.as_str())
    .bind(keep.map(SessionId::as_uuid))
    .bind(change.now)
    .fetch_all(&mut change.connection)
    .await?;
    let ids: Vec<_> = ids.into_iter().map(SessionId::from_uuid).collect();
    for id in &ids {
        forget(change, *id).await?;
    }
    Ok(ids)
}

/// Deletes what hangs on a session whose row was deleted: its refresh tokens and its tickets.
async fn forget(change: &mut Change, id: SessionId) -> DbResult<()> {
    sqlx::query(
        "-- auth_sessions.delete_tokens
        DELETE FROM refresh_tokens WHERE session_id = ?",
    )
    .bind(id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    sqlx::query(
        "-- tickets.delete_of_session
        DELETE FROM tickets WHERE session_id = ?",
    )
    .bind(id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

async fn revoked(database: &Database, credentials: &[Credential]) -> DbResult<Vec<Credential>> {
    let asked: Vec<_> = credentials
        .iter()
        .map(|credential| match credential {
            Credential::Session(id) => ("session", id.to_string()),
            Credential::ApiKey(id) => ("key", id.to_string()),
            Credential::User(id) => ("user", id.to_string()),
        })
        .collect();
    let revoked: Vec<u32> = sqlx::query_scalar(
        "-- auth_sessions.revoked
        SELECT key FROM json_each(?1) AS asked WHERE CASE asked.value ->> 0
            WHEN 'session' THEN NOT EXISTS (
                SELECT 1 FROM auth_sessions JOIN users ON users.id = user_id
                WHERE auth_sessions.id = unhex(asked.value ->> 1, '-') AND expires_at > ?2 AND NOT is_disabled)
            WHEN 'key' THEN NOT EXISTS (
                SELECT 1 FROM api_keys
                WHERE id = unhex(asked.value ->> 1, '-') AND revoked_at IS NULL
                    AND (expires_at IS NULL OR expires_at > ?2))
            ELSE EXISTS (SELECT 1 FROM users WHERE id = asked.value ->> 1 AND is_disabled)
        END",
    )
    .bind(serde_json::to_string(&asked)?)
    .bind(connect::now())
    .fetch_all(&database.readers)
    .await?;
    Ok(revoked.into_iter().filter_map(|index| credentials.get(index as usize).cloned()).collect())
}

/// Finds sessions that ended by themselves.
async fn expired(database: &Database, limit: u32) -> DbResult<Vec<Uuid>> {
    let ids = sqlx::query_scalar(
        "-- auth_sessions.expired
        SELECT id FROM auth_sessions WHERE expires_at <= ? ORDER BY expires_at LIMIT ?",
    )
    .bind(connect::now())
    .bind(limit)
    .fetch_all(&database.readers)
    .await?;
    Ok(ids)
}

/// Deletes a session that ended by itself; 0 means that it is gone already.
async fn sweep_one(change: &mut Change, id: Uuid) -> DbResult<u64> {
    let swept = sqlx::query(
        "-- auth_sessions.sweep
        DELETE FROM auth_sessions WHERE id = ? AND expires_at <= ?",
    )
    .bind(id)
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    if swept.rows_affected() > 0 {
        forget(change, SessionId::from_uuid(id)).await?;
    }
    Ok(swept.rows_affected())
}

#[async_trait]
impl AuthSessionStore for Database {
    #[tracing::instrument(name = "db.auth_sessions.start", level = "debug", skip_all)]
    async fn start(&self, context: &WriteContext, session: &NewAuthSession) -> StoreResult<Option<AuthSession>> {
        let (context, session) = (context.clone(), session.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(start(change, context, session))).await
    }

    #[tracing::instrument(name = "db.auth_sessions.refresh", level = "debug", skip_all)]
    async fn refresh(
        &self,
        context: &WriteContext,
        presented: SecretHash,
        successor: SecretHash,
        idle_ttl: Span,
    ) -> StoreResult<RefreshOutcome> {
        let (context, tokens) = (context.clone(), (presented, successor));
        self.writer.write(Lane::Normal, move |change| Box::pin(refresh(change, context, tokens, idle_ttl))).await
    }

    #[tracing::instrument(name = "db.auth_sessions.find_valid", level = "debug", skip_all)]
    async fn find_valid(&self, id: SessionId) -> StoreResult<Option<SignedIn>> {
        Ok(find_valid(self, id).await?)
    }

    #[tracing::instrument(name = "db.auth_sessions.list", level = "debug", skip_all)]
    async fn list(&self, user: &UserId, page: &PageRequest) -> StoreResult<Page<AuthSession>> {
        Ok(list(self, user, page).await?)
    }

    #[tracing::instrument(name = "db.auth_sessions.end", level = "debug", skip_all)]
    async fn end(&self, context: &WriteContext, user: &UserId, id: SessionId) -> StoreResult<bool> {
        let (context, user) = (context.clone(), user.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(end(change, context, user, id))).await
    }

    #[tracing::instrument(name = "db.auth_sessions.end_all", level = "debug", skip_all)]
    async fn end_all(&self, context: &WriteContext, user: &UserId, keep: Option<SessionId>) -> StoreResult<u64> {
        let (context, user) = (context.clone(), user.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(end_all(change, context, user, keep))).await
    }

    #[tracing::instrument(name = "db.auth_sessions.revoked", level = "debug", skip_all)]
    async fn revoked(&self, credentials: &[Credential]) -> StoreResult<Vec<Credential>> {
        Ok(revoked(self, credentials).await?)
    }

    #[tracing::instrument(name = "db.auth_sessions.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        // A session may have thousands of used tokens, so each is a command of its own.
        let mut swept = 0;
        for id in expired(self, limit).await? {
            swept += self.writer.write(Lane::Normal, move |change| Box::pin(sweep_one(change, id))).await?;
        }
        Ok(swept)
    }
}
