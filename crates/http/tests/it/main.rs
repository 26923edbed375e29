//! The HTTP surface over a real SQLite store: access, errors, and what the endpoints do together.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod api_keys;
mod edge;
mod errors;
mod events;
mod harness;
mod limits;
mod probes;
mod silence;
mod sockets;
mod tasks;
