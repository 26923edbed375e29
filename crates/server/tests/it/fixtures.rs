//! What the end-to-end tests are made of.

use std::process::{Command, Output, Stdio};

use switchboard_client::{Client, RunQuery, Socket, SocketEvent, items};
use switchboard_model::identity::RoomName;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{MAX_PAGE, PageRequest};
use switchboard_model::room::{Retention, RoomKind};
use switchboard_model::run::{Run, RunState, SkipRange};
use switchboard_model::task::{Task, TaskSpec};
use switchboard_model::wire::frame::EventFrame;
use switchboard_model::wire::rest::{PublishRequest, RoomRequest, TriggerRequest};
use switchboard_testkit::{Cluster, ClusterBuilder, wait_until};

use futures_util::TryStreamExt as _;

/// Runs each case on one SQLite process and on two PostgreSQL replicas, in the scene that a function sets around them.
macro_rules! on_both_databases {
    (in $scene:path; $($case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case($scene(crate::fixtures::cluster(1).sqlite()).await).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case($scene(crate::fixtures::cluster(2)).await).await;
            })+
        }
    };
    ($($case:ident),+ $(,)?) => {
        crate::fixtures::on_both_databases! { in std::future::IntoFuture::into_future; $($case),+ }
    };
}
pub(crate) use on_both_databases;

/// Runs each case as [`on_both_databases`] does, and on two replicas that know their database by a transaction pooler
/// alone: they cannot listen, and no two of their transactions need to have one session. Cases that wait for thousands of
/// events in turn would take minutes there.
macro_rules! on_every_database {
    ($($case:ident),+; but not pooled: $($long:ident),+ $(,)?) => {
        crate::fixtures::on_both_databases! { $($long,)+ $($case),+ }
        crate::fixtures::on_every_database! { pooled: $($case),+ }
    };
    ($($case:ident),+ $(,)?) => {
        crate::fixtures::on_both_databases! { $($case),+ }
        crate::fixtures::on_every_database! { pooled: $($case),+ }
    };
    (pooled: $($case:ident),+) => {

        mod pooled {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::fixtures::cluster(2).pooled().await).await;
            })+
        }
    };
}
pub(crate) use on_every_database;

/// Describes the binary with its own variables only; standard input is empty.
pub(crate) fn command(arguments: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchboard"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SWITCHBOARD_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).envs(env.iter().copied()).stdin(Stdio::null());
    command
}

