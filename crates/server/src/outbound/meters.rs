//! The metrics of outbound requests, with a closed set of labels.

use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use tokio::time::Instant;

use super::{OutboundError, OutboundResponse};

const REQUESTS: &str = "switchboard_outbound_requests_total";
const DURATION: &str = "switchboard_outbound_request_seconds";

/// Describes every metric of outbound requests and brings each into being at zero.
pub(crate) fn describe_metrics() {
    describe_counter!(REQUESTS, "Requests of tasks, by how they ended");
    describe_histogram!(DURATION, Unit::Seconds, "Time from the start of a request of a task until it had ended");
    for outcome in Outcome::ALL {
        counter!(REQUESTS, "outcome" => outcome.as_str()).increment(0);
    }
    // A histogram exists once it is named; there is nothing to record yet.
    drop(histogram!(DURATION));
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Answered with success.
    Succeeded,
    /// Answered with a redirect or the fault of the request.
    Rejected,
    /// Answered with a fault of the receiver.
    Failed,
    /// Not answered.
    Unanswered,
    /// Not sent, because it may not go there.
    Refused,
    /// Given up on the way, by a cancel request, a timeout or a shutdown.
    Abandoned,
}

impl Outcome {
    const ALL: [Self; 6] =
        [Self::Succeeded, Self::Rejected, Self::Failed, Self::Unanswered, Self::Refused, Self::Abandoned];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Unanswered => "unanswered",
            Self::Refused => "refused",
            Self::Abandoned => "abandoned",
        }
    }

    fn of(result: &Result<OutboundResponse, OutboundError>) -> Self {
        match result {
            Ok(response) if response.status.is_success() => Self::Succeeded,
            Ok(response) if response.status.is_server_error() => Self::Failed,
            Ok(_) => Self::Rejected,
            Err(OutboundError::Unanswered) => Self::Unanswered,
            Err(OutboundError::Refused) => Self::Refused,
        }
    }
}

/// Measures one request, also one that is dropped on the way.
pub(super) struct Measured {
    start: Instant,
    outcome: Outcome,
}

impl Measured {
    /// Starts the clock.
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), outcome: Outcome::Abandoned }
    }

    /// Takes note of how it ended.
    pub(super) fn ended(mut self, result: &Result<OutboundResponse, OutboundError>) {
        self.outcome = Outcome::of(result);
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        counter!(REQUESTS, "outcome" => self.outcome.as_str()).increment(1);
        if self.outcome != Outcome::Refused {
            histogram!(DURATION).record(self.start.elapsed());
        }
    }
}
