//! Room in pools with a maximum: those who wait for it are told when runs leave some.

use switchboard_model::feed::SignalKind;
use switchboard_store_api::StoreResult;
use uuid::Uuid;

use crate::connect::Tx;
use crate::error::fault;

/// Signals the pools that were full before these runs left them, where somebody waits for the room.
///
/// The replica that executed a run looks for the next one by itself. Nobody does so for runs that external workers have
/// executed or await, nor for what was taken away from a holder that is gone.
pub(super) async fn announce(tx: &mut Tx, left: &[Uuid]) -> StoreResult<()> {
    if left.is_empty() {
        return Ok(());
    }
    // Two looks, so that each finds its place in the index: one of both would read the whole queue of a pool in vain.
    let pools: Vec<String> = sqlx::query_scalar(
        "-- runs.pools_with_room
         WITH gone AS MATERIALIZED (
             SELECT pool, count(*) AS runs, bool_or(is_pull OR is_reclaimed) AS is_unattended
             FROM switchboard.runs WHERE id = ANY ($1) GROUP BY pool
         ),
         limited AS MATERIALIZED (
             SELECT gone.*, (fleet.value::jsonb -> 'pools' -> pool ->> 'max_running')::bigint AS max
             FROM gone JOIN switchboard.settings AS fleet ON fleet.name = 'fleet'
         )
         SELECT pool FROM limited
         WHERE max > 0
           AND ((limited.is_unattended AND EXISTS (
                    SELECT FROM switchboard.runs AS ready WHERE ready.state = 'queued' AND ready.pool = limited.pool
                ))
                OR EXISTS (
                    SELECT FROM switchboard.runs AS ready
                    WHERE ready.state = 'queued' AND ready.pool = limited.pool AND ready.is_pull
                ))
           AND (
               SELECT count(*) FROM switchboard.runs AS other
               WHERE other.state = 'running' AND other.pool = limited.pool
           ) BETWEEN max - runs AND max - 1",
    )
    .bind(left)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    for pool in &pools {
        tx.signal(SignalKind::PoolQueued, pool);
    }
    Ok(())
}
