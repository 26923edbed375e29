//! Forms of answers that several endpoints share. Knows no endpoint.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use switchboard_model::secret_text::SecretText;

use crate::error::ApiError;
use crate::{ApiResult, HttpOptions};

/// Returns the address of a path of ours: a whole one when the public URL is known.
pub(crate) fn absolute(options: &HttpOptions, path: &str) -> String {
    format!("{}{path}", options.public_url.as_deref().unwrap_or_default().trim_end_matches('/'))
}

/// 201 with the new thing, and where it is.
pub(crate) struct Created<T> {
    status: StatusCode,
    location: String,
    value: T,
}

impl<T> Created<T> {
    /// Answers with `value`, which is found at `path`.
    pub(crate) fn new(options: &HttpOptions, path: &str, value: T) -> Self {
        Self { status: StatusCode::CREATED, location: absolute(options, path), value }
    }

    /// Answers with another status, for what is not done yet.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }
}

impl<T: Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        (self.status, [(LOCATION, self.location)], Json(self.value)).into_response()
    }
}

/// Makes a secret that the answer shows, this one time.
///
/// # Errors
/// `internal` when the operating system has no random bytes to give.
pub(crate) fn new_secret(prefix: &str) -> ApiResult<SecretText> {
    SecretText::generate(prefix).map_err(|error| {
        tracing::error!(%error, "there are no random bytes for a secret");
        ApiError::internal()
    })
}
