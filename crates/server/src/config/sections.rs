//! The sections of the configuration that are about the process itself.

use std::net::SocketAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use switchboard_model::Timestamp;
use switchboard_model::fire::MISFIRE_GRACE;
use switchboard_model::span::Span;

use super::{kind, text};
use crate::outbound::Destination;

/// Who this replica is.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Instance {
    /// The name of this replica, up to 100 letters, digits, dots, dashes and underscores; a suffix that is new at
    /// every boot is added.
    pub(crate) name: String,
}

impl Default for Instance {
    fn default() -> Self {
        Self { name: "switchboard".to_owned() }
    }
}

/// The database, which is all that replicas share.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Database {
    /// `sqlite:FILE` or `postgres://…`.
    #[schemars(with = "kind::Url")]
    pub(crate) url: String,
    /// A URL that reaches PostgreSQL without a pooler between, for LISTEN and migrations.
    #[schemars(with = "Option<kind::Url>")]
    pub(crate) direct_url: Option<String>,
    /// The most pooled connections of this replica, 2 to 1000.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) pool_size: u32,
    /// Whether the URL leads to a transaction pooler.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) pooled: bool,
}

impl Default for Database {
    fn default() -> Self {
        Self { url: "sqlite:./switchboard.db".to_owned(), direct_url: None, pool_size: 10, pooled: false }
    }
}

/// What is served, where, and to whom.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Server {
    /// Where to listen.
    #[schemars(with = "kind::Address")]
    pub(crate) bind: SocketAddr,
    /// The URL under which clients reach the fleet; addresses in answers start with it.
    #[schemars(with = "Option<kind::Url>")]
    pub(crate) public_url: Option<String>,
    /// The origins whose browsers may use the API and open sockets, such as `https://app.example`.
    #[serde(deserialize_with = "text::list")]
    #[schemars(with = "Vec<kind::Origin>")]
    pub(crate) allowed_origins: Vec<String>,
    /// Where probes and metrics are served besides, for networks that keep them apart.
    #[schemars(with = "Option<kind::Address>")]
    pub(crate) metrics_bind: Option<SocketAddr>,
    /// How long a plain request may take, its body included; 100ms to 1h.
    #[schemars(with = "kind::Duration")]
    pub(crate) request_timeout: Span,
    /// How long a client may take to send the head of a request, 100ms to 1h.
    #[schemars(with = "kind::Duration")]
    pub(crate) header_timeout: Span,
    /// How long a connection may be idle between two requests, 100ms to 1h; longer than that of any proxy in front.
    #[schemars(with = "kind::Duration")]
    pub(crate) idle_timeout: Span,
    /// The most open connections, sockets included, 1 to 1000000; further ones wait to be accepted.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) max_connections: u32,
    /// The networks of the proxies in front, such as `10.0.0.0/8`, whose word on the address of a client counts.
    #[serde(deserialize_with = "text::list")]
    #[schemars(with = "Vec<kind::Network>")]
    pub(crate) trusted_proxies: Vec<IpNet>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from(([127, 0, 0, 1], 8080)),
            public_url: None,
            allowed_origins: Vec::new(),
            metrics_bind: None,
            request_timeout: Span::from_secs(30),
            header_timeout: Span::from_secs(10),
            idle_timeout: Span::from_secs(75),
            max_connections: 10_000,
            trusted_proxies: Vec::new(),
        }
    }
}

/// How tasks fire and runs are executed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scheduler {
    /// How long a leased run is safe without renewal, 500ms to 1h.
    #[schemars(with = "kind::Duration")]
    pub(crate) lease: Span,
    /// The most runs at the same time on this replica, 1 to 10000.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) permits: u32,
    /// How late an occurrence may be noticed before it counts as missed, at most 1day.
    #[schemars(with = "kind::Duration")]
    pub(crate) misfire_grace: Span,
    /// How long ended runs are kept, at most 10years.
    #[schemars(with = "kind::Duration")]
    pub(crate) history: Span,
    /// Where a test clock starts, `now` or an instant such as `2027-01-01T00:00:00Z`. Schedules then follow this clock,
    /// which only the API moves, in place of time. For tests, on a single replica.
    #[schemars(with = "Option<kind::Instant>")]
    pub(crate) test_clock: Option<TestClock>,
}

/// Where a test clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestClock {
    /// At database time.
    Now,
    /// At an instant.
    At(Timestamp),
}

impl<'de> Deserialize<'de> for TestClock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "now" => Ok(Self::Now),
            text => text.parse().map(Self::At).map_err(|_| {
                D::Error::custom(format!("{text:?} is neither now nor an instant such as 2027-01-01T00:00:00Z"))
            }),
        }
    }
}

impl Default for Scheduler {
    fn default() -> Self {
        Self {
            lease: Span::from_secs(15),
            permits: 32,
            misfire_grace: MISFIRE_GRACE,
            history: Span::from_secs(7 * 24 * 3600),
            test_clock: None,
        }
    }
}

/// Requests that tasks send. They go to public addresses only: neither to this machine nor to networks behind it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Outbound {
    /// Where else they may go, such as `hooks.internal`, `10.1.2.3:8080` or `10.1.0.0/16`. A host is allowed at
    /// whatever addresses its name has; a network also when a name leads into it.
    #[serde(deserialize_with = "text::list")]
    #[schemars(with = "Vec<kind::Destination>")]
    pub(crate) allow: Vec<Destination>,
    /// How long a request may take when its task has no timeout, 100ms to 1h.
    #[schemars(with = "kind::Duration")]
    pub(crate) timeout: Span,
}

impl Default for Outbound {
    fn default() -> Self {
        Self { allow: Vec::new(), timeout: Span::from_secs(30) }
    }
}

/// The audit log: one entry for each administrative change.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Audit {
    /// How long entries are kept, 1day to 10years.
    #[schemars(with = "kind::Duration")]
    pub(crate) history: Span,
}

impl Default for Audit {
    fn default() -> Self {
        Self { history: Span::from_secs(400 * 24 * 3600) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Hints {
    /// Replicas wake each other with NOTIFY.
    #[default]
    Notify,
    /// Replicas read the change feed four times a second instead.
    Off,
}

/// How events travel.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Realtime {
    /// How replicas learn of changes between two regular reads of the feed. Every guarantee holds with both; behind a
    /// transaction pooler without `database.direct_url` it is as if `off`.
    pub(crate) hints: Hints,
}

/// How a replica stops.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Drain {
    /// How long a stopping replica goes on accepting, while balancers notice that it is not ready; at most 1h.
    #[schemars(with = "kind::Duration")]
    pub(crate) delay: Span,
    /// How long sockets and runs have to end after that, at most 1day.
    #[schemars(with = "kind::Duration")]
    pub(crate) timeout: Span,
}

impl Default for Drain {
    fn default() -> Self {
        Self { delay: Span::default(), timeout: Span::from_secs(30) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// For people.
    Human,
    /// For machines.
    Json,
}

/// What the process tells about itself.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Telemetry {
    /// What is logged, as a tracing filter such as `info,switchboard_events=debug`.
    pub(crate) log: String,
    /// How it is logged.
    pub(crate) format: LogFormat,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            // The server of a database that is up to date says so at every boot.
            log: "info,sqlx::postgres::notice=warn".to_owned(),
            format: LogFormat::default(),
        }
    }
}
