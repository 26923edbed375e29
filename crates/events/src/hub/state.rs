//! Changes of shared values, told to the sessions that have joined the room of their namespace. Each replica tells its own
//! of what the feed says, so that none depends on a hint.

use switchboard_model::feed::Signal;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::MessageId;
use switchboard_model::state::StateKey;
use switchboard_model::wire::coordination::{STATE_CHANGED, StateChanged};
use switchboard_model::wire::frame::EventFrame;

use super::Hub;
use super::observe::deliver_ephemeral;

impl Hub {
    /// Tells whoever listens that a value has changed.
    pub(super) fn tell_of_state(&self, signal: &Signal) {
        let Ok(StateKey { ns, key }) = signal.key.parse() else { return };
        let Some(channel) = ns.state_room().and_then(|room| self.channel(&room)) else { return };
        let (Ok(event), Ok(payload)) =
            (STATE_CHANGED.parse(), JsonText::encode(&StateChanged { key, version: signal.pos }))
        else {
            return;
        };
        let frame = EventFrame {
            event,
            room: channel.name().clone(),
            payload,
            ts: self.now().map_or(0, |now| now.timestamp_millis()),
            msg_id: MessageId::given_or_new(None).to_string(),
            offset: None,
            epoch: None,
        };
        if let Ok(frame) = JsonText::encode(&frame) {
            deliver_ephemeral(&channel, &frame);
        }
    }
}
