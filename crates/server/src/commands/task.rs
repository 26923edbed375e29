//! `task`: what is to run, when, and under which policies.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use switchboard_client::{Client, ClientError, OccurrenceQuery, Triggered};
use switchboard_model::ids::TaskId;
use switchboard_model::run::{Run, RunState};
use switchboard_model::schedule::{Every, Remark, Schedule};
use switchboard_model::span::Span;
use switchboard_model::task::{Action, PullAction, Task, TaskRef};
use switchboard_model::timetable::Cron;
use switchboard_model::wire::rest::{PreviewRequest, TriggerRequest};
use tokio::time::Instant;

use super::apply::{self, Mode};
use super::listing::collect;
use super::{Session, bulk, documents, json_argument, occurrences, remotely};
use crate::cli::{PreviewSource, RemoteCommand, TaskCommand};
use crate::output::{self, maybe, time};

/// Does one thing with tasks.
pub(crate) async fn run(command: RemoteCommand<TaskCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey(&session, command).await).await
}

/// Returns the id of a task.
pub(super) async fn id_of(client: &Client, task: &TaskRef) -> Result<TaskId, ClientError> {
    match task {
        TaskRef::Id(id) => Ok(*id),
        TaskRef::Name(name) => Ok(client.find_task(name).await?.id),
    }
}

async fn obey(session: &Session, command: TaskCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        TaskCommand::List { limit } => {
            list(session, &collect(limit, async |page| client.list_tasks(page).await).await?)
        }
        TaskCommand::Get { task } => form.one(&get(client, &task).await?),
        TaskCommand::Create { documents } => {
            let specs = documents::read(&documents)?;
            let [spec] = specs.as_slice() else { return bulk::create_tasks(session, specs).await };
            let made = client.create_task(spec).await?;
            form.done(&made, format_args!("Created task {} ({}).", made.spec.name, made.id))
        }
        TaskCommand::Apply { documents, dry_run } => {
            let mode = if dry_run { Mode::Dry } else { Mode::Real };
            apply::apply(session, &documents::read(&documents)?, mode).await
        }
        TaskCommand::Delete { task } => {
            let task = get(client, &task).await?;
            client.delete_task(task.id).await?;
            form.said(format_args!("Deleted task {}.", task.spec.name))
        }
        TaskCommand::Pause { task } => {
            let task = client.pause_task(id_of(client, &task).await?).await?;
            form.done(&task, format_args!("Paused task {}.", task.spec.name))
        }
        TaskCommand::Resume { task } => {
            let task = client.resume_task(id_of(client, &task).await?).await?;
            let next = time(task.next_run_at);
            form.done(&task, format_args!("Resumed task {}; it is due next at {next}.", task.spec.name))
        }
        TaskCommand::Trigger { task, input, wait, delay, dedupe_key, dedupe_scope } => {
            let input = input.map(|text| json_argument("input", text)).transpose()?;
            let request = TriggerRequest { input, delay, dedupe_key, dedupe_scope: dedupe_scope.into() };
            trigger(session, &task, &request, wait).await
        }
        TaskCommand::Preview { source, zone, from, count } => {
            let schedule = schedule(client, source, zone).await?;
            let upcoming = client.preview_schedule(&PreviewRequest { schedule, from, count }).await?.items;
            form.list(&upcoming, ["AT", "REMARK"], |one| [time(Some(one.at)), maybe(one.remark.map(remark))])
        }
        TaskCommand::Occurrences { task, from, to, limit } => {
            let id = id_of(client, &task).await?;
            let query = OccurrenceQuery { from, to };
            let found = collect(limit, async |page| client.list_occurrences(id, query, page).await).await?;
            form.list(&found, ["AT", "OUTCOME", "WHY", "RUN"], occurrences::row)
        }
        TaskCommand::Skips { task, limit } => {
            let id = id_of(client, &task).await?;
            let skips = collect(limit, async |page| client.list_skips(id, page).await).await?;
            form.list(&skips, ["FROM", "TO", "COUNT", "CAUSE"], |skip| {
                [time(Some(skip.from)), time(Some(skip.to)), skip.count.to_string(), skip.cause.to_string()]
            })
        }
    }
}

async fn get(client: &Client, task: &TaskRef) -> Result<Task, ClientError> {
    match task {
        TaskRef::Id(id) => client.get_task(*id).await,
        TaskRef::Name(name) => client.find_task(name).await,
    }
}

