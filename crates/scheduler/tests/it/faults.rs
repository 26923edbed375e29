//! A run store with faults: what a test wants to go wrong between a replica and the database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{Finish, NewRun, OccurrenceRun, Run};
use switchboard_model::span::Span;
use switchboard_store_api::{
    CancelOutcome, FinishOutcome, LeaseBatch, LeaseRequest, OccurrenceRange, PromoteReport, RecoverReport, Redrive,
    RedriveReport, RenewOutcome, Renewal, RetryOutcome, RunFilter, RunStore, StoreError, StoreResult, Stores,
    TriggerOutcome, WorkerKind, WriteContext, Written,
};
use tokio::sync::Semaphore;

/// What renewals do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewing {
    /// They reach the database.
    Works,
    /// They are lost on their way, and nobody answers.
    Hangs,
    /// So is the next one; those after it work.
    HangsOnce,
    /// The next one fails as if the database were away; those after it work.
    FailsOnce,
    /// They are lost on their way, and the answer says that all is well.
    Lies,
}

/// The run store of one replica.
pub(crate) struct FaultyRuns {
    inner: Arc<dyn RunStore>,
    pub(crate) renewing: Mutex<Renewing>,
    /// How many calls of `finish` still fail as if the database were away.
    pub(crate) failing_finishes: AtomicU32,
    /// The run whose end the database refuses.
    pub(crate) refused: Mutex<Option<RunId>>,
    /// How many calls of `finish` may still go on.
    pub(crate) finishes: Semaphore,
    /// How many answers of `lease` that hand out runs still get lost.
    pub(crate) losing_leases: AtomicU32,
    /// How long leases really hold, if not as long as the replica believes.
    pub(crate) granting: Mutex<Option<Span>>,
}

impl FaultyRuns {
    /// Puts a faulty run store, without a fault yet, into a copy of `stores`.
    pub(crate) fn put_into(stores: &Stores) -> (Stores, Arc<Self>) {
        let faulty = Arc::new(Self {
            inner: stores.runs.clone(),
            renewing: Mutex::new(Renewing::Works),
            failing_finishes: AtomicU32::new(0),
            refused: Mutex::new(None),
            finishes: Semaphore::new(1_000),
            losing_leases: AtomicU32::new(0),
            granting: Mutex::new(None),
        });
        (Stores { runs: faulty.clone(), ..stores.clone() }, faulty)
    }
}

/// Counts down; tells whether the fault still happens.
fn is_next(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

#[async_trait]
impl RunStore for FaultyRuns {
    async fn renew(&self, by: WorkerKind, renewals: &[Renewal], lease: Span) -> StoreResult<Vec<RenewOutcome>> {
        let renewing = {
            let mut next = self.renewing.lock();
            let renewing = *next;
            if matches!(renewing, Renewing::HangsOnce | Renewing::FailsOnce) {
                *next = Renewing::Works;
            }
            renewing
        };
        match renewing {
            Renewing::Works => self.inner.renew(by, renewals, lease).await,
            Renewing::Hangs | Renewing::HangsOnce => std::future::pending().await,
            Renewing::FailsOnce => Err(StoreError::Unavailable("as the test wants it".into())),
            Renewing::Lies => Ok(vec![RenewOutcome::Renewed; renewals.len()]),
        }
    }

    async fn finish(&self, finishes: &[Finish]) -> StoreResult<Vec<FinishOutcome>> {
        self.finishes.acquire().await.unwrap().forget();
        if is_next(&self.failing_finishes) {
            return Err(StoreError::Unavailable("as the test wants it".into()));
        }
        let refused = *self.refused.lock();
        if finishes.iter().any(|finish| Some(finish.id) == refused) {
            return Err(StoreError::Backend("as the test wants it".into()));
        }
        self.inner.finish(finishes).await
    }

    async fn trigger(&self, context: &WriteContext, run: &NewRun) -> StoreResult<Written<TriggerOutcome>> {
        self.inner.trigger(context, run).await
    }

    async fn trigger_many(&self, context: &WriteContext, runs: &[NewRun]) -> StoreResult<Written<Vec<TriggerOutcome>>> {
        self.inner.trigger_many(context, runs).await
    }

    async fn of_occurrences(&self, task: TaskId, range: &OccurrenceRange) -> StoreResult<Vec<OccurrenceRun>> {
        self.inner.of_occurrences(task, range).await
    }

    async fn get(&self, id: RunId) -> StoreResult<Option<Run>> {
        self.inner.get(id).await
    }

    async fn list(&self, filter: &RunFilter, page: &PageRequest) -> StoreResult<Page<Run>> {
        self.inner.list(filter, page).await
    }

    async fn lease(&self, request: &LeaseRequest) -> StoreResult<LeaseBatch> {
        let lease = self.granting.lock().unwrap_or(request.lease);
        let batch = self.inner.lease(&LeaseRequest { lease, ..request.clone() }).await?;
        if !batch.runs.is_empty() && is_next(&self.losing_leases) {
            return Err(StoreError::Unavailable("as the test wants it".into()));
        }
        Ok(batch)
    }

    async fn recover(&self, limit: u32) -> StoreResult<RecoverReport> {
        self.inner.recover(limit).await
    }

    async fn promote(&self, limit: u32) -> StoreResult<PromoteReport> {
        self.inner.promote(limit).await
    }

    async fn cancel(&self, context: &WriteContext, id: RunId) -> StoreResult<CancelOutcome> {
        self.inner.cancel(context, id).await
    }

    async fn retry(&self, context: &WriteContext, id: RunId) -> StoreResult<RetryOutcome> {
        self.inner.retry(context, id).await
    }

    async fn redrive(&self, context: &WriteContext, which: &Redrive, limit: u32) -> StoreResult<RedriveReport> {
        self.inner.redrive(context, which, limit).await
    }

    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        self.inner.sweep(age, limit).await
    }
}
