//! Who lets the faults strike: one every few seconds, all kinds before any repeats, some of which last while others strike.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, SeedableRng as _};
use tokio::time::{Instant, sleep};

use super::faults::{Fault, Lasting};
use crate::cluster::Cluster;
use crate::eventually::wait_until;
use crate::ledger::Loss;
use crate::work::book::Orphans;

/// How long to pause between two faults, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 500..2_000;

/// How long a lasting fault lasts, in milliseconds: longer than a lease.
const LASTING_MS: std::ops::Range<u64> = 3_500..6_000;

/// What has struck.
#[derive(Debug, Default)]
pub(super) struct Struck {
    /// How often each fault did.
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// The runs that killed replicas took along.
    pub(super) orphans: Vec<Orphans>,
    /// When the database crashed.
    pub(super) crashes: Vec<Loss>,
}

/// Draws faults and lets them strike.
pub(super) struct Striker {
    pub(super) rng: StdRng,
    /// The faults that are left of this round.
    deck: Vec<Fault>,
    /// The replicas that a fault holds, what holds them, and until when.
    held: BTreeMap<usize, (Lasting, Instant)>,
    pub(super) struck: Struck,
}

impl Striker {
    pub(super) fn new(seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Self { rng, deck: Vec::new(), held: BTreeMap::new(), struck: Struck::default() }
    }

    /// Lets faults strike for so long.
    pub(super) async fn strike(&mut self, cluster: &mut Cluster, duration: Duration) {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            // The pause is the fault model, not a wait for anything.
            sleep(Duration::from_millis(self.rng.random_range(PAUSE_MS))).await;
            self.heal_until(cluster, Instant::now());
            let fault = self.draw();
            // At least one replica is free of lasting faults, and whatever must boot a replica finds the others well.
            if fault.needs_all() {
                self.heal_all(cluster).await;
            }
            let Some(victim) = self.free(cluster) else { continue };
            if fault.lasts() && self.held.len() + 1 >= cluster.size() {
                continue;
            }
            *self.struck.counts.entry(fault.name()).or_default() += 1;
            if let Some(lasting) = fault.strike(self, cluster, victim).await {
                let until = Instant::now() + Duration::from_millis(self.rng.random_range(LASTING_MS));
                self.held.insert(victim, (lasting, until));
            }
        }
    }

    /// Ends every fault, waits until every replica serves again, and returns what has struck.
    pub(super) async fn heal(mut self, cluster: &mut Cluster) -> Struck {
        self.heal_all(cluster).await;
        self.struck
    }

    async fn heal_all(&mut self, cluster: &mut Cluster) {
        for (victim, (lasting, _)) in std::mem::take(&mut self.held) {
            lasting.end(cluster, victim);
        }
        for index in 0..cluster.size() {
            wait_until("a replica to recover", async || cluster.client(index).ready().await).await;
        }
    }

    /// Ends the faults that have lasted long enough.
    fn heal_until(&mut self, cluster: &mut Cluster, now: Instant) {
        let due: Vec<usize> =
            self.held.iter().filter(|(_, (_, until))| *until <= now).map(|(victim, _)| *victim).collect();
        for victim in due {
            if let Some((lasting, _)) = self.held.remove(&victim) {
                lasting.end(cluster, victim);
            }
        }
    }

    /// Takes the next fault of a shuffled deck.
    fn draw(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck = Fault::ROUND.to_vec();
            self.deck.shuffle(&mut self.rng);
        }
        self.deck.pop().unwrap_or(Fault::Kill)
    }

    /// Chooses a replica that no fault holds.
    fn free(&mut self, cluster: &Cluster) -> Option<usize> {
        let free: Vec<usize> = (0..cluster.size()).filter(|index| !self.held.contains_key(index)).collect();
        free.choose(&mut self.rng).copied()
    }
}
