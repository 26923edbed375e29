//! Secrets in what tasks send, and the commands about them.

use std::process::Command;

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use serde_json::json;
use switchboard_client::Client;
use switchboard_model::run::{Run, RunState};
use switchboard_model::secret::SecretValue;
use switchboard_model::wire::secret::SecretRequest;
use switchboard_testkit::{Cluster, ClusterBuilder};

use crate::cli::{Cli, file};
use crate::fixtures::{cluster, create_task, ended, err, out, trigger};
use crate::receiver::{Received, Receiver};

const SECRET: &str = "s3cr3t \"quoted\" value";

/// Lets requests go to this machine, which they may not by default.
fn allowing(builder: ClusterBuilder) -> ClusterBuilder {
    builder.env("SWITCHBOARD_OUTBOUND__ALLOW", "127.0.0.1/32")
}

async fn set(client: &Client, value: &str) {
    let request = SecretRequest { value: SecretValue::new(value), version: None };
    client.put_secret(&"crm.key".parse().unwrap(), &request).await.unwrap();
}

/// Repeats what came, as a receiver does that is not careful.
fn echo(request: &Received) -> axum::response::Response {
    let told = format!("{} {}", request.header("authorization"), request.header("x-plain"));
    let body = json!({"headers": {"x": told, "kept": "plain"}}).to_string();
    let status = if request.path == "/fine" { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    (status, body).into_response()
}

async fn run(client: &Client, receiver: &Receiver, name: &str, path: &str) -> Run {
    let headers =
        json!({"authorization": {"secret": "crm.key", "before": "Bearer "}, "x-plain": {"secret": "crm.key"}});
    let action = json!({"http": {"url": receiver.url(path), "headers": headers}});
    let task = json!({"name": name, "action": action, "max_attempts": 1});
    let task = create_task(client, task).await;
    ended(client, trigger(client, task.id).await).await
}

async fn a_secret_is_sent_and_neither_kept_nor_shown(cluster: Cluster) {
    let receiver = Receiver::answering(echo).await;
    let client = cluster.any();
    let missing = run(client, &receiver, "missing", "/fine").await;
    assert_eq!(missing.state, RunState::Dead);
    assert!(missing.error.unwrap().contains("there is no secret crm.key"));
    assert!(receiver.received().is_empty(), "nothing was sent without it");

    for (value, path, state) in [(SECRET, "/fine", RunState::Succeeded), ("the-next-value", "/bad", RunState::Failed)] {
        set(client, value).await;
        let run = run(client, &receiver, path.trim_start_matches('/'), path).await;
        assert_eq!(run.state, state, "{:?}", run.error);
        let sent = receiver.received().pop().unwrap();
        assert_eq!(sent.header("authorization"), format!("Bearer {value}"), "the value of the time of the request");
        let kept = run.result.map_or_else(|| run.error.unwrap(), |result| result.as_str().to_owned());
        assert!(kept.contains("[redacted]") && kept.contains("plain"), "{kept}");
        let quoted = json!(value).to_string();
        assert!(!kept.contains(value) && !kept.contains(quoted.trim_matches('"')), "{kept}");
    }
    for index in 0..cluster.size() {
        assert!(!cluster.logs(index).contains("s3cr3t") && !cluster.logs(index).contains("the-next-value"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_sent_and_neither_kept_nor_shown_on_sqlite() {
    a_secret_is_sent_and_neither_kept_nor_shown(allowing(cluster(1).sqlite()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_sent_and_neither_kept_nor_shown_on_postgres() {
    a_secret_is_sent_and_neither_kept_nor_shown(allowing(cluster(2)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_take_a_value_from_a_file_or_standard_input_only() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let value = file(&folder, "value", "from-a-file\r\n");
    assert_eq!(cli.says(&["secret", "set", "crm.key", "--value-file", &value]), "Set secret crm.key, version 1.\n");
    assert_eq!(
        cli.says_to(&["secret", "set", "crm.key", "--value-stdin"], "piped\n"),
        "Set secret crm.key, version 2.\n"
    );
    let on_the_line = cli.command(&["secret", "set", "crm.key", "hunter2-hunter2"]).output().unwrap();
    assert_eq!(on_the_line.status.code(), Some(2), "others see what stands on a command line");
    assert!(cli.fails(&["secret", "set", "crm.key"]).contains("--value-stdin or --value-file"));
    let stale = cli.reads(&["secret", "set", "crm.key", "--value-stdin", "--if-version", "1"], "other");
    assert!(err(&stale).contains("has version 2 now"), "{}", err(&stale));

    assert_eq!(cli.gives(&["secret", "list"])[0]["version"], 2);
    assert!(cli.says(&["secret", "list"]).contains("crm.key"));
    assert!(cli.says(&["secret", "keys"]).contains("secrets"));
    assert_eq!(cli.gives(&["secret", "keys"])["keys"][0]["stale"], 0);
    let done = cli.says(&["secret", "rewrap"]);
    assert_eq!(done, "Brought 0 values under the current key. No other key is in use.\n");
    assert!(cli.fails(&["secret", "rewrap", "--to", "other"]).contains("let other be the first of secrets.keys"));
    assert_eq!(cli.says(&["secret", "delete", "crm.key"]), "Deleted secret crm.key.\n");
    assert!(cli.fails(&["secret", "delete", "crm.key"]).contains("no such secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_the_guide_works() {
    let receiver = Receiver::answering(|_| "thanks".into_response()).await;
    let cluster = allowing(cluster(1).sqlite()).await;
    let cli = Cli::of(&cluster);
    let guide = include_str!("../../../../docs/guides/secrets.md");
    let example = guide.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let script = example.replace("https://crm.example", receiver.url("").trim_end_matches('/'));
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_switchboard"));
    let path = format!("{}:/usr/bin:/bin", binary.parent().unwrap().display());
    let mut shell = Command::new("sh");
    let shell = shell.args(["-e", "-c", &script]).env_clear().envs(cli.env()).env("PATH", path);
    let output = shell.env("CRM_KEY", "key-of-the-crm").output().unwrap();
    assert!(output.status.success(), "{}{}", out(&output), err(&output));
    let [sent] = &receiver.received()[..] else { panic!("one request: {:?}", receiver.received()) };
    assert_eq!(sent.header("authorization"), "Bearer key-of-the-crm");
    assert!(!out(&output).contains("key-of-the-crm"), "{}", out(&output));
}
