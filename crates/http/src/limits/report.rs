//! What callers are told of a limit: the fields `RateLimit` and `RateLimit-Policy` of the IETF draft
//! draft-ietf-httpapi-ratelimit-headers, `Retry-After`, and the refusal.

use axum::http::{HeaderName, HeaderValue};
use switchboard_model::limit::{Decision, Rate};
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;

use crate::error::ApiError;

/// The policy of a limit.
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What is left of it.
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Writes the fields of a limit, for example `"login";q=10;w=60` and `"login";r=3;t=12`.
///
/// The quota `q` is the burst and the window `w` the time in which it comes back, so that whoever takes no more than
/// `q` in any `w` seconds is never denied; `r` units are left now, and in `t` seconds all are there. Seconds are
/// rounded up.
pub(crate) fn headers(name: &str, rate: &Rate, decision: &Decision) -> [(HeaderName, HeaderValue); 2] {
    let name = name.replace('\\', r"\\").replace('"', r#"\""#);
    let window = rate.cost_us(rate.burst()).unsigned_abs().div_ceil(1_000_000);
    let policy = format!("\"{name}\";q={};w={window}", rate.burst());
    let left = format!("\"{name}\";r={};t={}", decision.remaining, seconds(decision.reset_after));
    // Names are visible ASCII, and so is the rest.
    let value = |text: String| HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""));
    [(POLICY, value(policy)), (LIMIT, value(left))]
}

/// Refuses a request that a limit denied.
pub(super) fn refusal(name: &str, rate: &Rate, decision: &Decision) -> ApiError {
    let wait = seconds(decision.retry_after).max(1);
    let unit = if wait == 1 { "second" } else { "seconds" };
    let detail = format!("too many requests under the limit {name} of {rate}; try again in {wait} {unit}");
    headers(name, rate, decision)
        .into_iter()
        .fold(ApiError::new(ErrorCode::RateLimited, detail), |error, (name, value)| error.with_header(name, value))
        .with_retry_after(wait)
}

fn seconds(span: Span) -> u64 {
    span.as_millis().div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use axum::http::header::RETRY_AFTER;
    use axum::response::IntoResponse as _;

    use super::*;

    fn texts(rate: &str, arrival: Option<i64>, name: &str) -> [String; 2] {
        let rate: Rate = rate.parse().unwrap();
        let (decision, _) = rate.take(arrival, 0, 1);
        headers(name, &rate, &decision).map(|(_, value)| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_fields_have_the_form_of_the_draft() {
        assert_eq!(texts("10/1m", None, "login"), [r#""login";q=10;w=60"#, r#""login";r=9;t=6"#]);
        assert_eq!(texts("100/1m burst 20", None, "a"), [r#""a";q=20;w=12"#, r#""a";r=19;t=1"#]);
        assert_eq!(texts("10/1m", Some(60_000_000), "login"), [r#""login";q=10;w=60"#, r#""login";r=0;t=60"#]);
        assert_eq!(texts("10/1s burst 1", None, r#"a"\"#), [r#""a\"\\";q=1;w=1"#, r#""a\"\\";r=0;t=1"#]);
    }

    #[test]
    fn a_refusal_says_how_long_to_wait_and_never_nothing() {
        for (arrival, wait) in [(60_000_001, "7"), (60_000_000, "6"), (54_000_001, "1")] {
            let rate: Rate = "10/1m".parse().unwrap();
            let (decision, _) = rate.take(Some(arrival), 0, 1);
            assert!(!decision.allowed);
            let response = refusal("login", &rate, &decision).into_response();
            assert_eq!(response.status(), 429);
            assert_eq!(response.headers()[RETRY_AFTER], wait);
            assert!(response.headers().contains_key(LIMIT) && response.headers().contains_key(POLICY));
        }
    }
}
