//! A load on leases beside holders and replicas that stand still for longer than their leases hold, and the proof that
//! two never held one at the same time.
//!
//! Holders write into registers that accept no fence after a greater one. What a holder wrote before its lease was
//! renewed or given back, it wrote while it held it; if the register has refused that, somebody with a newer fence wrote
//! meanwhile, and two held the lease.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use switchboard_client::{Client, ClientError};
use switchboard_model::identity::ClientKey;
use switchboard_model::ids::Fence;
use switchboard_model::lease::Lease;
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::coordination::LeaseAcquireRequest;
use tokio::task::JoinSet;
use tokio::time::sleep;
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::ledger::{Faults, judged};
use crate::must::Must as _;

/// How many compete.
const HOLDERS: u64 = 12;

/// How many leases there are.
const KEYS: usize = 5;

/// How long a lease holds.
const TTL: Span = Span::from_millis(400);

/// How many holds there are, and from what the pauses are drawn.
#[derive(Clone, Copy, Debug)]
pub struct LeaseLoad {
    /// How many leases are acquired in all.
    pub holds: usize,
    /// From which the faults are drawn.
    pub seed: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// Leases that were acquired or seized.
    pub holds: usize,
    /// Of them, those that were seized.
    pub seized: usize,
    /// Those that were lost: taken away, or over before they were renewed.
    pub lost: usize,
    /// Writes that were accepted.
    pub accepted: usize,
    /// Writes that were refused because somebody with a newer fence had written.
    pub refused: usize,
    /// How often a holder stood still for longer than its lease.
    pub pauses: usize,
    /// How often a replica did.
    pub stops: usize,
}

/// What one lease protects.
#[derive(Debug, Default)]
struct Register(Vec<Fence>);

impl Register {
    /// Writes, unless somebody with a newer fence has written; returns whether that was accepted.
    fn write(&mut self, fence: Fence) -> bool {
        let is_accepted = self.0.last().is_none_or(|last| *last <= fence);
        if is_accepted {
            self.0.push(fence);
        }
        is_accepted
    }
}

/// What all holders share.
#[derive(Debug, Default)]
struct Ledger {
    begun: AtomicUsize,
    registers: [Mutex<Register>; KEYS],
    fences: Mutex<BTreeSet<Fence>>,
    report: Mutex<LeaseReport>,
    faults: Mutex<Vec<String>>,
}

impl LeaseLoad {
    /// Puts the load on a cluster, with faults, and checks what was written under which fence.
    ///
    /// # Errors
    /// Names the holds that were not alone.
    ///
    /// # Panics
    /// Panics when the cluster cannot be used at all.
    pub async fn run(&self, cluster: &mut Cluster) -> Result<LeaseReport, Faults> {
        let replicas: Vec<Client> = (0..cluster.size()).map(|index| cluster.client(index).clone()).collect();
        let ledger = Arc::new(Ledger::default());
        let mut holders = JoinSet::new();
        for number in 0..HOLDERS {
            let rng = StdRng::seed_from_u64(self.seed.wrapping_add(number));
            let holder = Holder { replicas: replicas.clone(), ledger: Arc::clone(&ledger), rng };
            holders.spawn(holder.compete(self.holds));
        }
        self.strike(cluster, &ledger).await;
        holders.join_all().await;
        let mut faults = std::mem::take(&mut *ledger.faults.lock());
        for register in &ledger.registers {
            let register = register.lock();
            if register.0.windows(2).any(|pair| pair[0] > pair[1]) {
                faults.push("accepted writes went back in their fences".to_owned());
            }
        }
        let report = *ledger.report.lock();
        judged(faults).map(|()| report)
    }

    /// Makes replicas stand still for longer than a lease holds, until enough holds have begun.
    async fn strike(&self, cluster: &mut Cluster, ledger: &Ledger) {
        let mut rng = StdRng::seed_from_u64(self.seed);
        while ledger.begun.load(Ordering::SeqCst) < self.holds {
            // The pauses are the fault model, not waits for anything.
            sleep(Duration::from_millis(rng.random_range(200..1500))).await;
            let victim = rng.random_range(0..cluster.size());
            cluster.pause(victim);
            // Longer than a lease.
            sleep(TTL.to_std() + Duration::from_millis(rng.random_range(0..400))).await;
            cluster.resume(victim);
            ledger.report.lock().stops += 1;
        }
    }
}

