//! How requests are read: bodies, queries and paths, parsed once at the edge. Knows no endpoint.

use std::fmt::Display;
use std::str::FromStr;

use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use switchboard_model::identity::{ClientKey, Namespace, PoolName, RoomName, SecretName, TaskName, TokenName, UserId};
use switchboard_model::ids::{ApiKeyId, CallId, ConnectionId, RunId, SessionId, StreamId, TaskId, WebhookSecretId};
use switchboard_model::page::{MAX_PAGE, PageRequest};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::strict::Strict;

use crate::ApiResult;
use crate::error::ApiError;
use crate::middleware::Deadline;

/// The bytes of a JSON body; a request without a body counts as one with an empty object.
#[derive(Debug)]
pub(crate) struct JsonBody(pub(crate) Bytes);

impl JsonBody {
    /// Decodes the body.
    ///
    /// # Errors
    /// `bad_request` when it is not JSON; `validation_failed` names the field that has no place or a wrong value.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> ApiResult<T> {
        let mut json = serde_json::Deserializer::from_slice(&self.0);
        let value = serde_path_to_error::deserialize(Strict(&mut json)).map_err(|error| {
            let field = error.path().to_string();
            let error = error.into_inner();
            match error.classify() {
                Category::Data => ApiError::field(ErrorCode::ValidationFailed, field, error.to_string()),
                Category::Io | Category::Syntax | Category::Eof => not_json(&error),
            }
        })?;
        json.end().map_err(|error| not_json(&error))?;
        Ok(value)
    }
}

fn not_json(error: &serde_json::Error) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, format!("the body is not JSON: {error}"))
}

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let is_json = is_json(request.headers());
        let RawBody(bytes) = RawBody::from_request(request, state).await?;
        match (is_json, bytes.is_empty()) {
            (Some(false), _) | (None, false) => {
                Err(ApiError::new(ErrorCode::BadRequest, "the body must be JSON: send Content-Type: application/json")
                    .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE))
            }
            (_, true) => Ok(Self(Bytes::from_static(b"{}"))),
            (Some(true), false) => Ok(Self(bytes)),
        }
    }
}

/// The bytes of a body of any kind, if they come in time. Handlers are cut off at the same deadline, and the body is
/// asked first.
#[derive(Debug)]
pub(crate) struct RawBody(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let deadline = request.extensions().get::<Deadline>().copied();
        let reading = Bytes::from_request(request, state);
        let read = match deadline {
            Some(Deadline(at)) => tokio::time::timeout_at(at, reading).await.map_err(|_| {
                ApiError::new(ErrorCode::BadRequest, "the body did not arrive in time; nothing was done")
                    .with_status(StatusCode::REQUEST_TIMEOUT)
            })?,
            None => reading.await,
        };
        read.map(Self).map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(
                ErrorCode::PayloadTooLarge,
                "the body is too large: 1 MiB is the most, 16 MiB in bulk; split the request",
            ),
            _ => ApiError::new(ErrorCode::BadRequest, "the body cannot be read to its end"),
        })
    }
}

/// Tells whether the content type is JSON; `None` when there is none.
pub(crate) fn is_json(headers: &HeaderMap) -> Option<bool> {
    let value = headers.get(CONTENT_TYPE)?;
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    Some(essence.eq_ignore_ascii_case("application/json"))
}

/// A decoded JSON body.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        JsonBody::from_request(request, state).await?.decode().map(Self)
    }
}

/// The decoded query of the address.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(rejection) => Err(ApiError::new(ErrorCode::BadRequest, rejection.body_text())),
        }
    }
}

/// What stands in a path.
pub(crate) trait PathPart: FromStr<Err: Display> {
    /// The code for a text that is none.
    const CODE: ErrorCode = ErrorCode::BadRequest;
}

