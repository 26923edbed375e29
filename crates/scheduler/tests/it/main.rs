//! The scheduler over a real SQLite database: whole replicas, with faults put between them and it.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "every line of this crate is test code")]

mod faults;
mod fixtures;

mod fire;
mod leases;
mod outcomes;
mod stop;
mod upkeep;
