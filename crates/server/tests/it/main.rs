//! End-to-end tests: real server processes, real databases, real sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixtures;

mod client_commands;
mod command_line;
mod edge;
mod faults;
mod limits;
mod replicas;
mod surface;
