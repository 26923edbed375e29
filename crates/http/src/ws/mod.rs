//! WebSockets: the handshake, and the session that follows it.

mod auth;
mod budget;
mod handshake;
mod session;
mod ticket;

pub use budget::MessageBudget;
pub(crate) use handshake::upgrade;
pub(crate) use session::describe_metrics;
