//! `task apply`: tasks as code. Each task is created, updated or left, by its name.

use std::fmt;

use anyhow::Context as _;
use serde::Serialize;
use switchboard_client::{Client, ClientError};
use switchboard_model::identity::TaskName;
use switchboard_model::schedule::Schedule;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_model::wire::code::ErrorCode;

use super::Session;
use crate::output::{self, Form};

/// What became of a task, or would.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Created,
    Updated,
    Unchanged,
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
        })
    }
}

/// A task and what became of it.
#[derive(Serialize)]
struct Applied {
    name: TaskName,
    change: Change,
    /// As stored; absent when a dry run would create it.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<Task>,
}

/// Only says what would be done, or does it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Dry,
    Real,
}

/// Makes tasks exist as they are defined.
pub(super) async fn apply(session: &Session, specs: &[TaskSpec], mode: Mode) -> anyhow::Result<()> {
    let mut applied = Vec::with_capacity(specs.len());
    for spec in specs {
        let done = applied.len();
        let context = || match done {
            0 => format!("task {}", spec.name),
            _ => format!("task {} (after {done} that were applied)", spec.name),
        };
        let one = apply_one(&session.client, spec, mode).await.with_context(context)?;
        if session.form == Form::People {
            let tense = if mode == Mode::Dry { " (dry run)" } else { "" };
            output::line(format_args!("{:<9}  {}{tense}", one.change, one.name))?;
        }
        applied.push(one);
    }
    if session.form == Form::Programs { output::json(&applied) } else { Ok(()) }
}

async fn apply_one(client: &Client, spec: &TaskSpec, mode: Mode) -> Result<Applied, ClientError> {
    let stored = match client.find_task(&spec.name).await {
        Err(error) if error.code() == Some(ErrorCode::NotFound) => None,
        found => Some(found?),
    };
    let change = match &stored {
        None => Change::Created,
        Some(task) if is_same(&task.spec, spec) => Change::Unchanged,
        Some(_) => Change::Updated,
    };
    let task =
        if mode == Mode::Dry || change == Change::Unchanged { stored } else { Some(client.put_task(spec).await?) };
    Ok(Applied { name: spec.name.clone(), change, task })
}

/// Tells whether a definition says what is stored. An interval that names no anchor keeps the one it was given.
fn is_same(stored: &TaskSpec, wanted: &TaskSpec) -> bool {
    let mut wanted = wanted.clone();
    if let (Some(Schedule::Every(wanted)), Some(Schedule::Every(stored))) = (&mut wanted.schedule, &stored.schedule) {
        wanted.anchor = wanted.anchor.or(stored.anchor);
    }
    *stored == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_that_was_filled_in_is_no_change() {
        let spec = |schedule: &str| -> TaskSpec {
            let text = format!(r#"{{"name":"a","schedule":{schedule},"action":{{"system":{{"function":"sweep"}}}}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let stored = spec(r#"{"every":{"interval":"1m","anchor":"2026-01-01T00:00:00Z"}}"#);
        assert!(is_same(&stored, &spec(r#"{"every":{"interval":"60s"}}"#)));
        assert!(!is_same(&stored, &spec(r#"{"every":{"interval":"2m"}}"#)));
        assert!(!is_same(&stored, &spec(r#"{"every":{"interval":"1m","anchor":"2027-01-01T00:00:00Z"}}"#)));
    }
}
