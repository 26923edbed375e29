//! The PostgreSQL backend against the meaning of the store traits, and what only this backend promises.

#![expect(clippy::unwrap_used, reason = "every line of this crate is test code")]

mod backend;
mod bad_rows;
mod busy_rooms;
mod cuts;
mod feed;
mod hints;
mod migrations;
mod news;
mod older_lease;
mod outbox;
mod pooled;
mod proxied;
mod publish;
mod sweeps;
mod waits;

use backend::PgBackend;

switchboard_store_conformance::suite!(pg, PgBackend);
