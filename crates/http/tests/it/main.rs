//! The HTTP surface over a real SQLite store: access, errors, and what the endpoints do together.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod api_keys;
mod errors;
mod events;
mod external;
mod harness;
mod probes;
mod sign_in;
mod silence;
mod sockets;
mod tasks;
mod tokens;
mod users;
