//! The client for browsers, as it stands in `sdk/`: open to everybody, and kept by browsers until it changes.

use std::sync::LazyLock;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::openapi::{self, Sketch};

/// The media type of the module, on which browsers insist.
const JAVASCRIPT: &str = "text/javascript";

/// The media type of the types, which only tools read.
const TYPESCRIPT: &str = "application/typescript";

static MODULE: LazyLock<Source> = LazyLock::new(|| Source::new(include_str!("../../sdk/switchboard.js")));
static TYPES: LazyLock<Source> = LazyLock::new(|| Source::new(include_str!("../../sdk/switchboard.d.ts")));

/// Returns the module.
pub(crate) async fn module(headers: HeaderMap) -> Module {
    Module(MODULE.answer(&headers, JAVASCRIPT))
}

/// Returns the types of the module.
pub(crate) async fn types(headers: HeaderMap) -> Types {
    Types(TYPES.answer(&headers, TYPESCRIPT))
}

/// The module, or word that the client has it.
pub(crate) struct Module(Response);

impl IntoResponse for Module {
    fn into_response(self) -> Response {
        self.0
    }
}

impl openapi::Answer for Module {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.gives_file(JAVASCRIPT);
    }
}

/// The types, or word that the client has them.
pub(crate) struct Types(Response);

impl IntoResponse for Types {
    fn into_response(self) -> Response {
        self.0
    }
}

impl openapi::Answer for Types {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.gives_file(TYPESCRIPT);
    }
}

/// A file, and the tag that names its content.
struct Source {
    text: &'static str,
    tag: String,
}

impl Source {
    fn new(text: &'static str) -> Self {
        Self { text, tag: format!("\"{}\"", URL_SAFE_NO_PAD.encode(Sha256::digest(text))) }
    }

    fn answer(&self, headers: &HeaderMap, media_type: &str) -> Response {
        // Every load of a page asks whether the file has changed, so that a new server is met by its own client.
        let caching = [(ETAG, self.tag.as_str()), (CACHE_CONTROL, "no-cache")];
        if self.is_known(headers) {
            return (StatusCode::NOT_MODIFIED, caching).into_response();
        }
        let media_type = format!("{media_type}; charset=utf-8");
        (caching, [(CONTENT_TYPE, media_type)], self.text).into_response()
    }

    fn is_known(&self, headers: &HeaderMap) -> bool {
        let lists = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let mut tags = lists.flat_map(|list| list.split(',')).map(str::trim);
        // A proxy that compresses makes tags weak.
        tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == self.tag)
    }
}
