//! Inbound webhooks (Standard Webhooks): a signed delivery makes a run of the task that it is addressed to.
//!
//! Whoever cannot sign learns nothing: an unknown task, a task without secrets, a wrong signature and an old
//! timestamp have one answer, and an unknown task costs as much work as a known one.

use std::hint::black_box;

use axum::Json as Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use switchboard_model::Timestamp;
use switchboard_model::identity::{Actor, ClientKey, TaskName};
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{DedupeScope, NewRun, Trigger};
use switchboard_model::span::Span;
use switchboard_model::webhook_signature::{SignedDelivery, WEBHOOK_TOLERANCE_SECONDS, WebhookKey, WebhookSignatures};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::limits::IDEMPOTENCY_TTL;
use switchboard_model::wire::rest::WebhookResponse;
use switchboard_store_api::{OnceClaim, TriggerOutcome, WebhookTarget, WriteContext, Written};

use crate::endpoints::webhook_secrets::open_webhook_keys;
use crate::error::ApiError;
use crate::extract::{Path, RawBody, is_json};
use crate::middleware::RequestId;
use crate::{ApiResult, App, AppState};

/// The prefixes of the three headers: the standard's, and the older one of the service that it comes from.
const HEADER_PREFIXES: [&str; 2] = ["webhook", "svix"];

/// How many secrets are tried at least. A task has one secret, or two while they are exchanged; where there are
/// fewer, a decoy is tried, so that tasks and their absence take the same time.
const LEAST_TRIES: usize = 2;

/// How long a delivery is remembered by its id.
const REMEMBERED: Span = IDEMPOTENCY_TTL;

const METRIC: &str = "switchboard_webhook_deliveries_total";
const OUTCOMES: [&str; 5] = ["accepted", "adopted", "duplicate", "refused", "unverified"];

