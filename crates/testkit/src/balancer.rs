//! A balancer as small as one can be: it asks each replica whether it is ready, and gives out those that are in turn.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use switchboard_client::Client;
use tokio::time::{interval, timeout};

/// How often each replica is asked, and how long it may take to answer.
const PERIOD: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(2);

/// The replicas, and which of them take requests.
#[derive(Debug)]
pub(crate) struct Balancer {
    replicas: Vec<(Client, AtomicBool)>,
    next: AtomicUsize,
}

impl Balancer {
    /// Makes a balancer over replicas that are ready now.
    pub(crate) fn over(replicas: Vec<Client>) -> Self {
        let replicas = replicas.into_iter().map(|client| (client, AtomicBool::new(true))).collect();
        Self { replicas, next: AtomicUsize::new(0) }
    }

    /// Asks the replicas for ever.
    pub(crate) async fn probe(&self) {
        let mut clock = interval(PERIOD);
        loop {
            clock.tick().await;
            let asking = self.replicas.iter().map(|(client, is_ready)| async {
                let answer = timeout(PATIENCE, client.ready()).await;
                is_ready.store(matches!(answer, Ok(Ok(()))), Ordering::SeqCst);
            });
            futures_util::future::join_all(asking).await;
        }
    }

    /// Returns the next replica that is ready; the next one whatever it is when none is.
    pub(crate) fn next(&self) -> &Client {
        let start = self.next.fetch_add(1, Ordering::SeqCst);
        let in_turn = (start..start + self.replicas.len()).map(|index| &self.replicas[index % self.replicas.len()]);
        let ready = in_turn.clone().find(|(_, is_ready)| is_ready.load(Ordering::SeqCst));
        ready.map_or(&self.replicas[start % self.replicas.len()].0, |(client, _)| client)
    }
}
