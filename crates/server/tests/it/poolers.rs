//! Replicas behind a transaction pooler: they say that they poll, and listen once they know a way past it.

use serde_json::Value;
use switchboard_model::wire::op::Since;
use switchboard_testkit::{Cluster, ledger, wait_until};

use crate::fixtures::{cluster, create_room, event, next_events, room};

/// Reads what a replica says about itself: how hints arrive, by its probe and by its metrics, and how many have arrived.
async fn hints(cluster: &Cluster, index: usize) -> (String, f64, f64) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let probe = reqwest::get(format!("{}/healthz/ready", cluster.client(index).base_url())).await.unwrap();
    let probe: Value = probe.json().await.unwrap();
    let metrics = cluster.client(index).metrics().await.unwrap();
    let metric = |name: &str| -> f64 {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    };
    let arrived = metric("switchboard_feed_hints_received_total");
    (probe["hints"].as_str().unwrap_or_default().to_owned(), metric("switchboard_feed_listening"), arrived)
}

/// Publishes on one replica what is awaited on the other.
async fn events_cross(cluster: &Cluster) {
    create_room(cluster.client(0), "lobby").await;
    let mut socket = cluster.socket(1, "ann").await;
    socket.handle().join(&room("lobby"), Since::default()).await.unwrap();
    for n in 0..20 {
        cluster.client(0).publish(&room("lobby"), &event("note", serde_json::json!(n))).await.unwrap();
    }
    ledger::positions(&next_events(&mut socket, 20).await, 1..=20).unwrap();
}

const POLLS: &str = "behind a transaction pooler without database.direct_url: the feed is polled";

#[tokio::test(flavor = "multi_thread")]
async fn without_a_way_past_the_pooler_replicas_poll_and_say_so() {
    let cluster = cluster(2).pooled().await;
    events_cross(&cluster).await;
    for index in 0..2 {
        assert_eq!(hints(&cluster, index).await, ("polling".to_owned(), 0.0, 0.0));
        assert!(cluster.logs(index).contains(POLLS));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_way_past_the_pooler_hints_come_back() {
    let cluster = cluster(2).pooled_with_direct_url().await;
    for index in 0..2 {
        wait_until("the listener", async || {
            let (mode, gauge, _) = hints(&cluster, index).await;
            if mode == "listening" && gauge == 1.0 { Ok(()) } else { Err((mode, gauge)) }
        })
        .await;
        assert!(!cluster.logs(index).contains(POLLS));
    }
    events_cross(&cluster).await;
    let (_, _, arrived) = hints(&cluster, 1).await;
    assert!(arrived > 0.0, "{arrived}");
}
