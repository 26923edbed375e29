//! What the signature of a handler says about its operation: each part of the request and the form of the answer.
//! Whatever a handler takes or returns says here what that means for clients. Knows no endpoint.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{AppendHeaders, Response};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};
use switchboard_model::identity::ClientKey;

use super::Document;
use super::schemas::{SchemaOf, Schemas};
use crate::access::Caller;
use crate::answer::{Created, FoundOrCreated, Tagged};
use crate::client_address::ClientAddress;
use crate::endpoints::probes::PrometheusText;
use crate::extract::{Json, Path, PathPair, PathPart, Query, RawBody};
use crate::middleware::RequestId;
use crate::once::{Once, OnceBody};
use crate::{ApiResult, App};

/// An operation as far as its handler tells.
pub(crate) struct Sketch<'a> {
    schemas: &'a mut Schemas,
    /// The schemas of the parameters in the path, in their order.
    pub(super) path_parts: Vec<Value>,
    /// The other parameters.
    pub(super) parameters: Vec<Value>,
    /// The body of the request.
    pub(super) body: Option<Value>,
    /// The answers of success; one without a status is given under those that the table of operations lists.
    pub(super) success: Vec<(Option<u16>, Value)>,
    /// The statuses of errors.
    pub(super) errors: BTreeSet<u16>,
}

impl<'a> Sketch<'a> {
    pub(super) fn new(schemas: &'a mut Schemas) -> Self {
        Self {
            schemas,
            path_parts: Vec::new(),
            parameters: Vec::new(),
            body: None,
            success: Vec::new(),
            errors: BTreeSet::new(),
        }
    }

    /// Notes that a JSON body of this type is read.
    pub(super) fn takes<T: JsonSchema>(&mut self) {
        let schema = self.schemas.request::<T>();
        let is_required = !self.schemas.accepts_nothing(&schema);
        self.body = Some(json!({"required": is_required, "content": {"application/json": {"schema": schema}}}));
        self.errors.extend([400, 408, 413, 415, 422]);
    }

    /// Notes that a header is read, which may be missing.
    pub(crate) fn takes_header(&mut self, name: &str, description: &str) {
        self.parameter("header", name, description.into(), json!({"type": "string"}));
        self.errors.insert(422);
    }

    /// Notes that the answer of success is text of this type.
    pub(crate) fn gives_text(&mut self, media_type: &str) {
        self.success.push((Some(200), json!({"content": {media_type: {"schema": {"type": "string"}}}})));
    }

    /// Notes that the answer of success is a file of this type, unless the client has it.
    pub(crate) fn gives_file(&mut self, media_type: &str) {
        self.gives_text(media_type);
        self.success.push((Some(304), json!({})));
        self.gives_header("ETag");
        let tag = json!({"type": "string"});
        self.parameter("header", "If-None-Match", "The tag of the file that the client has.".into(), tag);
    }

    /// Notes that the answer that was noted last may also come as text of this type.
    pub(crate) fn also_gives_text(&mut self, media_type: &str) {
        if let Some((_, answer)) = self.success.last_mut() {
            answer["content"][media_type] = json!({"schema": {"type": "string"}});
        }
    }

    /// Notes an answer of success without a body.
    pub(crate) fn gives_nothing(&mut self, status: StatusCode) {
        self.success.push((Some(status.as_u16()), json!({})));
    }

    fn gives(&mut self, status: Option<u16>, schema_of: SchemaOf) {
        let schema = self.schemas.answer(schema_of);
        self.success.push((status, json!({"content": {"application/json": {"schema": schema}}})));
    }

    /// Notes that every answer of success so far has a header.
    fn gives_header(&mut self, name: &str) {
        for (_, answer) in &mut self.success {
            answer["headers"][name] = json!({"$ref": format!("#/components/headers/{name}")});
        }
    }

    fn queries<T: JsonSchema>(&mut self) {
        for (name, mut schema) in self.schemas.query::<T>() {
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            leave_out_null(&mut schema);
            self.parameter("query", &name, description.into(), schema);
        }
        self.errors.insert(400);
    }

    fn parameter(&mut self, place: &str, name: &str, description: Value, schema: Value) {
        self.parameters.push(json!({"name": name, "in": place, "description": description, "schema": schema}));
    }

    fn in_path<T: JsonSchema>(&mut self) {
        let schema = self.schemas.request::<T>();
        self.path_parts.push(schema);
    }
}

/// Makes a parameter that may be left out say only what it is when it is there: an address has no `null`.
fn leave_out_null(schema: &mut Value) {
    if let Some(types) = schema.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            schema["type"] = only.clone();
        }
    }
    if let Some(choices) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        choices.retain(|choice| choice["type"] != "null");
        if let [only] = choices.as_slice() {
            *schema = only.clone();
        }
    }
}

