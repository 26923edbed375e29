//! Actions that reach beyond the scheduler: publishing an event, and the functions of `system` tasks.

use async_trait::async_trait;
use switchboard_events::Publisher;
use switchboard_model::identity::Actor;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{MessageId, NewEvent};
use switchboard_model::run::LeasedRun;
use switchboard_model::task::Action;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::Published;
use switchboard_scheduler::{ActionError, ActionRunner, HistoryAges, SystemRegistry};
use switchboard_store_api::{AppendOutcome, Stores};
use tokio_util::sync::CancellationToken;

/// Publishes the event of a run. The message id is that of the run, so that a repeated attempt cannot
/// publish twice.
pub(crate) struct EventRunner(pub(crate) Publisher);

#[async_trait]
impl ActionRunner for EventRunner {
    fn kind(&self) -> &'static str {
        "event"
    }

    async fn run(&self, run: &LeasedRun, _stop: &CancellationToken) -> Result<Option<JsonText>, ActionError> {
        let Action::Event(action) = &run.action else {
            return Err(ActionError::Permanent("not an event action".to_owned()));
        };
        let payload = action.payload.clone().or_else(|| run.input.clone()).unwrap_or_else(JsonText::null);
        let key = run.id.to_string().parse().map_err(|_| ActionError::Permanent("run id is no key".to_owned()))?;
        let event = NewEvent {
            room: action.to.room(),
            event: action.event.clone(),
            payload,
            msg_id: MessageId::Given(key),
            sender: Actor::System("scheduler"),
        };
        let outcome = self.0.publish(event).await;
        let outcome = outcome.map_err(|error| ActionError::Retryable { error: error.to_string(), after: None })?;
        let (position, duplicate) = match outcome {
            AppendOutcome::Appended { position, .. } => (position, false),
            AppendOutcome::Duplicate(position) => (position, true),
            AppendOutcome::Refused(code) => {
                return Err(ActionError::Permanent(refusal(code, action.to.room().as_str())));
            }
        };
        let published = Published { msg_id: run.id.to_string(), position: Some(position), duplicate };
        JsonText::encode(&published).map(Some).map_err(|error| ActionError::Permanent(error.to_string()))
    }
}

fn refusal(code: ErrorCode, room: &str) -> String {
    match code {
        ErrorCode::NotFound => format!("there is no room {room}; create it first"),
        ErrorCode::PayloadTooLarge => "the payload is above 60 KiB".to_owned(),
        code => format!("the event was refused: {}", code.as_str()),
    }
}

/// Lists the functions that `system` tasks can call.
pub(crate) fn system_functions(stores: &Stores, ages: HistoryAges) -> SystemRegistry {
    let registry = SystemRegistry::standard(stores, ages);
    #[cfg(debug_assertions)]
    let registry = registry
        .with("test.wait", |stop| wait(stop, std::time::Duration::from_millis(1500)))
        .with("test.wait_minute", |stop| wait(stop, std::time::Duration::from_secs(60)))
        .with("test.kill", kill);
    registry
}

/// Takes its time, for tests that need a run to be under way; not in release builds.
#[cfg(debug_assertions)]
async fn wait(stop: CancellationToken, time: std::time::Duration) -> Result<JsonText, ActionError> {
    match stop.run_until_cancelled(tokio::time::sleep(time)).await {
        Some(()) => Ok(JsonText::null()),
        None => Err(ActionError::Permanent("stopped".to_owned())),
    }
}

/// Ends the process as a crash does, for tests of runs that take their replica along; not in release builds.
#[cfg(debug_assertions)]
async fn kill(_stop: CancellationToken) -> Result<JsonText, ActionError> {
    std::process::abort()
}
