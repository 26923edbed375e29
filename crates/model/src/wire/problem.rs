//! Problem documents (RFC 9457): the one form of every HTTP error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::code::ErrorCode;

/// An error as the HTTP surface shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// A URI for the kind of problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of problem, for people.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The kind of problem, for programs.
    pub code: ErrorCode,
    /// What happened here, and what to do.
    pub detail: String,
    /// The request, as it appears in the logs.
    pub request_id: String,
    /// The fields to blame.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
}

/// What is wrong with one field of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldProblem {
    /// The path of the field.
    pub field: String,
    /// The kind of problem.
    pub code: ErrorCode,
    /// What is wrong, and what would be right.
    pub detail: String,
}
