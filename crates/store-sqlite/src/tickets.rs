//! Single-use tickets.

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::auth_session::Credential;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::ticket::{NewTicket, Ticket};
use switchboard_store_api::{BurnOutcome, StoreResult, TicketStore, WriteContext, Written};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, instant, later, micros};
use crate::writer::{Change, Lane};
use crate::{Database, context};

async fn issue(change: &mut Change, context: WriteContext, ticket: NewTicket) -> DbResult<Written<Timestamp>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    let (session_id, key_id) = match ticket.minted_by {
        Credential::Session(id) => (Some(id.as_uuid()), None),
        Credential::ApiKey(id) => (None, Some(id.as_uuid())),
        Credential::User(_) => (None, None),
    };
    let expires_at = later(change.now, ticket.ttl);
    sqlx::query(
        "-- tickets.issue
        INSERT INTO tickets (hash, user_id, session_id, key_id, origin, grants, expires_at)
        VALUES (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(ticket.hash.as_bytes())
    .bind(ticket.user_id.as_str())
    .bind(session_id)
    .bind(key_id)
    .bind(ticket.origin)
    .bind(serde_json::to_string(&ticket.grants)?)
    .bind(expires_at)
    .execute(&mut change.connection)
    .await?;
    context::complete(change, &context, Uuid::new_v4()).await?;
    Ok(Written::Now(instant(expires_at)?))
}

async fn burn(change: &mut Change, hash: SecretHash) -> DbResult<BurnOutcome> {
    let burned: Option<Stored<Ticket>> = sqlx::query_as(
        "-- tickets.burn
        DELETE FROM tickets WHERE hash = ? RETURNING *",
    )
    .bind(hash.as_bytes())
    .fetch_optional(&mut change.connection)
    .await?;
    Ok(match burned {
        None => BurnOutcome::Unknown,
        Some(Stored(ticket)) if micros(ticket.expires_at) <= change.now => BurnOutcome::Expired,
        Some(Stored(ticket)) => BurnOutcome::Burned(ticket),
    })
}

async fn sweep(change: &mut Change, limit: u32) -> DbResult<u64> {
    let swept = sqlx::query(
        "-- tickets.sweep
        DELETE FROM tickets WHERE rowid IN
            (SELECT rowid FROM tickets WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)",
    )
    .bind(change.now)
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    Ok(swept.rows_affected())
}

#[async_trait]
impl TicketStore for Database {
    #[tracing::instrument(name = "db.tickets.issue", level = "debug", skip_all)]
    async fn issue(&self, context: &WriteContext, ticket: &NewTicket) -> StoreResult<Written<Timestamp>> {
        let (context, ticket) = (context.clone(), ticket.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(issue(change, context, ticket))).await
    }

    #[tracing::instrument(name = "db.tickets.burn", level = "debug", skip_all)]
    async fn burn(&self, hash: SecretHash) -> StoreResult<BurnOutcome> {
        self.writer.write(Lane::Normal, move |change| Box::pin(burn(change, hash))).await
    }

    #[tracing::instrument(name = "db.tickets.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep(change, limit))).await
    }
}
