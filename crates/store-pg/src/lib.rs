//! The PostgreSQL backend of the stores: many replicas on one database, correct under READ COMMITTED.
//!
//! Three rules carry it. Lock in one statement and decide in the next, because a statement that waits
//! for a lock still sees what was before. Lock in one order everywhere: once-keys, users, sign-in sessions,
//! tasks, runs by id, permit keys, rooms by id, streams by id, rate limits by key, leases by key, namespaces of state by
//! name, the users of sockets, instances, connections by id, presence by room and connection, encrypted values by id.
//! Leave a signal for every change in the transaction that makes it.
//!
//! All tables lie in the schema `switchboard` and are named with it, so that no setting of a session,
//! which a pooler may not keep, decides what a statement means.

mod api_keys;
mod audit;
mod auth_sessions;
mod calls;
mod connect;
mod connections;
mod context;
mod diagnose;
mod error;
mod feed;
mod hints;
mod instances;
mod leases;
mod limits;
mod link;
mod migrate;
mod once;
mod outbox;
mod presence;
mod rooms;
mod rows;
mod runs;
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

use std::sync::Arc;

pub use connect::{CONNECTIONS_BESIDE_POOL, HintTransport, OpenError, PgOptions, open};
pub use diagnose::{PgDiagnosis, diagnose};
#[cfg(debug_assertions)]
pub use migrate::pretend_next_release;
pub use migrate::{migrate, schema_version};
use switchboard_store_api::{Capabilities, Stores};

fn stores(database: &Arc<connect::Database>) -> Stores {
    Stores {
        tasks: Arc::new(tasks::Tasks(Arc::clone(database))),
        runs: Arc::new(runs::Runs(Arc::clone(database))),
        rooms: Arc::new(rooms::Rooms(Arc::clone(database))),
        tickets: Arc::new(tickets::Tickets(Arc::clone(database))),
        instances: Arc::new(instances::Instances(Arc::clone(database))),
        connections: Arc::new(connections::Connections(Arc::clone(database))),
        presence: Arc::new(presence::PresenceRows(Arc::clone(database))),
        api_keys: Arc::new(api_keys::ApiKeys(Arc::clone(database))),
        users: Arc::new(users::Users(Arc::clone(database))),
        auth_sessions: Arc::new(auth_sessions::AuthSessions(Arc::clone(database))),
        limits: Arc::new(limits::Limits(Arc::clone(database))),
        webhooks: Arc::new(webhooks::Webhooks(Arc::clone(database))),
        secrets: Arc::new(secrets::Secrets(Arc::clone(database))),
        tokens: Arc::new(tokens::Tokens(Arc::clone(database))),
        sealed: Arc::new(sealed::SealedValues(Arc::clone(database))),
        audit: Arc::new(audit::AuditLog(Arc::clone(database))),
        settings: Arc::new(settings::Settings(Arc::clone(database))),
        once: Arc::new(once::Once(Arc::clone(database))),
        leases: Arc::new(leases::Leases(Arc::clone(database))),
        state: Arc::new(state::State(Arc::clone(database))),
        outbox: Arc::new(outbox::Outbox(Arc::clone(database))),
        streams: Arc::new(streams::Streams(Arc::clone(database))),
        calls: Arc::new(calls::Calls(Arc::clone(database))),
        schedule_clock: database.schedule_clock.clone(),
        feed: Arc::new(feed::Feed(Arc::clone(database))),
        capabilities: Capabilities { allows_replicas: true, needs_instance_lease: true },
    }
}
