//! The PostgreSQL backend against the meaning of the store traits, and what only this backend promises.

#![expect(clippy::unwrap_used, reason = "every line of this crate is test code")]

mod backend;
mod bad_rows;
mod cuts;
mod feed;
mod hints;
mod migrations;
mod outbox;
mod pooled;
mod proxied;
mod sweeps;
mod waits;

use backend::PgBackend;

switchboard_store_conformance::suite!(pg, PgBackend);