/// Something that a handler takes.
#[diagnostic::on_unimplemented(message = "`{Self}` must say what it means for clients", note = "see openapi/sketch.rs")]
pub(crate) trait Part {
    /// Adds to the operation what it means for clients.
    fn describe(sketch: &mut Sketch<'_>);
}

impl Part for State<App> {
    fn describe(_: &mut Sketch<'_>) {}
}

impl Part for Caller {
    fn describe(_: &mut Sketch<'_>) {}
}

impl Part for ClientAddress {
    fn describe(_: &mut Sketch<'_>) {}
}

impl Part for RequestId {
    fn describe(_: &mut Sketch<'_>) {}
}

/// Headers that are read beside the body: those of credentials, which are described as such.
impl Part for HeaderMap {
    fn describe(_: &mut Sketch<'_>) {}
}

impl<T: PathPart + JsonSchema> Part for Path<T> {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.in_path::<T>();
        sketch.errors.extend([400, T::CODE.status()]);
    }
}

impl<A: PathPart + JsonSchema, B: PathPart + JsonSchema> Part for PathPair<A, B> {
    fn describe(sketch: &mut Sketch<'_>) {
        Path::<A>::describe(sketch);
        Path::<B>::describe(sketch);
    }
}

/// Whatever is wrong with it, the handler answers in its own way.
impl<T: PathPart + JsonSchema> Part for ApiResult<Path<T>> {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.in_path::<T>();
    }
}

impl<T: JsonSchema> Part for Query<T> {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.queries::<T>();
        sketch.errors.insert(422);
    }
}

impl<T: JsonSchema> Part for ApiResult<Query<T>> {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.queries::<T>();
    }
}

impl<T: JsonSchema> Part for Json<T> {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.takes::<T>();
    }
}

impl Part for RawBody {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.body = Some(json!({"content": {"*/*": {"schema": {}}}}));
        sketch.errors.extend([400, 408, 413]);
    }
}

impl<T: JsonSchema> Part for OnceBody<T> {
    fn describe(sketch: &mut Sketch<'_>) {
        let key = sketch.schemas.request::<ClientKey>();
        sketch.parameter("header", "Idempotency-Key", "Makes a repeated request have its effect once.".into(), key);
        sketch.takes::<T>();
    }
}

impl<T: JsonSchema> Part for Once<T> {
    fn describe(sketch: &mut Sketch<'_>) {
        OnceBody::<T>::describe(sketch);
        sketch.errors.insert(409);
    }
}

impl Part for Result<WebSocketUpgrade, WebSocketUpgradeRejection> {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.success.push((Some(101), json!({})));
        sketch.errors.extend([400, 426]);
    }
}

/// Something that a handler returns.
#[diagnostic::on_unimplemented(message = "`{Self}` must say what it means for clients", note = "see openapi/sketch.rs")]
pub(crate) trait Answer {
    /// Adds to the operation what clients get.
    fn describe(sketch: &mut Sketch<'_>);
}

impl<T: Answer> Answer for ApiResult<T> {
    fn describe(sketch: &mut Sketch<'_>) {
        T::describe(sketch);
    }
}

impl<T: JsonSchema> Answer for axum::Json<T> {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.gives(Some(200), SchemaGenerator::subschema_for::<T>);
    }
}

impl<T: JsonSchema> Answer for (StatusCode, axum::Json<T>) {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.gives(None, SchemaGenerator::subschema_for::<T>);
    }
}

impl<T: JsonSchema> Answer for Created<T> {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.gives(None, SchemaGenerator::subschema_for::<T>);
        sketch.gives_header("Location");
    }
}

impl<T: JsonSchema> Answer for FoundOrCreated<T> {
    fn describe(sketch: &mut Sketch<'_>) {
        Created::<T>::describe(sketch);
        axum::Json::<T>::describe(sketch);
    }
}

/// An answer that tells of a rate limit.
impl<T: JsonSchema> Answer for (AppendHeaders<[(HeaderName, HeaderValue); 2]>, axum::Json<T>) {
    fn describe(sketch: &mut Sketch<'_>) {
        axum::Json::<T>::describe(sketch);
        sketch.gives_header("RateLimit");
        sketch.gives_header("RateLimit-Policy");
    }
}

impl<A: Answer> Answer for Tagged<A> {
    fn describe(sketch: &mut Sketch<'_>) {
        A::describe(sketch);
        sketch.gives_header("ETag");
    }
}

impl Answer for StatusCode {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.success.push((None, json!({})));
    }
}

impl Answer for Document {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.success.push((Some(200), json!({"content": {"application/json": {"schema": {"type": "object"}}}})));
    }
}

impl Answer for PrometheusText {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.gives_text("text/plain");
    }
}

/// A handler of the WebSocket upgrade, whose success is told by what it takes.
impl Answer for Response {
    fn describe(_: &mut Sketch<'_>) {}
}

/// A handler whose parts and answer can be told.
#[diagnostic::on_unimplemented(message = "every part of a handler and its answer must say what they mean for clients")]
pub(crate) trait Described<Parts> {
    /// Adds everything that the signature says to the operation.
    fn describe(sketch: &mut Sketch<'_>);
}

/// Adds everything that the signature of a handler says to the operation.
pub(crate) fn describe<Parts, H: Described<Parts>>(sketch: &mut Sketch<'_>, _: H) {
    H::describe(sketch);
}

macro_rules! handlers {
    ($(($($part:ident),*))+) => {$(
        impl<H, Pending, A, $($part),*> Described<($($part,)*)> for H
        where
            H: Fn($($part),*) -> Pending,
            Pending: Future<Output = A>,
            A: Answer,
            $($part: Part,)*
        {
            fn describe(sketch: &mut Sketch<'_>) {
                $($part::describe(sketch);)*
                A::describe(sketch);
            }
        }
    )+};
}

handlers! { () (P1) (P1, P2) (P1, P2, P3) (P1, P2, P3, P4) (P1, P2, P3, P4, P5) (P1, P2, P3, P4, P5, P6) }
