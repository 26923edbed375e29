//! The commands about leases, once-keys and shared state.

use serde_json::json;

use crate::cli::Cli;
use crate::fixtures::cluster;

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_held_and_handed_on() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    let acquired =
        cli.gives(&["lease", "acquire", "backup", "--ttl", "1h", "--holder", "one", "--meta", r#"{"pid":7}"#]);
    let fence = acquired["lease"]["fence"].to_string();
    assert_eq!(acquired["acquired"], true);
    assert!(cli.fails(&["lease", "acquire", "backup"]).contains("backup is held by one for another"));
    assert!(cli.says(&["lease", "list"]).contains(r#"{"pid":7}"#));
    let held = ["--holder", "one", "--fence", fence.as_str()];
    assert!(cli.says(&[&["lease", "renew", "backup"][..], &held].concat()).starts_with("Renewed backup until"));
    assert!(cli.says(&["lease", "seize", "backup", "--holder", "two"]).contains("Seized backup as two"));
    assert!(cli.fails(&[&["lease", "release", "backup"][..], &held].concat()).contains("fenced"));
    let seized = cli.gives(&["lease", "get", "backup"]);
    let fence = seized["fence"].to_string();
    let released = cli.says(&["lease", "release", "backup", "--holder", "two", "--fence", &fence]);
    assert_eq!(released, "Released backup.\n");
    assert!(cli.fails(&["lease", "get", "backup"]).contains("lease"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_once_key_is_claimed_completed_and_consumed() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    let claim = ["once", "claim", "mail", "m-1", "--request", r#"{"to":"ann"}"#];
    let claimed = cli.gives(&claim);
    let fence = claimed["fence"].to_string();
    assert_eq!(claimed["outcome"], "new");
    assert!(cli.fails(&claim).contains("in_progress"));
    assert!(cli.fails(&["once", "claim", "mail", "m-1"]).contains("idempotency_mismatch"));
    let complete = ["once", "complete", "mail", "m-1", "--fence", &fence, r#"{"sent":true}"#];
    assert_eq!(cli.says(&complete), "Completed m-1.\n");
    assert_eq!(cli.says(&claim), "It was done before: {\"sent\":true}\n");
    assert_eq!(cli.gives(&["once", "consume", "mail", "m-1"])["result"], json!({"sent": true}));
    assert!(cli.fails(&["once", "get", "mail", "m-1"]).contains("once-key"));

    let lost = cli.gives(&["once", "claim", "mail", "m-2", "--lease", "1ms"]);
    let fence = lost["fence"].to_string();
    assert!(cli.says(&["once", "claim", "mail", "m-2"]).contains("unknown"));
    let taken = cli.gives(&["once", "take-over", "mail", "m-2", "--fence", &fence]);
    let fence = taken["fence"].to_string();
    assert_eq!(cli.says(&["once", "abandon", "mail", "m-2", "--fence", &fence]), "Gave up m-2.\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_stored_read_listed_and_deleted() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    let put = ["state", "put", "approvals/run/7", r#"{"by" : "ann"}"#, "--version", "0"];
    let written = cli.gives(&put);
    let version = written["version"].to_string();
    assert!(cli.fails(&put).contains("version_mismatch"));
    assert_eq!(cli.says(&["state", "get", "approvals/run/7"]), "{\"by\" : \"ann\"}\n");
    assert_eq!(cli.gives(&["state", "get", "approvals/run/7"])["version"], written["version"]);
    let piped = cli.says_to(&["state", "put", "approvals/run/8", "-", "--ttl", "1h"], "[1,\n2]\n");
    assert!(piped.starts_with("Stored approvals/run/8 as version"), "{piped}");
    let listed = cli.gives(&["state", "list", "approvals", "--prefix", "run/"]);
    assert_eq!((listed.as_array().unwrap().len(), &listed[1]["key"]), (2, &json!("run/8")));
    assert!(cli.says(&["state", "list", "approvals", "-n", "1"]).contains("run/7"));
    let delete = ["state", "delete", "approvals/run/7", "--version", &version];
    assert_eq!(cli.says(&delete), "Deleted approvals/run/7.\n");
    assert!(cli.fails(&["state", "get", "approvals/run/7"]).contains("there is no approvals/run/7"));
}
