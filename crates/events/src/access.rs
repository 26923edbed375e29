//! Who may join and publish where, for sockets: deny by default. API keys are checked by their scopes.

use switchboard_model::identity::{EventName, RoomName, UserId};
use switchboard_model::room::{RoomClass, RoomKind};
use switchboard_model::ticket::Grants;
use switchboard_model::wire::code::ErrorCode;

/// Decides whether a user may join a room; `kind` is that of its row, if it has one.
///
/// # Errors
/// `room_name_invalid` for names that can never be rooms; `not_found` for what is not the user's to
/// know of.
pub fn may_join(room: &RoomName, kind: Option<RoomKind>, user: &UserId, grants: &Grants) -> Result<(), ErrorCode> {
    let allowed = match room.class() {
        RoomClass::Malformed => return Err(ErrorCode::RoomNameInvalid),
        RoomClass::User(owner) => owner == *user,
        RoomClass::Direct(a, b) => a == *user || b == *user,
        RoomClass::Ephemeral => grants.may_join(room),
        RoomClass::Explicit => match kind {
            None => false,
            Some(RoomKind::Public) => true,
            Some(_) => grants.may_join(room),
        },
    };
    if allowed { Ok(()) } else { Err(ErrorCode::NotFound) }
}

/// Decides whether a user may publish an event to a room.
///
/// # Errors
/// `room_name_invalid` for names that can never be rooms; `forbidden` otherwise.
pub fn may_publish(room: &RoomName, event: &EventName, user: &UserId, grants: &Grants) -> Result<(), ErrorCode> {
    if event.is_reserved() {
        return Err(ErrorCode::Forbidden);
    }
    let allowed = match room.class() {
        RoomClass::Malformed => return Err(ErrorCode::RoomNameInvalid),
        RoomClass::Direct(a, b) => a == *user || b == *user,
        RoomClass::Ephemeral => false,
        RoomClass::User(_) | RoomClass::Explicit => grants.may_publish(room),
    };
    if allowed { Ok(()) } else { Err(ErrorCode::Forbidden) }
}

#[cfg(test)]
mod tests {
    use switchboard_model::ticket::RoomPattern;

    use super::*;

    fn join(room: &str, kind: Option<RoomKind>, grant: &str) -> Result<(), ErrorCode> {
        let grants = Grants { join: vec![RoomPattern::new(grant)], publish: vec![] };
        may_join(&room.parse().unwrap(), kind, &"ann".parse().unwrap(), &grants)
    }

    #[test]
    fn joining_is_denied_unless_something_allows_it() {
        assert_eq!(join("lobby", Some(RoomKind::Public), ""), Ok(()));
        assert_eq!(join("lobby", None, ""), Err(ErrorCode::NotFound));
        assert_eq!(join("club:1", Some(RoomKind::Private), "club:*"), Ok(()));
        assert_eq!(join("club:1", Some(RoomKind::Private), "pub:*"), Err(ErrorCode::NotFound));
        assert_eq!(join("user:ann", None, ""), Ok(()));
        assert_eq!(join("user:bob", None, "*"), Err(ErrorCode::NotFound));
        assert_eq!(join("dm:ann:bob", None, ""), Ok(()));
        assert_eq!(join("dm:bob:cyd", None, ""), Err(ErrorCode::NotFound));
        assert_eq!(join("dm:bob:ann", None, ""), Err(ErrorCode::RoomNameInvalid));
    }

    #[test]
    fn reserved_events_are_the_servers() {
        let grants = Grants { join: vec![], publish: vec![RoomPattern::new("*")] };
        let publish = |event: &str| {
            may_publish(&"lobby".parse().unwrap(), &event.parse().unwrap(), &"ann".parse().unwrap(), &grants)
        };
        assert_eq!(publish("message"), Ok(()));
        assert_eq!(publish("run.started"), Err(ErrorCode::Forbidden));
    }
}
