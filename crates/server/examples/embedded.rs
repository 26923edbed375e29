//! An application of its own, with no Switchboard server beside it, that takes two parts of Switchboard into its process: rate
//! limits and tasks, on SQLite or shared by any number of its processes on PostgreSQL.
//!
//! `cargo run -p switchboard-server --example embedded -- sqlite:./letters.db`, then `curl -X POST` the printed address with
//! `/letters/ann`: three letters an hour go out for each sender, over all processes, and each process of the application
//! that has time sends them.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header::RETRY_AFTER};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use switchboard_events::{Feed, FeedObserver};
use switchboard_model::feed::{Tick, TickRequest};
use switchboard_model::fire::MISFIRE_GRACE;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::{InstanceId, RunId, TaskId};
use switchboard_model::instance::Role;
use switchboard_model::json_text::JsonText;
use switchboard_model::limit::Rate;
use switchboard_model::run::{NewRun, RunState, Trigger};
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_scheduler::{
    HistoryAges, Scheduler, SchedulerObserver, SchedulerOptions, SystemRegistry, SystemRunner,
};
use switchboard_store_api::{LimitTake, Stores, TaskCreateOutcome, WriteContext};
use switchboard_store_pg::{HintTransport, PgOptions};
use switchboard_store_sqlite::SqliteOptions;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The task that sends one letter.
const TASK: &str = r#"{"name": "send", "action": {"system": {"function": "letters.send"}}, "max_attempts": 10}"#;

/// How many letters a sender may send.
const RATE: &str = "3/1h";

/// How long a replica may be silent before others take its runs over.
const LEASE: Span = Span::from_secs(15);

/// What the handlers share.
#[derive(Clone)]
struct Application {
    stores: Stores,
    task: TaskId,
    rate: Rate,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args().nth(1).context("usage: embedded sqlite:FILE|postgres://…")?;
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let instance = InstanceId::boot("letters");
    let stores = open(&url, instance.clone(), &tracker, stop.clone()).await?;
    let application = Application { task: install(&stores).await?, rate: RATE.parse()?, stores: stores.clone() };

    // The scheduler learns from the change feed what to do, here and in every other process on the same database. Leases
    // and other parts of `stores` are used in the same way.
    let scheduler = scheduler(&stores, instance);
    let observer: Arc<dyn FeedObserver> = Arc::new(Ticks(scheduler.observer()));
    let feed = Feed::new(Arc::clone(&stores.feed), TickRequest { pools: scheduler.pools().to_vec() }, vec![observer]);
    tracker.spawn(feed.run(stop.clone()));
    let soft = CancellationToken::new();
    let scheduler = scheduler.start(&tracker, soft.clone(), CancellationToken::new());

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let router =
        Router::new().route("/letters/{sender}", post(send)).route("/runs/{id}", get(state)).with_state(application);
    let until = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    axum::serve(listener, router).with_graceful_shutdown(until).await?;

    // First the work, then what the work needs.
    soft.cancel();
    scheduler.drained().await;
    stop.cancel();
    drop(stores);
    tracker.close();
    tracker.wait().await;
    Ok(())
}

/// Opens the database and brings its schema up to date.
async fn open(
    url: &str,
    instance: InstanceId,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> anyhow::Result<Stores> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        let options = SqliteOptions::new(PathBuf::from(path));
        return Ok(switchboard_store_sqlite::open(&options, tracker, stop).await?);
    }
    if !url.starts_with("postgres") {
        bail!("the URL must start with sqlite: or postgres:");
    }
    let options = PgOptions {
        url: url.to_owned(),
        direct_url: None,
        pool_size: 4,
        pooled: false,
        notify: HintTransport::Notify,
        instance,
        schedule_clock: Default::default(),
    };
    Ok(switchboard_store_pg::open(&options, tracker, stop).await?)
}

/// Creates the task unless a process before this one has.
async fn install(stores: &Stores) -> anyhow::Result<TaskId> {
    let spec: TaskSpec = serde_json::from_str(TASK)?;
    let created = stores.tasks.create(&WriteContext::system("letters"), TaskId::new(), &spec).await?;
    match created.now().context("there is no once-key")? {
        TaskCreateOutcome::Created(task) => Ok(task.id),
        TaskCreateOutcome::NameTaken(id) => Ok(id),
        TaskCreateOutcome::Refused(error) => Err(error.into()),
    }
}

/// Makes the scheduler, with the functions that tasks of this application call.
fn scheduler(stores: &Stores, instance: InstanceId) -> Scheduler {
    let week = Span::from_secs(7 * 24 * 3600);
    let options = SchedulerOptions {
        instance,
        roles: vec![Role::Scheduler, Role::Worker],
        pools: vec![PoolName::default_pool()],
        permits: 8,
        lease: LEASE,
        misfire_grace: MISFIRE_GRACE,
        history: HistoryAges { runs: week, audit: week },
    };
    let functions = SystemRegistry::standard(stores, options.history).with("letters.send", |_stop| async {
        println!("a letter is sent");
        Ok(JsonText::null())
    });
    Scheduler::new(stores, options, vec![Arc::new(SystemRunner::new(functions))])
}

/// Passes ticks on to the scheduler.
struct Ticks(SchedulerObserver);

impl FeedObserver for Ticks {
    fn observe(&self, tick: &Tick) {
        self.0.observe(tick);
    }
}

/// Sends a letter, unless its sender has sent too many.
async fn send(
    State(application): State<Application>,
    Path(sender): Path<String>,
) -> Result<impl IntoResponse, (StatusCode, String)> {
    let take = LimitTake { key: format!("letters:{sender}"), rate: application.rate, cost: 1 };
    let decisions = application.stores.limits.take(&[take]).await.map_err(unavailable)?;
    if let Some(denied) = decisions.iter().find(|decision| !decision.allowed) {
        let seconds = HeaderValue::from(denied.retry_after.as_millis().div_ceil(1_000));
        let headers = HeaderMap::from_iter([(RETRY_AFTER, seconds)]);
        return Ok((StatusCode::TOO_MANY_REQUESTS, headers, Json(Value::Null)));
    }
    let run = NewRun {
        id: RunId::new(),
        task_id: application.task,
        trigger: Trigger::Manual,
        input: None,
        delay: Span::default(),
        dedupe_key: None,
        dedupe_scope: Default::default(),
    };
    application.stores.runs.trigger(&WriteContext::system("letters"), &run).await.map_err(unavailable)?;
    Ok((StatusCode::ACCEPTED, HeaderMap::new(), Json(json!({"run": run.id}))))
}

/// Tells whether a letter has gone out.
async fn state(
    State(application): State<Application>,
    Path(id): Path<RunId>,
) -> Result<Json<Value>, (StatusCode, String)> {
    let run = application.stores.runs.get(id).await.map_err(unavailable)?;
    Ok(Json(json!({"is_sent": run.is_some_and(|run| run.state == RunState::Succeeded)})))
}

fn unavailable(error: switchboard_store_api::StoreError) -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}
