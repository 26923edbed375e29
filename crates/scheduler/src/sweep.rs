//! The system function `sweep`: deletes what is past its retention, store by store.

use std::collections::BTreeMap;

use switchboard_model::json_text::JsonText;
use switchboard_model::span::Span;
use switchboard_store_api::{StoreResult, Stores};
use tokio_util::sync::CancellationToken;

use crate::actions::ActionError;
use crate::activation::with_causes;
use crate::meters;

/// The most rows of one transaction.
const BATCH: u32 = 1_000;
/// The most transactions per store; what is left goes in the next sweep.
const MOST_BATCHES: u32 = 200;

/// How long what has happened is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryAges {
    /// Ended runs and skipped occurrences.
    pub runs: Span,
    /// Entries of the audit log.
    pub audit: Span,
}

/// Sweeps every store in turn and returns how much each gave up. One that fails does not stop the
/// others; what has happened is forgotten after its age.
pub(crate) async fn sweep(stores: Stores, ages: HistoryAges, stop: CancellationToken) -> Result<JsonText, ActionError> {
    let mut sweep = Sweep { stop, counts: BTreeMap::new(), failures: vec![] };
    sweep.drain("tickets", || stores.tickets.sweep(BATCH)).await;
    sweep.drain("once", || stores.once.sweep(BATCH)).await;
    sweep.drain("auth_sessions", || stores.auth_sessions.sweep(BATCH)).await;
    sweep.drain("webhook_secrets", || stores.webhooks.sweep(BATCH)).await;
    sweep.drain("rate_limits", || stores.limits.sweep(BATCH)).await;
    sweep.drain("audit", || stores.audit.sweep(ages.audit, BATCH)).await;
    sweep.drain("failed_entries", || stores.outbox.sweep(ages.runs, BATCH)).await;
    sweep.drain("signals", || stores.feed.sweep(BATCH)).await;
    sweep.drain("room_events", || stores.rooms.sweep(BATCH)).await;
    sweep.drain("runs", || stores.runs.sweep(ages.runs, BATCH)).await;
    sweep.note("instances", stores.instances.sweep().await.map(|gone| gone.len() as u64));
    sweep.note("unarmed_tasks", stores.tasks.count_unarmed().await.inspect(|tasks| meters::unarmed(*tasks)));
    sweep.outcome()
}

struct Sweep {
    stop: CancellationToken,
    counts: BTreeMap<&'static str, u64>,
    failures: Vec<String>,
}

impl Sweep {
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