impl PathPart for TaskId {}
impl PathPart for RunId {}
impl PathPart for StreamId {}
impl PathPart for CallId {}
impl PathPart for ApiKeyId {}
impl PathPart for SessionId {}
impl PathPart for ConnectionId {}
impl PathPart for WebhookSecretId {}
impl PathPart for SecretName {}
impl PathPart for TokenName {}
impl PathPart for TaskName {}
impl PathPart for ClientKey {}
impl PathPart for Namespace {}
impl PathPart for PoolName {}
impl PathPart for UserId {}
impl PathPart for RoomName {
    const CODE: ErrorCode = ErrorCode::RoomNameInvalid;
}

/// The parsed parameter of a path that has one.
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<S: Send + Sync, T: PathPart> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let parameters = path_parameters(parts, state).await?;
        parse_next(&mut parameters.iter()).map(Self)
    }
}

/// The parsed parameters of a path that has two.
#[derive(Debug)]
pub(crate) struct PathPair<A, B>(pub(crate) A, pub(crate) B);

impl<S: Send + Sync, A: PathPart, B: PathPart> FromRequestParts<S> for PathPair<A, B> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let parameters = path_parameters(parts, state).await?;
        let mut parameters = parameters.iter();
        Ok(Self(parse_next(&mut parameters)?, parse_next(&mut parameters)?))
    }
}

async fn path_parameters<S: Send + Sync>(parts: &mut Parts, state: &S) -> ApiResult<RawPathParams> {
    let parameters = RawPathParams::from_request_parts(parts, state).await;
    parameters.map_err(|rejection| ApiError::new(ErrorCode::BadRequest, rejection.body_text()))
}

fn parse_next<'a, T: PathPart>(parameters: &mut impl Iterator<Item = (&'a str, &'a str)>) -> ApiResult<T> {
    let (name, text) = parameters.next().ok_or_else(ApiError::internal)?;
    text.parse().map_err(|error: T::Err| ApiError::field(T::CODE, name, error.to_string()))
}

/// The query of a plain list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageQuery {
    /// Where the previous page ended: its `next_cursor`.
    cursor: Option<String>,
    /// The most rows to return.
    #[schemars(range(min = 1, max = MAX_PAGE), extend("default" = PageRequest::default().limit))]
    limit: Option<u32>,
}

impl PageQuery {
    /// Checks what was asked for.
    ///
    /// # Errors
    /// `validation_failed` for a limit out of range.
    pub(crate) fn page(self) -> ApiResult<PageRequest> {
        page(self.cursor, self.limit)
    }
}

/// Checks the part of a query that asks for a page.
///
/// # Errors
/// `validation_failed` for a limit out of range.
pub(crate) fn page(cursor: Option<String>, limit: Option<u32>) -> ApiResult<PageRequest> {
    let limit = within(limit.unwrap_or(PageRequest::default().limit), MAX_PAGE)?;
    Ok(PageRequest { after: cursor, limit })
}

