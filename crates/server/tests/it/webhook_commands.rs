//! The commands about webhooks: their secrets, and a delivery that is printed for a shell.

use std::process::Command;

use serde_json::json;

use crate::cli::{Cli, file};
use crate::fixtures::{cluster, err, out, switchboard};

/// A body that a careless quotation would not survive.
const BODY: &str = r#"{"it's": "$HOME `x` \\ \"y\"\ud800"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_the_secret_triggers_the_task() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    cli.says(&["room", "create", "lobby"]);
    let folder = tempfile::tempdir().unwrap();
    let task = json!({"name": "shop/paid", "action": {"event": {"to": {"room": "lobby"}, "event": "paid"}}});
    let task = file(&folder, "paid.json", &task.to_string());
    cli.says(&["task", "create", "-f", &task]);

    let made = cli.command(&["webhook", "add", "shop/paid", "--ttl", "1h"]).output().unwrap();
    let (secret, note) = (out(&made), err(&made));
    assert!(secret.starts_with("whsec_") && note.contains("/hooks/shop"), "{secret}{note}");
    let curl = ["webhook", "curl", "shop/paid", "--secret", secret.trim(), "--id", "msg_1", "--body", BODY];
    let printed = cli.command(&curl).output().unwrap();
    assert!(err(&printed).starts_with("It is good until 2"), "{}", err(&printed));
    let sent = sh(&format!("{} --silent", out(&printed)));
    let run = sent["run_id"].as_str().unwrap();
    assert_eq!(cli.gives(&["task", "trigger", "shop/paid", "--wait", "30s"])["state"], "succeeded");
    assert!(cli.says(&["run", "get", run]).contains("webhook"));
    assert!(cli.says(&["room", "history", "lobby"]).contains(BODY));
    assert_eq!(sh(&format!("{} --silent", out(&printed)))["duplicate"], true);

    let theirs = format!("whsec_{}", "A".repeat(32));
    let taken = cli.says_to(&["webhook", "add", "shop/paid", "--secret-stdin", "--json"], &format!("{theirs}\n"));
    let taken: serde_json::Value = serde_json::from_str(&taken).unwrap();
    assert_eq!(taken["secret"], json!(theirs));
    let environment = Cli { env: [cli.env.clone(), vec![("SWITCHBOARD_WEBHOOK_SECRET", theirs)]].concat() };
    let body = file(&folder, "body.json", "{\"a\":\n1}");
    let signed = environment.gives(&["webhook", "curl", "shop/paid", "--body", &format!("@{body}")]);
    assert_eq!(signed["body"], "{\"a\":\n1}");
    assert!(sh(&environment.says(&["webhook", "curl", "shop/paid"]))["run_id"].is_string());

    let signs = cli.command(&["webhook", "add", "shop/paid", "--purpose", "sign"]).output().unwrap();
    assert!(out(&signs).starts_with("whsec_") && err(&signs).contains("what the task sends"), "{}", err(&signs));
    let foreign =
        Cli { env: [cli.env.clone(), vec![("SWITCHBOARD_WEBHOOK_SECRET", out(&signs).trim().into())]].concat() };
    assert_eq!(sh(&foreign.says(&["webhook", "curl", "shop/paid"]))["status"], 401, "it serves its own purpose only");
    let misused = cli.command(&["webhook", "add", "shop/paid", "--purpose", "both"]).output().unwrap();
    assert_eq!(misused.status.code(), Some(2));
    assert!(err(&misused).contains("unknown purpose"), "{}", err(&misused));

    let listed = cli.gives(&["webhook", "list", "shop/paid"]);
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert!(cli.says(&["webhook", "list", "shop/paid"]).contains("sign"));
    assert!(cli.says(&["webhook", "list", "shop/paid"]).contains("EXPIRES"));
    let id = taken["webhook_secret"]["id"].as_str().unwrap();
    assert_eq!(cli.says(&["webhook", "delete", "shop/paid", id]), format!("Deleted webhook secret {id}.\n"));
    assert_eq!(sh(&environment.says(&["webhook", "curl", "shop/paid"]))["status"], 401);
    assert!(cli.fails(&["webhook", "list", "nothing"]).contains("task"));
}

#[test]
fn nothing_is_signed_with_what_is_no_secret() {
    let odd = switchboard(&["webhook", "curl", "paid", "--secret", "hunter2"], &[]);
    assert!(err(&odd).contains("must be whsec_") && !err(&odd).contains("hunter2"), "{}", err(&odd));
    let odd = switchboard(&["webhook", "curl", "paid", "--secret", "whsec_", "--body", "{"], &[]);
    assert!(err(&odd).contains("the body is not usable"), "{}", err(&odd));
}

/// Runs a printed command as a person does, and reads the answer.
fn sh(command: &str) -> serde_json::Value {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", out(&output), err(&output)))
}
