//! The one way in which tests wait: look again until the condition holds, and say what was seen last if it never does.

use std::fmt::Debug;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// How long a wait may take unless it says otherwise; many times what is usual.
const DEADLINE: Duration = Duration::from_secs(120);

/// How long to pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// What one look at a condition gave.
pub trait Attempt {
    /// What the test goes on with.
    type Value;

    /// Returns the value, or what was seen instead.
    ///
    /// # Errors
    /// What was seen instead, for the message of a wait that was in vain.
    fn settle(self) -> Result<Self::Value, String>;
}

impl<T> Attempt for Option<T> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

impl<T, E: Debug> Attempt for Result<T, E> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.map_err(|seen| format!("{seen:?}"))
    }
}

/// A wait for a condition.
#[derive(Clone, Debug)]
pub struct Eventually {
    what: String,
    within: Duration,
}

impl Eventually {
    /// Names what is waited for.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), within: DEADLINE }
    }

    /// Sets how long the wait may take; 120 s otherwise.
    #[must_use]
    pub const fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// Looks again and again, and returns what the first successful look gives.
    ///
    /// # Panics
    /// Panics at the deadline with what the last look saw.
    pub async fn holds<A: Attempt>(self, mut look: impl AsyncFnMut() -> A) -> A::Value {
        let deadline = Instant::now() + self.within;
        let mut seen = "nothing, since the first look did not end".to_owned();
        while let Ok(attempt) = timeout_at(deadline, look()).await {
            match attempt.settle() {
                Ok(value) => return value,
                Err(instead) => seen = instead,
            }
            if Instant::now() >= deadline {
                break;
            }
            sleep(PAUSE).await;
        }
        panic!("waited {:?} for {}; last seen: {seen}", self.within, self.what);
    }
}

/// Waits up to 120 s for a condition: `Some` and `Ok` end the wait, an `Err` says what was seen instead.
///
/// # Panics
/// Panics at the deadline with what the last look saw.
pub async fn wait_until<A: Attempt>(what: &str, look: impl AsyncFnMut() -> A) -> A::Value {
    Eventually::new(what).holds(look).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_success_ends_the_wait() {
        let mut looks = 0;
        let value = wait_until("three looks", async || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(value.await, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waited 2s for the moon; last seen: \"clouds\"")]
    async fn the_last_state_is_in_the_message() {
        let never = async || Err::<(), _>("clouds");
        Eventually::new("the moon").within(Duration::from_secs(2)).holds(never).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "the first look did not end")]
    async fn a_look_that_hangs_ends_with_the_deadline() {
        wait_until("an answer", async || std::future::pending::<Option<()>>().await).await;
    }
}
