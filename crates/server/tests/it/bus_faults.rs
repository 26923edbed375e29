//! The bus beside cut sockets, killed replicas and lost listeners: every client sees every event once, in order.

use std::time::Duration;

use serde_json::json;
use switchboard_model::wire::op::Since;
use switchboard_testkit::proxy::{Ending, Traffic};
use switchboard_testkit::{BusLoad, Cluster, ClusterBuilder, ledger};
use tokio::time::{Instant, interval, sleep};

use crate::fixtures::{cluster, create_room, event, next_events, room};

async fn every_client_sees_every_event(cluster: ClusterBuilder) {
    let mut cluster = cluster.await;
    let load =
        BusLoad { clients: 30, rooms: 10, rooms_per_client: 3, rate: 100, duration: Duration::from_secs(15), seed: 7 };
    let report = load.run(&mut cluster).await.unwrap();
    assert!(report.published > 100 && report.cuts > 0 && report.kills > 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_sees_every_event_once_and_in_order() {
    every_client_sees_every_event(cluster(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_sees_every_event_once_and_in_order_without_notify() {
    every_client_sees_every_event(cluster(3).polling()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_sees_every_event_once_and_in_order_behind_a_pooler() {
    every_client_sees_every_event(cluster(3).pooled()).await;
}

/// Publishes an event every 50 ms on one replica while faults strike the listener of the other.
async fn events_cross_while(cluster: &Cluster, time: Duration, faults: impl Future<Output = ()>) {
    create_room(cluster.client(0), "lobby").await;
    let mut socket = cluster.socket(1, "ann").await;
    socket.handle().join(&room("lobby"), Since::default()).await.unwrap();
    let publishing = async {
        let (mut clock, end) = (interval(Duration::from_millis(50)), Instant::now() + time);
        let mut top = 0;
        while Instant::now() < end {
            clock.tick().await;
            let published = cluster.client(0).publish(&room("lobby"), &event("note", json!(top))).await.unwrap();
            top = published.position.unwrap().offset;
        }
        top
    };
    let (top, ()) = tokio::join!(publishing, faults);
    let events = next_events(&mut socket, usize::try_from(top).unwrap()).await;
    ledger::positions(&events, 1..=top).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_is_killed_and_reset_again_and_again_loses_nothing() {
    let cluster = cluster(2).listens_through_proxy(1).await;
    let faults = async {
        for n in 0..5 {
            // The pause is the fault model, not a wait for anything.
            sleep(Duration::from_secs(2)).await;
            if n % 2 == 0 {
                cluster.proxy(1).end_all(Ending::Reset);
            } else {
                cluster
                    .database()
                    .execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                         WHERE datname = current_database() AND application_name LIKE '% listener'",
                    )
                    .await;
            }
        }
    };
    events_cross_while(&cluster, Duration::from_secs(11), faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_in_a_black_hole_loses_nothing() {
    let cluster = cluster(2).listens_through_proxy(1).await;
    let faults = async {
        // Some events come while the listener works.
        sleep(Duration::from_secs(1)).await;
        cluster.proxy(1).set(Traffic::Swallowed);
        // How long the outage lasts.
        sleep(Duration::from_secs(8)).await;
        cluster.proxy(1).set(Traffic::Flows);
    };
    events_cross_while(&cluster, Duration::from_secs(10), faults).await;
}

/// Publishes and pauses before the commit.
const PAUSES: &str = "SELECT switchboard.publish('lobby', 'note', '1'), pg_sleep(random() * 0.05)";

/// Publishes, pauses, and thinks better of it.
const GIVES_UP: &str = "
    DO $$
    BEGIN
        PERFORM switchboard.publish('lobby', 'note', '-2'), pg_sleep(random() * 0.05);
        RAISE EXCEPTION 'no';
    EXCEPTION WHEN raise_exception THEN NULL;
    END
    $$";

#[tokio::test(flavor = "multi_thread")]
async fn applications_that_pause_roll_back_and_stand_idle_lose_and_stall_nothing() {
    let cluster = cluster(2).await;
    create_room(cluster.client(0), "lobby").await;
    let mut socket = cluster.socket(1, "ann").await;
    socket.handle().join(&room("lobby"), Since::default()).await.unwrap();
    let idle = cluster.database().hold("SELECT switchboard.publish('lobby', 'note', '-1')").await;
    let application = async |_: i32| {
        for round in 0..8 {
            cluster.database().execute(if round % 4 == 3 { GIVES_UP } else { PAUSES }).await;
        }
    };
    futures_util::future::join_all((0..8).map(application)).await;
    let events = next_events(&mut socket, 8 * 6).await;
    ledger::positions(&events, 1..=48).unwrap();
    assert!(events.iter().all(|event| event.payload.as_str() == "1"));
    idle.commit().await;
    assert_eq!(next_events(&mut socket, 1).await[0].payload.as_str(), "-1");
}
