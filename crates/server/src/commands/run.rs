//! `run`: executions of tasks.

use anyhow::Result;
use switchboard_client::RunQuery;
use switchboard_model::run::Run;
use switchboard_model::wire::rest::{CancelProgress, CancelResponse};

use super::listing::collect;
use super::task::id_of;
use super::{Session, remotely};
use crate::cli::{RemoteCommand, RunCommand};
use crate::output::{maybe, time};

/// Does one thing with runs.
pub(crate) async fn run(command: RemoteCommand<RunCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey(&session, command).await).await
}

async fn obey(session: &Session, command: RunCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        RunCommand::List { task, state, limit } => {
            let task_id = match task {
                Some(task) => Some(id_of(client, &task).await?),
                None => None,
            };
            let query = RunQuery { task_id, state };
            let runs: Vec<Run> = collect(limit, async |page| client.list_runs(query, page).await).await?;
            form.list(&runs, ["ID", "STATE", "TRIGGER", "ATTEMPT", "READY", "ENDED", "ERROR"], |run| {
                [
                    run.id.to_string(),
                    run.state.to_string(),
                    run.trigger.to_string(),
                    format!("{}/{}", run.attempt, run.max_attempts),
                    time(Some(run.run_at)),
                    time(run.finished_at),
                    maybe(run.error.as_deref()),
                ]
            })
        }
        RunCommand::Get { id } => form.one(&client.get_run(id).await?),
        RunCommand::Cancel { id } => {
            let outcome = client.cancel_run(id).await?;
            let sentence = match outcome {
                CancelProgress::Cancelled => format!("Cancelled run {id}."),
                CancelProgress::Requested => format!("Asked the worker of run {id} to stop."),
            };
            form.done(&CancelResponse { outcome }, sentence)
        }
        RunCommand::Retry { id } => {
            client.retry_run(id).await?;
            form.said(format_args!("Queued run {id} again."))
        }
    }
}
