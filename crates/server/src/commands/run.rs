//! `run`: executions of tasks.

use anyhow::Result;
use switchboard_client::{Client, ClientError, RunQuery};
use switchboard_model::ids::TaskId;
use switchboard_model::run::{Run, RunState};
use switchboard_model::stream::StreamContent;
use switchboard_model::task::TaskRef;
use switchboard_model::wire::bulk::{REDRIVE_RUNS, RedriveRequest, RedriveResponse};
use switchboard_model::wire::rest::{CancelProgress, CancelResponse};

use super::listing::collect;
use super::task::id_of;
use super::{Session, bulk, remotely, stream};
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
            let task_id = id_of_given(client, task).await?;
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
        RunCommand::Create { file } => bulk::trigger_runs(session, &file).await,
        RunCommand::Get { id } => form.one(&client.get_run(id).await?),
        RunCommand::Output { id, after } => {
            stream::print(*form, StreamContent::Text, client.follow_output(id, after)).await
        }
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
        RunCommand::Redrive { task, state, limit } => {
            let task_id = id_of_given(client, task).await?;
            let done = redrive(client, task_id, state, limit).await?;
            let refused = match done.refused {
                0 => String::new(),
                count => format!(" {count} stay as they are, since an active run forbids a second one."),
            };
            form.done(&done, format_args!("Queued {} runs again.{refused}", done.queued))
        }
    }
}

async fn id_of_given(client: &Client, task: Option<TaskRef>) -> Result<Option<TaskId>, ClientError> {
    match task {
        Some(task) => id_of(client, &task).await.map(Some),
        None => Ok(None),
    }
}

/// Queues ended runs again, request by request, until there are no more or `limit` were looked at.
async fn redrive(
    client: &Client,
    task_id: Option<TaskId>,
    state: RunState,
    limit: Option<u64>,
) -> Result<RedriveResponse, ClientError> {
    let mut done = RedriveResponse { queued: 0, refused: 0, after: None };
    loop {
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(done.queued + done.refused));
        let limit = u32::try_from(left).map_or(REDRIVE_RUNS, |left| left.min(REDRIVE_RUNS));
        let request = RedriveRequest { task_id, state, after: done.after, limit };
        let more = client.redrive_runs(&request).await?;
        done = RedriveResponse {
            queued: done.queued + more.queued,
            refused: done.refused + more.refused,
            after: more.after,
        };
        if done.after.is_none() || left <= u64::from(limit) {
            return Ok(done);
        }
    }
}
