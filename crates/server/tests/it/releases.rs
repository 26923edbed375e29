//! Two releases on one database: the newer one has migrated, the older one goes on and comes back.

use std::collections::BTreeSet;

use switchboard_model::page::PageRequest;
use switchboard_model::run::RunState;
use switchboard_model::span::Span;
use switchboard_testkit::{ledger, wait_until};

use crate::fixtures::{
    cluster, create_room, create_task, ended, event_task, gated_task, runs, skips, succeeded, trigger,
};

/// What a next release adds, in the ways that the rule of migrations allows.
const NEXT: &str = "
    ALTER TABLE runs ADD COLUMN colour text NOT NULL DEFAULT 'blue';
    CREATE TABLE colours (name text PRIMARY KEY);
    INSERT INTO colours VALUES ('blue');
    CREATE INDEX runs_by_colour ON runs (colour) WHERE state = 'queued';";
const NEXT_VERSION: i64 = 9001;

#[tokio::test(flavor = "multi_thread")]
async fn an_older_and_a_newer_release_share_the_work_and_the_older_one_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(format!("{NEXT_VERSION}_add_colour.sql")), NEXT).unwrap();
    let lease = Span::from_secs(2);
    let mut cluster = cluster(1).lease(lease).env("SWITCHBOARD_SCHEDULER__PERMITS", "2").await;
    let client = cluster.client(0).clone();
    create_room(&client, "lobby").await;
    let mut value = event_task("tick", "lobby");
    value["schedule"] = serde_json::json!({"every": {"interval": "1s"}});
    let tick = create_task(&client, value).await;
    succeeded(&client, tick.id, 2).await;

    let newer = cluster.add_with(&[("SWITCHBOARD_TEST_MIGRATIONS", folder.path().to_str().unwrap())]).await;
    let listed = client.list_instances(PageRequest::default()).await.unwrap().items;
    let versions: BTreeSet<_> = listed.iter().map(|instance| instance.schema_version).collect();
    assert!(versions.len() == 2 && versions.last() == Some(&NEXT_VERSION), "{versions:?}");
    assert_eq!(cluster.database().count("SELECT count(*) FROM switchboard.colours").await, 1);

    // Each of them holds runs that end when the test says so.
    let held = create_task(&client, gated_task("held")).await;
    let mut triggered = Vec::new();
    let on_both = async |triggered: &[_]| {
        wait_until("a run on each release", async || {
            let runs = runs(&client, held.id).await;
            let running = runs.iter().filter(|run| run.state == RunState::Running && triggered.contains(&run.id));
            let holders: BTreeSet<_> = running.filter_map(|run| run.leased_by.clone()).collect();
            if holders.len() == 2 { Ok(()) } else { Err(runs) }
        })
        .await;
    };
    for _ in 0..3 {
        triggered.push(trigger(&client, held.id).await);
    }
    on_both(&triggered).await;

    cluster.restart(0).await;
    assert!(cluster.logs(0).contains("newer than"), "the older one says what it met");
    on_both(&triggered).await;
    assert!(!cluster.logs(newer).contains("newer than"));

    cluster.open_gate();
    for run in triggered {
        assert_eq!(ended(&client, run).await.state, RunState::Succeeded);
    }
    let before = runs(&client, tick.id).await.len();
    let ticks = succeeded(&client, tick.id, before + 2).await;
    let due: Vec<_> = ticks.iter().filter_map(|run| run.scheduled_for).collect();
    let window = *due.iter().min().unwrap()..=*due.iter().max().unwrap();
    let skips = skips(&client, tick.id).await;
    ledger::occurrences(tick.spec.schedule.as_ref().unwrap(), window, &ticks, &skips).unwrap();
}
