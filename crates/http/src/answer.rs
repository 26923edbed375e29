//! Forms of answers that several endpoints share. Knows no endpoint.

use std::borrow::Cow;
use std::marker::PhantomData;

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{ETAG, LOCATION};
use axum::response::{IntoResponse, Response};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use switchboard_model::json_text::JsonText;
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
        (self.status, [(LOCATION, self.location)], Json(self.value)).into_response()
    }
}

/// An answer, and the version of what it shows as the entity tag.
pub(crate) struct Tagged<A> {
    /// The version.
    pub(crate) version: i64,
    /// The answer.
    pub(crate) answer: A,
}

impl<A: IntoResponse> IntoResponse for Tagged<A> {
    fn into_response(self) -> Response {
        ([(ETAG, format!("\"{}\"", self.version))], self.answer).into_response()
    }
}

/// A `T` that was encoded before.
#[derive(Debug)]
pub(crate) struct Encoded<T>(JsonText, PhantomData<fn() -> T>);

impl<T> Encoded<T> {
    /// Takes the JSON text of a `T`.
    pub(crate) fn new(text: JsonText) -> Self {
        Self(text, PhantomData)
    }
}

impl<T> Serialize for Encoded<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for Encoded<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
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