/// Checks a limit of a query.
///
/// # Errors
/// `validation_failed` when it is 0 or above `most`.
pub(crate) fn within(limit: u32, most: u32) -> ApiResult<u32> {
    if (1..=most).contains(&limit) {
        Ok(limit)
    } else {
        Err(ApiError::field(ErrorCode::ValidationFailed, "limit", format!("must be between 1 and {most}")))
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::header::HeaderValue;
    use axum::response::IntoResponse as _;
    use switchboard_model::wire::limits::JSON_DEPTH;
    use switchboard_model::wire::rest::{PublishRequest, TaskUpdate, TriggerRequest};

    use super::*;

    async fn read<T: DeserializeOwned>(content_type: Option<&str>, body: &str) -> Result<T, (u16, String)> {
        let mut request = Request::new(Body::from(body.to_owned()));
        if let Some(content_type) = content_type {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_str(content_type).unwrap());
        }
        let result = Json::<T>::from_request(request, &()).await;
        result.map(|Json(value)| value).map_err(|error| {
            let text = error.to_string();
            (error.into_response().status().as_u16(), text)
        })
    }

    const JSON: Option<&str> = Some("application/json; charset=utf-8");

    #[tokio::test]
    async fn bodies_must_be_declared_as_json() {
        for content_type in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("")] {
            assert_eq!(read::<TriggerRequest>(content_type, "{}").await.unwrap_err().0, 415, "{content_type:?}");
        }
        assert!(read::<TriggerRequest>(JSON, "{}").await.is_ok());
        assert!(read::<TriggerRequest>(None, "").await.is_ok(), "no body is an empty object");
    }

    #[tokio::test]
    async fn errors_say_what_is_wrong_and_where() {
        let cases = [
            (
                r#"{"version":1,"spec":{"name":"x","action":{"system":{"function":7}}}}"#,
                422,
                "spec.action.system.function",
            ),
            (r#"{"version":1,"spec":{"name":"a b","action":{"system":{"function":"f"}}}}"#, 422, "spec.name"),
            (r#"{"version":1,"colour":2}"#, 422, "colour"),
            (r#"{"version":1,"version":2}"#, 422, "duplicate field `version`"),
            (r#"{"version":1}"#, 422, "missing field `spec`"),
            (r#"{"version":}"#, 400, "line 1 column 12"),
            (r#"{"version":1"#, 400, "line 1 column 12"),
        ];
        for (body, status, part) in cases {
            let (got, text) = read::<TaskUpdate>(JSON, body).await.unwrap_err();
            assert_eq!(got, status, "{body}: {text}");
            assert!(text.contains(part), "{body}: {text}");
        }
        assert_eq!(read::<TriggerRequest>(JSON, "{} x").await.unwrap_err().0, 400);
    }

    #[tokio::test]
    async fn objects_are_not_read_from_arrays_and_texts_hold_no_nul() {
        let cases = [
            "[]",
            r#"[1,{"name":"x","action":{"system":{"function":"f"}}}]"#,
            r#"{"version":1,"spec":["x",null,{"system":{"function":"f"}}]}"#,
            r#"{"version":1,"spec":{"name":"x","action":{"system":["f"]}}}"#,
            r#"{"version":1,"spec":{"name":"x","action":{"system":{"function":"f"}},"missed":{"catch_up":[1,"1s"]}}}"#,
        ];
        for body in cases {
            let (status, text) = read::<TaskUpdate>(JSON, body).await.unwrap_err();
            assert_eq!(status, 422, "{body}: {text}");
            assert!(text.contains("must be an object, not an array"), "{body}: {text}");
        }
        let (status, text) = read::<TaskUpdate>(
            JSON,
            r#"{"version":1,"spec":{"name":"x","action":{"system":{"function":"a\u0000b"}}}}"#,
        )
        .await
        .unwrap_err();
        assert_eq!(status, 422);
        assert!(text.contains("spec.action.system.function") && text.contains("U+0000"), "{text}");
    }

    #[tokio::test]
    async fn payloads_are_nested_up_to_the_limit() {
        let body = |levels: usize| format!(r#"{{"input":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert!(read::<TriggerRequest>(JSON, &body(JSON_DEPTH)).await.is_ok());
        for levels in [JSON_DEPTH + 1, 100_000] {
            let (status, text) = read::<TriggerRequest>(JSON, &body(levels)).await.unwrap_err();
            assert!(status == 422 && text.contains("64 levels"), "{text}");
        }
    }

    #[tokio::test]
    async fn payloads_stay_verbatim() {
        let request: PublishRequest =
            read(JSON, r#"{"event":"tick","payload":{"a" : 1.0e5, "b":"\ud800", "c":"\u0000"}}"#).await.unwrap();
        assert_eq!(request.payload.as_str(), r#"{"a" : 1.0e5, "b":"\ud800", "c":"\u0000"}"#);
    }

    #[test]
    fn limits_have_a_range() {
        assert_eq!(page(None, None).unwrap(), PageRequest::default());
        assert_eq!(page(None, Some(MAX_PAGE)).unwrap().limit, MAX_PAGE);
        assert!(page(None, Some(0)).is_err());
        assert!(page(None, Some(MAX_PAGE + 1)).is_err());
    }
}
