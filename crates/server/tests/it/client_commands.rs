//! The commands that talk to a server, as a person and as a program use them.

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Command};

use serde_json::{Value, json};

use crate::cli::{Cli, file};
use crate::fixtures::{cluster, err, out, switchboard};

fn hello() -> String {
    json!({"name": "hello", "action": {"event": {"to": {"room": "lobby"}, "event": "hello"}}}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn rooms_are_made_filled_and_read() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    assert_eq!(cli.says(&["room", "create", "lobby", "--kind", "public", "--max-age", "1h"]), "Created room lobby.\n");
    assert_eq!(cli.gives(&["room", "get", "lobby"])["retention"]["max_age"], "1h");
    let first = cli.gives(&["publish", "lobby", "note", r#"{"b": 1.0e5}"#, "--msg-id", "m-1"]);
    assert_eq!((&first["msg_id"], &first["position"]["offset"]), (&json!("m-1"), &json!(1)));
    assert!(cli.says(&["publish", "lobby", "note", "--msg-id", "m-1"]).contains("earlier, as number 1"));
    let piped = cli.reads(&["publish", "lobby", "note", "-"], "[1,\n2]\n");
    assert!(out(&piped).contains("as number 2"), "{}", err(&piped));
    assert!(cli.says(&["publish", "lobby", "note", "--ephemeral"]).contains("to whoever is connected"));
    assert!(cli.says(&["publish", "--user", "ann", "note", "true"]).contains("as number 1"));

    let history = cli.gives(&["room", "history", "lobby"]);
    assert_eq!(history.as_array().unwrap().len(), 2);
    let table = cli.says(&["room", "history", "lobby", "--after", "0", "-n", "1"]);
    assert!(table.contains(r#"{"b": 1.0e5}"#) && !table.contains("[1,"), "{table}");
    assert_eq!(cli.gives(&["room", "list"])[0]["name"], "lobby");
    assert!(cli.says(&["room", "list"]).contains("public"));
    assert_eq!(cli.gives(&["instance", "list"]).as_array().unwrap().len(), 1);
    assert!(cli.says(&["instance", "list"]).contains("scheduler"));
    assert_eq!(cli.says(&["room", "delete", "lobby"]), "Deleted room lobby.\n");
    assert!(cli.fails(&["room", "get", "lobby"]).contains("room"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_created_run_and_explained() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    cli.says(&["room", "create", "lobby", "--kind", "public"]);
    let folder = tempfile::tempdir().unwrap();
    let created = cli.gives(&["task", "create", "-f", &file(&folder, "hello.json", &hello())]);
    let id = created["id"].as_str().unwrap();
    assert_eq!(cli.gives(&["task", "get", id]), cli.gives(&["task", "get", "hello"]));
    assert!(cli.says(&["task", "get", "hello"]).contains("spec.action.event.to.room"));
    assert!(cli.says(&["task", "list"]).contains("event hello to lobby"));
    let names: Vec<Value> =
        cli.gives(&["task", "list"]).as_array().unwrap().iter().map(|t| t["spec"]["name"].clone()).collect();
    assert!(names.contains(&json!("hello")), "{names:?}");
    assert_eq!(cli.gives(&["task", "pause", "hello"])["spec"]["is_active"], false);
    assert!(cli.says(&["task", "resume", "hello"]).contains("Resumed task hello"));

    let run = cli.gives(&["task", "trigger", "hello", "--input", r#"{"n":1}"#, "--wait", "30s"]);
    assert_eq!(run["state"], "succeeded");
    let run = run["id"].as_str().unwrap();
    assert_eq!(cli.gives(&["run", "list", "--task", "hello", "--state", "succeeded"])[0]["id"], run);
    assert!(cli.says(&["run", "list"]).contains(run));
    assert_eq!(cli.gives(&["run", "get", run])["input"]["n"], 1);
    assert!(cli.fails(&["run", "cancel", run]).contains("the run has ended"));
    assert!(cli.says(&["run", "retry", run]).contains("Queued run"));
    let waiting = cli.gives(&["task", "trigger", "hello", "--delay", "1h", "--dedupe-key", "k"]);
    assert!(cli.says(&["task", "trigger", "hello", "--dedupe-key", "k"]).contains("was active already"));
    let cancelled = cli.says(&["run", "cancel", waiting["run_id"].as_str().unwrap()]);
    assert!(cancelled.starts_with("Cancelled run"), "{cancelled}");

    let preview =
        ["task", "preview", "--cron", "30 2 * * *", "--zone", "Europe/Paris", "--from", "2027-03-27T00:00:00Z"];
    assert!(cli.says(&preview).contains("moved: its local time does not exist"));
    assert_eq!(cli.gives(&["task", "preview", "--every", "1h", "-n", "3"]).as_array().unwrap().len(), 3);
    assert!(cli.fails(&["task", "preview", "hello"]).contains("has no schedule"));
    assert_eq!(cli.gives(&["task", "skips", "hello"]), json!([]));
    cli.says(&["room", "delete", "lobby"]);
    assert!(cli.fails(&["task", "trigger", "hello", "--wait", "30s"]).contains("has failed: "));
    assert_eq!(cli.says(&["task", "delete", "hello"]), "Deleted task hello.\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_document_names_its_file_and_field_and_nothing_is_done() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let good = file(&folder, "good.json", &hello());
    let bad = file(
        &folder,
        "bad.yaml",
        "tasks:\n- name: other\n  schedule: {every: {interval: soon}}\n  action: {system: {function: sweep}}\n",
    );
    let error = cli.fails(&["task", "apply", "-f", &good, "-f", &bad]);
    assert!(error.contains("bad.yaml: task 1: ") && error.contains("interval"), "{error}");
    assert!(cli.fails(&["task", "apply", "-f", &good, "-f", &good]).contains("task 1: name: hello was defined before"));
    assert!(cli.fails(&["task", "apply", "-f", "none.toml"]).contains("cannot read none.toml"));
    assert!(cli.fails(&["task", "get", "hello"]).contains("not_found"));
    let dry = cli.reads(&["task", "apply", "-f", "-", "--dry-run"], &hello());
    assert_eq!(out(&dry), "created    hello (dry run)\n", "{}", err(&dry));
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_as_code_are_created_updated_or_left() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let tasks = |interval: &str| {
        let every = format!(
            "tasks:\n- name: shop/tick\n  schedule: {{every: {{interval: {interval}}}}}\n  action: {{system: {{function: sweep}}}}\n"
        );
        file(&folder, "tasks.yaml", &every)
    };
    let path = tasks("1h");
    let (apply, dry) = (["task", "apply", "-f", &path], ["task", "apply", "-f", &path, "--dry-run"]);
    assert_eq!(cli.says(&dry), "created    shop/tick (dry run)\n");
    assert_eq!(cli.says(&apply), "created    shop/tick\n");
    let first = cli.gives(&["task", "get", "shop/tick"]);
    assert_eq!(cli.says(&apply), "unchanged  shop/tick\n");
    assert_eq!(cli.gives(&["task", "get", "shop/tick"]), first);
    tasks("2h");
    assert_eq!(cli.says(&dry), "updated    shop/tick (dry run)\n");
    assert_eq!(cli.gives(&["task", "get", "shop/tick"]), first);
    let applied = cli.gives(&apply);
    assert_eq!((&applied[0]["change"], &applied[0]["task"]["id"]), (&json!("updated"), &first["id"]));
    assert_eq!(applied[0]["task"]["spec"]["schedule"]["every"]["interval"], "2h");
    assert_eq!(cli.says(&apply), "unchanged  shop/tick\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_made_over_http_when_a_server_is_named() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    let made = cli.gives(&["api-key", "create", "--name", "reader", "--scope", "tasks:read", "--ttl", "1h"]);
    let (id, secret) = (made["key"]["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    let reader = cli.with_credential(secret);
    assert!(reader.says(&["task", "list"]).contains("NAME"));
    let denied = reader.fails(&["room", "create", "lobby"]);
    assert!(denied.contains("rooms:write") && denied.contains("use a key that holds the scope"), "{denied}");
    assert!(cli.says(&["api-key", "list"]).contains("reader"));
    assert_eq!(cli.says(&["api-key", "revoke", id]), format!("Revoked {id}.\n"));
    let revoked = reader.fails(&["task", "list"]);
    assert!(revoked.contains("revoked, has expired") && !revoked.contains(secret), "{revoked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_say_what_to_do() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    let without_key = Cli { env: cli.env[..1].to_vec() };
    assert!(without_key.fails(&["run", "list"]).contains("give an API key with --api-key or SWITCHBOARD_API_KEY"));
    let nobody = Cli { env: vec![("SWITCHBOARD_URL", "http://127.0.0.1:1".to_owned())] };
    assert!(nobody.fails(&["run", "list"]).contains("is the server running there?"));
    assert!(cli.fails(&["run", "list", "--url", "127.0.0.1:1"]).contains("--url or SWITCHBOARD_URL"));
    assert!(cli.fails(&["publish", "nowhere", "note"]).contains("room"));
    assert!(cli.fails(&["publish", "lobby", "note", "{"]).contains("the payload is not usable"));
    let fields = cli.fails(&["room", "create", "lobby", "--max-count", "0"]);
    assert!(fields.contains("retention.max_count: must be at least 1"), "{fields}");
    assert!(cli.fails(&["tail", "nowhere"]).contains("cannot join nowhere"));
    let usage = switchboard(&["run", "get", "no-id"], &cli.env());
    assert_eq!(usage.status.code(), Some(2), "{}", err(&usage));
}

/// Reads the next event that `tail --json` prints.
fn next(lines: &mut std::io::Lines<BufReader<ChildStdout>>) -> Value {
    serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_goes_on_over_a_restart_and_ends_on_an_interrupt() {
    let mut cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    cli.says(&["room", "create", "lobby", "--kind", "private"]);
    cli.says(&["publish", "lobby", "first", "[1,\n2]".replace('\n', " ").as_str()]);
    let mut tail = cli.piped(&["tail", "lobby", "--user", "ann", "--since", "earliest", "--json"]);
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    assert_eq!(next(&mut lines)["event"], "first");
    cluster.restart(0).await;
    cli.says(&["publish", "lobby", "second"]);
    cli.says(&["publish", "--user", "ann", "third"]);
    let (one, other) = (next(&mut lines), next(&mut lines));
    let mut events = [one["event"].as_str().unwrap(), other["event"].as_str().unwrap()];
    events.sort_unstable();
    assert_eq!(events, ["second", "third"]);
    assert!(Command::new("kill").args(["-INT", &tail.id().to_string()]).status().unwrap().success());
    assert!(tail.wait().unwrap().success());
    assert!(lines.next().is_none());
    let counted = cli.says(&["tail", "lobby", "--since", "earliest", "-n", "2"]);
    assert_eq!(counted.lines().count(), 2, "{counted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_goes_away_is_no_failure() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    for arguments in
        [&["task", "list"][..], &["instance", "list", "--json"], &["completions", "bash"], &["reference", "cli"]]
    {
        let mut child = cli.piped(arguments);
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {}", err(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_sockets_are_listed_shown_in_rooms_and_kicked() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    cli.says(&["room", "create", "lobby", "--kind", "public"]);
    let ann = cluster.socket(0, "ann").await;
    ann.join_shown(&"lobby".parse().unwrap(), switchboard_model::wire::op::Since::default()).await.unwrap();
    let id = ann.hello().conn_id.to_string();
    assert_eq!(cli.gives(&["session", "list"])[0]["id"], id);
    assert!(cli.says(&["session", "list", "--user", "ann"]).contains(&id));
    assert_eq!(cli.gives(&["session", "list", "--user", "bob"]), json!([]));
    assert!(cli.says(&["room", "presence", "lobby"]).contains("ann"));
    assert_eq!(cli.says(&["session", "kick", &id]), format!("Kicked {id}.\n"));
    assert!(cli.fails(&["session", "kick", "0190a0b0-0000-7000-8000-000000000000"]).contains("socket"));
}
