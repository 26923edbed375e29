//! The AsyncAPI document of the socket: made from the wire types, so that only summaries are written by hand.

use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};
use switchboard_model::call::{CallOffer, Claimed};
use switchboard_model::presence::Presence;
use switchboard_model::room::HistoryPage;
use switchboard_model::wire::SUBPROTOCOL;
use switchboard_model::wire::frame::{
    Authenticated, Desync, EventFrame, Goaway, Hello, Joined, Lag, Published, ReplyError,
};
use switchboard_model::wire::limits::MESSAGE_BYTES;
use switchboard_model::wire::op::{Auth, Claim, History, Join, Leave, Publish, ReadPresence, Reply};

use super::Document;
use super::schemas::Schemas;

/// A frame, or an answer, that carries nothing of its own.
enum Nothing {}

impl JsonSchema for Nothing {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Nothing".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}

/// What clients ask for, and the answers.
struct Operation {
    name: &'static str,
    summary: &'static str,
    body: fn(&mut Schemas) -> Value,
    answer: fn(&mut Schemas) -> Value,
}

/// What the server says without being asked.
struct Notice {
    name: &'static str,
    summary: &'static str,
    body: fn(&mut Schemas) -> Value,
}

macro_rules! operations {
    ($($name:literal $body:ty => $answer:ty, $summary:literal;)+) => {
        &[$(Operation {
            name: $name,
            summary: $summary,
            body: |schemas| schemas.whole_request::<$body>(),
            answer: |schemas| schemas.answer(SchemaGenerator::subschema_for::<$answer>),
        }),+]
    };
}

macro_rules! notices {
    ($($name:literal $body:ty, $summary:literal;)+) => {
        &[$(Notice { name: $name, summary: $summary, body: |schemas| schemas.whole_answer::<$body>() }),+]
    };
}

const OPERATIONS: &[Operation] = operations! {
    "join" Join => Joined, "Joins a room, from a position on, and shows the user there if asked to.";
    "leave" Leave => Nothing, "Leaves a room.";
    "publish" Publish => Published, "Publishes an event to a room.";
    "history" History => HistoryPage, "Reads a stretch of the history of a joined room.";
    "presence" ReadPresence => Presence, "Reads who is in a joined room, and has changes told from then on.";
    "claim" Claim => Claimed, "Takes a call over; it is executed only after that.";
    "reply" Reply => Nothing, "Answers a call.";
    "auth" Auth => Authenticated, "Lets the socket hang on a new access token; one that fails ends it.";
    "ping" Nothing => Nothing, "Asks for an answer.";
};

const NOTICES: &[Notice] = notices! {
    "hello" Hello, "Opens every socket.";
    "desync" Desync, "Tells that a room must be read anew.";
    "lag" Lag, "Tells that the client is slower than a room.";
    "call" CallOffer, "Offers a call.";
    "goaway" Goaway, "Asks the client to move to another replica within a window.";
    "ping" Nothing, "Asks for a sign of life.";
};

/// Makes the AsyncAPI 3.0 document of the socket.
#[must_use]
pub fn asyncapi_document() -> Value {
    let mut schemas = Schemas::new();
    let (mut messages, mut operations) = (Map::new(), Map::new());
    for operation in OPERATIONS {
        let name = operation.name;
        let answer = format!("{name}Answer");
        messages.insert(name.to_owned(), message(operation.summary, asked(operation, &mut schemas)));
        let summary = format!("The answer to {name}.");
        messages.insert(answer.clone(), message(&summary, answered(operation, &mut schemas)));
        let described = json!({
            "action": "receive",
            "channel": {"$ref": "#/channels/socket"},
            "summary": operation.summary,
            "messages": [on_channel(name)],
            "reply": {"channel": {"$ref": "#/channels/socket"}, "messages": [on_channel(&answer)]},
        });
        operations.insert(name.to_owned(), described);
    }
    let mut said = vec!["event".to_owned()];
    let event = schemas.whole_answer::<EventFrame>();
    messages.insert("event".to_owned(), message("Carries an event of a joined room.", event));
    for notice in NOTICES {
        let name = format!("{}Notice", notice.name);
        messages.insert(name.clone(), message(notice.summary, told(notice, &mut schemas)));
        said.push(name);
    }
    let said: Vec<Value> = said.iter().map(|name| on_channel(name)).collect();
    operations.insert(
        "deliver".to_owned(),
        json!({"action": "send", "channel": {"$ref": "#/channels/socket"}, "messages": said}),
    );
    let mut messages = Value::Object(messages);
    let (schemas, twofold) = schemas.join();
    twofold.rename(&mut messages);
    document(messages, operations, schemas)
}

fn document(messages: Value, operations: Map<String, Value>, schemas: Map<String, Value>) -> Value {
    let names = messages.as_object().into_iter().flat_map(Map::keys);
    let references = names.map(|name| (name.clone(), json!({"$ref": format!("#/components/messages/{name}")})));
    let references: Map<String, Value> = references.collect();
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Switchboard",
            "description": format!(
                "One JSON object a text frame, at most {MESSAGE_BYTES} bytes, on the subprotocol {SUBPROTOCOL}. \
                 Clients ignore fields that they do not know."
            ),
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            "socket": {
                "address": "/ws",
                "messages": references,
                "bindings": {
                    "ws": {
                        "method": "GET",
                        "query": {"type": "object", "properties": {"ticket": {"type": "string"}}},
                        "bindingVersion": "0.1.0",
                    },
                },
            },
        },
        "operations": operations,
        "components": {"messages": messages, "schemas": schemas},
    })
}

