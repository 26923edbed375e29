//! The limits that guard the surface itself: requests as such, and attempts to sign in.

use std::fmt::Write as _;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest as _, Sha256};
use switchboard_model::identity::UserName;
use switchboard_model::limit::Rate;
use switchboard_model::wire::rest::Outage;
use switchboard_store_api::LimitTake;

use super::buckets::Buckets;
use super::limiter::LimitScope;
use super::report::{headers, refusal};
use crate::access::presented_bearer;
use crate::client_address::ClientAddress;
use crate::{ApiResult, App, AppState};

/// How many times the requests of a credential may come from one address, under all credentials together.
const CREDENTIALS_PER_ADDRESS: u32 = 10;

/// What limits the requests of callers, where operators want that.
///
/// Each credential has a limit that all replicas share, and so has each address for what comes without one. It is
/// counted before the credential is looked at, so a made-up one has a limit of its own, too; for that reason each
/// address is limited besides, to ten times as much, whatever it presents. That second limit is of each replica and
/// costs no query: it bounds what a flood of made-up credentials makes the database do.
pub(crate) struct Rules {
    /// The limit of a credential or an address, and the one of an address under all its credentials.
    requests: Option<(Rate, Rate)>,
    addresses: Buckets,
}

impl Rules {
    pub(crate) fn new(requests: Option<Rate>) -> Self {
        let with_rest = |rate: Rate| {
            let times = |number: u32| number.saturating_mul(CREDENTIALS_PER_ADDRESS).min(Rate::MOST);
            // Both numbers are in range again; the rate itself is the stricter choice if they were not.
            (rate, Rate::new(times(rate.count()), rate.per(), times(rate.burst())).unwrap_or(rate))
        };
        Self { requests: requests.map(with_rest), addresses: Buckets::new() }
    }
}

/// Lets a request through to the check of its credential if there are not too many; says in any case what is left.
pub(crate) async fn limit_requests(
    State(app): State<App>,
    address: ClientAddress,
    request: Request,
    next: Next,
) -> ApiResult<Response> {
    let Some((rate, address_rate)) = app.rules.requests else { return Ok(next.run(request).await) };
    let name = LimitScope::Requests.as_str();
    let address = address.key();
    let by_address = LimitTake { key: address.clone(), rate: address_rate, cost: 1 };
    for decision in app.rules.addresses.take(&[by_address]) {
        if !decision.allowed {
            return Err(refusal(name, &address_rate, &decision));
        }
    }
    let key = match presented_bearer(request.headers()) {
        Some(credential) => key(LimitScope::Requests, "credential", credential),
        None => key(LimitScope::Requests, "address", &address),
    };
    let takes = [LimitTake { key, rate, cost: 1 }];
    let decisions = app.limiter.take(LimitScope::Requests, Outage::Local, &takes).await?;
    let mut fields = Vec::new();
    for decision in decisions {
        if !decision.allowed {
            return Err(refusal(name, &rate, &decision));
        }
        fields.extend(headers(name, &rate, &decision));
    }
    let mut response = next.run(request).await;
    for (field, value) in fields {
        // An endpoint that tells of a limit of its own goes before.
        response.headers_mut().entry(field).or_insert(value);
    }
    Ok(response)
}

/// Counts an attempt to sign in: by the name it is for, whether or not it exists, by the address it comes from, and
/// altogether. One that is refused is not counted, so that knocking on does not keep the owner out.
///
/// # Errors
/// `rate_limited` for an attempt that is not to be made.
pub(crate) async fn limit_login(app: &AppState, user: &UserName, address: ClientAddress) -> ApiResult<()> {
    let limits = &app.options.limits;
    let take = |part, text: &str, rate| LimitTake { key: key(LimitScope::Login, part, text), rate, cost: 1 };
    let takes = [
        take("user", user.as_str(), limits.login_account),
        take("address", &address.key(), limits.login_address),
        take("total", "", limits.login_global),
    ];
    // Never unlimited guesses, and never everybody locked out: so it is local during an outage.
    let decisions = app.limiter.take(LimitScope::Login, Outage::Local, &takes).await?;
    let denied = takes.iter().zip(&decisions).filter(|(_, decision)| !decision.allowed);
    match denied.max_by_key(|(_, decision)| decision.retry_after) {
        Some((take, decision)) => Err(refusal(LimitScope::Login.as_str(), &take.rate, decision)),
        None => Ok(()),
    }
}

/// Makes the key of a limit. What it is for is hashed: credentials are secret, names and addresses personal.
fn key(scope: LimitScope, part: &str, text: &str) -> String {
    let mut key = format!("{}:{part}:", scope.as_str());
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a text does not fail.
        let _ = write!(key, "{byte:02x}");
    }
    key
}
