//! Deduplication keys: those that hold for ever are once-keys, the others hold while a run with them is active.

use std::collections::BTreeMap;

use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::{DedupeScope, NewRun};
use switchboard_store_api::StoreResult;
use uuid::Uuid;

use crate::connect::Tx;
use crate::context::collided;
use crate::error::fault;

/// What a deduplication key is known by.
type Key<'a> = (TaskId, &'a str);

/// The keys of a request that hold for ever, claimed before any other lock.
#[derive(Default)]
pub(super) struct Forever<'a>(BTreeMap<Key<'a>, Claim>);

struct Claim {
    /// The run that has the key, once there is one.
    holder: Option<RunId>,
    /// For which run this request has claimed the key, if no run had it.
    claimed_for: Option<Uuid>,
}

fn scope(task: TaskId) -> String {
    format!("dedupe:{task}")
}

fn key_of(run: &NewRun) -> Option<Key<'_>> {
    let key = run.dedupe_key.as_ref().filter(|_| run.dedupe_scope == DedupeScope::Forever)?;
    Some((run.task_id, key.as_str()))
}

impl<'a> Forever<'a> {
    /// Claims the keys that no run has; a claim of the same key that is not committed yet is waited for.
    pub(super) async fn claim(tx: &mut Tx, runs: &'a [NewRun]) -> StoreResult<Self> {
        let mut first: BTreeMap<Key<'a>, Uuid> = BTreeMap::new();
        for run in runs {
            if let Some(key) = key_of(run) {
                first.entry(key).or_insert(run.id.as_uuid());
            }
        }
        if first.is_empty() {
            return Ok(Self::default());
        }
        let scopes: Vec<_> = first.keys().map(|(task, _)| scope(*task)).collect();
        let keys: Vec<_> = first.keys().map(|(_, key)| *key).collect();
        sqlx::query(
            "-- once.claim_dedupe_keys
             INSERT INTO switchboard.once (scope, key, request_hash, result_id, expires_at)
             SELECT scope, key, '', id, 'infinity'
             FROM unnest($1::text[], $2::text[], $3::uuid[]) AS given (scope, key, id) ORDER BY scope, key
             ON CONFLICT (scope, key) DO NOTHING",
        )
        .bind(&scopes)
        .bind(&keys)
        .bind(first.values().copied().collect::<Vec<_>>())
        .execute(&mut **tx)
        .await
        .map_err(fault)?;
        let holders: Vec<Option<Uuid>> = sqlx::query_scalar(
            "-- once.find_dedupe_keys
             SELECT once.result_id
             FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given (scope, key, place)
             LEFT JOIN switchboard.once AS once ON once.scope = given.scope AND once.key = given.key
             ORDER BY place",
        )
        .bind(&scopes)
        .bind(&keys)
        .fetch_all(&mut **tx)
        .await
        .map_err(fault)?;
        let claims = first.into_iter().zip(holders).map(|((key, id), holder)| {
            let holder = holder.ok_or_else(collided)?;
            let is_new = holder == id;
            let claim =
                Claim { holder: (!is_new).then(|| RunId::from_uuid(holder)), claimed_for: is_new.then_some(id) };
            Ok((key, claim))
        });
        claims.collect::<StoreResult<_>>().map(Self)
    }

    /// Returns the run that has the key of this one for ever.
    pub(super) fn holder(&self, run: &NewRun) -> Option<RunId> {
        self.0.get(&key_of(run)?)?.holder
    }

    /// Gives the key of this run, if it holds for ever, to the run that carries it out, if there is one.
    pub(super) fn give(&mut self, run: &'a NewRun, holder: Option<RunId>) {
        if let Some(claim) = key_of(run).and_then(|key| self.0.get_mut(&key)) {
            claim.holder = holder;
        }
    }

    /// Writes down who got the claimed keys, and frees those that nobody did.
    pub(super) async fn settle(self, tx: &mut Tx) -> StoreResult<()> {
        let claimed = self.0.into_iter().filter(|(_, claim)| claim.claimed_for.is_some());
        let changed: Vec<_> =
            claimed.filter(|(_, claim)| claim.holder.map(|id| id.as_uuid()) != claim.claimed_for).collect();
        if changed.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "-- once.settle_dedupe_keys
             WITH given AS MATERIALIZED (
                 SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[]) AS given (scope, key, id)
             ),
             freed AS (
                 DELETE FROM switchboard.once AS once USING given
                 WHERE once.scope = given.scope AND once.key = given.key AND given.id IS NULL
             )
             UPDATE switchboard.once AS once SET result_id = given.id FROM given
             WHERE once.scope = given.scope AND once.key = given.key AND given.id IS NOT NULL",
        )
        .bind(changed.iter().map(|((task, _), _)| scope(*task)).collect::<Vec<_>>())
        .bind(changed.iter().map(|((_, key), _)| *key).collect::<Vec<_>>())
        .bind(changed.iter().map(|(_, claim)| claim.holder.map(|id| id.as_uuid())).collect::<Vec<_>>())
        .execute(&mut **tx)
        .await
        .map_err(fault)?;
        Ok(())
    }
}

/// Finds the active runs that have the deduplication keys of these.
pub(super) async fn active_with_keys<'a>(
    tx: &mut Tx,
    runs: impl Iterator<Item = &'a NewRun>,
) -> StoreResult<BTreeMap<(TaskId, String), RunId>> {
    let (tasks, keys): (Vec<_>, Vec<_>) =
        runs.filter_map(|run| Some((run.task_id.as_uuid(), run.dedupe_key.as_ref()?.as_str()))).unzip();
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found: Vec<(Uuid, String, Uuid)> = sqlx::query_as(
        "-- runs.active_with_dedupe_keys
         SELECT run.task_id, run.dedupe_key, run.id
         FROM unnest($1::uuid[], $2::text[]) AS given (task_id, key)
         JOIN switchboard.runs AS run ON run.task_id = given.task_id AND run.dedupe_key = given.key
         WHERE run.state IN ('scheduled', 'queued', 'waiting', 'running')",
    )
    .bind(tasks)
    .bind(keys)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(found.into_iter().map(|(task, key, id)| ((TaskId::from_uuid(task), key), RunId::from_uuid(id))).collect())
}
