//! What can go wrong between a program and a replica.

use std::error::Error;

use switchboard_model::wire::close::AfterClose;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::ReplyError;
use switchboard_model::wire::problem::Problem;

/// The most characters of a body that an error carries.
const BODY_CHARS: usize = 2_000;

/// Why a request, or the opening of a socket, failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server refused the request and said why.
    #[error("{}: {} (request {})", .0.code.as_str(), .0.detail, .0.request_id)]
    Problem(Box<Problem>),
    /// Something answered with an error that is no problem document.
    #[error("the answer has status {status}: {body}")]
    Http {
        /// The HTTP status.
        status: u16,
        /// The beginning of the body.
        body: String,
    },
    /// The socket was closed before its first frame.
    #[error("the socket was closed with {code}: {reason}")]
    Closed {
        /// The close code.
        code: u16,
        /// The reason that the server gave.
        reason: String,
    },
    /// The replica cannot be reached, or the connection was lost.
    #[error("the replica cannot be reached")]
    Transport(#[source] Box<dyn Error + Send + Sync>),
    /// The answer is not of the expected form.
    #[error("the answer cannot be read")]
    Decode(#[source] serde_json::Error),
    /// The address or a header cannot be used.
    #[error("the request cannot be made: {0}")]
    Url(String),
}

impl ClientError {
    /// Tells whether the same request may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Problem(problem) => problem.code.is_retryable(),
            Self::Http { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            Self::Closed { code, .. } => AfterClose::of(*code) != AfterClose::Stop,
            Self::Transport(_) => true,
            Self::Decode(_) | Self::Url(_) => false,
        }
    }

    /// Returns the code of the problem, if the server named one.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Problem(problem) => Some(problem.code),
            _ => None,
        }
    }

    /// Returns the HTTP status of the refusal, if there was an answer.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Problem(problem) => Some(problem.status),
            Self::Http { status, .. } => Some(*status),
            _ => None,
        }
    }

    pub(crate) fn transport(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Transport(error.into())
    }

    /// Reads the body of an answer whose status tells of an error.
    pub(crate) fn refused(status: u16, body: &[u8]) -> Self {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => Self::Problem(Box::new(problem)),
            Err(_) => Self::Http { status, body: String::from_utf8_lossy(body).chars().take(BODY_CHARS).collect() },
        }
    }
}

/// Why a socket operation gave no result.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// The server refused the operation.
    #[error("{}: {}", .0.code.as_str(), .0.message)]
    Refused(ReplyError),
    /// The socket is closed; whether the operation was done is unknown.
    #[error("the socket is closed")]
    Closed,
    /// No answer came in time; whether the operation was done is unknown.
    #[error("no answer in time")]
    TimedOut,
    /// The answer is not of the expected form, or the operation cannot be written.
    #[error("the frame cannot be read or written")]
    Decode(#[source] serde_json::Error),
}

impl OpError {
    /// Returns the code of the refusal, if there was one.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(error) => Some(error.code),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_documents_are_told_from_other_bodies() {
        let body =
            br#"{"type":"about:blank","title":"t","status":503,"code":"unavailable","detail":"d","request_id":"r"}"#;
        let error = ClientError::refused(503, body);
        assert_eq!((error.code(), error.status()), (Some(ErrorCode::Unavailable), Some(503)));
        assert!(error.is_retryable());
        let error = ClientError::refused(404, b"<html>");
        assert!(matches!(&error, ClientError::Http { status: 404, body } if body == "<html>"));
        assert!(!error.is_retryable());
    }
}
