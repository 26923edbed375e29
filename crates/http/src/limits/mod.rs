//! Rate limits: taking from them, what callers are told of them, and which ones guard the surface itself.

mod buckets;
mod limiter;
mod report;
mod rules;

use std::time::Duration;

use switchboard_model::limit::Rate;
use switchboard_model::state::StateUsage;

pub(crate) use limiter::{LimitScope, Limiter, describe_metrics};
pub(crate) use report::headers;
pub(crate) use rules::{Rules, limit_login, limit_requests};

/// How much may be asked for.
#[derive(Clone, Debug)]
pub struct LimitOptions {
    /// Requests of one credential, or of one address without any; unlimited when absent.
    pub requests: Option<Rate>,
    /// Attempts to sign in as one user.
    pub login_account: Rate,
    /// Attempts to sign in from one address.
    pub login_address: Rate,
    /// Attempts to sign in altogether.
    pub login_global: Rate,
    /// How long the database may take to decide before each limit is held to its policy for outages.
    pub patience: Duration,
    /// How much each namespace of shared state may hold.
    pub state: StateUsage,
}
