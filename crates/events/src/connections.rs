//! The rows of this replica's sockets: entered, shown in rooms, and taken off the list, in batches.
//!
//! While one batch commits, the next one gathers, so many sockets that open or close share a commit. Whoever enters
//! something waits for the commit and hears when it fails; what is taken back is repeated until it is done. Knows
//! neither rooms nor sockets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchboard_model::connection::NewConnection;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::ConnectionId;
use switchboard_store_api::{ConnectOutcome, ConnectionStore, PresenceChange, PresenceStore, StoreError, Stores};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::feed::error_chain;
use crate::publisher::with_retry;

/// How many jobs wait before their callers have to; also the most of one batch.
const JOBS: usize = 500;

/// How long what could not be taken back waits before it is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// Why a socket could not be entered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The user has as many sockets as allowed, on all replicas together.
    #[error("the user has as many sockets as allowed")]
    TooMany,
    /// The database failed.
    #[error("the socket cannot be entered")]
    Store(#[source] Arc<StoreError>),
    /// The replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

/// Hears whether something was entered.
type Reply = oneshot::Sender<Result<(), ConnectError>>;

enum Job {
    Connect { new: NewConnection, listeners: u32, reply: Reply },
    Enter { room: RoomName, connection: NewConnection, reply: Reply },
    Settle { reply: oneshot::Sender<()> },
}

/// What is to be taken back; bounded by the sockets that there were.
#[derive(Default)]
struct Gone {
    closed: Vec<ConnectionId>,
    left: Vec<PresenceChange>,
}

impl Gone {
    fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.left.is_empty()
    }
}

/// The way to the rows of this replica's sockets.
pub(crate) struct Connections {
    jobs: mpsc::Sender<Job>,
    gone: Arc<(Mutex<Gone>, Notify)>,
}

/// The work behind [`Connections`].
pub(crate) struct ConnectionLane {
    jobs: mpsc::Receiver<Job>,
    gone: Arc<(Mutex<Gone>, Notify)>,
    connections: Arc<dyn ConnectionStore>,
    presence: Arc<dyn PresenceStore>,
    most: u32,
}

impl Connections {
    /// Makes the way and the lane at its end; a user has at most `most` sockets.
    pub(crate) fn new(stores: &Stores, most: u32) -> (Self, ConnectionLane) {
        let (sender, jobs) = mpsc::channel(JOBS);
        let gone: Arc<(Mutex<Gone>, Notify)> = Arc::default();
        let (connections, presence) = (Arc::clone(&stores.connections), Arc::clone(&stores.presence));
        let lane = ConnectionLane { jobs, gone: Arc::clone(&gone), connections, presence, most };
        (Self { jobs: sender, gone }, lane)
    }

    /// Enters a socket of a user who has so many listeners here, each of which counts as one.
    ///
    /// # Errors
    /// [`ConnectError`] says why it does not count; it may count all the same when the database failed.
    pub(crate) async fn connect(&self, new: NewConnection, listeners: u32) -> Result<(), ConnectError> {
        self.ask(|reply| Job::Connect { new, listeners, reply }).await?
    }

    /// Shows the user of a socket in a room.
    ///
    /// # Errors
    /// [`ConnectError`] when that may not have happened.
    pub(crate) async fn enter(&self, room: RoomName, connection: NewConnection) -> Result<(), ConnectError> {
        self.ask(|reply| Job::Enter { room, connection, reply }).await?
    }

    /// Shows the user of a socket no longer in a room.
    pub(crate) fn leave(&self, room: RoomName, connection: ConnectionId) {
        self.gone.0.lock().left.push(PresenceChange::Leave { room, connection });
        self.gone.1.notify_one();
    }

    /// Takes a socket off the list.
    pub(crate) fn close(&self, connection: ConnectionId) {
        self.gone.0.lock().closed.push(connection);
        self.gone.1.notify_one();
    }

    /// Waits until everything said before was written, or has failed once.
    pub(crate) async fn settled(&self) {
        let _ = self.ask(|reply| Job::Settle { reply }).await;
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Result<T, ConnectError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).await.map_err(|_| ConnectError::Stopped)?;
        answer.await.map_err(|_| ConnectError::Stopped)
    }
}