fn list(session: &Session, tasks: &[Task]) -> Result<()> {
    session.form.list(tasks, ["NAME", "SCHEDULE", "ACTION", "STATE", "NEXT RUN", "ID"], |task| {
        let state = match &task.parked {
            Some(_) => "parked",
            None if task.spec.is_active => "active",
            None => "paused",
        };
        [
            task.spec.name.to_string(),
            maybe(task.spec.schedule.as_ref().map(schedule_text)),
            action_text(&task.spec.action),
            state.to_owned(),
            time(task.next_run_at),
            task.id.to_string(),
        ]
    })
}

fn schedule_text(schedule: &Schedule) -> String {
    match schedule {
        Schedule::Every(every) => format!("every {}", every.interval),
        Schedule::At(at) => format!("at {}", time(Some(*at))),
        Schedule::Cron(cron) => format!("{} {}", cron.expression.as_str(), cron.zone.as_str()),
    }
}

fn action_text(action: &Action) -> String {
    match action {
        Action::Event(event) => format!("event {} to {}", event.event, event.to.room()),
        Action::Http(http) => format!("http {}", http.url),
        Action::Pull(PullAction {}) => "pull".to_owned(),
        Action::System(system) => format!("system {}", system.function),
    }
}

pub(super) fn remark(remark: Remark) -> &'static str {
    match remark {
        Remark::MovedAfterGap => "moved: its local time does not exist on that day, so it runs right after the gap",
        Remark::SkippedInGap => "skipped: its local time does not exist on that day",
        Remark::SecondDropped => "the first of two: its local time exists twice on that day",
    }
}

async fn schedule(client: &Client, source: PreviewSource, zone: Option<String>) -> Result<Schedule> {
    if let Some(expression) = source.cron {
        return Ok(Schedule::Cron(Cron::new(&expression, zone.as_deref().unwrap_or("UTC"))));
    }
    if let Some(interval) = source.every {
        return Ok(Schedule::Every(Every { interval, anchor: None }));
    }
    // One of the three is required, so that this is the task.
    let Some(task) = source.task else { bail!("name a task, or give --cron or --every") };
    let task = get(client, &task).await?;
    let Some(schedule) = task.spec.schedule else { bail!("task {} has no schedule", task.spec.name) };
    Ok(schedule)
}

async fn trigger(session: &Session, task: &TaskRef, request: &TriggerRequest, wait: Option<Span>) -> Result<()> {
    let Session { client, form } = session;
    let task = id_of(client, task).await?;
    let Some(wait) = wait else {
        let triggered = client.trigger_task(task, request).await?;
        let found = if triggered.duplicate { " was active already under the same key" } else { " was made" };
        return form.done(&triggered, format_args!("Run {}{found}.", triggered.run_id));
    };
    let run = waited(client, task, request, wait).await?;
    form.one(&run)?;
    let Run { id, state, .. } = run;
    ensure!(state.is_terminal(), "run {id} has not ended after {wait}: it is {state}; see `switchboard run get {id}`");
    ensure!(state == RunState::Succeeded, "run {id} has {state}: {}", run.error.unwrap_or_default());
    Ok(())
}

/// Triggers a task and waits until the run has ended or the time is up. The server waits for some seconds at a time;
/// repeated under one idempotency key, the request finds the run that it has made.
async fn waited(client: &Client, task: TaskId, request: &TriggerRequest, wait: Span) -> Result<Run> {
    const STEP: Duration = Duration::from_secs(10);
    const PAUSE: Duration = Duration::from_millis(200);
    let client = client.with_idempotency_key(uuid::Uuid::new_v4().to_string().parse()?);
    let deadline = Instant::now() + wait.to_std();
    let mut made = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match client.trigger_and_wait(task, request, Span::from_millis(left.min(STEP).as_millis() as u64)).await {
            Ok(Triggered::Ended(run)) => return Ok(*run),
            Ok(Triggered::Pending(pending)) => made = Some(pending.run_id),
            // A replica that goes away in the middle is not the end of the run.
            Err(error) if made.is_some() && error.is_retryable() => {}
            Err(error) => return Err(error.into()),
        }
        match made {
            Some(run) if Instant::now() >= deadline => return Ok(client.get_run(run).await?),
            Some(run) => output::progress(format_args!("waiting for run {run}")),
            None => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}
