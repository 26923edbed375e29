//! The wire: error codes, close codes, limits, socket frames and REST bodies, settled once.

pub mod auth;
pub mod bulk;
pub mod close;
pub mod code;
pub mod coordination;
pub mod frame;
pub mod limits;
pub mod listen;
pub mod op;
pub mod problem;
pub mod rest;
pub mod secret;
pub mod stream;
pub mod strict;
pub mod test_clock;
pub mod work;

/// The WebSocket subprotocol.
pub const SUBPROTOCOL: &str = "switchboard.v1";

/// The prefix of the subprotocol entry that carries a ticket.
pub const TICKET_SUBPROTOCOL_PREFIX: &str = "ticket.";
