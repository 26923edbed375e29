//! The answers that do not depend on the operation: what a status means, and the problem document of each error.

use serde_json::{Map, Value, json};

/// The errors of the HTTP surface: status, name in the document, meaning, headers.
const ERRORS: [(u16, &str, &str, &[&str]); 15] = [
    (400, "BadRequest", "The request cannot be read, or asks for something that no time or zone can give.", &[]),
    (401, "Unauthorized", "The credential is missing or not valid.", &["WWW-Authenticate"]),
    (403, "Forbidden", "The credential does not allow this.", &[]),
    (404, "NotFound", "There is no such thing, or it is not the caller's to know of.", &[]),
    (408, "RequestTimeout", "The body did not arrive in time.", &[]),
    (409, "Conflict", "The state of the thing does not allow this now.", &[]),
    (413, "PayloadTooLarge", "The body or the payload is too large.", &[]),
    (414, "AddressTooLong", "The address is too long.", &[]),
    (415, "UnsupportedMediaType", "The body is not declared as JSON.", &[]),
    (422, "ValidationFailed", "A field has a value that is not allowed.", &[]),
    (426, "UpgradeRequired", "The connection cannot become a WebSocket.", &[]),
    (429, "TooManyRequests", "The caller must wait.", &["Retry-After", "RateLimit", "RateLimit-Policy"]),
    (500, "Internal", "The server failed.", &[]),
    (503, "Unavailable", "A part that the request needs does not answer now.", &["Retry-After"]),
    (504, "CallTimeout", "No client answered in time.", &[]),
];

/// Refers to the answer of an error status.
pub(super) fn reference(status: u16) -> Value {
    let name = ERRORS.iter().find(|(known, ..)| *known == status).map(|(_, name, ..)| name);
    json!({"$ref": format!("#/components/responses/{}", name.unwrap_or(&"Unknown"))})
}

/// Makes the answers that [`reference`] refers to.
pub(super) fn responses(problem: &Value) -> Map<String, Value> {
    let response = |(_, name, meaning, own): &(u16, &str, &str, &[&str])| {
        let names = ["X-Request-Id"].iter().chain(*own);
        let headers: Map<String, Value> =
            names.map(|name| ((*name).to_owned(), json!({"$ref": format!("#/components/headers/{name}")}))).collect();
        let content = json!({"application/problem+json": {"schema": problem}});
        ((*name).to_owned(), json!({"description": meaning, "headers": headers, "content": content}))
    };
    ERRORS.iter().map(response).collect()
}

/// Makes the headers that answers refer to.
pub(super) fn headers() -> Value {
    let header = |meaning: &str, kind: &str| json!({"description": meaning, "schema": {"type": kind}});
    json!({
        "ETag": header("The version of what is shown, in double quotes.", "string"),
        "Location": header("Where the new thing is.", "string"),
        "RateLimit": header("What is left of a rate limit.", "string"),
        "RateLimit-Policy": header("The rate limit.", "string"),
        "Retry-After": header("How long to wait, in seconds.", "integer"),
        "WWW-Authenticate": header("How to authenticate.", "string"),
        "X-Request-Id": header("The request, as it appears in the logs.", "string"),
    })
}

/// Says what a status of success means.
pub(super) fn success(status: u16) -> &'static str {
    match status {
        101 => "The connection is a WebSocket now.",
        201 => "It was made.",
        202 => "It was taken on.",
        204 => "It is done.",
        304 => "The client has it.",
        _ => "It succeeded.",
    }
}
