//! The commands of external workers, of many things at once and of occurrences, as people use them.

use serde_json::json;

use crate::cli::{Cli, file};
use crate::fixtures::{cluster, err, out};

fn tasks() -> String {
    let every = json!({"every": {"interval": "1s", "anchor": "2026-01-01T00:00:00Z"}});
    let pull = json!({"name": "pull", "action": {"pull": {}}, "rate_limit": {"rate": "1000/1s"}, "retention": "1day"});
    let tick = json!({
        "name": "tick",
        "action": {"pull": {}},
        "pool": "ticks",
        "schedule": every,
        "overlap": "skip",
        "start_deadline": "1h"
    });
    json!([pull, tick]).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_worked_on_step_by_step() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "tasks.json", &tasks());
    assert!(cli.says(&["task", "create", "-f", &path]).contains("created as"));
    assert!(cli.fails(&["task", "create", "-f", &path]).contains("2 of 2 were refused"));
    assert!(cli.says(&["task", "get", "pull"]).contains("spec.rate_limit.rate"));

    let asked = "{\"task\": \"pull\", \"input\": {\"n\" : 1.0e5}}\n{\"task\": \"nobody\"}\n";
    let made = cli.reads(&["run", "create", "-f", "-"], asked);
    assert!(!made.status.success() && err(&made).contains("1 of 2 were refused"), "{}", err(&made));
    assert!(out(&made).contains("not_found"), "{}", out(&made));

    let runs =
        cli.gives(&["work", "lease", "default", "--worker", "me", "--max", "5", "--lease", "5m", "--wait", "25s"]);
    let (id, fence) = (runs[0]["id"].as_str().unwrap(), runs[0]["fence"].to_string());
    assert_eq!(runs[0]["input"], json!({"n": 1.0e5}));
    assert!(cli.says(&["work", "heartbeat", id, "--fence", &fence]).starts_with("The lease holds until"));
    assert!(cli.fails(&["work", "heartbeat", id, "--fence", "0"]).contains("fenced"));
    let said = cli.says(&["work", "fail", id, "--fence", &fence, "--error", "no", "--delay", "0s"]);
    assert!(said.contains("is tried again"), "{said}");
    let runs = cli.gives(&["work", "lease", "default", "--wait", "25s"]);
    let fence = runs[0]["fence"].to_string();
    assert_eq!((runs[0]["id"].as_str(), &runs[0]["attempt"]), (Some(id), &json!(2)));
    assert!(cli.says(&["work", "release", id, "--fence", &fence]).contains(": queued"));
    let runs = cli.gives(&["work", "lease", "default", "--wait", "25s"]);
    let fence = runs[0]["fence"].to_string();
    let finish = ["work", "finish", id, "--fence", &fence, "--result", "{\"ok\":true}"];
    assert_eq!(cli.says(&finish), format!("Run {id}: succeeded.\n"));
    assert_eq!(cli.says(&finish), format!("Run {id}: succeeded.\n"), "a repeated report is answered alike");
    assert!(cli.says(&["work", "lease", "default"]).contains("FENCE"));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_can_be_taken_for_ever_and_occurrences_say_why() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    let folder = tempfile::tempdir().unwrap();
    cli.says(&["task", "apply", "-f", &file(&folder, "tasks.json", &tasks())]);
    let trigger = ["task", "trigger", "pull", "--dedupe-key", "k", "--dedupe-scope", "forever"];
    let first = cli.gives(&trigger);
    let id = first["run_id"].as_str().unwrap();
    cli.says(&["run", "cancel", id]);
    let again = cli.gives(&trigger);
    assert_eq!((again["run_id"].as_str(), &again["duplicate"]), (Some(id), &json!(true)));

    // The first tick waits for a worker, so that those after it find it active.
    let said = loop {
        let said = cli.says(&["task", "occurrences", "tick"]);
        if said.contains("overlap") && said.contains("queued") {
            break said;
        }
    };
    assert!(said.contains("a run of the task was active, and its policy allows no second one"), "{said}");
    assert!(said.contains("no worker has taken it yet"), "{said}");
    let upcoming = cli.gives(&["task", "occurrences", "tick", "--to", "2099-01-01T00:00:00Z", "-n", "3"]);
    assert_eq!(upcoming[0], json!({"at": "2099-01-01T00:00:00Z", "outcome": "upcoming"}));
    assert_eq!(upcoming.as_array().unwrap().len(), 3);
}
