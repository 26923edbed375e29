//! Rate limits: taken from everywhere at once, and never more than the burst and the rate allow.

use std::time::Duration;

use async_trait::async_trait;
use switchboard_model::identity::ClientKey;
use switchboard_model::wire::rest::{LimitTakeRequest, Outage};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use super::fleet::Fleet;
use super::{Ledger, Workload};
use crate::ledger::{self, LimitTerms, Loss, Take};
use crate::must::Must as _;

/// How many takers there are, and how often each asks.
const TAKERS: usize = 4;
const PERIOD: Duration = Duration::from_millis(100);

/// What is allowed.
const RATE: &str = "5/1s burst 10";
const TERMS: LimitTerms = LimitTerms { per_second: 5.0, burst: 10.0 };

/// What was allowed, and to how many requests there was an answer.
#[derive(Default)]
pub(crate) struct Limits {
    takes: Vec<Take>,
    answered: usize,
}

#[async_trait]
impl Workload for Limits {
    fn name(&self) -> &'static str {
        "limits"
    }

    async fn start(&mut self, _: &Fleet) {}

    async fn drive(&mut self, fleet: &Fleet, end: &CancellationToken) {
        let mut takers = JoinSet::new();
        for _ in 0..TAKERS {
            takers.spawn(take(fleet.clone(), end.clone()));
        }
        for (takes, answered) in takers.join_all().await {
            self.takes.extend(takes);
            self.answered += answered;
        }
    }

    async fn check(&mut self, _: &Fleet, losses: &[Loss]) -> Ledger {
        let mut violations = Vec::new();
        if self.takes.is_empty() {
            violations.push("nothing was allowed".to_owned());
        }
        // The table is unlogged: a crash of the database forgets what was used up, as the documentation says.
        violations.extend(ledger::limit(&self.takes, losses, TERMS).err().map(|faults| faults.to_string()));
        Ledger { done: format!("{} units allowed in {} decisions", self.takes.len(), self.answered), violations }
    }
}

/// Asks again and again; without a fallback, so that what the database does not decide is not allowed.
async fn take(fleet: Fleet, end: CancellationToken) -> (Vec<Take>, usize) {
    let request = LimitTakeRequest { rate: RATE.parse().must("a rate"), cost: 1, outage: Outage::Refuse };
    let key: ClientKey = "chaos".parse().must("a key");
    let mut clock = interval(PERIOD);
    let (mut takes, mut answered) = (Vec::new(), 0);
    while end.run_until_cancelled(clock.tick()).await.is_some() {
        let sent = Instant::now();
        let (key, request) = (key.clone(), request.clone());
        let answer = fleet.try_once(|client| async move { client.take_limit(&key, &request).await }).await;
        let Some(Ok(answer)) = answer else { continue };
        answered += 1;
        if answer.allowed {
            takes.push(Take { sent, answered: Instant::now() });
        }
    }
    (takes, answered)
}
