//! The action that sends a request: what it carries, and what its answer means for the run.

use std::collections::BTreeMap;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Url};
use serde::Serialize;
use switchboard_http::{Sealer, SecretLookupError, look_up, open_webhook_keys};
use switchboard_model::Timestamp;
use switchboard_model::identity::SecretName;
use switchboard_model::json_text::JsonText;
use switchboard_model::redact::Redactor;
use switchboard_model::run::LeasedRun;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use switchboard_model::task::{Action, HttpAction, HttpHeader, HttpMethod};
use switchboard_model::webhook_signature::{SignedDelivery, WebhookKey};
use switchboard_scheduler::{ActionError, ActionRunner, RunOutput};
use switchboard_store_api::{SecretStore, WebhookStore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::outbound::{Outbound, OutboundError, OutboundRequest, OutboundResponse};

/// How much of the body of a response becomes part of the result, in bytes.
const RESULT_BYTES: usize = 64 * 1024;

/// How much of it becomes part of an error, in bytes.
const ERROR_BYTES: usize = 500;

/// The longest that a receiver may ask to wait.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Sends the request of a run.
pub(crate) struct HttpRunner {
    pub(crate) outbound: Outbound,
    pub(crate) webhooks: Arc<dyn WebhookStore>,
    pub(crate) secrets: Arc<dyn SecretStore>,
    pub(crate) sealer: Arc<Sealer>,
}

#[async_trait]
impl ActionRunner for HttpRunner {
    fn kind(&self) -> &'static str {
        "http"
    }

    async fn run(
        &self,
        run: &LeasedRun,
        stop: &CancellationToken,
        _output: &Arc<dyn RunOutput>,
    ) -> Result<Option<JsonText>, ActionError> {
        let Action::Http(action) = &run.action else {
            return Err(ActionError::Permanent("not an http action".to_owned()));
        };
        let stopped = || Err(ActionError::retryable("stopped before there was an answer"));
        stop.run_until_cancelled(self.attempt(action, run)).await.unwrap_or_else(stopped)
    }
}

impl HttpRunner {
    async fn attempt(&self, action: &HttpAction, run: &LeasedRun) -> Result<Option<JsonText>, ActionError> {
        let start = Instant::now();
        let keys = self.signing_keys(run).await?;
        let secrets = self.secrets_of(action).await?;
        let request =
            request(action, run, &keys, &secrets).map_err(|error| ActionError::Permanent(error.to_owned()))?;
        let response = self.outbound.send(request).await.map_err(|error| match error {
            OutboundError::Refused => ActionError::Permanent(error.to_string()),
            OutboundError::Unanswered => ActionError::retryable(error.to_string()),
        })?;
        // What is looked up here is known to nobody else, so it is kept out here.
        let redactor = Redactor::knowing(action.secret_values().chain(secrets.values().map(SecretText::expose)));
        if response.status.is_success() {
            return Ok(result(&response, &redactor)?.map(|result| redactor.json(&result)));
        }
        // The time of the database: that of the lease, and what has passed since.
        let now = run.leased_at + start.elapsed();
        Err(failure(&response, &redactor, now))
    }

    /// Looks up the secrets that the headers carry.
    async fn secrets_of(&self, action: &HttpAction) -> Result<Secrets, ActionError> {
        look_up(&*self.secrets, &self.sealer, action.secrets()).await.map_err(|error| match error {
            SecretLookupError::Store(_) => ActionError::retryable("the secrets of the request cannot be read now"),
            // Somebody may set it before the last attempt.
            error => ActionError::retryable(error.to_string()),
        })
    }

    /// Returns the keys of the task that sign, newest first.
    async fn signing_keys(&self, run: &LeasedRun) -> Result<Vec<WebhookKey>, ActionError> {
        let unavailable = || ActionError::retryable("the secrets that sign the request cannot be read");
        let secrets = self.webhooks.signing(run.task_id).await.map_err(|_| unavailable())?;
        let keys = open_webhook_keys(&self.sealer, &secrets);
        // Without any signature the receiver would refuse for good what is a matter of configuration here.
        if keys.is_empty() && !secrets.is_empty() { Err(unavailable()) } else { Ok(keys) }
    }
}

/// The values of secrets by their names.
type Secrets = BTreeMap<SecretName, SecretText>;