fn message(summary: &str, payload: Value) -> Value {
    json!({"summary": summary, "payload": payload})
}

fn on_channel(name: &str) -> Value {
    json!({"$ref": format!("#/channels/socket/messages/{name}")})
}

/// Describes the frame of an operation: its fields, `id` and `op`. The server refuses all others.
fn asked(operation: &Operation, schemas: &mut Schemas) -> Value {
    let id = json!({
        "description": "Chosen by the client; the answer repeats it.",
        "type": "integer",
        "minimum": 0,
        "maximum": (1_u64 << 53) - 1,
    });
    let mut body = (operation.body)(schemas);
    add(&mut body, [("id", id), ("op", json!({"const": operation.name}))]);
    body["additionalProperties"] = false.into();
    body
}

/// Describes the frame of an answer: what the operation gave, or why it failed.
fn answered(operation: &Operation, schemas: &mut Schemas) -> Value {
    let error = schemas.answer(SchemaGenerator::subschema_for::<ReplyError>);
    json!({
        "type": "object",
        "properties": {
            "re": {"description": "The id of the operation.", "type": "integer"},
            "ok": (operation.answer)(schemas),
            "error": error,
        },
        "required": ["re"],
        "oneOf": [{"required": ["ok"]}, {"required": ["error"]}],
    })
}

/// Describes the frame of a notice: its fields and `op`.
fn told(notice: &Notice, schemas: &mut Schemas) -> Value {
    let mut body = (notice.body)(schemas);
    add(&mut body, [("op", json!({"const": notice.name}))]);
    body
}

/// Adds properties that are always there to the schema of an object.
fn add<const N: usize>(schema: &mut Value, fields: [(&str, Value); N]) {
    let mut required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, field) in fields {
        schema["properties"][name] = field;
        required.push(name.into());
    }
    schema["required"] = required.into();
}

/// Returns the document.
pub(crate) async fn serve() -> Document {
    static ENCODED: LazyLock<Bytes> = LazyLock::new(|| asyncapi_document().to_string().into());
    Document(&ENCODED)
}

#[cfg(test)]
mod tests {
    use switchboard_model::wire::frame::NoticeFrame;
    use switchboard_model::wire::op::ClientOp;

    use super::*;

    #[test]
    fn every_operation_and_only_known_notices_are_described() {
        let operations: Vec<_> = OPERATIONS.iter().map(|operation| operation.name).collect();
        assert_eq!(operations, ClientOp::NAMES);
        for notice in NOTICES {
            let is_known = !matches!(NoticeFrame::parse(notice.name, "{}"), Ok(None));
            assert!(is_known, "{}", notice.name);
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = asyncapi_document();
        let mut open = vec![&document];
        while let Some(value) = open.pop() {
            match value {
                Value::Object(fields) => {
                    if let Some(place) = fields.get("$ref").and_then(Value::as_str) {
                        let place = place.strip_prefix('#').unwrap();
                        assert!(document.pointer(place).is_some(), "{place}");
                    }
                    open.extend(fields.values());
                }
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
    }
}
