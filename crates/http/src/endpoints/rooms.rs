//! Rooms: creation, lists and deletion. Events are a file of their own.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::RoomId;
use switchboard_model::page::Page;
use switchboard_model::presence::Presence;
use switchboard_model::room::{NewRoom, Room, RoomClass, RoomKind};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::RoomRequest;
use switchboard_store_api::{RoomCreateOutcome, WriteContext, Written};

use crate::access::Caller;
use crate::answer::Created;
use crate::error::ApiError;
use crate::extract::{PageQuery, Path, Query};
use crate::once::Once;
use crate::{ApiResult, App, AppState};

/// Creates a room.
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    request: Once<RoomRequest>,
) -> ApiResult<Created<Room>> {
    let wanted = request.value;
    check(&wanted)?;
    let context = caller.change("room.create", &wanted.name).after(&wanted)?.context();
    let context = WriteContext { once: request.claim, ..context };
    let new = NewRoom { id: RoomId::new(), name: wanted.name, kind: wanted.kind, retention: wanted.retention };
    let room = match app.stores.rooms.create(&context, &new).await? {
        Written::Now(RoomCreateOutcome::Created(room)) => room,
        Written::Now(RoomCreateOutcome::NameTaken(_)) => {
            return Err(ApiError::field(ErrorCode::Duplicate, "name", format!("room {} exists already", new.name)));
        }
        Written::Replayed(record) => {
            // The same request has the same name, but the room may have been deleted and made anew.
            let found = app.stores.rooms.find(&new.name).await?;
            let found = found.filter(|room| room.id.as_uuid() == record.result_id);
            found.ok_or_else(|| ApiError::replay_is_gone("room"))?
        }
        Written::Mismatch => return Err(ApiError::idempotency_mismatch()),
    };
    Ok(Created::new(&app.options, &format!("/api/v1/rooms/{}", room.name), room))
}

/// Lists rooms by name.
pub(crate) async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> ApiResult<Body<Page<Room>>> {
    Ok(Body(app.stores.rooms.list(&query.page()?).await?))
}

/// Returns a room.
pub(crate) async fn get(State(app): State<App>, Path(name): Path<RoomName>) -> ApiResult<Body<Room>> {
    existing(&app, &name).await.map(Body)
}

/// Deletes a room with its events.
pub(crate) async fn delete(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<RoomName>,
) -> ApiResult<StatusCode> {
    let before = existing(&app, &name).await?;
    let context = caller.change("room.delete", &name).before(&before)?.context();
    if app.stores.rooms.delete(&context, &name).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("room"))
    }
}

/// Tells who shows themselves in a room.
pub(crate) async fn presence(State(app): State<App>, Path(name): Path<RoomName>) -> ApiResult<Body<Presence>> {
    if name.class() == RoomClass::Explicit {
        existing(&app, &name).await?;
    }
    let found = app.stores.presence.read(std::slice::from_ref(&name)).await?;
    Ok(Body(found.into_iter().next().unwrap_or_default()))
}

async fn existing(app: &AppState, name: &RoomName) -> ApiResult<Room> {
    app.stores.rooms.find(name).await?.ok_or_else(|| ApiError::not_found("room"))
}

fn check(room: &RoomRequest) -> ApiResult<()> {
    if room.name.class() != RoomClass::Explicit {
        let detail = "names that start with user:, dm:, task: or run: belong to rooms that exist by themselves";
        return Err(ApiError::field(ErrorCode::RoomNameInvalid, "name", detail));
    }
    let invalid = |field: &str, detail: &str| Err(ApiError::field(ErrorCode::ValidationFailed, field, detail));
    if !matches!(room.kind, RoomKind::Public | RoomKind::Private) {
        return invalid("kind", "must be public or private");
    }
    if room.retention.max_count < 1 {
        return invalid("retention.max_count", "must be at least 1");
    }
    if room.retention.max_bytes < 1 {
        return invalid("retention.max_bytes", "must be at least 1");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use switchboard_model::room::Retention;

    use super::*;

    #[test]
    fn only_explicit_rooms_with_some_history_are_created() {
        let room = |name: &str, kind, max_count| RoomRequest {
            name: name.parse().unwrap(),
            kind,
            retention: Retention { max_count, ..Retention::default() },
        };
        assert!(check(&room("lobby", RoomKind::Private, 1)).is_ok());
        for bad in [
            room("user:ann", RoomKind::Public, 1),
            room("dm:ann:bob", RoomKind::Public, 1),
            room("run:x", RoomKind::Public, 1),
            room("lobby", RoomKind::User, 1),
            room("lobby", RoomKind::Public, 0),
        ] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
    }
}
