//! `work`: what an external worker says to a server, a step at a time.

use anyhow::Result;
use switchboard_model::ids::Fence;
use switchboard_model::run::RunState;
use switchboard_model::wire::work::{
    FailRequest, FinishRequest, HeartbeatRequest, PoolLeaseRequest, ReleaseRequest, ReportResponse,
};
use uuid::Uuid;

use super::{Session, json_argument, remotely};
use crate::cli::{Held, RemoteCommand, WorkCommand};
use crate::output::{Form, time};

/// Does one step of an external worker.
pub(crate) async fn run(command: RemoteCommand<WorkCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey(&session, command).await).await
}

async fn obey(session: &Session, command: WorkCommand) -> Result<()> {
    let Session { client, form } = session;
    let fence = |held: Held| Fence(held.fence);
    match command {
        WorkCommand::Lease { pool, worker, max, lease, wait, request_id } => {
            let request_id = request_id.unwrap_or_else(Uuid::new_v4);
            let request = PoolLeaseRequest { request_id, worker, max, lease, wait };
            let runs = client.lease_runs(&pool, &request).await?;
            form.list(&runs, ["ID", "FENCE", "TASK", "ATTEMPT", "LEASE UNTIL", "INPUT"], |run| {
                [
                    run.id.to_string(),
                    run.fence.0.to_string(),
                    run.task_name.to_string(),
                    format!("{}/{}", run.attempt, run.max_attempts),
                    time(Some(run.lease_until)),
                    run.input.as_ref().map_or("-", |input| input.as_str()).to_owned(),
                ]
            })
        }
        WorkCommand::Heartbeat { held, lease } => {
            let answer = client.heartbeat_run(held.id, HeartbeatRequest { fence: fence(held), lease }).await?;
            let until = time(Some(answer.lease_until));
            if answer.cancel_requested {
                form.done(&answer, format_args!("Stop: somebody asked to cancel run {}; release it.", held.id))
            } else {
                form.done(&answer, format_args!("The lease holds until {until}."))
            }
        }
        WorkCommand::Finish { held, result } => {
            let result = result.map(|text| json_argument("result", text)).transpose()?;
            let answer = client.finish_run(held.id, &FinishRequest { fence: fence(held), result }).await?;
            reported(*form, held, answer)
        }
        WorkCommand::Fail { held, error, kind, delay } => {
            let answer = client.fail_run(held.id, &FailRequest { fence: fence(held), error, kind, delay }).await?;
            reported(*form, held, answer)
        }
        WorkCommand::Release { held } => {
            let answer = client.release_run(held.id, ReleaseRequest { fence: fence(held) }).await?;
            reported(*form, held, answer)
        }
    }
}

fn reported(form: Form, held: Held, answer: ReportResponse) -> Result<()> {
    let ReportResponse { state } = answer;
    match state {
        RunState::Scheduled => form.done(&answer, format_args!("Run {} is tried again later.", held.id)),
        state => form.done(&answer, format_args!("Run {}: {state}.", held.id)),
    }
}
