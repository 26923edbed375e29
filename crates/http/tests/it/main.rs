//! The HTTP surface over a real SQLite store: access, errors, and what the endpoints do together.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod api_keys;
mod asyncapi;
mod audit;
mod bulk;
mod calls;
mod coordination;
mod document;
mod edge;
mod errors;
mod events;
mod external;
mod harness;
mod limits;
mod named_tasks;
mod occurrences;
mod openapi;
mod probes;
mod sdk;
mod secrets;
mod sign_in;
mod silence;
mod sockets;
mod streams;
mod tasks;
mod tokens;
mod triggers;
mod users;
mod webhooks;
mod work;
