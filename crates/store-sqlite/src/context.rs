//! What a write leaves beside its change: the once-record and the audit row, in the same transaction.
//!
//! The writer is alone, so a claim is looked up first and written last: a refused change leaves none.

use switchboard_model::ids::AuditId;
use switchboard_model::json_text::JsonText;
use switchboard_store_api::{OnceRecord, StoreError, WriteContext, Written};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::later;
use crate::writer::Change;

/// Finds out whether an earlier request with the same once-key has made the change already.
pub(crate) async fn replay<T>(change: &mut Change, context: &WriteContext) -> DbResult<Option<Written<T>>> {
    let Some(claim) = &context.once else { return Ok(None) };
    let found: Option<(Vec<u8>, Uuid, Option<String>)> = sqlx::query_as(
        "-- once.find
        SELECT request_hash, result_id, result FROM once WHERE scope = ? AND key = ? AND expires_at > ?",
    )
    .bind(&claim.scope)
    .bind(&claim.key)
    .bind(change.now)
    .fetch_optional(&mut change.connection)
    .await?;
    let Some((request_hash, result_id, result)) = found else { return Ok(None) };
    if request_hash != claim.request_hash {
        return Ok(Some(Written::Mismatch));
    }
    let result = result.map(JsonText::parse).transpose().map_err(|error| StoreError::corrupt("once-key", error))?;
    Ok(Some(Written::Replayed(OnceRecord { result_id, result })))
}

/// Remembers the identity of what the request made, if it came with a once-key, and writes its audit row.
pub(crate) async fn complete(change: &mut Change, context: &WriteContext, result_id: Uuid) -> DbResult<()> {
    complete_with(change, context, OnceRecord { result_id, result: None }).await
}

/// Remembers how the request ended, if it came with a once-key, and writes its audit row.
pub(crate) async fn complete_with(change: &mut Change, context: &WriteContext, record: OnceRecord) -> DbResult<()> {
    if let Some(claim) = &context.once {
        sqlx::query(
            "-- once.complete
            INSERT OR REPLACE INTO once (scope, key, request_hash, result_id, result, expires_at)
            VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(&claim.scope)
        .bind(&claim.key)
        .bind(claim.request_hash.as_slice())
        .bind(record.result_id)
        .bind(record.result.as_ref().map(JsonText::as_str))
        .bind(later(change.now, claim.ttl))
        .execute(&mut change.connection)
        .await?;
    }
    audit(change, context).await
}

/// Writes the audit row of the request, if it has one.
pub(crate) async fn audit(change: &mut Change, context: &WriteContext) -> DbResult<()> {
    let Some(entry) = &context.audit else { return Ok(()) };
    sqlx::query(
        "-- audit.write
        INSERT INTO audit (id, at, actor, request_id, action, subject, before, after)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(AuditId::new().as_uuid())
    .bind(change.now)
    .bind(context.actor.to_string())
    .bind(&*context.request_id)
    .bind(entry.action)
    .bind(&entry.subject)
    .bind(entry.before.as_ref().map(JsonText::as_str))
    .bind(entry.after.as_ref().map(JsonText::as_str))
    .execute(&mut change.connection)
    .await?;
    Ok(())
}
