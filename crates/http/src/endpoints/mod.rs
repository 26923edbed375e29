//! The endpoints, one file per group.

pub(crate) mod api_keys;
pub(crate) mod audit;
pub(crate) mod auth;
pub(crate) mod bulk;
pub(crate) mod calls;
pub(crate) mod events;
pub(crate) mod hooks;
pub(crate) mod instances;
pub(crate) mod limits;
pub(crate) mod named_tasks;
pub(crate) mod occurrences;
pub(crate) mod outbox;
pub(crate) mod probes;
pub(crate) mod rooms;
pub(crate) mod runs;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod tasks;
pub(crate) mod test_clock;
pub(crate) mod tickets;
pub(crate) mod triggers;
pub(crate) mod users;
pub(crate) mod webhook_secrets;
pub(crate) mod work;
