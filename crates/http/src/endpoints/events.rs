//! Events: published to rooms and users, read back as history.

use std::sync::Arc;

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::IgnoredAny;
use switchboard_events::{EphemeralEvent, refusal};
use switchboard_model::identity::{RoomName, UserId};
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{HistoryPage, MessageId, NewEvent};
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Published, ReplyError};
use switchboard_model::wire::limits::{BATCH_EVENTS, HISTORY_EVENTS};
use switchboard_model::wire::rest::{PublishBatchRequest, PublishBatchResponse, PublishItem, PublishRequest};
use switchboard_store_api::{AppendAnswer, AppendOutcome, WriteContext, Written};

use crate::access::Caller;
use crate::answer::Encoded;
use crate::error::ApiError;
use crate::extract::{JsonBody, Path, Query, within};
use crate::once::OnceBody;
use crate::{ApiResult, App, AppState};

/// One event, or a batch.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "what is read depends on the form; this is how the two forms are described")]
pub(crate) enum Publication {
    Event(PublishRequest),
    Batch(PublishBatchRequest),
}

/// What became of one event, or of each event of a batch.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "what is written is encoded early; this is how the two forms are described")]
pub(crate) enum PublicationAnswer {
    Event(Published),
    Batch(PublishBatchResponse),
}

type Answer = (StatusCode, Body<Encoded<PublicationAnswer>>);

/// Publishes one event or a batch to a room.
pub(crate) async fn publish_to_room(
    State(app): State<App>,
    caller: Caller,
    Path(room): Path<RoomName>,
    request: OnceBody<Publication>,
) -> ApiResult<Answer> {
    caller.require(&Scope::publish_to(&room))?;
    publish(&app, &caller, room, request).await
}

