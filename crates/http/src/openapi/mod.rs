//! The OpenAPI document: made from the table of routes, the signatures of the handlers and the wire types, so that
//! only summaries and some statuses are written by hand.

pub(crate) mod asyncapi;
mod operations;
mod problems;
mod schemas;
mod sketch;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Map, Value, json};

pub(crate) use self::sketch::{Answer, Part, Sketch, describe};

use self::operations::{OPERATIONS, Operation};
use self::schemas::Schemas;
use crate::routes::{Access, ROUTES, Route};

/// Makes the OpenAPI 3.1 document of every route.
#[must_use]
pub fn openapi_document() -> Value {
    let mut schemas = Schemas::new();
    let problem = schemas.problem();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for route in ROUTES {
        let written = OPERATIONS.iter().find(|operation| operation.handler == route.handler_name);
        let operation = operation(route, written, &mut schemas);
        paths.entry(path(route)).or_default().insert(route.method.as_str().to_ascii_lowercase(), operation);
    }
    let mut paths = json!(paths);
    let (schemas, twofold) = schemas.join();
    twofold.rename(&mut paths);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Switchboard",
            "summary": "Schedules, runs and realtime events over one database.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": problems::responses(&problem),
            "headers": problems::headers(),
            "securitySchemes": credentials(),
        },
    })
}

/// Returns the path of a route as OpenAPI writes it, which knows no parameters that go over several segments.
fn path(route: &Route) -> String {
    route.path.replace("{*", "{")
}

/// Puts together what the route, its handler and the table of operations say.
fn operation(route: &Route, written: Option<&Operation>, schemas: &mut Schemas) -> Value {
    let mut sketch = Sketch::new(schemas);
    (route.describe)(&mut sketch);
    let Sketch { path_parts, mut parameters, body, success, mut errors, .. } = sketch;
    let path = path(route);
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = |(name, schema)| json!({"name": name, "in": "path", "required": true, "schema": schema});
    parameters.extend(names.zip(path_parts).map(in_path));
    let statuses = written.map_or(&[][..], |operation| operation.statuses);
    let (chosen, failed): (Vec<u16>, Vec<u16>) = statuses.iter().partition(|status| **status < 400);
    errors.extend(failed);
    errors.extend(errors_of(&route.access));
    errors.extend(ERRORS_OF_ALL);
    let mut responses = Map::new();
    for (status, mut answer) in success {
        for status in status.map_or_else(|| chosen.clone(), |status| vec![status]) {
            answer["description"] = json!(problems::success(status));
            responses.insert(status.to_string(), answer.clone());
        }
    }
    responses.extend(errors.into_iter().map(|status| (status.to_string(), problems::reference(status))));
    let mut operation = json!({
        "operationId": route.handler_name.replace("::", "_"),
        "tags": [route.tag()],
        "summary": written.map(|operation| operation.summary),
        "parameters": parameters,
        "responses": responses,
        "security": security(&route.access),
    });
    if let Some(body) = body {
        operation["requestBody"] = body;
    }
    operation
}

/// The errors that every request may have: its address is refused, or the server fails.
const ERRORS_OF_ALL: [u16; 4] = [400, 414, 500, 503];

/// Returns the statuses by which callers are turned away.
fn errors_of(access: &Access) -> &'static [u16] {
    match access {
        Access::Anonymous => &[],
        Access::Login => &[429],
        Access::Signature => &[401, 429],
        Access::Ticket
        | Access::SignedIn
        | Access::Scope(_)
        | Access::Stream(_)
        | Access::Publish
        | Access::Token
        | Access::Work => &[401, 403, 429],
    }
}

/// Returns the ways to be allowed in, with the scope that is asked for.
fn security(access: &Access) -> Value {
    let with = |scopes: &[&str]| json!([{"apiKey": scopes}, {"accessToken": scopes}]);
    match access {
        Access::Anonymous | Access::Login => json!([]),
        Access::Ticket => json!([{"ticket": []}, {"accessToken": []}]),
        Access::Signature => json!([{"webhookSignature": []}]),
        Access::SignedIn => with(&[]),
        Access::Scope(scope) | Access::Stream(scope) => with(&[&scope.to_string()]),
        Access::Publish => with(&["publish:<room>"]),
        Access::Token => with(&["tokens:access:<token>"]),
        Access::Work => with(&["work:<pool>"]),
    }
}

/// Describes the credentials that [`security`] names.
fn credentials() -> Value {
    json!({
        "apiKey": {"type": "http", "scheme": "bearer", "bearerFormat": "sbk_…", "description": "An API key."},
        "accessToken": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
            "description": "The access token of a user who signed in, here or with another issuer.",
        },
        "ticket": {
            "type": "apiKey",
            "in": "query",
            "name": "ticket",
            "description": "A ticket, which may also come as a subprotocol: `ticket.` and the ticket.",
        },
        "webhookSignature": {
            "type": "apiKey",
            "in": "header",
            "name": "webhook-signature",
            "description": "A signature over `webhook-id`, `webhook-timestamp` and the body, by Standard Webhooks.",
        },
    })
}

/// An encoded document, which never changes.
pub(crate) struct Document(&'static Bytes);

/// Returns the document.
pub(crate) async fn serve() -> Document {
    static ENCODED: LazyLock<Bytes> = LazyLock::new(|| openapi_document().to_string().into());
    Document(&ENCODED)
}

impl IntoResponse for Document {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0.clone()).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_one_operation_and_every_operation_a_route() {
        let routes: Vec<&str> = ROUTES.iter().map(|route| route.handler_name).collect();
        let operations: Vec<&str> = OPERATIONS.iter().map(|operation| operation.handler).collect();
        assert_eq!(operations, routes, "the tables have the same order");
    }
}
