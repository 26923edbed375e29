//! Upkeep: system functions that delete what is past its retention and repair what must not be.

use std::collections::BTreeMap;

use switchboard_model::call::CALL_RETENTION;
use switchboard_model::json_text::JsonText;
use switchboard_model::span::Span;
use switchboard_model::stream::STREAM_RETENTION;
use switchboard_store_api::{StoreResult, Stores, UnarmedReport};
use tokio_util::sync::CancellationToken;

use crate::actions::ActionError;
use crate::activation::with_causes;
use crate::meters;

/// The most rows of one transaction.
const BATCH: u32 = 1_000;
/// The most transactions per store; what is left goes in the next pass.
const MOST_BATCHES: u32 = 200;

/// How long what has happened is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryAges {
    /// Ended runs and skipped occurrences.
    pub runs: Span,
    /// Entries of the audit log.
    pub audit: Span,
}

/// One part of the upkeep: a system function with a task of its own. A pass that finds nothing to do writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upkeep {
    /// Forgets runs, skipped occurrences, failed triggers of applications and audit entries that are old enough.
    PruneHistory,
    /// Deletes what has expired: credentials, keys, leases, shared values, limits, calls, streams and replicas.
    SweepExpired,
    /// Deletes events that rooms do not retain.
    TrimRooms,
    /// Deletes signals that every reader has read.
    TrimFeed,
    /// Repairs tasks that lost their next occurrence, and removes deleted ones.
    CheckTasks,
}

impl Upkeep {
    /// Every part.
    pub(crate) const ALL: [Self; 5] =
        [Self::PruneHistory, Self::SweepExpired, Self::TrimRooms, Self::TrimFeed, Self::CheckTasks];

    /// Names the function.
    pub(crate) const fn function(self) -> &'static str {
        match self {
            Self::PruneHistory => "prune_history",
            Self::SweepExpired => "sweep_expired",
            Self::TrimRooms => "trim_rooms",
            Self::TrimFeed => "trim_feed",
            Self::CheckTasks => "check_tasks",
        }
    }
}

/// Does parts of the upkeep in turn and returns how much each store gave up. One that fails does not stop the others;
/// what has happened is forgotten after its age.
pub(crate) async fn keep_up(
    parts: &[Upkeep],
    stores: Stores,
    ages: HistoryAges,
    stop: CancellationToken,
) -> Result<JsonText, ActionError> {
    let mut sweep = Sweep { stop, counts: BTreeMap::new(), failures: vec![] };
    for part in parts {
        sweep.part(*part, &stores, ages).await;
    }
    sweep.outcome()
}

struct Sweep {
    stop: CancellationToken,
    counts: BTreeMap<&'static str, u64>,
    failures: Vec<String>,
}

impl Sweep {
    async fn part(&mut self, part: Upkeep, stores: &Stores, ages: HistoryAges) {
        match part {
            Upkeep::PruneHistory => {
                self.drain("runs", || stores.runs.sweep(ages.runs, BATCH)).await;
                self.drain("failed_outbox", || stores.outbox.sweep(ages.runs, BATCH)).await;
                self.drain("audit", || stores.audit.sweep(ages.audit, BATCH)).await;
            }
            Upkeep::SweepExpired => {
                self.drain("tickets", || stores.tickets.sweep(BATCH)).await;
                self.drain("once", || stores.once.sweep(BATCH)).await;
                self.drain("leases", || stores.leases.sweep(BATCH)).await;
                self.drain("state", || stores.state.sweep(BATCH)).await;
                self.drain("auth_sessions", || stores.auth_sessions.sweep(BATCH)).await;
                self.drain("calls", || stores.calls.sweep(CALL_RETENTION, BATCH)).await;
                self.drain("webhook_secrets", || stores.webhooks.sweep(BATCH)).await;
                self.drain("rate_limits", || stores.limits.sweep(BATCH)).await;
                self.drain("streams", || stores.streams.sweep(STREAM_RETENTION, BATCH)).await;
                self.note("instances", stores.instances.sweep().await.map(|gone| gone.len() as u64));
            }
            Upkeep::TrimRooms => self.drain("room_events", || stores.rooms.sweep(BATCH)).await,
            Upkeep::TrimFeed => self.drain("signals", || stores.feed.sweep(BATCH)).await,
            Upkeep::CheckTasks => {
                let repaired = stores.tasks.repair_unarmed(BATCH).await.inspect(measure);
                self.note("repaired_tasks", repaired.map(|report| report.repaired));
                self.drain("deleted_tasks", || stores.tasks.sweep(ages.runs, BATCH)).await;
            }
        }
    }

    async fn drain<F>(&mut self, what: &'static str, mut batch: impl FnMut() -> F)
    where
        F: Future<Output = StoreResult<u64>>,
    {
        for _ in 0..MOST_BATCHES {
            if self.stop.is_cancelled() || self.note(what, batch().await) == 0 {
                break;
            }
        }
    }

    /// Adds to a count, or to the failures; returns by how much.
    fn note(&mut self, what: &'static str, swept: StoreResult<u64>) -> u64 {
        let swept = swept.unwrap_or_else(|error| {
            self.failures.push(format!("{what}: {}", with_causes(&error)));
            0
        });
        *self.counts.entry(what).or_default() += swept;
        swept
    }

    fn outcome(self) -> Result<JsonText, ActionError> {
        if self.stop.is_cancelled() {
            return Err(ActionError::retryable("stopped before the end"));
        }
        if !self.failures.is_empty() {
            return Err(ActionError::retryable(self.failures.join("; ")));
        }
        JsonText::encode(&self.counts).map_err(|error| ActionError::Permanent(error.to_string()))
    }
}

fn measure(report: &UnarmedReport) {
    meters::unarmed(report.found.saturating_sub(report.repaired));
}

#[cfg(test)]
mod tests {
    use switchboard_store_api::StoreError;

    use super::*;

    fn new() -> Sweep {
        Sweep { stop: CancellationToken::new(), counts: BTreeMap::new(), failures: vec![] }
    }

    #[tokio::test]
    async fn a_store_is_swept_until_nothing_is_left() {
        let mut sweep = new();
        let mut left = 2_500_u64;
        sweep
            .drain("tickets", || {
                let batch = left.min(1_000);
                left -= batch;
                async move { Ok(batch) }
            })
            .await;
        assert_eq!(left, 0);
        assert_eq!(sweep.outcome().unwrap().as_str(), r#"{"tickets":2500}"#);
    }

    #[tokio::test]
    async fn a_store_that_never_ends_is_left_to_the_next_sweep() {
        let mut sweep = new();
        sweep.drain("signals", async || Ok(1)).await;
        assert_eq!(sweep.counts["signals"], u64::from(MOST_BATCHES));
    }

    #[tokio::test]
    async fn one_failing_store_does_not_stop_the_others() {
        let mut sweep = new();
        sweep.drain("tickets", async || Err(StoreError::Unavailable("no route".into()))).await;
        let mut batches = vec![0, 7].into_iter().rev();
        sweep.drain("once", || std::future::ready(Ok(batches.next().unwrap()))).await;
        assert_eq!(sweep.counts["once"], 7);
        let error = sweep.outcome().unwrap_err();
        assert_eq!(error, ActionError::retryable("tickets: the database is unavailable: no route"));
    }
}