/// Takes a delivery. The answer tells of success only after the run, or the memory of an earlier one, is durable.
pub(crate) async fn receive(
    State(app): State<App>,
    request_id: RequestId,
    task: Result<Path<TaskName>, ApiError>,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> ApiResult<(StatusCode, Body<WebhookResponse>)> {
    let now = app.hub.now().ok_or_else(|| ApiError::unavailable("the time is not known yet"))?;
    let task = task.map_err(|_| unverified())?.0;
    let delivery = Delivery::read(&headers).filter(|delivery| delivery.is_recent(now)).ok_or_else(unverified)?;
    let target = app.stores.webhooks.target(&task).await?;
    let task_id = verify(&app, target, &delivery, &body).ok_or_else(unverified)?;
    let context = WriteContext {
        actor: Actor::System("webhook"),
        request_id: request_id.0,
        once: Some(OnceClaim {
            scope: format!("webhook:{task_id}"),
            key: delivery.id.into_string(),
            request_hash: Sha256::digest(&body).into(),
            ttl: REMEMBERED,
        }),
        audit: None,
    };
    let input = input(&headers, &body)?;
    let run = NewRun {
        id: RunId::new(),
        task_id,
        trigger: Trigger::Webhook,
        input,
        delay: Span::default(),
        dedupe_key: None,
        dedupe_scope: DedupeScope::Active,
    };
    let response = answer(app.stores.runs.trigger(&context, &run).await?)?;
    Ok((StatusCode::ACCEPTED, Body(response)))
}

/// Registers the metric of this file at zero.
pub(crate) fn describe_metrics() {
    for outcome in OUTCOMES {
        metrics::counter!(METRIC, "outcome" => outcome).absolute(0);
    }
}

/// What the headers of a delivery say.
struct Delivery {
    id: ClientKey,
    timestamp: i64,
    signatures: WebhookSignatures,
}

impl Delivery {
    /// Reads the three headers; `None` when one is missing, doubled or malformed.
    fn read(headers: &HeaderMap) -> Option<Self> {
        let prefix = HEADER_PREFIXES.into_iter().find(|prefix| headers.contains_key(format!("{prefix}-id")))?;
        let header = |name: &str| {
            let mut values = headers.get_all(format!("{prefix}-{name}")).iter();
            let value = values.next()?.to_str().ok()?;
            values.next().is_none().then_some(value)
        };
        Some(Self {
            id: header("id")?.parse().ok()?,
            timestamp: header("timestamp")?.parse().ok()?,
            signatures: WebhookSignatures::parse(header("signature")?),
        })
    }

    fn is_recent(&self, now: Timestamp) -> bool {
        self.timestamp.abs_diff(now.timestamp()) <= WEBHOOK_TOLERANCE_SECONDS.unsigned_abs()
    }
}

/// Tries every secret, and returns the task if one of them signed the delivery.
fn verify(app: &AppState, target: Option<WebhookTarget>, delivery: &Delivery, body: &[u8]) -> Option<TaskId> {
    let task_id = target.as_ref().map(|target| target.task_id);
    let secrets = target.map(|target| target.secrets).unwrap_or_default();
    let keys = open_webhook_keys(&app.options.sealer, &secrets);
    let signed = SignedDelivery { id: delivery.id.as_str(), timestamp: delivery.timestamp, body };
    let mut is_verified = false;
    for key in &keys {
        is_verified |= key.verifies(&signed, &delivery.signatures);
    }
    if let Ok(decoy) = WebhookKey::from_bytes(vec![0; 32]) {
        for _ in keys.len()..LEAST_TRIES {
            // Everybody could sign with this key, so what it says does not count.
            black_box(decoy.verifies(&signed, &delivery.signatures));
        }
    }
    task_id.filter(|_| is_verified)
}

/// Makes the input of the run: the body as it is when it is JSON and says so, its text or base64 otherwise.
fn input(headers: &HeaderMap, body: &Bytes) -> ApiResult<Option<JsonText>> {
    /// A body that is no JSON, or does not say that it is.
    #[derive(Serialize)]
    struct OtherBody<'a> {
        content_type: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        body_text: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        body_base64: Option<String>,
    }
    if body.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(body).ok();
    let json = text.filter(|_| is_json(headers) == Some(true)).and_then(|text| JsonText::parse(text).ok());
    if let Some(json) = json {
        return Ok(Some(json));
    }
    // Escapes would make control characters six times as long.
    let is_plain = |text: &&str| !text.contains(|c: char| c.is_ascii_control() && !c.is_ascii_whitespace());
    let text = text.filter(is_plain);
    let other = OtherBody {
        content_type: headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()),
        body_text: text,
        body_base64: text.is_none().then(|| STANDARD.encode(body)),
    };
    JsonText::encode(&other).map(Some).map_err(|error| {
        tracing::error!(%error, "the body of a webhook has no JSON form");
        ApiError::internal()
    })
}

/// Says what became of a verified delivery. Senders repeat what is not answered with success.
fn answer(written: Written<TriggerOutcome>) -> ApiResult<WebhookResponse> {
    let made = |outcome, run_id, duplicate, adopted| {
        count(outcome);
        Ok(WebhookResponse { run_id, duplicate, adopted })
    };
    let error = match written {
        Written::Now(TriggerOutcome::Created(id)) => return made("accepted", id, false, false),
        Written::Now(TriggerOutcome::Adopted(id)) => return made("adopted", id, false, true),
        Written::Now(TriggerOutcome::Duplicate(id)) => return made("duplicate", id, true, false),
        Written::Replayed(record) => return made("duplicate", RunId::from_uuid(record.result_id), true, false),
        Written::Now(TriggerOutcome::TaskNotFound) => return Err(unverified()),
        Written::Now(TriggerOutcome::Active(active)) => ApiError::new(
            ErrorCode::Conflict,
            format!("run {active} of this task is running and its overlap policy is skip; deliver again later"),
        ),
        Written::Now(TriggerOutcome::QueueFull) => {
            ApiError::unavailable("as many runs of this task are waiting as its queue_max allows; deliver again later")
        }
        Written::Mismatch => ApiError::new(
            ErrorCode::IdempotencyMismatch,
            "a delivery with this webhook-id had another body; every message needs an id of its own",
        ),
    };
    count("refused");
    Err(error)
}

