//! Many tasks or runs in one request: how they are read, and what is said about each.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use switchboard_model::task::TaskSpec;
use switchboard_model::wire::bulk::{BulkRun, BulkRunItem, BulkRunsRequest, BulkTaskItem, BulkTasksRequest};
use switchboard_model::wire::frame::ReplyError;

use super::{Session, documents};

/// Creates many tasks; fails when one was refused.
pub(super) async fn create_tasks(session: &Session, tasks: Vec<TaskSpec>) -> Result<()> {
    let names: Vec<String> = tasks.iter().map(|task| task.name.to_string()).collect();
    let items = session.client.create_tasks(&BulkTasksRequest { tasks }).await?;
    report(session, "TASK", &names, &items, |item| match item {
        BulkTaskItem::Ok(task) => Ok(format!("created as {}", task.id)),
        BulkTaskItem::Error(error) => Err(error),
    })
}

/// Makes many runs; fails when one was refused.
pub(super) async fn trigger_runs(session: &Session, path: &Path) -> Result<()> {
    let (name, text) = documents::contents(path)?;
    let runs = runs(&text).context(name)?;
    let names: Vec<String> = runs.iter().map(|run| run.task.to_string()).collect();
    let items = session.client.trigger_runs(&BulkRunsRequest { runs }).await?;
    report(session, "TASK", &names, &items, |item| match item {
        BulkRunItem::Ok(run) if run.duplicate => Ok(format!("run {} was there under the same key", run.run_id)),
        BulkRunItem::Ok(run) => Ok(format!("run {}", run.run_id)),
        BulkRunItem::Error(error) => Err(error),
    })
}

/// Reads runs: a list, or one after the other.
fn runs(text: &str) -> serde_json::Result<Vec<BulkRun>> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text);
    }
    serde_json::Deserializer::from_str(text).into_iter().collect()
}

/// Says what became of each item.
fn report<T: Serialize>(
    session: &Session,
    what: &'static str,
    names: &[String],
    items: &[T],
    outcome: impl Fn(&T) -> Result<String, &ReplyError>,
) -> Result<()> {
    let lines: Vec<Line<'_, T>> = names.iter().zip(items).map(|(name, item)| Line { name, item }).collect();
    session.form.list(&lines, [what, "RESULT"], |line| {
        let said = outcome(line.item).unwrap_or_else(|error| format!("{}: {}", error.code.as_str(), error.message));
        [line.name.clone(), said]
    })?;
    let refused = items.iter().filter(|item| outcome(item).is_err()).count();
    ensure!(refused == 0, "{refused} of {} were refused; the others were made", items.len());
    Ok(())
}

/// An item of the answer and what it is about. Programs get the item as the API gives it.
#[derive(Serialize)]
struct Line<'a, T> {
    #[serde(skip)]
    name: &'a String,
    #[serde(flatten)]
    item: &'a T,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_read_as_a_list_or_one_after_the_other() {
        let (one, other) = (r#"{"task":"a","input":{"n" : 1.0e5}}"#, r#"{"task":"b","dedupe_key":"k"}"#);
        for text in [format!("[{one},{other}]"), format!("{one}\n{other}\n")] {
            let read = runs(&text).unwrap();
            assert_eq!(read.len(), 2);
            assert_eq!(read[0].input.as_ref().unwrap().as_str(), r#"{"n" : 1.0e5}"#);
        }
        assert!(runs(r#"{"task":"a","colour":"red"}"#).is_err());
    }
}
