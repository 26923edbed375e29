//! One PostgreSQL server for a test run: found by URL, or started from what the machine has, and never left behind; and
//! a pooler before it.
//!
//! It must stay small and know nothing of Switchboard, since `xtask` builds it before anything else: the standard
//! library and `nix` only, no runtime, no driver.

mod account;
mod binaries;
mod container;
mod environment;
mod error;
mod package;
mod pgbouncer;
mod process;
mod server;

pub use binaries::find_binaries;
pub use environment::{BIN_VARIABLE, URL_VARIABLE};
pub use error::PostgresError;
pub use package::install_package;
pub use pgbouncer::PgBouncer;
pub use server::{Durability, PostgresServer};