/// One who acquires leases over any replica, and writes while it holds them.
struct Holder {
    replicas: Vec<Client>,
    ledger: Arc<Ledger>,
    rng: StdRng,
}

impl Holder {
    async fn compete(mut self, holds: usize) {
        while self.ledger.begun.load(Ordering::SeqCst) < holds {
            let number = self.rng.random_range(0..KEYS);
            match self.acquire(number).await {
                Ok(Some(lease)) => {
                    self.ledger.begun.fetch_add(1, Ordering::SeqCst);
                    if !self.ledger.fences.lock().insert(lease.fence) {
                        self.fault(format!("fence {} was given twice", lease.fence.0));
                    }
                    self.hold(number, &lease).await;
                }
                Ok(None) => {
                    // The time between two tries of one that competes.
                    sleep(Duration::from_millis(self.rng.random_range(0..20))).await;
                }
                Err(error) => self.note(&error),
            }
        }
    }

    /// Acquires a lease, or seizes it now and then.
    async fn acquire(&mut self, number: usize) -> Result<Option<Lease>, ClientError> {
        let key: ClientKey = format!("lease/{number}").parse().must("a key");
        let holder: ClientKey = Uuid::new_v4().to_string().parse().must("a holder");
        let request = LeaseAcquireRequest { holder: Some(holder.clone()), ttl: TTL, meta: None };
        let seizes = self.rng.random_ratio(1, 40);
        let replica = self.replica();
        if seizes {
            let lease = replica.seize_lease(&key, &request).await?;
            let mut report = self.ledger.report.lock();
            (report.holds, report.seized) = (report.holds + 1, report.seized + 1);
            return Ok(Some(lease));
        }
        let answer = replica.acquire_lease(&key, &request).await?;
        if !answer.acquired && answer.lease.holder != holder {
            return Ok(None);
        }
        self.ledger.report.lock().holds += 1;
        Ok(Some(answer.lease))
    }

    /// Writes, and has what was written confirmed by renewals and the end of the hold.
    async fn hold(&mut self, number: usize, lease: &Lease) {
        for step in (0..self.rng.random_range(1..4)).rev() {
            let accepted = self.write(number, lease.fence);
            if self.rng.random_ratio(1, 25) {
                self.ledger.report.lock().pauses += 1;
                // A holder that stands still for longer than its lease.
                sleep(TTL.to_std() + Duration::from_millis(self.rng.random_range(0..200))).await;
            }
            // What it writes after a pause counts only if the lease turns out to have held.
            let accepted = self.write(number, lease.fence) && accepted;
            let replica = self.replica();
            let confirmed = if step > 0 {
                replica.renew_lease(&lease.hold(), TTL).await.map(drop)
            } else {
                replica.release_lease(&lease.hold()).await
            };
            match confirmed {
                Ok(()) if !accepted => {
                    let fence = lease.fence.0;
                    return self
                        .fault(format!("lease {number} held with fence {fence}, and somebody newer had written"));
                }
                Ok(()) => {}
                Err(error) => {
                    self.ledger.report.lock().lost += 1;
                    return self.note(&error);
                }
            }
        }
    }

    fn write(&self, number: usize, fence: Fence) -> bool {
        let is_accepted = self.ledger.registers[number].lock().write(fence);
        let mut report = self.ledger.report.lock();
        report.accepted += usize::from(is_accepted);
        report.refused += usize::from(!is_accepted);
        is_accepted
    }

    fn replica(&mut self) -> Client {
        self.replicas[self.rng.random_range(0..self.replicas.len())].clone()
    }

    /// Takes note of an error that is none of those that faults bring about.
    fn note(&self, error: &ClientError) {
        if error.code() != Some(ErrorCode::Fenced) && !error.is_retryable() {
            self.fault(error.to_string());
        }
    }

    fn fault(&self, fault: String) {
        self.ledger.faults.lock().push(fault);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_refuses_older_fences() {
        let mut register = Register::default();
        let written = [1, 1, 3, 2, 3, 4].map(|fence| register.write(Fence(fence)));
        assert_eq!(written, [true, true, true, false, true, true]);
    }
}
