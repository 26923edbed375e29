//! End-to-end tests: real server processes, real databases, real sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cli;
mod fixtures;
mod idempotency;

mod account_commands;
mod accounts;
mod audit_commands;
mod client_commands;
mod clock;
mod command_line;
mod edge;
mod faults;
mod limits;
mod outbox;
mod replicas;
mod surface;
mod webhook_commands;
mod webhooks;
