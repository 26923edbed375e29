//! Requests that wait: for how long they may. Knows no endpoint.

use std::time::Duration;

use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::{ApiResult, AppState};

/// How much of the time of a request is left for its answer.
const ANSWER_MARGIN: Duration = Duration::from_secs(2);

/// Returns how long a request may wait.
pub(crate) const fn longest_wait(app: &AppState) -> Duration {
    app.api.options.request_timeout.saturating_sub(ANSWER_MARGIN)
}

/// Finds out until when a request waits.
///
/// # Errors
/// `validation_failed` when that is longer than a request may take.
pub(crate) fn wait_ends(app: &AppState, wait: Span) -> ApiResult<Instant> {
    let most = longest_wait(app);
    if wait.to_std() > most {
        let detail = format!("must be at most {}s; ask again for longer ones", most.as_secs());
        return Err(ApiError::field(ErrorCode::ValidationFailed, "wait", detail));
    }
    Ok(Instant::now() + wait.to_std())
}
