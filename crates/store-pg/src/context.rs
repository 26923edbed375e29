//! What every write carries, put into its transaction: the claim on a once-key and the audit row.

use switchboard_model::ids::AuditId;
use switchboard_model::json_text::JsonText;
use switchboard_store_api::{OnceRecord, StoreError, StoreResult, WriteContext, Written};
use uuid::Uuid;

use crate::connect::Tx;
use crate::error::fault;
use crate::rows::{json, storable};

/// Claims the once-key of the request, if it has one, for the thing that it is about to make.
///
/// A claim of the same key that is not committed yet is waited for. `Some` ends the request: somebody
/// made the thing before. The claim is kept only if the transaction commits.
pub(crate) async fn claim<T>(tx: &mut Tx, context: &WriteContext, result: Uuid) -> StoreResult<Option<Written<T>>> {
    let Some(once) = &context.once else { return Ok(None) };
    let claimed = sqlx::query(
        "-- once.claim
         INSERT INTO switchboard.once AS known (scope, key, request_hash, result_id, expires_at)
         VALUES ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 millisecond')
         ON CONFLICT (scope, key) DO UPDATE
             SET request_hash = excluded.request_hash, result_id = excluded.result_id,
                 result = NULL, expires_at = excluded.expires_at
             WHERE known.expires_at <= clock_timestamp()",
    )
    .bind(&once.scope)
    .bind(&once.key)
    .bind(once.request_hash.as_slice())
    .bind(result)
    .bind(once.ttl.as_millis_i64())
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    if claimed.rows_affected() == 1 {
        return Ok(None);
    }
    let (request_hash, result_id, result): (Vec<u8>, Uuid, Option<String>) = sqlx::query_as(
        "-- once.find
         SELECT request_hash, result_id, result FROM switchboard.once WHERE scope = $1 AND key = $2",
    )
    .bind(&once.scope)
    .bind(&once.key)
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(Some(if request_hash == once.request_hash {
        Written::Replayed(OnceRecord { result_id, result: json("once-key", result)? })
    } else {
        Written::Mismatch
    }))
}

/// Completes a claimed once-key with something else than the identity that it was claimed for.
pub(crate) async fn complete(tx: &mut Tx, context: &WriteContext, record: &OnceRecord) -> StoreResult<()> {
    let Some(once) = &context.once else { return Ok(()) };
    sqlx::query(
        "-- once.complete
         UPDATE switchboard.once SET result_id = $3, result = $4 WHERE scope = $1 AND key = $2",
    )
    .bind(&once.scope)
    .bind(&once.key)
    .bind(record.result_id)
    .bind(record.result.as_ref().map(JsonText::as_str))
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}

/// Writes what the audit log says about the change, if anything.
pub(crate) async fn audit(tx: &mut Tx, context: &WriteContext) -> StoreResult<()> {
    let Some(entry) = &context.audit else { return Ok(()) };
    sqlx::query(
        "-- audit.insert
         INSERT INTO switchboard.audit (id, at, actor, request_id, action, subject, before, after)
         VALUES ($1, clock_timestamp(), $2, $3, $4, $5, $6, $7)",
    )
    .bind(AuditId::new().as_uuid())
    .bind(context.actor.to_string())
    .bind(storable(&context.request_id))
    .bind(entry.action)
    .bind(storable(&entry.subject))
    .bind(entry.before.as_ref().map(JsonText::as_str))
    .bind(entry.after.as_ref().map(JsonText::as_str))
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}

/// Tries again what collided with another change: the second look finds what that one left.
pub(crate) async fn twice<T, F: Future<Output = StoreResult<T>>>(attempt: impl Fn() -> F) -> StoreResult<T> {
    match attempt().await {
        Err(StoreError::Conflict(_)) => attempt().await,
        outcome => outcome,
    }
}

/// Reports a row that collided with another one which is gone again.
pub(crate) fn collided() -> StoreError {
    StoreError::Conflict("the row in the way is gone".into())
}
