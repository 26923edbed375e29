//! The Rust client of Switchboard: the REST surface, and WebSockets that resume after a loss.
//!
//! It knows the wire types of `switchboard-model` and nothing of the server.

mod api_keys;
mod audit;
mod auth;
mod bulk;
mod calls;
mod client;
mod error;
mod health;
mod instances;
mod leases;
mod limits;
mod lines;
mod once;
mod openapi;
mod pages;
mod resume;
mod rooms;
mod runs;
mod secrets;
mod sessions;
mod settings;
mod socket;
mod state;
mod streams;
mod tasks;
mod test_clock;
mod tickets;
mod triggers;
mod users;
mod webhooks;
mod work;

pub use client::{Client, ClientOptions};
pub use error::{ClientError, OpError};
pub use pages::items;
pub use resume::{ResumeEvent, ResumeOptions, ResumingHandle, ResumingSocket, StopCause, TicketSource};
pub use runs::RunQuery;
pub use socket::{LOST, Socket, SocketAuth, SocketEvent, SocketHandle, SocketOptions};
pub use state::StateWatch;
pub use streams::{Follow, Followed};
pub use tasks::OccurrenceQuery;
pub use triggers::Triggered;
pub use webhooks::{WebhookDelivery, webhook_signature};
