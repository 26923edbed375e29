//! Tasks: on a schedule, on a schedule that outruns its runs, triggered, and triggered with a permit key.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use serde_json::{Value, json};
use switchboard_client::{Client, ClientError, RunQuery, items};
use switchboard_model::Timestamp;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{Run, RunState, SkipRange};
use switchboard_model::task::{Task, TaskSpec};
use switchboard_model::wire::rest::TriggerRequest;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::book::{Book, insist};
use super::fleet::{Fleet, LONG};
use super::rooms::create_room;
use super::{Ledger, Workload};
use crate::ledger::{self, Loss};
use crate::must::Must as _;

/// The room to which each run of the first task publishes.
const ROOM: &str = "chaos:ticks";

/// How many programs trigger runs, and how often each does. Together they leave a permit key time to breathe.
const TRIGGERERS: u32 = 4;
const TRIGGER_PERIOD: Duration = Duration::from_millis(2_500);

/// How long to pause between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Tasks and the runs that were asked for.
#[derive(Default)]
pub(crate) struct Tasks {
    scheduled: Vec<Task>,
    triggered: Vec<Task>,
    asked_for: BTreeSet<RunId>,
    violations: Vec<String>,
}

/// The definitions: attempts never run out, however many leases are lost.
fn scheduled() -> [Value; 2] {
    [
        json!({"name": "tick", "schedule": {"every": {"interval": "500ms"}}, "max_attempts": 1000,
               "action": {"event": {"to": {"room": ROOM}, "event": "tick"}}}),
        json!({"name": "busy", "schedule": {"every": {"interval": "1s"}}, "max_attempts": 1000, "overlap": "skip",
               "action": {"system": {"function": "test.wait"}}}),
    ]
}

fn triggered() -> [Value; 2] {
    [
        json!({"name": "slow", "max_attempts": 1000, "action": {"system": {"function": "test.wait"}}}),
        json!({"name": "keyed", "max_attempts": 1000, "action": {"system": {"function": "test.wait"}},
               "concurrency": {"key": "chaos", "max": 3}}),
    ]
}

async fn create(fleet: &Fleet, definition: Value) -> Task {
    // Through text: a payload is kept verbatim, which a JSON tree cannot do.
    let spec: TaskSpec = serde_json::from_str(&definition.to_string()).must("reading a definition");
    fleet.replicas()[0].create_task(&spec).await.must("creating a task")
}

#[async_trait]
impl Workload for Tasks {
    fn name(&self) -> &'static str {
        "tasks"
    }

    async fn start(&mut self, fleet: &Fleet) {
        create_room(fleet, ROOM).await;
        for definition in scheduled() {
            self.scheduled.push(create(fleet, definition).await);
        }
        for definition in triggered() {
            self.triggered.push(create(fleet, definition).await);
        }
    }

    async fn drive(&mut self, fleet: &Fleet, end: &CancellationToken) {
        let mut triggering = JoinSet::new();
        for number in 0..TRIGGERERS {
            let tasks = self.triggered.iter().map(|task| task.id).collect();
            triggering.spawn(trigger(fleet.clone(), end.clone(), tasks, number));
        }
        for asked in triggering.join_all().await.into_iter().flatten() {
            match asked {
                Ok(run) if !self.asked_for.insert(run) => {
                    self.violations.push(format!("two triggers were told of run {run}"));
                }
                Ok(_) => {}
                Err(error) => self.violations.push(format!("a trigger was refused: {error}")),
            }
        }
    }

    async fn check(&mut self, fleet: &Fleet, _: &[Loss]) -> Ledger {
        let mut violations = std::mem::take(&mut self.violations);
        // A task that lost its next occurrence would never come this far.
        for task in &self.scheduled {
            violations.extend(fires_again(fleet, task).await.err());
            fleet.insist(|client| pause(client, task.id)).await.must("pausing a task");
        }
        let all: Vec<TaskId> = self.scheduled.iter().chain(&self.triggered).map(|task| task.id).collect();
        violations.extend(settled(fleet, &all).await.err());
        let book = Book::read(fleet.pool()).await;
        let (mut runs, mut skipped) = (Vec::new(), 0);
        for task in &self.scheduled {
            let (of_task, skips) = (runs_of(fleet, task.id).await, skips_of(fleet, task.id).await);
            violations.extend(occurrences(task, &of_task, &skips));
            skipped += skips.iter().map(|skip| skip.count).sum::<u64>();
            if task.spec.name.as_str() == "tick" {
                violations.extend(published(fleet, &of_task).await);
            }
            runs.extend(of_task);
        }
        let mut made = BTreeSet::new();
        for task in &self.triggered {
            let of_task = runs_of(fleet, task.id).await;
            made.extend(of_task.iter().map(|run| run.id));
            runs.extend(of_task);
        }
        if made != self.asked_for {
            let (asked, made) = (self.asked_for.len(), made.len());
            violations.push(format!("{asked} runs were asked for and {made} were made, or not the same ones"));
        }
        let of_ours: BTreeSet<RunId> = runs.iter().map(|run| run.id).collect();
        let endings: Vec<_> = book.endings().into_iter().filter(|(run, _)| of_ours.contains(run)).collect();
        violations.extend(ledger::endings(&runs, &endings).err().map(|faults| faults.to_string()));
        violations.extend(ledger::permits(&book.permits()).err().map(|faults| faults.to_string()));
        let lost = runs.iter().filter(|run| run.state != RunState::Succeeded);
        violations.extend(lost.map(|run| format!("run {} is {}", run.id, run.state)));
        let again = runs.iter().filter(|run| run.attempt > 1).count();
        let done = format!("{} runs, {again} of them in more than one attempt; {skipped} skips", runs.len());
        Ledger { done, violations }
    }
}

