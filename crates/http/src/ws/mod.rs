//! WebSockets: the handshake, and the session that follows it.

mod auth;
mod handshake;
mod session;
mod ticket;

pub(crate) use handshake::upgrade;
pub(crate) use session::describe_metrics;