impl ConnectionLane {
    /// Works until `stop`, then takes back once more what is to be taken back.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        enum Wake {
            Job(Option<Job>),
            Gone,
            Stop,
        }
        let mut retry_at = None;
        loop {
            let wake = tokio::select! {
                () = stop.cancelled() => Wake::Stop,
                job = self.jobs.recv() => Wake::Job(job),
                () = self.gone.1.notified() => Wake::Gone,
                () = sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => Wake::Gone,
            };
            let mut batch = match wake {
                Wake::Job(Some(job)) => vec![job],
                Wake::Gone => Vec::new(),
                Wake::Job(None) | Wake::Stop => break,
            };
            while batch.len() < JOBS
                && let Ok(job) = self.jobs.try_recv()
            {
                batch.push(job);
            }
            self.work(batch).await;
            // What was added meanwhile has woken the lane itself; what has failed is tried again after a while.
            retry_at = (!self.gone.0.lock().is_empty()).then(|| Instant::now() + RETRY);
        }
        self.jobs.close();
        self.work(Vec::new()).await;
    }

    /// Does a batch: only who is connected can enter a room, and who left one may come again.
    async fn work(&self, batch: Vec<Job>) {
        let gone = std::mem::take(&mut *self.gone.0.lock());
        // Most users have no listeners; those who have go by themselves, with a smaller limit.
        let mut opened: BTreeMap<u32, Vec<(NewConnection, Reply)>> = BTreeMap::new();
        let (mut entered, mut settled) = (Vec::new(), Vec::new());
        for job in batch {
            match job {
                // Nobody waits for a socket whose handshake was given up.
                Job::Connect { reply, .. } if reply.is_closed() => {}
                Job::Connect { new, listeners, reply } => opened.entry(listeners).or_default().push((new, reply)),
                Job::Enter { room, connection, reply } => {
                    entered.push((PresenceChange::Enter { room, connection }, reply));
                }
                Job::Settle { reply } => settled.push(reply),
            }
        }
        for (listeners, opened) in opened {
            self.open(opened, self.most.saturating_sub(listeners)).await;
        }
        self.show(gone.left, entered).await;
        self.close(gone.closed).await;
        for reply in settled {
            let _ = reply.send(());
        }
    }

    async fn open(&self, opened: Vec<(NewConnection, Reply)>, most: u32) {
        let (sockets, replies): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        match with_retry(|| self.connections.connect(&sockets, most)).await {
            Ok(outcomes) => {
                for (reply, outcome) in replies.into_iter().zip(outcomes) {
                    let _ = reply.send(match outcome {
                        ConnectOutcome::Connected => Ok(()),
                        ConnectOutcome::TooMany => Err(ConnectError::TooMany),
                    });
                }
            }
            Err(error) => {
                let error = ConnectError::Store(Arc::new(error));
                for reply in replies {
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
    }

    async fn show(&self, left: Vec<PresenceChange>, entered: Vec<(PresenceChange, Reply)>) {
        if left.is_empty() && entered.is_empty() {
            return;
        }
        let count = left.len();
        let mut changes = left;
        let (enters, replies): (Vec<_>, Vec<_>) = entered.into_iter().unzip();
        changes.extend(enters);
        let result = with_retry(|| self.presence.change(&changes)).await.map_err(Arc::new);
        for reply in replies {
            let _ = reply.send(result.clone().map_err(ConnectError::Store));
        }
        if let Err(error) = result {
            tracing::debug!(error = %error_chain(&error), "presence cannot be written");
            changes.truncate(count);
            self.gone.0.lock().left.splice(0..0, changes);
        }
    }

    async fn close(&self, closed: Vec<ConnectionId>) {
        if closed.is_empty() {
            return;
        }
        if let Err(error) = with_retry(|| self.connections.disconnect(&closed)).await {
            tracing::debug!(error = %error_chain(&error), "sockets cannot be taken off the list");
            self.gone.0.lock().closed.extend(closed);
        }
    }
}
