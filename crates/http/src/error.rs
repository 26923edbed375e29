//! The one error of the HTTP surface, and the problem document that it becomes.
//!
//! An error travels through the layers inside its response and is written out by the outermost one,
//! which knows the request id. So errors that axum makes itself take the same form.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use switchboard_events::{PublishError, error_chain};
use switchboard_model::task::TaskSpecError;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::ReplyError;
use switchboard_model::wire::problem::{FieldProblem, Problem};
use switchboard_store_api::StoreError;

/// How long a client waits before it repeats a request that may succeed later, in seconds.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Why a request was refused or failed; everything in it may be shown to the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", .code.as_str())]
pub(crate) struct ApiError {
    status: StatusCode,
    code: ErrorCode,
    detail: String,
    errors: Vec<FieldProblem>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl ApiError {
    /// Makes an error with the status that goes with its code.
    pub(crate) fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, code, detail: detail.into(), errors: Vec::new(), headers: Vec::new() }
    }

    /// Blames a field of the request.
    pub(crate) fn field(code: ErrorCode, field: impl Into<String>, detail: impl Into<String>) -> Self {
        let (field, detail) = (field.into(), detail.into());
        let mut error = Self::new(code, format!("{field}: {detail}"));
        error.blame(field, detail);
        error
    }

    /// Returns the code.
    pub(crate) const fn code(&self) -> ErrorCode {
        self.code
    }

    /// Adds a field, or a part, to the list of those to blame.
    pub(crate) fn blame(&mut self, field: impl Into<String>, detail: impl Into<String>) {
        self.errors.push(FieldProblem { field: field.into(), code: self.code, detail: detail.into() });
    }

    /// Sets a status that is more precise than the one of the code.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Adds a header to the answer.
    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Says when the same request may succeed, in seconds from now.
    pub(crate) fn with_retry_after(self, seconds: u64) -> Self {
        self.with_header(RETRY_AFTER, seconds.into())
    }

    /// Says that a thing does not exist.
    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no such {what}"))
    }

    /// Says that the credential is missing or not valid, without telling which.
    pub(crate) fn unauthorized(detail: &str) -> Self {
        Self::new(ErrorCode::Unauthorized, detail)
    }

    /// Says that the same request may succeed later.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unavailable, detail)
    }

    /// Says that the server failed; why stands in the log.
    pub(crate) fn internal() -> Self {
        Self::new(ErrorCode::Internal, "the server failed; the log has more under this request id")
    }

    /// Says that an idempotency key was used with another request.
    pub(crate) fn idempotency_mismatch() -> Self {
        Self::new(ErrorCode::IdempotencyMismatch, "the idempotency key was used with another request; take a new key")
    }

    /// Says that a repeated request finds what the first one made no more.
    pub(crate) fn replay_is_gone(what: &str) -> Self {
        Self::new(ErrorCode::Conflict, format!("the {what} that this idempotency key made was deleted since"))
    }

    /// Makes the error of a response that carries none, such as the 404 and 405 of the router.
    fn of_status(status: StatusCode) -> Self {
        let (code, detail) = match status {
            StatusCode::NOT_FOUND => (ErrorCode::NotFound, "there is no such route"),
            StatusCode::METHOD_NOT_ALLOWED => (ErrorCode::BadRequest, "the route does not serve this method"),
            StatusCode::PAYLOAD_TOO_LARGE => (ErrorCode::PayloadTooLarge, "the body is too large"),
            status if status.is_client_error() => (ErrorCode::BadRequest, "the request cannot be read"),
            _ => (ErrorCode::Internal, "the server failed"),
        };
        Self::new(code, detail).with_status(status)
    }

    /// Writes the document.
    fn problem(self, request_id: &str) -> Problem {
        Problem {
            kind: format!("urn:switchboard:problem:{}", self.code.as_str()),
            title: self.code.as_str().replace('_', " "),
            status: self.status.as_u16(),
            code: self.code,
            detail: self.detail,
            request_id: request_id.to_owned(),
            errors: self.errors,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(mut self) -> Response {
        let mut response = self.status.into_response();
        let headers = response.headers_mut();
        headers.extend(std::mem::take(&mut self.headers));
        match self.code {
            ErrorCode::Unauthorized => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ErrorCode::Unavailable => {
                headers.entry(RETRY_AFTER).or_insert(RETRY_AFTER_SECONDS.into());
            }
            _ => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the problem document of a response that tells of an error; leaves others as they are.
pub(crate) fn write_problem(mut response: Response, request_id: &str) -> Response {
    let status = response.status();
    let error = response.extensions_mut().remove::<ApiError>();
    let is_error = status.is_client_error() || status.is_server_error();
    let Some(error) = error.or_else(|| is_error.then(|| ApiError::of_status(status))) else { return response };
    let (mut parts, _) = response.into_parts();
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    parts.headers.remove(CONTENT_LENGTH);
    // A problem consists of texts and numbers, which always have a JSON form.
    let body = serde_json::to_vec(&error.problem(request_id)).unwrap_or_default();
    Response::from_parts(parts, Body::from(body))
}

impl From<StoreError> for ApiError {
    /// Logs the error with its causes, once, and hides them from the caller.
    fn from(error: StoreError) -> Self {
        if let StoreError::Corrupt { what: StoreError::PAGE_CURSOR, .. } = error {
            return Self::field(ErrorCode::ValidationFailed, "cursor", "must be the next_cursor of the same list");
        }
        let chain = error_chain(&error);
        if error.is_transient() {
            tracing::warn!(error = %chain, "the database did not serve a request");
            Self::unavailable("the database does not answer now; repeat the request")
        } else {
            tracing::error!(error = %chain, "a request failed");
            Self::internal()
        }
    }
}

impl From<PublishError> for ApiError {
    /// The publisher has logged the cause already.
    fn from(error: PublishError) -> Self {
        Self::unavailable(format!("{error}; publish again with the same msg_id"))
    }
}

impl From<ReplyError> for ApiError {
    fn from(error: ReplyError) -> Self {
        Self::new(error.code, error.message)
    }
}

impl From<ApiError> for ReplyError {
    /// For what was refused among others that were not.
    fn from(error: ApiError) -> Self {
        Self::new(error.code, error.detail)
    }
}

impl From<TaskSpecError> for ApiError {
    fn from(error: TaskSpecError) -> Self {
        Self::field(error.code(), error.field, error.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn written(response: Response) -> (Response, Problem) {
        let response = write_problem(response, "r-1");
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        (Response::from_parts(parts, Body::empty()), serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test]
    async fn every_code_becomes_a_document_with_its_status() {
        for code in ErrorCode::ALL {
            let (response, problem) = written(ApiError::new(*code, "why").into_response()).await;
            assert_eq!(response.status().as_u16(), code.status());
            assert_eq!((problem.status, problem.code), (code.status(), *code));
            assert_eq!((problem.detail.as_str(), problem.request_id.as_str()), ("why", "r-1"));
            assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), *code == ErrorCode::Unavailable);
            assert_eq!(response.headers().contains_key(WWW_AUTHENTICATE), *code == ErrorCode::Unauthorized);
        }
    }

    #[tokio::test]
    async fn bare_error_statuses_become_documents_and_others_stay() {
        for status in [400, 404, 405, 413, 415, 426, 500, 503] {
            let status = StatusCode::from_u16(status).unwrap();
            let (response, problem) = written((status, "secret text").into_response()).await;
            assert_eq!((response.status(), problem.status), (status, status.as_u16()));
            assert!(!problem.detail.contains("secret"));
        }
        let response = write_problem((StatusCode::CREATED, "text").into_response(), "r-1");
        assert_eq!(axum::body::to_bytes(response.into_body(), 99).await.unwrap(), "text");
    }

    #[tokio::test]
    async fn store_errors_hide_their_causes() {
        let source = || Box::from("password=hunter2");
        let cases = [
            (StoreError::Unavailable(source()), ErrorCode::Unavailable),
            (StoreError::Conflict(source()), ErrorCode::Unavailable),
            (StoreError::Backend(source()), ErrorCode::Internal),
            (StoreError::corrupt("task", "hunter2"), ErrorCode::Internal),
            (StoreError::Fenced, ErrorCode::Internal),
            (StoreError::corrupt(StoreError::PAGE_CURSOR, "hunter2"), ErrorCode::ValidationFailed),
        ];
        for (error, code) in cases {
            let (_, problem) = written(ApiError::from(error).into_response()).await;
            assert_eq!(problem.code, code);
            assert!(!problem.detail.contains("hunter2"));
        }
    }

    #[test]
    fn refused_tasks_name_the_field() {
        let refused = |never_fires| {
            ApiError::from(TaskSpecError { field: "schedule", never_fires, reason: "why".into() }).problem("r")
        };
        assert_eq!(refused(false).status, 422);
        assert_eq!(refused(true).code, ErrorCode::ScheduleNeverFires);
        assert_eq!(refused(true).errors[0].field, "schedule");
    }
}
