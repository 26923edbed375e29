//! One connection through a proxy: start-up, then messages both ways until one side ends or a fault does.

use std::io::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::sleep;

use super::frames::Frame;
use super::gate::Verdict;
use super::{Direction, Ending, Protocol, Shared, Traffic};

/// Why nothing passes any more.
enum End {
    /// One side has closed.
    Closed,
    /// A fault struck.
    Fault(Ending),
    /// Something was swallowed.
    Silence,
}

/// Carries a connection until its end.
pub(super) async fn serve(mut client: TcpStream, shared: &Shared) -> Result<()> {
    let mut ends = shared.ends.subscribe();
    ends.mark_unchanged();
    client.set_nodelay(true)?;
    if matches!(*shared.traffic.borrow(), Traffic::Swallowed | Traffic::Dropped(_)) {
        return swallow(&mut client).await;
    }
    let first = match shared.protocol {
        Protocol::Postgres => Some(Frame::read_first(&mut client).await?),
        Protocol::Bytes => None,
    };
    let mut server = TcpStream::connect(&shared.server).await?;
    server.set_nodelay(true)?;
    if let Some(first) = &first {
        server.write_all(first.bytes()).await?;
    }

    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    let has_started = AtomicBool::new(first.is_none());
    let mut to_server = Pipe::new(shared, Direction::ToServer, client_in, server_out);
    let mut to_client = Pipe::new(shared, Direction::ToClient, server_in, client_out);
    let end = tokio::select! {
        end = to_server.carry(|_| has_started.load(Ordering::SeqCst)) => end?,
        end = to_client.carry(|frame| has_started.fetch_or(frame.is_ready(), Ordering::SeqCst)) => end?,
        ending = ended(&mut ends) => End::Fault(ending),
    };
    let client = to_server.from.into_inner().reunite(to_client.to).map_err(Error::other)?;
    let server = to_client.from.into_inner().reunite(to_server.to).map_err(Error::other)?;
    finish(end, client, server, shared).await
}

async fn finish(end: End, mut client: TcpStream, mut server: TcpStream, shared: &Shared) -> Result<()> {
    match end {
        End::Closed | End::Fault(Ending::Close) => {
            server.shutdown().await?;
            client.shutdown().await
        }
        End::Fault(Ending::Reset) => {
            server.set_zero_linger()?;
            client.set_zero_linger()
        }
        End::Silence => {
            swallow(&mut client).await?;
            let mut traffic = shared.traffic.subscribe();
            traffic.wait_for(|traffic| *traffic != Traffic::Swallowed).await.map_err(Error::other)?;
            server.shutdown().await
        }
    }
}

/// Waits for the order to end.
async fn ended(ends: &mut watch::Receiver<Option<Ending>>) -> Ending {
    loop {
        // The sender lives as long as the proxy; when both go, the task of this connection is dropped.
        if ends.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(ending) = *ends.borrow_and_update() {
            return ending;
        }
    }
}

/// Reads and forgets until the client closes.
async fn swallow(client: &mut TcpStream) -> Result<()> {
    let mut bytes = [0; 4096];
    while client.read(&mut bytes).await? > 0 {}
    Ok(())
}

/// One way through a connection.
struct Pipe<'s> {
    shared: &'s Shared,
    direction: Direction,
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
}

impl<'s> Pipe<'s> {
    fn new(shared: &'s Shared, direction: Direction, from: OwnedReadHalf, to: OwnedWriteHalf) -> Self {
        Self { shared, direction, from: BufReader::new(from), to }
    }

    /// Carries messages; those that `is_counted` refuses belong to the start-up.
    async fn carry(&mut self, is_counted: impl Fn(&Frame) -> bool) -> Result<End> {
        // Once something is lost, nothing that follows makes sense to the receiver.
        let mut is_deaf = false;
        while let Some(frame) = Frame::read(self.shared.protocol, &mut self.from).await? {
            let is_exchange = frame.is_exchange(self.direction);
            let traffic = *self.shared.traffic.borrow();
            is_deaf = is_deaf || traffic.loses(self.direction);
            match traffic {
                Traffic::Swallowed => return Ok(End::Silence),
                _ if is_deaf => continue,
                Traffic::Delayed(delay) if is_exchange => sleep(delay).await,
                Traffic::Throttled(rate) => sleep(time_of(frame.bytes().len(), rate)).await,
                Traffic::Flows | Traffic::Delayed(_) | Traffic::Dropped(_) => {}
            }
            let verdict = if is_counted(&frame) {
                self.shared.gate.pass(self.direction, frame.bytes().len(), is_exchange)
            } else {
                Verdict::Pass
            };
            match verdict {
                Verdict::Pass => self.to.write_all(frame.bytes()).await?,
                Verdict::Cut(passing, ending) => {
                    self.to.write_all(&frame.bytes()[..passing]).await?;
                    return Ok(End::Fault(ending));
                }
            }
        }
        // Nor does the receiver learn of the end, before something can go its way again.
        let mut traffic = self.shared.traffic.subscribe();
        traffic.wait_for(|traffic| !traffic.loses(self.direction)).await.map_err(Error::other)?;
        Ok(End::Closed)
    }
}

fn time_of(bytes: usize, rate: u32) -> Duration {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    Duration::from_secs_f64(f64::from(bytes) / f64::from(rate.max(1)))
}
