//! The store seam: one trait per aggregate, implemented by each database backend.
//!
//! A method is one meaningful atomic operation. No transaction crosses the seam, nothing here knows a
//! driver, and nobody above knows which backend runs: differences are asked of [`Capabilities`].

mod api_keys;
mod arming;
mod audit;
mod auth_sessions;
mod calls;
mod connections;
mod context;
mod error;
pub mod fail_point;
mod feed;
mod hint;
mod instances;
mod leases;
mod limits;
mod migration;
mod once;
mod outbox;
mod presence;
mod rooms;
mod runs;
mod schedule_clock;
mod sealed;
mod secrets;
mod settings;
mod state;
mod streams;
mod tasks;
mod tickets;
mod tokens;
mod users;
mod webhooks;
mod with_lease;

use std::sync::Arc;

pub use api_keys::ApiKeyStore;
pub use arming::arm_all;
pub use audit::AuditStore;
pub use auth_sessions::{AuthSessionStore, RefreshOutcome};
pub use calls::{AdvanceReport, CallStore, ClaimOutcome, OfferedCall, ReplyOutcome};
pub use connections::{ConnectOutcome, ConnectionStore};
pub use context::{AuditEntry, OnceClaim, OnceRecord, WriteContext, Written};
pub use error::{StoreError, StoreResult};
pub use feed::FeedStore;
pub use hint::{HintReceiver, HintSender, HintState, News, NewsReceiver, hint_channel};
pub use instances::InstanceStore;
pub use leases::{AcquireOutcome, LeaseRenewal, LeaseStore};
pub use limits::{LimitStore, LimitTake};
pub use migration::MigrateReport;
pub use once::{OnceClaimOutcome, OnceConsumed, OnceEnd, OnceStore, OnceTakeOver};
pub use outbox::{OutboxStore, RelayReport};
pub use presence::{PresenceChange, PresenceStore};
pub use rooms::{AppendAnswer, AppendOutcome, RoomCreateOutcome, RoomStore, RoomTop};
pub use runs::{
    CancelOutcome, FinishOutcome, LeaseBatch, LeaseRequest, PromoteReport, RecoverReport, Redrive, RedriveReport,
    RenewOutcome, Renewal, RetryOutcome, RunFilter, RunStore, TriggerOutcome, WorkerKind,
};
pub use schedule_clock::ScheduleClock;
pub use sealed::SealedStore;
pub use secrets::{SecretPutOutcome, SecretStore};
pub use settings::{PutOutcome, SettingStore};
pub use state::{StateDeleteOutcome, StatePutOutcome, StateStore};
pub use streams::{OpenedStream, StopOutcome, StreamAppendOutcome, StreamStore};
pub use tasks::{
    DueTasks, FireReport, OccurrenceRange, TaskCreateOutcome, TaskStore, TaskUpdateOutcome, UnarmedReport,
};
pub use tickets::{BurnOutcome, TicketStore};
pub use tokens::{TokenPutOutcome, TokenStore};
pub use users::{Login, PasswordChange, UserCreateOutcome, UserStore, UserUpdateOutcome};
pub use webhooks::{WebhookSecretOutcome, WebhookStore, WebhookTarget};
pub use with_lease::{Holding, LeaseError, WithLease};

/// Every store of one database.
#[derive(Clone)]
pub struct Stores {
    /// Task definitions and their firing.
    pub tasks: Arc<dyn TaskStore>,
    /// Runs, leases and permits.
    pub runs: Arc<dyn RunStore>,
    /// Rooms and their events.
    pub rooms: Arc<dyn RoomStore>,
    /// Single-use tickets.
    pub tickets: Arc<dyn TicketStore>,
    /// Live replicas.
    pub instances: Arc<dyn InstanceStore>,
    /// The sockets of all replicas.
    pub connections: Arc<dyn ConnectionStore>,
    /// Who shows themselves in which room.
    pub presence: Arc<dyn PresenceStore>,
    /// API keys.
    pub api_keys: Arc<dyn ApiKeyStore>,
    /// Users.
    pub users: Arc<dyn UserStore>,
    /// Sign-in sessions and their refresh tokens.
    pub auth_sessions: Arc<dyn AuthSessionStore>,
    /// Rate limits.
    pub limits: Arc<dyn LimitStore>,
    /// Secrets of inbound webhooks.
    pub webhooks: Arc<dyn WebhookStore>,
    /// Named secrets.
    pub secrets: Arc<dyn SecretStore>,
    /// Tokens of providers.
    pub tokens: Arc<dyn TokenStore>,
    /// The encrypted values of all tables.
    pub sealed: Arc<dyn SealedStore>,
    /// The audit log.
    pub audit: Arc<dyn AuditStore>,
    /// Fleet settings.
    pub settings: Arc<dyn SettingStore>,
    /// Once-keys, of requests and of programs.
    pub once: Arc<dyn OnceStore>,
    /// Named ownership that expires.
    pub leases: Arc<dyn LeaseStore>,
    /// Shared values.
    pub state: Arc<dyn StateStore>,
    /// What applications have left in their own transactions.
    pub outbox: Arc<dyn OutboxStore>,
    /// Streams and their chunks.
    pub streams: Arc<dyn StreamStore>,
    /// Requests to one client of a user.
    pub calls: Arc<dyn CallStore>,
    /// The change feed.
    pub feed: Arc<dyn FeedStore>,
    /// The clock by which tasks become due.
    pub schedule_clock: ScheduleClock,
    /// What this database can do.
    pub capabilities: Capabilities,
}

/// What differs between databases, as facts that the parts above may act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether several processes may share the database.
    pub allows_replicas: bool,
    /// Whether live replicas must keep a lease in the database.
    pub needs_instance_lease: bool,
}
