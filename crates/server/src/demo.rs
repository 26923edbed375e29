//! The demo: the whole product at work on a temporary SQLite file, over a real socket, in a few seconds.
//!
//! Everything it prints has really happened: it talks to its server as any other program would.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use switchboard_client::{Client, ClientOptions, Socket, SocketEvent, SocketOptions};
use switchboard_model::api_key::API_KEY_PREFIX;
use switchboard_model::identity::{RoomName, UserId};
use switchboard_model::ids::RunId;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{Retention, RoomKind};
use switchboard_model::run::RunState;
use switchboard_model::secret_text::SecretText;
use switchboard_model::task::TaskSpec;
use switchboard_model::ticket::Grants;
use switchboard_model::wire::frame::EventFrame;
use switchboard_model::wire::op::Since;
use switchboard_model::wire::rest::{PublishRequest, RoomRequest, TicketRequest, TriggerRequest};
use tokio::time::Instant;

use crate::app;
use crate::cli::DemoOptions;
use crate::config::{Config, Drain};
use crate::output::line;
use crate::{lifecycle, telemetry};

/// How many scheduled ticks the demo waits for.
const TICKS: usize = 3;

/// How long the demo waits for anything before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the demo; the exit code is 0 when everything arrived.
pub(crate) async fn run(options: DemoOptions) -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let key = SecretText::generate(API_KEY_PREFIX)?;
    let mut config = Config { bootstrap_key: Some(key.clone()), ..Config::default() };
    config.instance.name = "demo".to_owned();
    config.database.url = format!("sqlite:{}", folder.path().join("demo.db").display());
    config.server.bind.set_port(0);
    config.telemetry.log = if options.verbose { "info" } else { "error" }.to_owned();
    telemetry::start_logs(&config.telemetry)?;

    let app = app::start(&config, telemetry::start_metrics()?).await?;
    line(format_args!("Switchboard demo: one process on a temporary SQLite file.\n"))?;
    line(format_args!("  server   {}", app.url()))?;
    let client = Client::new(ClientOptions { base_url: app.url(), credential: Some(key.clone()) })?;
    let shown = tokio::time::timeout(PATIENCE, show(&client)).await;
    let outcome = shown.unwrap_or_else(|_| bail!("nothing arrived for {PATIENCE:?}"));
    if options.keep && outcome.is_ok() {
        line(format_args!("\nThe server goes on until Ctrl-C. Try:"))?;
        line(format_args!("  curl -H 'Authorization: Bearer {}' {}/api/v1/tasks", key.expose(), app.url()))?;
        tokio::signal::ctrl_c().await?;
    }
    let drain = Drain { delay: switchboard_model::span::Span::default(), ..Drain::default() };
    lifecycle::stop(app, &drain).await;
    outcome.map(|()| ExitCode::SUCCESS)
}

async fn show(client: &Client) -> anyhow::Result<()> {
    let room: RoomName = "demo".parse()?;
    let user: UserId = "ann".parse()?;
    let request = RoomRequest { name: room.clone(), kind: RoomKind::Public, retention: Retention::default() };
    client.create_room(&request).await?;

    let ticket = TicketRequest { user_id: user.clone(), origin: None, grants: Grants::default() };
    let mut socket = client.connect(SocketOptions::ticket(client.mint_ticket(&ticket).await?)).await?;
    let start = Instant::now();
    let hello = socket.hello();
    line(format_args!("  socket   {} opened with a single-use ticket by {}", hello.conn_id, hello.instance))?;
    socket.handle().join(&room, Since::default()).await?;
    line(format_args!("  room     {room} joined\n"))?;

    let tick = task("tick", Some("1s"), &room)?;
    client.create_task(&tick).await?;
    line(format_args!("  task     tick: every second an event to room {room}"))?;
    let mut log = Log { start, lines: 0 };
    for _ in 0..TICKS {
        log.event(&event(&mut socket, "tick").await?)?;
    }

    let hello = client.create_task(&task("hello", None, &room)?).await?;
    let input = JsonText::parse(r#"{"name":"world"}"#)?;
    let trigger = TriggerRequest { input: Some(input), ..TriggerRequest::default() };
    let run = client.trigger_task(hello.id, &trigger).await?.run_id;
    line(format_args!("\n  run      {run} of task hello, triggered by hand"))?;
    log.event(&event(&mut socket, "hello").await?)?;
    line(format_args!("  {}  run    {}", log.elapsed(), ended(client, run).await?))?;

    line(format_args!("\n  publish  to user {user}, on whichever replica their sockets are"))?;
    let note = PublishRequest {
        event: "note".parse()?,
        payload: JsonText::parse(r#"{"text":"for your eyes only"}"#)?,
        msg_id: None,
        ephemeral: false,
    };
    client.publish_to_user(&user, &note).await?;
    log.event(&event(&mut socket, "note").await?)?;
    line(format_args!("\nDone: {} events arrived over the socket.", log.lines))?;
    Ok(())
}

fn task(name: &str, every: Option<&str>, room: &RoomName) -> anyhow::Result<TaskSpec> {
    let mut spec = serde_json::json!({
        "name": name,
        "action": { "event": { "to": { "room": room }, "event": name } },
    });
    if let Some(interval) = every {
        spec["schedule"] = serde_json::json!({ "every": { "interval": interval } });
    }
    // Through text: a payload is kept verbatim, which a JSON tree cannot do.
    Ok(serde_json::from_str(&spec.to_string())?)
}

async fn next(socket: &mut Socket) -> anyhow::Result<SocketEvent> {
    match socket.next().await {
        Some(SocketEvent::Closed { code, reason }) => bail!("the socket was closed: {code} {reason}"),
        Some(event) => Ok(event),
        None => bail!("the socket ended"),
    }
}

/// Waits for an event of this name.
async fn event(socket: &mut Socket, name: &str) -> anyhow::Result<EventFrame> {
    loop {
        if let SocketEvent::Event(frame) = next(socket).await?
            && frame.event.as_str() == name
        {
            return Ok(frame);
        }
    }
}

/// Waits until a run has ended; it ends a moment after its event arrives.
async fn ended(client: &Client, run: RunId) -> anyhow::Result<RunState> {
    loop {
        let state = client.get_run(run).await?.state;
        if state.is_terminal() {
            return Ok(state);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Prints what arrives, with the time since the socket was opened.
struct Log {
    start: Instant,
    lines: usize,
}

impl Log {
    fn elapsed(&self) -> String {
        format!("{:>6.2}s", self.start.elapsed().as_secs_f64())
    }

    fn event(&mut self, frame: &EventFrame) -> anyhow::Result<()> {
        self.lines += 1;
        let offset = frame.offset.map_or(String::new(), |offset| format!("#{offset}"));
        line(format_args!(
            "  {}  event  {} {offset} in {}  {}",
            self.elapsed(),
            frame.event,
            frame.room,
            frame.payload.as_str()
        ))
    }
}
