//! The test clock: where it stands, and moving it forward.

use std::time::Duration;

use axum::Json as Body;
use axum::extract::State;
use switchboard_model::Timestamp;
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::test_clock::{TestClockMove, TestClockReport, TestClockState};
use switchboard_scheduler::{Replay, ReplayError, ReplayPatience};

use crate::error::ApiError;
use crate::extract::Json;
use crate::{ApiResult, App, AppState};

/// How long to wait for what became due at one instant, unless the request says something else.
const PATIENCE: Span = Span::from_secs(5);
/// How much of the time of a request is left for its answer.
const ANSWER_MARGIN: Duration = Duration::from_secs(2);
/// The latest instant to which the clock goes.
const LATEST: &str = "9000-01-01T00:00:00Z";

/// Returns where the test clock stands and what is due next.
pub(crate) async fn show(State(app): State<App>) -> ApiResult<Body<TestClockState>> {
    Ok(Body(replay(&app)?.state().await?))
}

/// Moves the test clock forward, instant by instant, and lets everything that becomes due on the way run to its end.
pub(crate) async fn advance(
    State(app): State<App>,
    Json(request): Json<TestClockMove>,
) -> ApiResult<Body<TestClockReport>> {
    let replay = replay(&app)?;
    let target = target(replay.now(), &request)?;
    let patience = ReplayPatience {
        instant: request.patience.unwrap_or(PATIENCE).to_std(),
        whole: app.options.request_timeout.saturating_sub(ANSWER_MARGIN),
    };
    Ok(Body(replay.advance(target, patience).await?))
}

fn replay(app: &AppState) -> ApiResult<&Replay> {
    app.replay.as_ref().ok_or_else(|| {
        let detail = "this server goes by the clock of its database; start it with --test-clock to set its time";
        ApiError::new(ErrorCode::Conflict, detail.to_owned())
    })
}

/// Finds out where to go, from where the clock stands.
fn target(now: Timestamp, request: &TestClockMove) -> ApiResult<Timestamp> {
    let refused = |field, detail: String| Err(ApiError::field(ErrorCode::ValidationFailed, field, detail));
    let (field, target) = match (request.to, request.advance) {
        (Some(to), None) => ("to", to),
        (None, Some(span)) => ("advance", now + span.to_delta()),
        _ => return refused("to", "give either the instant or, in advance, the duration".to_owned()),
    };
    if target < now {
        return refused(field, format!("must not be before {}: the clock never goes back", now.to_rfc3339()));
    }
    if LATEST.parse::<Timestamp>().is_ok_and(|latest| target > latest) {
        return refused(field, format!("must not lead beyond {LATEST}"));
    }
    Ok(target)
}

impl From<ReplayError> for ApiError {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Store(error) => error.into(),
            busy => Self::new(ErrorCode::Conflict, busy.to_string()),
        }
    }
}
