//! Forms of answers that several endpoints share. Knows no endpoint.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::HttpOptions;

/// 201 with the new thing and where it is.
pub(crate) struct Created<T> {
    location: String,
    value: T,
}

impl<T> Created<T> {
    /// Answers with `value`, which is found at `path`.
    pub(crate) fn new(options: &HttpOptions, path: &str, value: T) -> Self {
        let base = options.public_url.as_deref().unwrap_or_default().trim_end_matches('/');
        Self { location: format!("{base}{path}"), value }
    }
}

/// The new thing, or the one that was there already.
pub(crate) enum FoundOrCreated<T> {
    /// 200 with the one that was there.
    Found(T),
    /// 201 with the new one.
    Created(Created<T>),
}

impl<T: Serialize> IntoResponse for FoundOrCreated<T> {
    fn into_response(self) -> Response {
        match self {
            Self::Found(value) => Json(value).into_response(),
            Self::Created(created) => created.into_response(),
        }
    }
}

impl<T: Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        (StatusCode::CREATED, [(LOCATION, self.location)], Json(self.value)).into_response()
    }
}
