//! The row of a new run, for triggers and for firing alike.

use std::collections::HashSet;

use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::ClientKey;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::Trigger;
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_store_api::StoreResult;
use uuid::Uuid;

use crate::connect::Tx;
use crate::error::fault;
use crate::rows::int;

/// A run about to be inserted.
pub(crate) struct Draft<'a> {
    pub(crate) id: RunId,
    pub(crate) task_id: TaskId,
    pub(crate) spec: &'a TaskSpec,
    pub(crate) trigger: Trigger,
    /// The occurrence, at which the run is ready.
    pub(crate) scheduled_for: Option<Timestamp>,
    /// How long a run without an occurrence waits before it is ready.
    pub(crate) delay: Span,
    pub(crate) dedupe_key: Option<&'a ClientKey>,
    pub(crate) input: Option<&'a JsonText>,
}

/// Inserts runs and signals the pools of those that are ready. Returns which came into being: not those whose
/// occurrence has a run, or whose deduplication key an active run.
pub(crate) async fn insert(tx: &mut Tx, drafts: &[Draft<'_>]) -> StoreResult<HashSet<Uuid>> {
    if drafts.is_empty() {
        return Ok(HashSet::new());
    }
    let terms: Vec<_> = drafts.iter().map(|draft| draft.spec.terms(draft.task_id)).collect();
    let (keys, key_maxima): (Vec<_>, Vec<_>) =
        terms.iter().map(|terms| terms.permit.clone().map(|(key, max)| (key, int(max))).unzip()).unzip();
    let (pace_keys, paces): (Vec<_>, Vec<_>) =
        terms.iter().map(|terms| terms.pace.clone().map(|(key, rate)| (key, rate.to_string())).unzip()).unzip();
    // In one order, so that two requests with the same deduplication keys wait for each other in turn.
    let made: Vec<(Uuid, Option<String>)> = sqlx::query_as(
        "-- runs.insert
         WITH moment AS MATERIALIZED (
             SELECT clock.now, coalesce($19, clock.now) AS due FROM clock_timestamp() AS clock (now)
         ),
         given AS MATERIALIZED (
             SELECT given.*, coalesce(scheduled_for, moment.due + delay_ms * interval '1 millisecond') AS run_at
             FROM moment, unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::smallint[], $6::timestamptz[],
                     $7::bigint[], $8::integer[], $9::bigint[], $10::text[], $11::integer[], $12::text[],
                     $13::boolean[], $14::bigint[], $15::text[], $16::text[], $17::bigint[], $18::text[])
                 AS given (id, task_id, trigger, pool, priority, scheduled_for, delay_ms, max_attempts, timeout_ms,
                           key, key_max, dedupe_key, is_pull, deadline_ms, pace_key, pace, keep_ms, input)
         ),
         made AS (
             INSERT INTO switchboard.runs
                 (id, task_id, state, trigger, pool, priority, run_at, scheduled_for, max_attempts, timeout_ms, key,
                  key_max, dedupe_key, created_at, is_pull, start_by, pace_key, pace, keep_ms)
             SELECT id, task_id, CASE delay_ms WHEN 0 THEN 'queued' ELSE 'scheduled' END, trigger, pool, priority,
                    run_at, scheduled_for, max_attempts, timeout_ms, key, key_max, dedupe_key, moment.now, is_pull,
                    run_at + deadline_ms * interval '1 millisecond', pace_key, pace, keep_ms
             FROM given, moment ORDER BY task_id, dedupe_key, id
             ON CONFLICT DO NOTHING
             RETURNING id, state, pool
         ),
         described AS (
             INSERT INTO switchboard.run_details (run_id, input)
             SELECT id, given.input FROM made JOIN given USING (id) WHERE given.input IS NOT NULL
         )
         SELECT id, CASE state WHEN 'queued' THEN pool END FROM made",
    )
    .bind(drafts.iter().map(|draft| draft.id.as_uuid()).collect::<Vec<_>>())
    .bind(drafts.iter().map(|draft| draft.task_id.as_uuid()).collect::<Vec<_>>())
    .bind(drafts.iter().map(|draft| draft.trigger.as_str()).collect::<Vec<_>>())
    .bind(terms.iter().map(|terms| terms.pool.as_str()).collect::<Vec<_>>())
    .bind(terms.iter().map(|terms| terms.priority).collect::<Vec<_>>())
    .bind(drafts.iter().map(|draft| draft.scheduled_for).collect::<Vec<_>>())
    .bind(drafts.iter().map(|draft| draft.delay.as_millis_i64()).collect::<Vec<_>>())
    .bind(terms.iter().map(|terms| int(terms.max_attempts)).collect::<Vec<_>>())
    .bind(terms.iter().map(|terms| terms.timeout.map(Span::as_millis_i64)).collect::<Vec<_>>())
    .bind(keys)
    .bind(key_maxima)
    .bind(drafts.iter().map(|draft| draft.dedupe_key.map(ClientKey::as_str)).collect::<Vec<_>>())
    .bind(terms.iter().map(|terms| terms.is_pull).collect::<Vec<_>>())
    .bind(terms.iter().map(|terms| terms.start_deadline.map(Span::as_millis_i64)).collect::<Vec<_>>())
    .bind(pace_keys)
    .bind(paces)
    .bind(terms.iter().map(|terms| terms.retention.map(Span::as_millis_i64)).collect::<Vec<_>>())
    .bind(drafts.iter().map(|draft| draft.input.map(JsonText::as_str)).collect::<Vec<_>>())
    .bind(tx.set_time())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let ready: HashSet<&String> = made.iter().filter_map(|(_, pool)| pool.as_ref()).collect();
    for pool in ready {
        tx.signal(SignalKind::PoolQueued, pool);
    }
    Ok(made.into_iter().map(|(id, _)| id).collect())
}
