//! Listening to rooms over server-sent events: one opaque cursor that says how far each room was heard.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::frame::Joined;
use crate::identity::RoomName;
use crate::room::Position;

/// The most rooms of one listener; its cursor must fit into a header.
pub const LISTENER_ROOMS: usize = 100;

/// How far several rooms were heard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RoomsCursor(pub BTreeMap<RoomName, Position>);

/// A text that is no cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no cursor that was given out here")]
pub struct NotACursor;

impl RoomsCursor {
    /// Returns the text form.
    #[must_use]
    pub fn encode(&self) -> String {
        // Names, texts and numbers always have a JSON form.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// Fails for any other text.
    pub fn decode(text: &str) -> Result<Self, NotACursor> {
        let json = URL_SAFE_NO_PAD.decode(text).map_err(|_| NotACursor)?;
        serde_json::from_slice(&json).map_err(|_| NotACursor)
    }
}

/// The first event to a listener: where each room starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenReady {
    /// The rooms, each with what joining it gave.
    pub rooms: BTreeMap<RoomName, Joined>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::Epoch;

    #[test]
    fn cursors_come_back_and_nothing_else_is_one() {
        let position = Position { epoch: Epoch::new("e", "1"), offset: 7 };
        let cursor = RoomsCursor([("dm:a:b".parse().unwrap(), position)].into());
        assert_eq!(RoomsCursor::decode(&cursor.encode()), Ok(cursor));
        for text in ["", "!", "e30=", "bnVsbA", &URL_SAFE_NO_PAD.encode(r#"{"A B":{"epoch":"e","offset":1}}"#)] {
            assert_eq!(RoomsCursor::decode(text), Err(NotACursor), "{text:?}");
        }
        assert_eq!(RoomsCursor::decode("e30"), Ok(RoomsCursor::default()));
    }
}
