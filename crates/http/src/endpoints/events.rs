//! Events: published to rooms and users, read back as history.

use axum::Json as Body;
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use switchboard_events::{EphemeralEvent, refusal};
use switchboard_model::identity::{ClientKey, RoomName, UserId};
use switchboard_model::room::{HistoryPage, MessageId, NewEvent};
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Published, ReplyError};
use switchboard_model::wire::limits::{BATCH_EVENTS, HISTORY_EVENTS};
use switchboard_model::wire::rest::{PublishBatchRequest, PublishBatchResponse, PublishItem, PublishRequest};
use switchboard_store_api::AppendOutcome;

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{JsonBody, Path, Query, within};
use crate::once::IdempotencyKey;
use crate::openapi::{Part, Sketch};
use crate::{ApiResult, App, AppState};

/// One event, or a batch.
#[derive(JsonSchema)]
#[serde(untagged)]
pub(crate) enum Publication {
    Event(PublishRequest),
    Batch(PublishBatchRequest),
}

impl<S: Send + Sync> FromRequest<S> for Publication {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        /// Tells a batch from a single event before either is read strictly.
        #[derive(Deserialize)]
        struct Shape {
            events: Option<IgnoredAny>,
        }
        let body = JsonBody::from_request(request, state).await?;
        match body.decode::<Shape>()?.events {
            Some(_) => body.decode().map(Self::Batch),
            None => body.decode().map(Self::Event),
        }
    }
}

impl Part for ApiResult<Publication> {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.takes::<Publication>();
    }
}

/// What became of one event, or of each event of a batch.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum PublicationAnswer {
    Event(Published),
    Batch(PublishBatchResponse),
}

/// Publishes one event or a batch to a room.
pub(crate) async fn publish_to_room(
    State(app): State<App>,
    caller: Caller,
    Path(room): Path<RoomName>,
    key: IdempotencyKey,
    publication: ApiResult<Publication>,
) -> ApiResult<(StatusCode, Body<PublicationAnswer>)> {
    caller.require(&Scope::publish_to(&room))?;
    publish(&app, &caller, room, key, publication?).await
}

/// Publishes one event or a batch to all sockets of a user.
pub(crate) async fn publish_to_user(
    State(app): State<App>,
    caller: Caller,
    Path(user): Path<UserId>,
    key: IdempotencyKey,
    publication: ApiResult<Publication>,
) -> ApiResult<(StatusCode, Body<PublicationAnswer>)> {
    let room = user.room();
    if !caller.allows(&Scope::Users) {
        caller.require(&Scope::publish_to(&room))?;
    }
    publish(&app, &caller, room, key, publication?).await
}

/// Which stretch of history is asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryQuery {
    /// The offset after which the events follow.
    #[serde(default)]
    #[schemars(range(min = 0))]
    after: i64,
    /// The most events to return.
    #[schemars(range(min = 1, max = HISTORY_EVENTS), extend("default" = HISTORY_EVENTS))]
    limit: Option<u32>,
}

/// Returns the events of a room after an offset, oldest first.
pub(crate) async fn history(
    State(app): State<App>,
    Path(room): Path<RoomName>,
    Query(query): Query<HistoryQuery>,
) -> ApiResult<Body<HistoryPage>> {
    if query.after < 0 {
        return Err(ApiError::field(ErrorCode::ValidationFailed, "after", "must be at least 0"));
    }
    let limit = within(query.limit.unwrap_or(HISTORY_EVENTS), HISTORY_EVENTS)?;
    let page = app.stores.rooms.history(&room, query.after, limit).await?;
    page.map(Body).ok_or_else(|| ApiError::not_found("room"))
}

