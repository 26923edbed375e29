//! Single-use tickets, kept by their hash.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::auth_session::Credential;
use switchboard_model::json_text::JsonText;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::ticket::NewTicket;
use switchboard_store_api::{BurnOutcome, StoreError, StoreResult, TicketStore, WriteContext, Written};
use uuid::Uuid;

use crate::connect::Database;
use crate::context::{audit, claim};
use crate::error::fault;
use crate::rows::TicketRow;

pub(crate) struct Tickets(pub(crate) Arc<Database>);

#[async_trait]
impl TicketStore for Tickets {
    #[tracing::instrument(name = "db.tickets.issue", level = "debug", skip_all)]
    async fn issue(&self, context: &WriteContext, ticket: &NewTicket) -> StoreResult<Written<Timestamp>> {
        let grants = JsonText::encode(&ticket.grants).map_err(|error| StoreError::Backend(error.into()))?;
        let (session_id, key_id) = match &ticket.minted_by {
            Credential::Session(id) => (Some(id.as_uuid()), None),
            Credential::ApiKey(id) => (None, Some(id.as_uuid())),
            Credential::User(_) => (None, None),
        };
        let mut tx = self.0.begin().await?;
        if let Some(before) = claim(&mut tx, context, Uuid::new_v4()).await? {
            return tx.undo(before).await;
        }
        let expires_at = sqlx::query_scalar(
            "-- tickets.issue
             INSERT INTO switchboard.tickets (hash, user_id, session_id, key_id, origin, grants, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp() + $7 * interval '1 millisecond')
             RETURNING expires_at",
        )
        .bind(ticket.hash.as_bytes())
        .bind(ticket.user_id.as_str())
        .bind(session_id)
        .bind(key_id)
        .bind(&ticket.origin)
        .bind(grants.as_str())
        .bind(ticket.ttl.as_millis_i64())
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(Written::Now(expires_at))
    }

    #[tracing::instrument(name = "db.tickets.burn", level = "debug", skip_all)]
    async fn burn(&self, hash: SecretHash) -> StoreResult<BurnOutcome> {
        let mut session = self.0.session().await?;
        let row: Option<TicketRow> = sqlx::query_as(
            "-- tickets.burn
             DELETE FROM switchboard.tickets WHERE hash = $1
             RETURNING user_id, session_id, key_id, origin, grants, expires_at,
                       expires_at > clock_timestamp() AS is_valid",
        )
        .bind(hash.as_bytes())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        session.commit().await?;
        match row {
            None => Ok(BurnOutcome::Unknown),
            Some(row) if !row.is_valid => Ok(BurnOutcome::Expired),
            Some(row) => row.try_into().map(BurnOutcome::Burned),
        }
    }

    #[tracing::instrument(name = "db.tickets.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        let mut session = self.0.session().await?;
        let deleted = sqlx::query(
            "-- tickets.sweep
             WITH expired AS MATERIALIZED (
                 SELECT hash FROM switchboard.tickets WHERE expires_at <= statement_timestamp()
                 ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.tickets AS ticket USING expired WHERE ticket.hash = expired.hash",
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