/// Triggers tasks again and again, each time until a replica has taken it.
async fn trigger(
    fleet: Fleet,
    end: CancellationToken,
    tasks: Vec<TaskId>,
    number: u32,
) -> Vec<Result<RunId, ClientError>> {
    let mut clock = interval(TRIGGER_PERIOD);
    let mut asked_for = Vec::new();
    while end.run_until_cancelled(clock.tick()).await.is_some() {
        for task in tasks.iter().copied() {
            // Whether a trigger whose answer was lost took effect the next try finds out.
            let key = format!("chaos-{number}-{}", asked_for.len());
            let asked = fleet.insist(|client: Client| {
                let client = client.with_idempotency_key(key.parse().must("a key"));
                async move { client.trigger_task(task, &TriggerRequest::default()).await }
            });
            asked_for.push(asked.await.map(|answer| answer.run_id));
        }
    }
    asked_for
}

async fn pause(client: Client, task: TaskId) -> Result<Task, ClientError> {
    client.pause_task(task).await
}

/// Waits for an occurrence that lies after the last fault.
async fn fires_again(fleet: &Fleet, task: &Task) -> Result<(), String> {
    let now: Timestamp =
        insist("the time", || sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(fleet.pool())).await;
    let has_fired = || {
        sqlx::query_scalar::<_, bool>(
            "SELECT EXISTS (SELECT FROM switchboard.runs WHERE task_id = $1 AND scheduled_for > $2)",
        )
        .bind(task.id.as_uuid())
        .bind(now)
        .fetch_one(fleet.pool())
    };
    let give_up = Instant::now() + LONG;
    while !insist("a new run", has_fired).await {
        if Instant::now() >= give_up {
            return Err(format!("{} does not fire any more", task.spec.name));
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Waits until every run has ended.
async fn settled(fleet: &Fleet, tasks: &[TaskId]) -> Result<(), String> {
    let tasks: Vec<_> = tasks.iter().map(|task| task.as_uuid()).collect();
    let open = || {
        sqlx::query_scalar::<_, i64>(
            "SELECT count(*) FROM switchboard.runs WHERE task_id = ANY ($1) AND finished_at IS NULL",
        )
        .bind(&tasks)
        .fetch_one(fleet.pool())
    };
    let give_up = Instant::now() + LONG;
    loop {
        match insist("the ends of all runs", open).await {
            0 => return Ok(()),
            left if Instant::now() >= give_up => return Err(format!("{left} runs do not end")),
            _ => sleep(PAUSE).await,
        }
    }
}

async fn runs_of(fleet: &Fleet, task: TaskId) -> Vec<Run> {
    let read = |page: PageRequest| {
        let page = page.clone();
        async move {
            let query = || RunQuery { task_id: Some(task), state: None };
            fleet.insist(|client| list_runs(client, query(), page.clone())).await
        }
    };
    items(read).try_collect().await.must("listing runs")
}

async fn list_runs(client: Client, query: RunQuery, page: PageRequest) -> Result<Page<Run>, ClientError> {
    client.list_runs(query, page).await
}

async fn skips_of(fleet: &Fleet, task: TaskId) -> Vec<SkipRange> {
    let client = fleet.any();
    let read = |page: PageRequest| {
        let client = client.clone();
        async move { client.list_skips(task, page).await }
    };
    items(read).try_collect().await.must("listing skips")
}

/// Checks that each occurrence from the first to the last is a run or a skip.
fn occurrences(task: &Task, runs: &[Run], skips: &[SkipRange]) -> Option<String> {
    let schedule = task.spec.schedule.as_ref()?;
    let due = runs.iter().filter_map(|run| run.scheduled_for);
    let seen: BTreeSet<Timestamp> = due.chain(skips.iter().flat_map(|skip| [skip.from, skip.to])).collect();
    let (first, last) = (*seen.first()?, *seen.last()?);
    let faults = ledger::occurrences(schedule, first..=last, runs, skips).err()?;
    Some(format!("{}: {faults}", task.spec.name))
}

/// Checks that each run that succeeded has published its event, once.
async fn published(fleet: &Fleet, runs: &[Run]) -> Option<String> {
    let room = ROOM.parse().must("a name");
    let client = fleet.any();
    let mut messages = Vec::new();
    loop {
        let after = i64::try_from(messages.len()).must("a position");
        let page = client.history(&room, after, 500).await.must("reading the history");
        if page.events.is_empty() {
            break;
        }
        messages.extend(page.events.into_iter().map(|event| event.msg_id));
    }
    let (events, different) = (messages.len(), messages.iter().collect::<BTreeSet<_>>().len());
    let ended = runs.iter().filter(|run| run.state == RunState::Succeeded).count();
    (events != different || events != ended)
        .then(|| format!("{ended} runs have published {events} events, {different} of them different"))
}
