//! Limits of the wire, in the units that their names say.

use crate::span::Span;

/// The largest WebSocket frame and message, in bytes.
pub const MESSAGE_BYTES: usize = 64 * 1024;
/// What the heads of the fragments of a message may have, in bytes; a fragment has at least six, so no message has more
/// than about 20 thousand.
pub const FRAGMENT_BYTES: usize = 64 * 1024;
/// The largest event payload on every path, in bytes.
pub const PAYLOAD_BYTES: usize = 60 * 1024;
/// The largest REST body, in bytes.
pub const BODY_BYTES: usize = 1024 * 1024;
/// The largest body of a request that makes many things at once, in bytes.
pub const BULK_BODY_BYTES: usize = 16 * 1024 * 1024;
/// The largest body of a request that stores a shared value, in bytes: a value of the largest size and what surrounds it.
pub const STATE_BODY_BYTES: usize = 1024 * 1024 + 4 * 1024;
/// The most things that one request makes.
pub const BULK_ITEMS: usize = 10_000;
/// The deepest nesting of JSON.
pub const JSON_DEPTH: usize = 64;
/// The most sockets of one user, over all replicas.
pub const SOCKETS_PER_USER: u32 = 20;
/// The most rooms of one socket.
pub const ROOMS_PER_SOCKET: usize = 200;
/// How many operations a socket may send a second, in the long run.
pub const OPS_PER_SECOND: u32 = 100;
/// How many operations a socket may send at once.
pub const OPS_BURST: u32 = 200;
/// The most events of a history or replay page.
pub const HISTORY_EVENTS: u32 = 500;
/// The most payload bytes of a history or replay page.
pub const HISTORY_BYTES: i64 = 1024 * 1024;
/// The most events of one batch publish.
pub const BATCH_EVENTS: usize = 500;
/// How long a message id given by a client is remembered.
pub const DEDUPE_TTL: Span = Span::from_secs(600);
/// How long an idempotency key is remembered.
pub const IDEMPOTENCY_TTL: Span = Span::from_secs(24 * 3600);
/// How often the server pings a socket.
pub const HEARTBEAT: Span = Span::from_secs(20);
/// How long a socket may stay silent after a ping.
pub const PONG_WAIT: Span = Span::from_secs(10);
/// The most frames that wait in the data lane of a socket.
pub const OUTBOX_FRAMES: usize = 1024;
/// The most bytes that wait in the data lane of a socket.
pub const OUTBOX_BYTES: usize = 1024 * 1024;
/// How long a socket may accept no byte before it is closed as slow.
pub const STUCK_AFTER: Span = Span::from_secs(10);