/// Runs the binary to its end.
pub(crate) fn switchboard(arguments: &[&str], env: &[(&str, &str)]) -> Output {
    command(arguments, env).output().unwrap()
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Describes a cluster of the server under test.
pub(crate) fn cluster(size: usize) -> ClusterBuilder {
    Cluster::start(size).binary(env!("CARGO_BIN_EXE_switchboard"))
}

pub(crate) fn room(name: &str) -> RoomName {
    name.parse().unwrap()
}

pub(crate) fn json(value: serde_json::Value) -> JsonText {
    JsonText::parse(value.to_string()).unwrap()
}

/// Reads a definition from its JSON form.
pub(crate) fn spec(value: serde_json::Value) -> TaskSpec {
    // Through text: a payload is kept verbatim, which a JSON tree cannot do.
    serde_json::from_str(&value.to_string()).unwrap()
}

/// A task that publishes an event of its own name to a room.
pub(crate) fn event_task(name: &str, room: &str) -> serde_json::Value {
    serde_json::json!({"name": name, "action": {"event": {"to": {"room": room}, "event": name}}})
}

/// A task whose runs take a second and a half.
pub(crate) fn slow_task(name: &str) -> serde_json::Value {
    serde_json::json!({"name": name, "action": {"system": {"function": "test.wait"}}})
}

/// A task whose runs end when the test opens the gate, and not before. Attempts never run out.
pub(crate) fn gated_task(name: &str) -> serde_json::Value {
    serde_json::json!({"name": name, "action": {"system": {"function": "test.gate"}}, "max_attempts": 1000})
}

pub(crate) async fn create_room(client: &Client, name: &str) {
    let request = RoomRequest { name: room(name), kind: RoomKind::Public, retention: Retention::default() };
    client.create_room(&request).await.unwrap();
}

pub(crate) async fn create_task(client: &Client, value: serde_json::Value) -> Task {
    client.create_task(&spec(value)).await.unwrap()
}

pub(crate) async fn trigger(client: &Client, task: TaskId) -> RunId {
    client.trigger_task(task, &TriggerRequest::default()).await.unwrap().run_id
}

pub(crate) fn event(name: &str, payload: serde_json::Value) -> PublishRequest {
    PublishRequest { event: name.parse().unwrap(), payload: json(payload), msg_id: None, ephemeral: false }
}

/// Reads all runs of a task.
pub(crate) async fn runs(client: &Client, task: TaskId) -> Vec<Run> {
    let read = |page| {
        let client = client.clone();
        async move { client.list_runs(RunQuery { task_id: Some(task), state: None }, page).await }
    };
    items(read).try_collect().await.unwrap()
}

/// Reads all skipped ranges of a task.
pub(crate) async fn skips(client: &Client, task: TaskId) -> Vec<SkipRange> {
    client.list_skips(task, PageRequest { after: None, limit: MAX_PAGE }).await.unwrap().items
}

/// Reads the message ids of all events of the lobby, checking that no position is missing.
pub(crate) async fn all_events(client: &Client) -> Vec<String> {
    let mut messages = Vec::new();
    loop {
        let after = i64::try_from(messages.len()).unwrap();
        let page = client.history(&room("lobby"), after, 500).await.unwrap();
        if page.events.is_empty() {
            assert_eq!(page.top, after);
            return messages;
        }
        for event in page.events {
            messages.push(event.msg_id);
            assert_eq!(event.offset, i64::try_from(messages.len()).unwrap());
        }
    }
}

/// Waits until a run is under way.
pub(crate) async fn started(client: &Client, run: RunId) -> Run {
    wait_until("the start of a run", async || {
        let run = client.get_run(run).await.map_err(|error| error.to_string())?;
        if run.state == RunState::Running { Ok(run) } else { Err(format!("{:?}", run.state)) }
    })
    .await
}

/// Waits until a replica whose name begins so holds runs of a task, and returns them.
pub(crate) async fn held_by(client: &Client, task: TaskId, prefix: &str) -> Vec<RunId> {
    wait_until("runs on one replica", async || {
        let runs = runs(client, task).await;
        let held = runs.iter().filter(|run| run.state == RunState::Running && is_on(run, prefix));
        let held: Vec<RunId> = held.map(|run| run.id).collect();
        if held.is_empty() { Err(runs) } else { Ok(held) }
    })
    .await
}

/// Tells whether a replica whose name begins so was the last to lease a run.
pub(crate) fn is_on(run: &Run, prefix: &str) -> bool {
    run.leased_by.as_ref().is_some_and(|by| by.as_str().starts_with(prefix))
}

/// Waits until a run has ended.
pub(crate) async fn ended(client: &Client, run: RunId) -> Run {
    wait_until("the end of a run", async || {
        let run = client.get_run(run).await.map_err(|error| error.to_string())?;
        if run.state.is_terminal() { Ok(run) } else { Err(format!("{:?}", run.state)) }
    })
    .await
}

/// Waits until `count` runs of a task have succeeded, and returns all its runs.
pub(crate) async fn succeeded(client: &Client, task: TaskId, count: usize) -> Vec<Run> {
    wait_until("successful runs", async || {
        let runs = runs(client, task).await;
        let done = runs.iter().filter(|run| run.state == RunState::Succeeded).count();
        if done >= count { Ok(runs) } else { Err(format!("{done} of {count}")) }
    })
    .await
}

/// Waits for the next event on a socket.
pub(crate) async fn next_event(socket: &mut Socket) -> EventFrame {
    loop {
        match socket.next().await {
            Some(SocketEvent::Event(frame)) => return frame,
            Some(SocketEvent::Closed { code, reason }) => panic!("closed: {code} {reason}"),
            Some(_) => {}
            None => panic!("the socket ended"),
        }
    }
}

/// Waits for `count` events on a socket.
pub(crate) async fn next_events(socket: &mut Socket, count: usize) -> Vec<EventFrame> {
    let mut events = Vec::with_capacity(count);
    while events.len() < count {
        events.push(next_event(socket).await);
    }
    events
}
