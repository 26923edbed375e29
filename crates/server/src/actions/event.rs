//! The action that publishes an event.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_events::Publisher;
use switchboard_model::identity::Actor;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{MessageId, NewEvent};
use switchboard_model::run::LeasedRun;
use switchboard_model::task::Action;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::Published;
use switchboard_scheduler::{ActionError, ActionRunner, RunOutput};
use switchboard_store_api::AppendOutcome;
use tokio_util::sync::CancellationToken;

/// Publishes the event of a run. The message id is that of its effect, so that a repeated attempt cannot publish
/// twice, and a retry of the ended run publishes again.
pub(crate) struct EventRunner(pub(crate) Publisher);

#[async_trait]
impl ActionRunner for EventRunner {
    fn kind(&self) -> &'static str {
        "event"
    }

    async fn run(
        &self,
        run: &LeasedRun,
        _stop: &CancellationToken,
        _output: &Arc<dyn RunOutput>,
    ) -> Result<Option<JsonText>, ActionError> {
        let Action::Event(action) = &run.action else {
            return Err(ActionError::Permanent("not an event action".to_owned()));
        };
        let payload = action.payload.clone().or_else(|| run.input.clone()).unwrap_or_else(JsonText::null);
        let msg_id = run.effect_id();
        let key = msg_id.parse().map_err(|_| ActionError::Permanent("run id is no key".to_owned()))?;
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
        let published = Published { msg_id, position: Some(position), duplicate };
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