async fn publish(
    app: &AppState,
    caller: &Caller,
    room: RoomName,
    IdempotencyKey(key): IdempotencyKey,
    publication: Publication,
) -> ApiResult<(StatusCode, Body<PublicationAnswer>)> {
    let PublishBatchRequest { events } = match publication {
        Publication::Batch(batch) => batch,
        Publication::Event(event) => {
            let item = append(app, caller, &room, vec![(event, key)]).await?.pop().ok_or_else(ApiError::internal)?;
            return match item {
                PublishItem::Ok(published) => Ok((StatusCode::CREATED, Body(PublicationAnswer::Event(published)))),
                PublishItem::Error(error) => Err(error.into()),
            };
        }
    };
    if !(1..=BATCH_EVENTS).contains(&events.len()) {
        let detail = format!("must hold between 1 and {BATCH_EVENTS} events");
        return Err(ApiError::field(ErrorCode::ValidationFailed, "events", detail));
    }
    let keys = batch_keys(key.as_ref(), events.len())?;
    let items = append(app, caller, &room, events.into_iter().zip(keys).collect()).await?;
    Ok((StatusCode::CREATED, Body(PublicationAnswer::Batch(PublishBatchResponse { items }))))
}

/// Derives one message id for each event of a batch, so that a repeated batch is recognised event by event.
fn batch_keys(key: Option<&ClientKey>, count: usize) -> ApiResult<Vec<Option<ClientKey>>> {
    let derive = |index| key.map(|key| format!("{key}.{index}").parse()).transpose();
    (0..count).map(derive).collect::<Result<_, _>>().map_err(|_| {
        ApiError::field(
            ErrorCode::ValidationFailed,
            "idempotency-key",
            "is too long for a batch; use up to 190 characters",
        )
    })
}

/// Publishes events, each with the message id to use when it brings none, and says what became of each.
async fn append(
    app: &AppState,
    caller: &Caller,
    room: &RoomName,
    events: Vec<(PublishRequest, Option<ClientKey>)>,
) -> ApiResult<Vec<PublishItem>> {
    let mut items = Vec::with_capacity(events.len());
    let mut durable = Vec::new();
    let mut places = Vec::new();
    for (event, key) in events {
        let msg_id = MessageId::given_or_new(event.msg_id.or(key));
        let published = Published { msg_id: msg_id.to_string(), position: None, duplicate: false };
        let (room, name, payload) = (room.clone(), event.event, event.payload);
        items.push(if name.is_reserved() {
            let message = format!("event names with the prefixes {} are the server's", name_list());
            PublishItem::Error(ReplyError::new(ErrorCode::Forbidden, message))
        } else if event.ephemeral {
            let event = EphemeralEvent { room, event: name, payload, msg_id };
            match app.publisher.publish_ephemeral(event).await? {
                Ok(()) => PublishItem::Ok(published),
                Err(code) => PublishItem::Error(refusal(code)),
            }
        } else {
            places.push(items.len());
            durable.push(NewEvent { room, event: name, payload, msg_id, sender: caller.actor() });
            PublishItem::Ok(published)
        });
    }
    if durable.is_empty() {
        return Ok(items);
    }
    let outcomes = app.publisher.publish_batch(durable).await?;
    for (place, outcome) in places.into_iter().zip(outcomes) {
        settle(&mut items[place], outcome);
    }
    Ok(items)
}

/// Writes into the item of an event what became of it.
fn settle(item: &mut PublishItem, outcome: AppendOutcome) {
    match (&mut *item, outcome) {
        (PublishItem::Ok(published), AppendOutcome::Appended { position, .. }) => published.position = Some(position),
        (PublishItem::Ok(published), AppendOutcome::Duplicate(position)) => {
            published.position = Some(position);
            published.duplicate = true;
        }
        (item, AppendOutcome::Refused(code)) => *item = PublishItem::Error(refusal(code)),
        (PublishItem::Error(_), _) => {}
    }
}

fn name_list() -> String {
    switchboard_model::identity::EventName::RESERVED.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_derives_one_message_id_for_each_event() {
        let key: ClientKey = "k".parse().unwrap();
        let keys = batch_keys(Some(&key), 3).unwrap();
        let texts: Vec<_> = keys.iter().flatten().map(ClientKey::as_str).collect();
        assert_eq!(texts, ["k.0", "k.1", "k.2"]);
        assert_eq!(batch_keys(None, 2).unwrap(), [None, None]);
        let long: ClientKey = "k".repeat(200).parse().unwrap();
        assert!(batch_keys(Some(&long), 1).is_err());
    }
}
