//! The vocabulary of Switchboard: entities, identifiers, wire types and pure rules.
//!
//! Nothing here performs I/O, reads a clock or knows which database or transport is in use.

pub mod api_key;
pub mod audit;
pub mod auth_session;
pub mod call;
pub mod connection;
pub mod feed;
pub mod fire;
pub mod identity;
pub mod ids;
pub mod instance;
pub mod json_text;
pub mod lease;
pub mod limit;
pub mod occurrence;
pub mod once;
pub mod outbox;
pub mod pace;
pub mod page;
pub mod presence;
pub mod redact;
pub mod room;
pub mod run;
pub mod run_rule;
pub mod schedule;
pub mod scope;
pub mod sealed;
pub mod secret;
pub mod secret_text;
pub mod setting;
pub mod span;
pub mod state;
pub mod stream;
pub mod stream_rule;
pub mod task;
pub mod text_enum;
pub mod ticket;
pub mod timetable;
pub mod token;
pub mod user;
pub mod webhook;
pub mod webhook_signature;
pub mod wire;

/// An instant in UTC with microsecond resolution, as both databases store it.
pub type Timestamp = chrono::DateTime<chrono::Utc>;
