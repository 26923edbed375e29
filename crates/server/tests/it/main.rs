//! End-to-end tests: real server processes, real databases, real sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixtures;
mod idempotency;

mod client_commands;
mod command_line;
mod faults;
mod replicas;
mod surface;
mod webhooks;