/// Publishes one event or a batch to all sockets of a user.
pub(crate) async fn publish_to_user(
    State(app): State<App>,
    caller: Caller,
    Path(user): Path<UserId>,
    request: OnceBody<Publication>,
) -> ApiResult<Answer> {
    let room = user.room();
    if !caller.allows(&Scope::Users) {
        caller.require(&Scope::publish_to(&room))?;
    }
    publish(&app, &caller, room, request).await
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

/// Whether the request holds one event or several; the answer has the same form.
#[derive(Clone, Copy)]
enum Form {
    Single,
    Batch,
}

async fn publish(app: &AppState, caller: &Caller, room: RoomName, request: OnceBody<Publication>) -> ApiResult<Answer> {
    let OnceBody { body, claim, .. } = request;
    let (form, events) = read(&body)?;
    let batch = Batch::new(&room, caller, events);
    match claim {
        None => respond(form, batch.publish(app).await?),
        Some(claim) => {
            let context = WriteContext { once: Some(claim), ..caller.context() };
            batch.publish_once(app, &context, form).await
        }
    }
}

fn read(body: &JsonBody) -> ApiResult<(Form, Vec<PublishRequest>)> {
    /// Tells a batch from a single event before either is read strictly.
    #[derive(Deserialize)]
    struct Shape {
        events: Option<IgnoredAny>,
    }
    if body.decode::<Shape>()?.events.is_none() {
        return Ok((Form::Single, vec![body.decode()?]));
    }
    let PublishBatchRequest { events } = body.decode()?;
    if !(1..=BATCH_EVENTS).contains(&events.len()) {
        let detail = format!("must hold between 1 and {BATCH_EVENTS} events");
        return Err(ApiError::field(ErrorCode::ValidationFailed, "events", detail));
    }
    Ok((Form::Batch, events))
}

/// Answers with what became of each event; one that came alone and was refused is an error.
fn respond(form: Form, mut items: Vec<PublishItem>) -> ApiResult<Answer> {
    if let (Form::Single, Some(PublishItem::Error(_))) = (form, items.first())
        && let Some(PublishItem::Error(error)) = items.pop()
    {
        return Err(error.into());
    }
    Ok(published(encode(form, items)))
}

/// Writes the answer once, so that a repeated request gets the same bytes.
fn encode(form: Form, mut items: Vec<PublishItem>) -> JsonText {
    let encoded = match (form, items.first()) {
        (Form::Single, Some(PublishItem::Ok(published))) => JsonText::encode(published),
        _ => JsonText::encode(&PublishBatchResponse { items: std::mem::take(&mut items) }),
    };
    // Texts and numbers always have a JSON form.
    encoded.unwrap_or_else(|_| JsonText::null())
}

fn published(answer: JsonText) -> Answer {
    (StatusCode::CREATED, Body(Encoded::new(answer)))
}

/// The events of a request, sorted by what is done with them.
struct Batch {
    /// What each event is answered with, as far as that is known before.
    items: Vec<PublishItem>,
    /// Those that are stored, and the places of their items.
    durable: Vec<NewEvent>,
    places: Vec<usize>,
    /// Those that are not stored.
    ephemeral: Vec<EphemeralEvent>,
}

impl Batch {
    fn new(room: &RoomName, caller: &Caller, events: Vec<PublishRequest>) -> Self {
        let mut batch = Self { items: Vec::new(), durable: Vec::new(), places: Vec::new(), ephemeral: Vec::new() };
        for event in events {
            let msg_id = MessageId::given_or_new(event.msg_id);
            let published = Published { msg_id: msg_id.to_string(), position: None, duplicate: false };
            let (room, name, payload) = (room.clone(), event.event, event.payload);
            let mut item = PublishItem::Ok(published);
            if name.is_reserved() {
                let message = format!("event names with the prefixes {} are the server's", name_list());
                item = PublishItem::Error(ReplyError::new(ErrorCode::Forbidden, message));
            } else if event.ephemeral {
                let event = EphemeralEvent { room, event: name, payload, msg_id };
                match event.check() {
                    Ok(()) => batch.ephemeral.push(event),
                    Err(code) => item = PublishItem::Error(refusal(code)),
                }
            } else {
                batch.places.push(batch.items.len());
                batch.durable.push(NewEvent { room, event: name, payload, msg_id, sender: caller.actor() });
            }
            batch.items.push(item);
        }
        batch
    }

    async fn publish(self, app: &AppState) -> ApiResult<Vec<PublishItem>> {
        let Self { items, durable, places, ephemeral } = self;
        for event in ephemeral {
            // What is refused was found out before.
            let _ = app.publisher.publish_ephemeral(event).await?;
        }
        if durable.is_empty() {
            return Ok(items);
        }
        let outcomes = app.publisher.publish_batch(durable).await?;
        Ok(settled(items, &places, &outcomes))
    }

    /// Publishes under an idempotency key. The answer is stored with the events, and a repetition reads it.
    async fn publish_once(self, app: &AppState, context: &WriteContext, form: Form) -> ApiResult<Answer> {
        let Self { items, durable, places, ephemeral } = self;
        if durable.is_empty() && ephemeral.is_empty() {
            return respond(form, items);
        }
        let answer: AppendAnswer = Arc::new({
            let (items, places) = (items.clone(), places.clone());
            move |outcomes| encode(form, settled(items.clone(), &places, outcomes))
        });
        match app.publisher.publish_once(context, durable, answer).await? {
            Written::Now(outcomes) => {
                for event in ephemeral {
                    // The key is taken and the answer is given: an event that may be lost is lost.
                    let _ = app.publisher.publish_ephemeral(event).await;
                }
                respond(form, settled(items, &places, &outcomes))
            }
            Written::Replayed(record) => record.result.map(published).ok_or_else(ApiError::internal),
            Written::Mismatch => Err(ApiError::idempotency_mismatch()),
        }
    }
}

/// Writes into the items of the stored events what became of each.
fn settled(mut items: Vec<PublishItem>, places: &[usize], outcomes: &[AppendOutcome]) -> Vec<PublishItem> {
    for (place, outcome) in places.iter().zip(outcomes) {
        settle(&mut items[*place], outcome);
    }
    items
}

/// Writes into the item of an event what became of it.
fn settle(item: &mut PublishItem, outcome: &AppendOutcome) {
    match (&mut *item, outcome) {
        (PublishItem::Ok(published), AppendOutcome::Appended { position, .. }) => {
            published.position = Some(position.clone());
        }
        (PublishItem::Ok(published), AppendOutcome::Duplicate(position)) => {
            published.position = Some(position.clone());
            published.duplicate = true;
        }
        (item, AppendOutcome::Refused(code)) => *item = PublishItem::Error(refusal(*code)),
        (PublishItem::Error(_), _) => {}
    }
}

fn name_list() -> String {
    switchboard_model::identity::EventName::RESERVED.join(", ")
}
