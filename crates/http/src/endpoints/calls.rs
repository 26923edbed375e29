//! Calls: a program asks one client of a user, and reads the answer.

use std::time::Duration;

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use switchboard_model::call::{CALL_TIMEOUT, Call, CallState, LONGEST_CALL, NewCall};
use switchboard_model::identity::UserId;
use switchboard_model::ids::CallId;
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::limits::PAYLOAD_BYTES;
use switchboard_model::wire::rest::CallRequest;
use switchboard_store_api::{WriteContext, Written};
use tokio::time::{self, Instant};

use crate::access::Caller;
use crate::answer::{Created, FoundOrCreated};
use crate::error::ApiError;
use crate::extract::{Path, Query};
use crate::once::Once;
use crate::wait::{longest_wait, wait_ends};
use crate::{ApiResult, App, AppState};

/// How often a request that waits looks by itself: that much a lost hint costs.
const LOOK: Duration = Duration::from_secs(1);

/// Event names that are the server's own, in calls too.
const RESERVED: &str = "sb.";

/// How the answer is wanted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallQuery {
    /// How long to wait for the end of the call.
    #[serde(default)]
    wait: Span,
}

/// Asks one client of a user, and waits for its answer.
///
/// Every answer of a client is a 200, its failures too: `state` tells them apart. Nobody there is `no_responder` (404),
/// no answer in time `call_timeout` (504). When the request waits less than the call, the answer is the open call (202).
pub(crate) async fn call(
    State(app): State<App>,
    caller: Caller,
    Path(user_id): Path<UserId>,
    request: Once<CallRequest>,
) -> ApiResult<FoundOrCreated<Call>> {
    let Once { value: CallRequest { event, payload, timeout, when_absent, wait }, claim } = request;
    let most = longest_wait(&app);
    let timeout = length(timeout.unwrap_or_else(|| match wait {
        Some(_) => CALL_TIMEOUT,
        // Whoever says nothing of time is told how the call ended, so it ends while the request may wait.
        None => CALL_TIMEOUT.min(Span::from_millis(u64::try_from(most.as_millis()).unwrap_or(u64::MAX))),
    }))?;
    let wait = match wait {
        Some(wait) => wait_ends(&app, wait).map(|_| wait.to_std())?,
        None => timeout.to_std().min(most),
    };
    if event.as_str().starts_with(RESERVED) {
        return Err(ApiError::field(ErrorCode::ValidationFailed, "event", "names with sb. are the server's own"));
    }
    if payload.as_str().len() > PAYLOAD_BYTES {
        return Err(ApiError::new(ErrorCode::PayloadTooLarge, "the payload is above 60 KiB"));
    }
    let new = NewCall { id: CallId::new(), user_id, event, payload, sender: caller.actor(), timeout, when_absent };
    let context = WriteContext { once: claim, ..caller.context() };
    let made = make(&app, &context, &new).await?;
    let until = Instant::now() + wait;
    let call = ended(&app, made, until).await?;
    match call.state {
        CallState::Done => Ok(FoundOrCreated::Found(call)),
        CallState::Failed if !is_unanswered(&call) => Ok(FoundOrCreated::Found(call)),
        CallState::Failed => Err(ApiError::new(ErrorCode::NoResponder, "no client of the user is connected")),
        // The clock of this process started later than that of the call, and no answer is taken after its end.
        _ if call.state == CallState::Expired || (wait >= timeout.to_std() && Instant::now() >= until) => {
            Err(ApiError::new(ErrorCode::CallTimeout, format!("no client answered call {} in time", call.id)))
        }
        _ => {
            let path = format!("/api/v1/calls/{}", call.id);
            let open = Created::new(&app.options, &path, call).with_status(StatusCode::ACCEPTED);
            Ok(FoundOrCreated::Created(open))
        }
    }
}

/// Returns a call, and waits for its end if asked to.
pub(crate) async fn get(
    State(app): State<App>,
    Path(id): Path<CallId>,
    Query(query): Query<CallQuery>,
) -> ApiResult<Body<Call>> {
    let until = wait_ends(&app, query.wait)?;
    let call = existing(&app, id).await?;
    ended(&app, call, until).await.map(Body)
}

/// Checks how long a client may take.
fn length(timeout: Span) -> ApiResult<Span> {
    if timeout == Span::default() || timeout > LONGEST_CALL {
        let detail = format!("must be more than 0s and at most {LONGEST_CALL}");
        return Err(ApiError::field(ErrorCode::ValidationFailed, "timeout", detail));
    }
    Ok(timeout)
}

/// Makes a call, or finds the one that the same request made before.
async fn make(app: &AppState, context: &WriteContext, new: &NewCall) -> ApiResult<Call> {
    match app.stores.calls.create(context, new).await? {
        Written::Now(call) => Ok(call),
        Written::Replayed(record) => {
            let made = app.stores.calls.find(CallId::from_uuid(record.result_id)).await?;
            made.ok_or_else(|| ApiError::replay_is_gone("call"))
        }
        Written::Mismatch => Err(ApiError::idempotency_mismatch()),
    }
}

async fn existing(app: &AppState, id: CallId) -> ApiResult<Call> {
    app.stores.calls.find(id).await?.ok_or_else(|| ApiError::not_found("call"))
}

/// Tells whether a failed call had nobody to answer it.
fn is_unanswered(call: &Call) -> bool {
    call.error.as_ref().is_some_and(|error| error.code == ErrorCode::NoResponder)
}

/// Looks at a call until it has ended, the time is over or the replica is being stopped, and returns what it saw last.
/// When the client goes away its request is dropped, and this with it.
async fn ended(app: &AppState, mut call: Call, until: Instant) -> ApiResult<Call> {
    let mut watch = app.calls.watch(call.id);
    while !call.state.is_terminal() {
        let left = until.saturating_duration_since(Instant::now());
        match existing(app, call.id).await {
            Ok(found) => call = found,
            // The call was made all the same; a database that is away for a moment does not end the wait.
            Err(error) if error.code().is_retryable() => {}
            Err(error) => return Err(error),
        }
        if call.state.is_terminal() || left.is_zero() || app.lifecycle.is_draining() {
            break;
        }
        // Woken or not, the next look tells.
        let _ = time::timeout(left.min(LOOK), watch.changed()).await;
    }
    Ok(call)
}