/// Makes the request of an attempt.
fn request(
    action: &HttpAction,
    run: &LeasedRun,
    keys: &[WebhookKey],
    secrets: &Secrets,
) -> Result<OutboundRequest, &'static str> {
    let body = action.body.as_ref().or(run.input.as_ref()).filter(|_| action.method.has_body());
    let body = body.map(|body| body.as_str().to_owned());
    let mut headers = HeaderMap::new();
    if body.is_some() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    for (name, value) in &action.headers {
        let name = HeaderName::from_str(name).map_err(|_| "the action has a header with an unusable name")?;
        headers.insert(name, header_value(value, secrets)?);
    }
    let id = run.effect_id();
    let mut set = |name: &'static str, value: &str| -> Result<(), &'static str> {
        let value = HeaderValue::from_str(value).map_err(|_| "the run has a name that fits in no header")?;
        headers.insert(name, value);
        Ok(())
    };
    set("idempotency-key", &id)?;
    set("switchboard-task", run.task_name.as_str())?;
    set("switchboard-attempt", &run.attempt.to_string())?;
    set("switchboard-fence", &run.fence.0.to_string())?;
    if !keys.is_empty() {
        let timestamp = run.leased_at.timestamp();
        let delivery = SignedDelivery { id: &id, timestamp, body: body.as_deref().unwrap_or_default().as_bytes() };
        let signatures: Vec<_> = keys.iter().map(|key| key.sign(&delivery)).collect();
        set("webhook-id", &id)?;
        set("webhook-timestamp", &timestamp.to_string())?;
        set("webhook-signature", &signatures.join(" "))?;
    }
    let url = Url::parse(&action.url).map_err(|_| "the action has no usable URL")?;
    // An attempt with a time of its own is stopped from outside.
    let timeout = run.timeout.map(Span::to_std);
    Ok(OutboundRequest { method: method(action.method), url, headers, body, timeout })
}

fn header_value(header: &HttpHeader, secrets: &Secrets) -> Result<HeaderValue, &'static str> {
    match header {
        HttpHeader::Text(text) => {
            HeaderValue::from_str(text).map_err(|_| "the action has a header with an unusable value")
        }
        HttpHeader::Secret(header) => {
            let secret = secrets.get(&header.secret).ok_or("the action has a header without its secret")?;
            let value = HeaderValue::from_str(&format!("{}{}", header.before, secret.expose()));
            let mut value = value.map_err(|_| "the action has a header whose secret fits in no header")?;
            value.set_sensitive(true);
            Ok(value)
        }
    }
}

fn method(method: HttpMethod) -> Method {
    match method {
        HttpMethod::Get => Method::GET,
        HttpMethod::Post => Method::POST,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Patch => Method::PATCH,
        HttpMethod::Delete => Method::DELETE,
    }
}

/// Makes the result of a run: the status, and the body as JSON if it is JSON, as text otherwise.
fn result(response: &OutboundResponse, redactor: &Redactor) -> Result<Option<JsonText>, ActionError> {
    #[derive(Serialize)]
    struct HttpResult<T> {
        status: u16,
        #[serde(skip_serializing_if = "Option::is_none")]
        body: Option<T>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_cut: bool,
    }
    let status = response.status.as_u16();
    if response.body.len() <= RESULT_BYTES
        && let Ok(body) = serde_json::from_slice::<JsonText>(&response.body)
        // The result is one level deeper than the body.
        && let Ok(text) = serde_json::to_string(&HttpResult { status, body: Some(body), is_cut: false })
        && let Ok(result) = JsonText::parse(text)
    {
        return Ok(Some(result));
    }
    // Before it is cut: what is left of a secret then would be recognised by nobody.
    let text = String::from_utf8_lossy(&response.body);
    let text = redactor.text(&text);
    let kept = cut(&text, RESULT_BYTES);
    let is_cut = kept.len() < text.len() || response.body.len() > RESULT_BYTES;
    let result = JsonText::encode(&HttpResult { status, body: Some(kept).filter(|kept| !kept.is_empty()), is_cut });
    result.map(Some).map_err(|error| ActionError::Permanent(error.to_string()))
}

/// Says why an answer is no success, and whether another attempt can help.
fn failure(response: &OutboundResponse, redactor: &Redactor, now: Timestamp) -> ActionError {
    let status = response.status;
    let mut error = format!("the receiver answered with status {}", status.as_u16());
    if status.is_redirection() {
        error.push_str("; redirects are not followed");
    }
    let text = String::from_utf8_lossy(&response.body);
    let text = redactor.text(&text);
    let shown = cut(&text, ERROR_BYTES).trim();
    if !shown.is_empty() {
        error.push_str(": ");
        error.push_str(shown);
    }
    if matches!(status.as_u16(), 408 | 425 | 429) || status.is_server_error() {
        ActionError::Retryable { error, after: retry_after(&response.headers, now) }
    } else {
        ActionError::Permanent(error)
    }
}

