//! A TCP proxy before PostgreSQL, or before a replica, that fails on demand, as networks do.
//!
//! Of the protocol of PostgreSQL it understands just as much as it takes to count what passes, so that a connection can
//! die exactly before a COMMIT reaches the server, or after it was executed and before the answer returns. It knows
//! nothing of what the statements say, and nothing at all of what passes to a replica.

mod connection;
mod frames;
mod gate;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::must::Must as _;
use gate::Gate;

/// How everything passes, on all connections, from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Traffic {
    /// At once.
    #[default]
    Flows,
    /// So much later: each request and each answer waits.
    Delayed(Duration),
    /// At most so many bytes a second, each way of each connection.
    Throttled(u32),
    /// Not at all: connections are accepted and everything is swallowed. A connection that has lost something stays
    /// silent afterwards, until its client closes it; the server learns nothing before the traffic flows again.
    Swallowed,
    /// One way only: connections are half-open. Whoever sends the other way is not told, and new connections come to
    /// nothing. What holds for a connection that has lost something is as with [`Traffic::Swallowed`], this way.
    Dropped(Direction),
}

/// What the messages are that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// Those of PostgreSQL.
    Postgres,
    /// Whatever arrives together; each is an exchange of its own.
    Bytes,
}

/// A way through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What clients send.
    ToServer,
    /// What the server sends.
    ToClient,
}

/// What is counted, from the end of the start-up of each connection on. Before a replica every piece that arrives is both
/// a message and an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Byte,
    /// Messages of the protocol, such as Parse, Bind, Execute and Sync.
    Message,
    /// Requests that the server answers (Query and Sync), and the ends of its answers.
    Exchange,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both sides are closed in order.
    Close,
    /// Both sides are reset.
    Reset,
}

/// A connection dies after so much has passed one way, over all connections; what exceeds it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Which way is counted.
    pub direction: Direction,
    /// What is counted.
    pub unit: Unit,
    /// How many still pass.
    pub after: u64,
    /// How the connection ends that carries the next one.
    pub ending: Ending,
}

/// What the connections of a proxy have in common.
#[derive(Debug)]
struct Shared {
    server: String,
    protocol: Protocol,
    gate: Gate,
    traffic: watch::Sender<Traffic>,
    ends: watch::Sender<Option<Ending>>,
    tracker: TaskTracker,
    stop: CancellationToken,
}

/// A running proxy. Dropping it ends its connections.
#[derive(Debug)]
pub struct FaultProxy {
    url: String,
    shared: Arc<Shared>,
}

impl Traffic {
    /// Tells whether what goes this way is lost.
    fn loses(self, way: Direction) -> bool {
        self == Self::Swallowed || self == Self::Dropped(way)
    }
}

impl FaultProxy {
    /// Starts a proxy before the server of a database URL.
    ///
    /// # Panics
    /// Panics when the URL cannot be read or no port can be had.
    pub async fn start(url: &str) -> Self {
        let options: PgConnectOptions = url.parse().must("reading the URL of a database");
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let (shared, address) = bind(server, Protocol::Postgres).await.must("starting a proxy");
        Self { url: through(options, address), shared }
    }

    /// Starts a proxy before a replica, which is found by its address, such as `http://127.0.0.1:8080`.
    ///
    /// # Panics
    /// Panics when no port can be had.
    pub async fn before(base_url: &str) -> Self {
        let server = base_url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let (shared, address) = bind(server, Protocol::Bytes).await.must("starting a proxy");
        Self { url: format!("http://{address}"), shared }
    }

    /// Returns the URL of the database or the replica behind the proxy, through it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Says how everything passes from now on.
    pub fn set(&self, traffic: Traffic) {
        self.shared.traffic.send_replace(traffic);
    }

    /// Ends all connections that exist.
    pub fn end_all(&self, ending: Ending) {
        self.shared.ends.send_replace(Some(ending));
    }

    /// Lets one connection die when so much has passed, counted from now; it replaces a cut that has not struck.
    pub fn cut(&self, cut: Cut) {
        self.shared.gate.arm(cut);
    }

    /// Tells whether the latest cut has struck.
    #[must_use]
    pub fn has_struck(&self) -> bool {
        self.shared.gate.has_struck()
    }

    /// Takes back a cut that has not struck; tells whether it has.
    pub fn disarm(&self) -> bool {
        self.shared.gate.disarm()
    }

    /// Returns how much has passed so far, over all connections.
    #[must_use]
    pub fn passed(&self, direction: Direction, unit: Unit) -> u64 {
        self.shared.gate.passed(direction, unit)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

/// Takes a port and serves what comes to it.
async fn bind(server: String, protocol: Protocol) -> std::io::Result<(Arc<Shared>, SocketAddr)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let shared = Arc::new(Shared {
        server,
        protocol,
        gate: Gate::default(),
        traffic: watch::Sender::default(),
        ends: watch::Sender::default(),
        tracker: TaskTracker::new(),
        stop: CancellationToken::new(),
    });
    let accepting = accept(listener, Arc::clone(&shared));
    shared.tracker.spawn(async move { accepting.await.unwrap_or_else(|error| panic!("the proxy ended: {error}")) });
    Ok((shared, address))
}

/// Leads a URL to the proxy, which carries no encryption.
fn through(options: PgConnectOptions, address: SocketAddr) -> String {
    options.host(&address.ip().to_string()).port(address.port()).to_url_lossy().to_string()
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) -> std::io::Result<()> {
    while let Some(accepted) = shared.stop.run_until_cancelled(listener.accept()).await {
        let (client, _) = accepted?;
        shared.tracker.spawn(serve(client, Arc::clone(&shared)));
    }
    Ok(())
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let stop = shared.stop.clone();
    // What goes wrong with a connection is seen by its client, and most of it was asked for.
    let _ = stop.run_until_cancelled(connection::serve(client, &shared)).await;
}
