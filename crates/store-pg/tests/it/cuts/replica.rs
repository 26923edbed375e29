//! What the loops of a replica do with its stores, without their timers: whatever fails is done again.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use switchboard_model::fire::{MISFIRE_GRACE, plan};
use switchboard_model::identity::PoolName;
use switchboard_model::ids::{Fence, InstanceId, RunId, TaskId};
use switchboard_model::run::{Ending, Finish, LeasedRun, NewRun, RunState, Trigger};
use switchboard_model::span::Span;
use switchboard_store_api::{
    FinishOutcome, LeaseRequest, OnceClaim, RenewOutcome, Renewal, StoreResult, Stores, TriggerOutcome, WorkerKind,
    WriteContext, Written,
};
use tokio::time::sleep;

use super::bed::{Bed, HELD};

/// The share of leased runs that a replica in trouble forgets, as one that dies.
const ABANDONED: f64 = 0.05;

/// One replica at work.
pub(super) struct Replica {
    stores: Stores,
    random: StdRng,
    /// The share of leased runs that it forgets.
    abandoned: f64,
    /// What was reported under each lease, whether the answer came or not.
    pub(super) reported: Vec<(RunId, Fence, RunState)>,
    /// The endings that were acknowledged.
    pub(super) accepted: Vec<(RunId, Fence, RunState)>,
    /// How many runs were triggered.
    pub(super) triggered: u64,
}

impl Replica {
    /// Opens a replica behind the proxy.
    pub(super) async fn new(bed: &Bed, random: &mut StdRng) -> Self {
        Self { stores: bed.through_proxy().await, abandoned: ABANDONED, ..Self::direct(bed, random) }
    }

    /// Makes a replica that no fault reaches.
    pub(super) fn direct(bed: &Bed, random: &mut StdRng) -> Self {
        let random = StdRng::seed_from_u64(random.random());
        Self { stores: bed.direct.clone(), random, abandoned: 0.0, reported: vec![], accepted: vec![], triggered: 0 }
    }

    /// Goes past all faults from here on.
    pub(super) fn heal(&mut self, bed: &Bed) {
        self.stores = bed.direct.clone();
        self.abandoned = 0.0;
    }

    /// Does what all loops do, once.
    pub(super) async fn round(&mut self, triggered: TaskId, trial: u64) {
        tolerate("fire", fire(&self.stores).await);
        if trial.is_multiple_of(2) {
            let run = new_run(triggered);
            // An answer that was lost is asked for again, with the same key.
            while !tolerate("trigger", trigger(&self.stores, &run).await) {}
            self.triggered += 1;
        }
        self.tend().await;
    }

    /// Works until nothing is left to do.
    pub(super) async fn until_idle(&mut self) {
        while self.tend().await > 0 {}
    }

    /// Does what the loops for runs do, once; returns how many runs were leased.
    async fn tend(&mut self) -> usize {
        tolerate("promote", self.stores.runs.promote(100).await);
        tolerate("recover", self.stores.runs.recover(100).await);
        let Ok(batch) = self.stores.runs.lease(&lease_request(50, HELD)).await else { return 0 };
        let leased = batch.runs.len();
        let mut held = batch.runs;
        held.retain(|_| !self.random.random_bool(self.abandoned));
        let renewals: Vec<_> = held.iter().map(renewal_of).collect();
        if let Ok(outcomes) = self.stores.runs.renew(WorkerKind::Replica, &renewals, HELD).await {
            let mut outcomes = outcomes.into_iter();
            held.retain(|_| outcomes.next() == Some(RenewOutcome::Renewed));
        }
        let finishes: Vec<_> = held.iter().map(|run| finish_of(run, self.any_ending())).collect();
        self.report(&finishes).await;
        leased
    }

    fn any_ending(&mut self) -> Ending {
        match self.random.random_range(0..20) {
            0..=2 => {
                let delay = Span::from_millis(self.random.random_range(0..10));
                Ending::Retry { error: "try again".to_owned(), delay }
            }
            3 => Ending::Failed("for good".to_owned()),
            4 => Ending::Released,
            _ => Ending::Succeeded(None),
        }
    }

    /// Reports ends until the database has acknowledged them.
    async fn report(&mut self, finishes: &[Finish]) {
        for finish in finishes {
            self.reported.extend(terminal(&finish.ending).map(|state| (finish.id, finish.fence, state)));
        }
        let outcomes = loop {
            let outcomes = self.stores.runs.finish(finishes).await;
            if let Ok(outcomes) = outcomes {
                break outcomes;
            }
            tolerate("finish", outcomes);
        };
        for (finish, outcome) in finishes.iter().zip(outcomes) {
            if let FinishOutcome::Accepted(state) | FinishOutcome::Repeated(state) = outcome {
                self.accepted.push((finish.id, finish.fence, state));
            }
        }
    }
}

/// The state that an ending asks for, if it ends the run whatever attempts are left.
const fn terminal(ending: &Ending) -> Option<RunState> {
    match ending {
        Ending::Succeeded(_) => Some(RunState::Succeeded),
        Ending::Failed(_) => Some(RunState::Failed),
        Ending::Retry { .. } => Some(RunState::Dead),
        Ending::Cancelled | Ending::Released => None,
    }
}

/// Takes failures that another try may undo, and no others; tells whether it was a success.
fn tolerate<T>(what: &str, outcome: StoreResult<T>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(error) if error.is_transient() => false,
        Err(error) => panic!("{what}: {error:?}"),
    }
}

/// Makes runs of what is due.
pub(super) async fn fire(stores: &Stores) -> StoreResult<()> {
    let due = stores.tasks.due(100).await?;
    let plans: Vec<_> = due.tasks.into_iter().map(|task| plan(task, due.now, MISFIRE_GRACE)).collect();
    stores.tasks.fire(&plans).await.map(drop)
}

/// Makes a run, once however often it is asked for.
pub(super) async fn trigger(stores: &Stores, run: &NewRun) -> StoreResult<()> {
    let once = OnceClaim {
        scope: "cuts".to_owned(),
        key: run.id.to_string(),
        request_hash: [7; 32],
        ttl: Span::from_secs(3_600),
    };
    let context = WriteContext { once: Some(once), request_id: Arc::from("cuts"), ..WriteContext::system("cuts") };
    match stores.runs.trigger(&context, run).await? {
        Written::Now(TriggerOutcome::Created(id)) => assert_eq!(id, run.id),
        Written::Replayed(record) => assert_eq!(record.result_id, run.id.as_uuid()),
        other => panic!("not triggered: {other:?}"),
    }
    Ok(())
}

pub(super) fn new_run(task_id: TaskId) -> NewRun {
    NewRun {
        id: RunId::new(),
        task_id,
        trigger: Trigger::Manual,
        input: None,
        delay: Span::default(),
        dedupe_key: None,
        dedupe_scope: Default::default(),
    }
}

pub(super) fn lease_request(limit: u32, lease: Span) -> LeaseRequest {
    LeaseRequest {
        holder: InstanceId::boot("cuts"),
        kind: WorkerKind::Replica,
        pools: vec![PoolName::default_pool()],
        limit,
        lease,
        request: None,
    }
}

pub(super) const fn renewal_of(run: &LeasedRun) -> Renewal {
    Renewal { id: run.id, fence: run.fence }
}

pub(super) const fn finish_of(run: &LeasedRun, ending: Ending) -> Finish {
    Finish { id: run.id, fence: run.fence, ending }
}

/// Lets a moment pass between two looks.
pub(super) async fn moment() {
    // The callers look again at their condition after it, and give up at a deadline of their own.
    sleep(Duration::from_millis(5)).await;
}