/// Reads how long the receiver asks to wait (RFC 9110, 10.2.3), at most a day. An instant is taken by the clock of the
/// receiver when it tells the time, otherwise by that of the database.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Span> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::trim);
    let date = |text| httpdate::parse_http_date(text).ok();
    let value = text(RETRY_AFTER)?;
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let now = text(DATE).and_then(date).unwrap_or_else(|| SystemTime::from(now));
            date(value)?.duration_since(now).unwrap_or_default()
        }
    };
    Some(Span::from_secs(wait.min(LONGEST_WAIT).as_secs()))
}

/// Returns the start of a text, at most so many bytes of it.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn response(status: u16, body: &str) -> OutboundResponse {
        let status = StatusCode::from_u16(status).unwrap();
        OutboundResponse { status, headers: HeaderMap::new(), body: body.as_bytes().to_vec() }
    }

    fn answered(status: u16, body: &str) -> Result<String, ActionError> {
        let redactor = Redactor::knowing(["known-secret"]);
        result(&response(status, body), &redactor).map(|result| result.unwrap().as_str().to_owned())
    }

    #[test]
    fn results_hold_json_as_it_is_and_anything_else_as_text() {
        assert_eq!(answered(200, r#"{"a" : "\ud800"}"#).unwrap(), r#"{"status":200,"body":{"a" : "\ud800"}}"#);
        assert_eq!(answered(204, "").unwrap(), r#"{"status":204}"#);
        assert_eq!(answered(201, "fine\u{0}").unwrap(), r#"{"status":201,"body":"fine\u0000"}"#);
        let deep = format!("{}{}", "[".repeat(64), "]".repeat(64));
        assert_eq!(answered(200, &deep).unwrap(), format!(r#"{{"status":200,"body":"{deep}"}}"#));
        let long = format!("x{}", "é".repeat(RESULT_BYTES / 2));
        let expected = format!(r#"{{"status":200,"body":"x{}","is_cut":true}}"#, "é".repeat(RESULT_BYTES / 2 - 1));
        assert_eq!(answered(200, &long).unwrap(), expected);
        let straddling = format!("{}known-secret", "x".repeat(RESULT_BYTES - 5));
        let expected = format!(r#"{{"status":200,"body":"{}[reda","is_cut":true}}"#, "x".repeat(RESULT_BYTES - 5));
        assert_eq!(answered(200, &straddling).unwrap(), expected);
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        let now = Timestamp::from_timestamp(1_700_000_000, 0).unwrap();
        let failure = |status, body: &str| failure(&response(status, body), &Redactor::default(), now);
        for status in [408, 425, 429, 500, 502, 503, 504, 599] {
            assert!(matches!(failure(status, ""), ActionError::Retryable { after: None, .. }), "{status}");
        }
        for status in [300, 301, 302, 307, 308, 400, 401, 403, 404, 409, 410, 422, 451] {
            assert!(matches!(failure(status, ""), ActionError::Permanent(_)), "{status}");
        }
        assert_eq!(failure(404, " no such hook\n").to_string(), "the receiver answered with status 404: no such hook");
        let redirect = "the receiver answered with status 302; redirects are not followed";
        assert_eq!(failure(302, "").to_string(), redirect);
        assert!(failure(400, &"é".repeat(1_000)).to_string().len() < 600);
    }

    #[test]
    fn receivers_may_ask_to_wait_in_seconds_or_until_an_instant() {
        // Tue, 14 Nov 2023 22:13:20 GMT
        let now = Timestamp::from_timestamp(1_700_000_000, 0).unwrap();
        let wait = |pairs: &[(&'static str, &'static str)]| retry_after(&headers(pairs), now).map(Span::as_millis);
        assert_eq!(wait(&[("retry-after", "120")]), Some(120_000));
        assert_eq!(wait(&[("retry-after", " 0 ")]), Some(0));
        assert_eq!(wait(&[("retry-after", "999999999")]), Some(86_400_000));
        assert_eq!(wait(&[("retry-after", "Tue, 14 Nov 2023 22:14:20 GMT")]), Some(60_000));
        let by_their_clock =
            [("retry-after", "Tue, 14 Nov 2023 23:00:05 GMT"), ("date", "Tue, 14 Nov 2023 23:00:00 GMT")];
        assert_eq!(wait(&by_their_clock), Some(5_000));
        assert_eq!(wait(&[("retry-after", "Tue, 14 Nov 2023 22:00:00 GMT")]), Some(0));
        for odd in ["-1", "1.5", "soon", "", "99999999999999999999999"] {
            assert_eq!(wait(&[("retry-after", odd)]), None, "{odd}");
        }
        assert_eq!(wait(&[]), None);
    }
}
