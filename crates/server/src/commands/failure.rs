//! What to say when a server refuses or does not answer: what happened, and what to do.

use std::error::Error;
use std::fmt::Write as _;

use anyhow::anyhow;
use switchboard_client::ClientError;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::problem::Problem;

use crate::cli::Remote;

/// Explains the failure of a command to a person. Errors of other kinds are left as they are.
pub(super) fn explain(error: anyhow::Error, remote: &Remote) -> anyhow::Error {
    let Some(cause) = error.downcast_ref::<ClientError>() else { return error };
    let explained = match cause {
        ClientError::Problem(problem) => refused(problem, remote),
        ClientError::Transport(source) => format!(
            "{} does not answer: {}\n\
             is the server running there? start one with `switchboard serve`, or name another with --url or SWITCHBOARD_URL",
            remote.url(),
            root(source.as_ref())
        ),
        ClientError::Http { status, .. } => format!(
            "{} answers with status {status} and no explanation\nis it the address of a Switchboard server?",
            remote.url()
        ),
        ClientError::Decode(_) => {
            format!("the answer of {} cannot be read: {}\nis the server another version?", remote.url(), root(cause))
        }
        ClientError::Url(_) => format!("{cause}\nname the server with --url or SWITCHBOARD_URL"),
        ClientError::Closed { .. } => cause.to_string(),
    };
    // Where a command says more than the client does, such as which task it was about, that goes first.
    match error.to_string() {
        context if context == cause.to_string() => anyhow!(explained),
        context => anyhow!("{context}: {explained}"),
    }
}

fn refused(problem: &Problem, remote: &Remote) -> String {
    let mut text = problem.detail.clone();
    for field in &problem.errors {
        let line = format!("{}: {}", field.field, field.detail);
        // A problem of one field often says the same as a whole.
        if line != text {
            let _ = write!(text, "\n  {line}");
        }
    }
    if let Some(advice) = advice(problem.code, remote) {
        let _ = write!(text, "\n{advice}");
    }
    let _ = write!(text, "\n({}, request {})", problem.code.as_str(), problem.request_id);
    text
}

fn advice(code: ErrorCode, remote: &Remote) -> Option<&'static str> {
    match code {
        ErrorCode::Unauthorized if remote.api_key.is_none() => Some(
            "give an API key with --api-key or SWITCHBOARD_API_KEY; whoever has the database makes the first one with: \
             switchboard api-key create --name NAME --scope admin",
        ),
        ErrorCode::Unauthorized if !remote.has_key() => Some(
            "the access token was mistyped, has expired, its session has ended or it belongs to another server; \
             get another one with: switchboard token login NAME",
        ),
        ErrorCode::Unauthorized => Some(
            "the key was mistyped, revoked, has expired or belongs to another server; whoever has an admin key makes \
             another one with: switchboard api-key create --name NAME --scope SCOPE",
        ),
        ErrorCode::Forbidden if remote.has_key() => {
            Some("use a key that holds the scope; `switchboard api-key list` shows what each holds")
        }
        ErrorCode::Forbidden => Some("sign in as somebody whose role allows it; `switchboard token me` shows yours"),
        ErrorCode::Unavailable => Some("the server is there, but its database does not answer it; try again soon"),
        _ => None,
    }
}

fn root(error: &(dyn Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