/// The one answer to whatever is not verified.
fn unverified() -> ApiError {
    count("unverified");
    ApiError::unauthorized(
        "the delivery is not verified: its webhook-signature must be made with a secret of an existing task over \
         webhook-id, webhook-timestamp and body, and its webhook-timestamp must be within 5 minutes of now",
    )
}

fn count(outcome: &'static str) {
    metrics::counter!(METRIC, "outcome" => outcome).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn the_three_headers_come_once_and_from_one_family() {
        for prefix in HEADER_PREFIXES {
            let names = ["id", "timestamp", "signature"].map(|name| format!("{prefix}-{name}").leak() as &'static str);
            let [id, timestamp, signature] = names;
            let good = [(id, "m"), (timestamp, "1700000000"), (signature, "v1,AAAA")];
            assert!(Delivery::read(&headers(&good)).is_some());
            assert!(Delivery::read(&headers(&good[..2])).is_none());
            assert!(Delivery::read(&headers(&[good, good].concat())).is_none());
            for (index, bad) in [(0, "a b"), (0, ""), (1, "now"), (1, "1.5")] {
                let mut changed = good;
                changed[index].1 = bad;
                assert!(Delivery::read(&headers(&changed)).is_none(), "{bad}");
            }
        }
        let mixed = [("webhook-id", "m"), ("svix-timestamp", "1"), ("svix-signature", "v1,AAAA")];
        assert!(Delivery::read(&headers(&mixed)).is_none());
    }

    #[test]
    fn timestamps_are_good_for_five_minutes_either_way() {
        let now = Timestamp::from_timestamp(1_700_000_000, 999_000_000).unwrap();
        let is_recent = |timestamp| {
            let signatures = WebhookSignatures::parse("");
            Delivery { id: "m".parse().unwrap(), timestamp, signatures }.is_recent(now)
        };
        assert!(is_recent(1_700_000_300) && is_recent(1_699_999_700));
        assert!(!is_recent(1_700_000_301) && !is_recent(1_699_999_699));
        assert!(!is_recent(i64::MIN) && !is_recent(i64::MAX));
    }

    #[test]
    fn json_stays_verbatim_and_anything_else_is_wrapped() {
        let input = |content_type: Option<&str>, body: &[u8]| {
            let headers = headers(&content_type.map(|value| ("content-type", value)).into_iter().collect::<Vec<_>>());
            input(&headers, &Bytes::copy_from_slice(body)).unwrap().map(|json| json.as_str().to_owned())
        };
        const JSON: Option<&str> = Some("application/json; charset=utf-8");
        assert_eq!(input(JSON, br#"{"a" : "\ud800"}"#).as_deref(), Some(r#"{"a" : "\ud800"}"#));
        assert_eq!(input(JSON, b"").as_deref(), None);
        let wrapped = r#"{"content_type":"application/json; charset=utf-8","body_text":"{"}"#;
        assert_eq!(input(JSON, b"{").as_deref(), Some(wrapped));
        assert_eq!(
            input(Some("application/x-www-form-urlencoded"), b"a=1").as_deref(),
            Some(r#"{"content_type":"application/x-www-form-urlencoded","body_text":"a=1"}"#)
        );
        assert_eq!(input(None, b"{}").as_deref(), Some(r#"{"content_type":null,"body_text":"{}"}"#));
        for binary in [&b"\xff\x00"[..], b"\x00\x01"] {
            let wrapped = format!(r#"{{"content_type":null,"body_base64":"{}"}}"#, STANDARD.encode(binary));
            assert_eq!(input(None, binary).as_deref(), Some(&*wrapped));
        }
    }
}
