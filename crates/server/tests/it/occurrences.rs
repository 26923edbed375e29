//! Windows of occurrences, wherever they lie: what is asked for is answered at once, and no more than that.

use std::time::{Duration, Instant};

use serde_json::json;
use switchboard_client::OccurrenceQuery;
use switchboard_model::Timestamp;
use switchboard_model::occurrence::Occurrence;
use switchboard_model::page::PageRequest;
use switchboard_testkit::Cluster;

use crate::fixtures::{create_task, event_task, on_both_databases};

on_both_databases! {
    windows_far_ahead_are_answered_at_once,
}

/// Many times what an answer takes on a slow machine; going through all days up to these windows takes minutes.
const AT_ONCE: Duration = Duration::from_secs(20);

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

async fn windows_far_ahead_are_answered_at_once(cluster: Cluster) {
    let cron = |expression: &str| json!({"cron": {"expression": expression, "zone": "America/New_York"}});
    let schedules =
        [cron("* * * * * *"), cron("30 2 * * *"), cron("0 0 29 2 *"), json!({"every": {"interval": "100ms"}})];
    for (n, schedule) in schedules.into_iter().enumerate() {
        let mut value = event_task(&format!("task{n}"), "lobby");
        value["schedule"] = schedule;
        let task = create_task(cluster.any(), value).await;
        for (from, to) in [
            ("1970-01-01T00:00:00Z", "9999-12-31T00:00:00Z"),
            ("9000-01-01T00:00:00Z", "9999-12-31T00:00:00Z"),
            ("9999-12-30T23:59:59Z", "9999-12-31T00:00:00Z"),
        ] {
            let query = OccurrenceQuery { from: Some(at(from)), to: Some(at(to)) };
            let asked = Instant::now();
            let page = cluster.any().list_occurrences(task.id, query, PageRequest { after: None, limit: 5 }).await;
            let took = asked.elapsed();
            let items = page.unwrap().items;
            assert!(took < AT_ONCE, "task{n} from {from} took {took:?}");
            assert!(items.len() <= 5, "{items:?}");
            let instants: Vec<Timestamp> = items.iter().map(|occurrence: &Occurrence| occurrence.at).collect();
            assert!(instants.is_sorted_by(|later, earlier| later > earlier), "newest first: {instants:?}");
            assert!(instants.iter().all(|instant| (at(from)..=at(to)).contains(instant)), "{instants:?}");
        }
    }
}
