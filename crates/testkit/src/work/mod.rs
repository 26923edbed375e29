//! Work of every kind, each with a ledger that must balance afterwards, whatever happened meanwhile.
//!
//! A kind of work is one file and one line in [`all`]. None knows which faults strike, or when.

pub(crate) mod book;
mod calls;
mod fleet;
mod limits;
mod rooms;
mod streams;
mod tasks;

use async_trait::async_trait;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::ledger::Loss;
pub(crate) use fleet::Fleet;
pub(crate) use rooms::{Rooms, RoomsSize};
pub(crate) use streams::Streams;

/// What a kind of work did, and what is wrong with its ledger.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// What was done, in words.
    pub(crate) done: String,
    /// What must not be.
    pub(crate) violations: Vec<String>,
}

/// One kind of work, with a ledger of its own.
#[async_trait]
pub(crate) trait Workload: Send {
    /// Returns what it is called in the report.
    fn name(&self) -> &'static str;

    /// Makes what it needs, before the first fault.
    async fn start(&mut self, fleet: &Fleet);

    /// Works until the end, whatever happens meanwhile, and leaves nothing that is not under way on the server.
    async fn drive(&mut self, fleet: &Fleet, end: &CancellationToken);

    /// Waits, after the last fault, until everything that was begun has ended, and checks the ledger. What an unlogged table
    /// says may have been forgotten in each of the losses.
    async fn check(&mut self, fleet: &Fleet, losses: &[Loss]) -> Ledger;
}

/// Lists every kind of work.
pub(crate) fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::<tasks::Tasks>::default(),
        Box::<Rooms>::default(),
        Box::<calls::Calls>::default(),
        Box::<Streams>::default(),
        Box::<limits::Limits>::default(),
    ]
}

/// Work that goes on until it is stopped.
pub(crate) struct Works {
    fleet: Fleet,
    end: CancellationToken,
    driving: JoinSet<Box<dyn Workload>>,
}

impl Works {
    /// Makes what the work needs, and starts it.
    pub(crate) async fn start(fleet: Fleet, mut works: Vec<Box<dyn Workload>>) -> Self {
        for work in &mut works {
            work.start(&fleet).await;
        }
        let (end, mut driving) = (CancellationToken::new(), JoinSet::new());
        for mut work in works {
            let (fleet, end) = (fleet.clone(), end.clone());
            driving.spawn(async move {
                work.drive(&fleet, &end).await;
                work
            });
        }
        Self { fleet, end, driving }
    }

    /// Lets all work come to its end.
    pub(crate) async fn stop(self) -> Stopped {
        self.end.cancel();
        Stopped { fleet: self.fleet, works: self.driving.join_all().await }
    }
}

/// Work that has stopped, whose ledgers are to be checked.
pub(crate) struct Stopped {
    fleet: Fleet,
    works: Vec<Box<dyn Workload>>,
}

impl Stopped {
    /// Checks every ledger.
    pub(crate) async fn check(self, losses: &[Loss]) -> Vec<(&'static str, Ledger)> {
        let mut ledgers = Vec::new();
        for mut work in self.works {
            ledgers.push((work.name(), work.check(&self.fleet, losses).await));
        }
        ledgers
    }
}
