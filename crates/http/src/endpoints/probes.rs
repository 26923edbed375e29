//! Probes and metrics: open to everybody, so nothing here tells who the replica is.

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::ApiError;
use crate::{ApiResult, App};

/// The media type of the Prometheus text format.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a probe that passes says.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Health {
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    checks: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hints: Option<&'static str>,
}

/// Answers as long as the executor does. The database has no part in it: a restart would not bring it back.
pub(crate) async fn live() -> Json<Health> {
    Json(Health { status: "live", checks: Vec::new(), hints: None })
}

/// Answers 200 while the replica takes traffic, and otherwise names the checks that failed.
pub(crate) async fn ready(State(app): State<App>) -> ApiResult<Json<Health>> {
    let checks = app.readiness.checks().await;
    let mut refusal = ApiError::unavailable("the replica takes no traffic now");
    let mut is_ready = true;
    for check in checks.iter().filter(|check| !check.is_ok) {
        refusal.blame(check.name, check.fault);
        is_ready = false;
    }
    if !is_ready {
        return Err(refusal);
    }
    let checks = checks.iter().map(|check| check.name).collect();
    Ok(Json(Health { status: "ready", checks, hints: Some(app.feed.mode().as_str()) }))
}

/// Writes out the metrics.
pub(crate) async fn metrics(State(app): State<App>) -> PrometheusText {
    metrics::gauge!("switchboard_feed_age_seconds").set(app.feed.age());
    PrometheusText(app.prometheus.render())
}

/// Metrics, written out.
pub(crate) struct PrometheusText(String);

impl IntoResponse for PrometheusText {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, PROMETHEUS_TEXT)], self.0).into_response()
    }
}
