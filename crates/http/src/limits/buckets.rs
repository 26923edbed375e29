//! Limits of this process alone, in bounded memory. Knows no store.

use std::collections::HashMap;

use parking_lot::Mutex;
use switchboard_model::limit::Decision;
use switchboard_store_api::LimitTake;
use tokio::time::Instant;

/// The most keys that are told apart. When they are all in use, further ones count as one.
const MOST_KEYS: usize = 10_000;

/// The key of those that find no place; no other is empty.
const OVERFLOW: &str = "";

/// The arrival times of keys, by the rule and with the meaning of [`switchboard_store_api::LimitStore`], on the
/// clock of this process.
pub(super) struct Buckets {
    start: Instant,
    arrivals: Mutex<HashMap<String, i64>>,
}

impl Buckets {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), arrivals: Mutex::new(HashMap::new()) }
    }

    /// Takes units of several keys, of all or of none.
    pub(super) fn take(&self, takes: &[LimitTake]) -> Vec<Decision> {
        let now = i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX);
        let mut arrivals = self.arrivals.lock();
        if arrivals.len() + takes.len() > MOST_KEYS {
            // A key that is unused again is as good as unknown.
            arrivals.retain(|_, arrival| *arrival > now);
        }
        let has_room = arrivals.len() + takes.len() <= MOST_KEYS;
        let place = |take: &LimitTake| {
            let is_kept = has_room || arrivals.contains_key(&take.key);
            if is_kept { take.key.clone() } else { OVERFLOW.to_owned() }
        };
        let places: Vec<String> = takes.iter().map(place).collect();
        let decide =
            |(take, place): (&LimitTake, &String)| take.rate.take(arrivals.get(place).copied(), now, take.cost);
        let (decisions, next): (Vec<_>, Vec<_>) = takes.iter().zip(&places).map(decide).unzip();
        if let Some(next) = next.into_iter().collect::<Option<Vec<i64>>>() {
            arrivals.extend(places.into_iter().zip(next));
        }
        decisions
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    fn take(key: impl Into<String>, rate: &str) -> LimitTake {
        LimitTake { key: key.into(), rate: rate.parse().unwrap(), cost: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_have_a_bucket_each_and_are_taken_together() {
        let buckets = Buckets::new();
        let both = [take("a", "10/1s burst 2"), take("b", "10/1s burst 1")];
        assert!(buckets.take(&both).iter().all(|decision| decision.allowed));
        let denied = buckets.take(&both);
        assert_eq!((denied[0].allowed, denied[1].allowed), (true, false));
        assert_eq!(buckets.take(&both[..1])[0].remaining, 0, "a denial of one used up nothing of the other");
        advance(Duration::from_millis(100)).await;
        assert!(buckets.take(&both).iter().all(|decision| decision.allowed));
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded_and_a_flood_of_keys_forgets_none() {
        let buckets = Buckets::new();
        let rate = "1/1h burst 1";
        for n in 0..MOST_KEYS {
            assert!(buckets.take(&[take(n.to_string(), rate)])[0].allowed);
        }
        assert!(buckets.take(&[take("more", rate)])[0].allowed);
        assert!(!buckets.take(&[take("and more", rate)])[0].allowed, "those without a place count as one");
        assert!(!buckets.take(&[take("0", rate)])[0].allowed, "the first is not forgotten");
        assert_eq!(buckets.arrivals.lock().len(), MOST_KEYS + 1);
        advance(Duration::from_secs(3600)).await;
        assert!(buckets.take(&[take("more", rate)])[0].allowed);
        assert_eq!(buckets.arrivals.lock().len(), 1);
    }
}
