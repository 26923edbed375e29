//! Probes and metrics.

use serde_json::json;
use switchboard_http::metrics_router;

use crate::harness::Replica;

#[tokio::test]
async fn readiness_follows_the_life_of_the_process() {
    let replica = Replica::boot().await;
    let ready = replica.send("GET", "/healthz/ready", "", &[]).await;
    assert_eq!(ready.status, 200, "{}", ready.text());
    let body = json!({
        "status": "ready",
        "checks": ["started", "not_draining", "database", "change_feed"],
        "hints": "in_process",
    });
    assert_eq!(ready.json(), body);
    replica.api.lifecycle.start_draining();
    let problem = replica.send("GET", "/healthz/ready", "", &[]).await.problem();
    assert_eq!(problem.status, 503);
    let failed: Vec<_> = problem.errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(failed, ["not_draining"]);
    assert_eq!(replica.send("GET", "/healthz/live", "", &[]).await.json(), json!({"status": "live"}));
}

#[tokio::test]
async fn the_listener_of_probes_serves_nothing_else() {
    let mut replica = Replica::boot().await;
    replica.router = metrics_router(replica.api.clone());
    for path in ["/healthz/live", "/healthz/ready", "/metrics"] {
        assert_eq!(replica.send("GET", path, "", &[]).await.status, 200, "{path}");
    }
    assert_eq!(replica.ask("GET", "/api/v1/tasks", "").await.problem().status, 404);
}
