//! Promotion of runs whose time, permit or rate limit has come, and the end of those that come too late.

use sqlx::FromRow;
use switchboard_model::limit::Rate;
use switchboard_model::pace::PacedGroup;
use switchboard_model::run::RunState;
use switchboard_model::run_rule::{Note, Step};
use switchboard_model::span::Span;
use switchboard_store_api::PromoteReport;

use super::finish::{Current, depart};
use super::permits::{Freed, promote_keys};
use crate::error::DbResult;
use crate::writer::Change;

pub(super) async fn promote(change: &mut Change, limit: u32) -> DbResult<PromoteReport> {
    let mut freed = Freed::default();
    let expired = expire(change, limit, &mut freed).await?;
    freed.promote(change).await?;

    let mut freed = Freed::default();
    let due = promote_due(change, limit, &mut freed).await?;
    let permitted = promote_keys(change, limit, &mut freed).await?;
    let (paced, paced_for) = promote_paced(change, limit, &mut freed).await?;
    freed.promote(change).await?;
    Ok(PromoteReport { due, permitted, paced, expired, paced_for })
}

/// Cancels runs that were not leased before their start deadline.
async fn expire(change: &mut Change, limit: u32, freed: &mut Freed) -> DbResult<u64> {
    let late: Vec<Current> = sqlx::query_as(
        "-- runs.late
        SELECT * FROM runs WHERE start_by <= ? AND state IN ('scheduled', 'queued', 'waiting')
        ORDER BY start_by LIMIT ?",
    )
    .bind(change.schedule_now)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    for run in &late {
        let note = Some(Note::of_error("not started within its start deadline"));
        depart(change, run, &Step { note, ..Step::to(RunState::Cancelled, run.attempt) }, freed).await?;
    }
    Ok(late.len() as u64)
}

async fn promote_due(change: &mut Change, limit: u32, freed: &mut Freed) -> DbResult<u64> {
    let pools: Vec<String> = sqlx::query_scalar(
        "-- runs.promote_due
        UPDATE runs SET state = 'queued' WHERE id IN (
            SELECT id FROM runs WHERE state = 'scheduled' AND run_at <= ? ORDER BY run_at LIMIT ?)
        RETURNING pool",
    )
    .bind(change.schedule_now)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    pools.iter().for_each(|pool| freed.note_pool(pool));
    Ok(pools.len() as u64)
}

/// Runs that wait for the same rate limit in the same pool.
#[derive(FromRow)]
struct Group {
    pace_key: String,
    pool: String,
    is_pull: bool,
    /// The rate of the first one.
    pace: Option<String>,
    tat: Option<i64>,
    queued: u32,
}

/// Queues as many runs of each group as its rate limit allows; returns how many, and when the next may go. No unit is
/// taken: the lease does that.
///
/// The groups are those of one pool each, so that ready runs of a pool that nobody serves keep no other pool waiting.
async fn promote_paced(change: &mut Change, limit: u32, freed: &mut Freed) -> DbResult<(u64, Option<Span>)> {
    let (mut promoted, mut wait) = (0, None::<Span>);
    for row in paced_groups(change).await? {
        let left = limit.saturating_sub(promoted);
        let rate = row.pace.as_deref().and_then(|pace| pace.parse::<Rate>().ok());
        let group = rate.map(|rate| PacedGroup { rate, tat_us: row.tat, queued: row.queued });
        // A rate that cannot be read holds nothing back: handing the run out ends it.
        let (room, next) =
            group.map_or((left, Span::default()), |group| (group.ready(change.now), group.wait(change.now)));
        let room = room.min(left);
        let queued = if room == 0 { 0 } else { queue_paced(change, &row, room).await? };
        if queued > 0 {
            freed.note_pool(&row.pool);
        }
        promoted += queued;
        if queued >= room {
            wait = Some(wait.map_or(next, |wait| wait.min(next)));
        }
    }
    Ok((u64::from(promoted), wait))
}

/// Finds the groups by their first runs, walking by the index from one to the next, whatever the number of runs in each.
async fn paced_groups(change: &mut Change) -> DbResult<Vec<Group>> {
    let groups = sqlx::query_as(
        "-- runs.paced_groups
        WITH RECURSIVE firsts (id) AS (
            SELECT (SELECT id FROM runs WHERE state = 'waiting' AND is_paced
                    ORDER BY pace_key, pool, is_pull, priority, run_at, id LIMIT 1)
            UNION ALL
            SELECT (SELECT further.id FROM runs AS further
                    WHERE further.state = 'waiting' AND further.is_paced
                        AND (further.pace_key, further.pool, further.is_pull) > (first.pace_key, first.pool, first.is_pull)
                    ORDER BY further.pace_key, further.pool, further.is_pull, further.priority, further.run_at,
                        further.id LIMIT 1)
            FROM firsts JOIN runs AS first ON first.id = firsts.id)
        SELECT first.pace_key, first.pool, first.is_pull, first.pace,
            (SELECT tat FROM rate_limits WHERE rate_limits.key = first.pace_key) AS tat,
            (SELECT COUNT(*) FROM runs AS ready WHERE ready.state = 'queued' AND ready.pace_key = first.pace_key
                AND ready.pool = first.pool AND ready.is_pull = first.is_pull) AS queued
        FROM firsts JOIN runs AS first ON first.id = firsts.id",
    )
    .fetch_all(&mut change.connection)
    .await?;
    Ok(groups)
}

/// Queues the first runs of a group; returns how many.
async fn queue_paced(change: &mut Change, group: &Group, room: u32) -> DbResult<u32> {
    let queued = sqlx::query(
        "-- runs.promote_paced
        UPDATE runs SET state = 'queued', is_paced = 0 WHERE id IN (
            SELECT id FROM runs WHERE state = 'waiting' AND is_paced AND pace_key = ? AND pool = ? AND is_pull = ?
            ORDER BY priority, run_at, id LIMIT ?)",
    )
    .bind(&group.pace_key)
    .bind(&group.pool)
    .bind(group.is_pull)
    .bind(room)
    .execute(&mut change.connection)
    .await?;
    Ok(u32::try_from(queued.rows_affected()).unwrap_or(room))
}
