//! End-to-end tests: real server processes, real databases, real sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chromium;
mod cli;
mod fixtures;
mod idempotency;
mod receiver;

mod account_commands;
mod accounts;
mod audit_commands;
mod browser;
mod bus;
mod bus_faults;
mod calls;
mod chaos;
mod client_commands;
mod clock;
mod clocks;
mod command_line;
mod coordination;
mod coordination_commands;
mod crowds;
mod edge;
mod embedding;
mod faults;
mod framing;
mod http_actions;
mod key_rotation;
mod lease_history;
mod limits;
mod listeners;
mod occurrences;
mod outages;
mod outbox;
mod poolers;
mod provider_tokens;
mod pull_worker;
mod releases;
mod replicas;
mod roles;
mod safety;
mod secrets;
mod sessions;
mod steering;
mod streams;
mod surface;
mod webhook_commands;
mod webhooks;
mod work_commands;
mod worker_keys;
