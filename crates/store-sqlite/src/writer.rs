//! The writer: one connection, one transaction at a time, many commands in each.
//!
//! A command waits in one of two bounded lanes; a full lane makes its callers wait. What a command does
//! is none of the writer's business.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::{Connection as _, SqliteConnection};
use switchboard_model::feed::{Signal, SignalKind};
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{ScheduleClock, StoreError, StoreResult};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connect;
use crate::error::{DbResult, no_answer, not_committed};
use crate::feed::Feed;
use crate::rows::micros;

/// Commands that wait in one lane before their callers have to.
const LANE_COMMANDS: usize = 1_024;
/// Urgent commands that go first while a normal one waits.
const URGENT_IN_A_ROW: u32 = 4;
/// When a transaction takes no further command.
const LONGEST_CHUNK: Duration = Duration::from_millis(50);

/// Which commands go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Leases, renewals and finishes, on which running work depends.
    Urgent,
    /// Everything else.
    Normal,
}

/// What a command works with: the connection inside its savepoint, and what follows its commit.
pub(crate) struct Change {
    /// The connection of the writer.
    pub(crate) connection: SqliteConnection,
    /// Database time of the command, in microseconds.
    pub(crate) now: i64,
    /// Time of the command by the clock of schedules, in microseconds.
    pub(crate) schedule_now: i64,
    signals: Vec<Signal>,
    fail_points: Vec<[FailPoint; 2]>,
}

impl Change {
    /// Leaves a signal that is published after the commit.
    pub(crate) fn signal(&mut self, kind: SignalKind, key: impl Into<String>, pos: i64) {
        self.signals.push(Signal { kind, key: key.into(), pos, body: None });
    }

    /// Names the fail points just before and just after the commit that contains this command.
    pub(crate) fn pass_at_commit(&mut self, points: [FailPoint; 2]) {
        if !self.fail_points.contains(&points) {
            self.fail_points.push(points);
        }
    }
}

type Command = Box<dyn for<'c> FnOnce(&'c mut Change) -> BoxFuture<'c, Finished> + Send>;

/// A command that was carried out and waits for the fate of its transaction.
struct Finished {
    is_kept: bool,
    reply: Box<dyn FnOnce(StoreResult<()>) + Send>,
}

/// The way to the writer.
#[derive(Clone)]
pub(crate) struct Writer {
    urgent: mpsc::Sender<Command>,
    normal: mpsc::Sender<Command>,
}

impl Writer {
    /// Carries out `work` in a transaction, perhaps together with other commands; returns after the
    /// commit. An error undoes this command and no other.
    pub(crate) async fn write<T, W>(&self, lane: Lane, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut Change) -> BoxFuture<'c, DbResult<T>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel::<StoreResult<T>>();
        let command: Command = Box::new(move |change| {
            Box::pin(async move {
                let outcome = work(change).await.map_err(StoreError::from);
                // Nobody listens when the caller went away; the command counts all the same.
                Finished { is_kept: outcome.is_ok(), reply: Box::new(|fate| drop(reply.send(fate.and(outcome)))) }
            })
        });
        let lane = match lane {
            Lane::Urgent => &self.urgent,
            Lane::Normal => &self.normal,
        };
        lane.send(command).await.map_err(|_| no_answer())?;
        answer.await.map_err(|_| no_answer())?
    }
}

/// Makes a writer and the actor behind it, which ends with `stop` or with the last way to it.
pub(crate) fn writer(
    connection: SqliteConnection,
    feed: Arc<Feed>,
    schedule_clock: ScheduleClock,
    stop: CancellationToken,
) -> (Writer, Actor) {
    let (urgent, urgent_lane) = mpsc::channel(LANE_COMMANDS);
    let (normal, normal_lane) = mpsc::channel(LANE_COMMANDS);
    let lanes = Lanes { urgent: urgent_lane, normal: normal_lane, urgent_in_a_row: 0, stop };
    let change = Change { connection, now: 0, schedule_now: 0, signals: Vec::new(), fail_points: Vec::new() };
    (Writer { urgent, normal }, Actor { lanes, change, feed, schedule_clock })
}

/// The commands that wait.
struct Lanes {
    urgent: mpsc::Receiver<Command>,
    normal: mpsc::Receiver<Command>,
    urgent_in_a_row: u32,
    stop: CancellationToken,
}

impl Lanes {
    /// Takes the next command that is there already.
    fn next(&mut self) -> Option<Command> {
        if self.urgent_in_a_row < URGENT_IN_A_ROW
            && let Ok(command) = self.urgent.try_recv()
        {
            self.urgent_in_a_row += 1;
            return Some(command);
        }
        self.urgent_in_a_row = 0;
        self.normal.try_recv().or_else(|_| self.urgent.try_recv()).ok()
    }

    /// Waits for a command. `None` means that the writer was stopped and both lanes are empty.
    async fn wait(&mut self) -> Option<Command> {
        let command = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            command = self.urgent.recv() => command,
            command = self.normal.recv() => command,
        };
        if command.is_some() {
            return command;
        }
        self.urgent.close();
        self.normal.close();
        match self.urgent.recv().await {
            None => self.normal.recv().await,
            command => command,
        }
    }
}

/// The actor that owns the connection.
pub(crate) struct Actor {
    lanes: Lanes,
    change: Change,
    feed: Arc<Feed>,
    schedule_clock: ScheduleClock,
}

impl Actor {
    /// Carries out commands until the writer is stopped and drained, then closes the connection.
    pub(crate) async fn run(mut self) {
        loop {
            let first = match self.lanes.next() {
                Some(command) => command,
                None => match self.lanes.wait().await {
                    Some(command) => command,
                    None => break,
                },
            };
            self.batch(first).await;
        }
        if let Err(error) = self.change.connection.close().await {
            tracing::warn!(error = %error, "the database did not close cleanly");
        }
    }

    /// Carries out one transaction and answers its commands.
    async fn batch(&mut self, first: Command) {
        let mut finished = Vec::new();
        let fate = self.transaction(first, &mut finished).await.map_err(Arc::new);
        if let Err(error) = &fate {
            tracing::error!(error = %error, commands = finished.len(), "a transaction did not commit");
            // SQLite has rolled back by itself after some errors, so this may find nothing to do.
            sqlx::query("ROLLBACK").execute(&mut self.change.connection).await.ok();
            self.change.signals.clear();
        }
        self.change.fail_points.clear();
        self.feed.publish(self.change.signals.drain(..));
        metrics::histogram!("switchboard_store_writer_batch_commands").record(finished.len() as f64);
        for command in finished {
            (command.reply)(fate.as_ref().map(|_| ()).map_err(not_committed));
        }
    }

    async fn transaction(&mut self, first: Command, finished: &mut Vec<Finished>) -> Result<(), sqlx::Error> {
        let started = Instant::now();
        sqlx::query("BEGIN IMMEDIATE").execute(&mut self.change.connection).await?;
        let mut next = Some(first);
        while let Some(command) = next {
            self.carry_out(command, finished).await?;
            next = if started.elapsed() < LONGEST_CHUNK { self.lanes.next() } else { None };
        }
        for [before, _] in &self.change.fail_points {
            fail_point::hit(*before);
        }
        let commit = Instant::now();
        sqlx::query("COMMIT").execute(&mut self.change.connection).await?;
        metrics::histogram!("switchboard_store_commit_seconds").record(commit.elapsed());
        for [_, after] in &self.change.fail_points {
            fail_point::hit(*after);
        }
        Ok(())
    }

    /// Carries out one command between savepoint and release. Its own failure is an answer to its
    /// caller; an error here means that the whole transaction is lost.
    async fn carry_out(&mut self, command: Command, finished: &mut Vec<Finished>) -> Result<(), sqlx::Error> {
        let change = &mut self.change;
        sqlx::query("SAVEPOINT command").execute(&mut change.connection).await?;
        change.now = connect::now();
        change.schedule_now = self.schedule_clock.set_time().map_or(change.now, micros);
        let signals = change.signals.len();
        let done = command(change).await;
        let is_kept = done.is_kept;
        finished.push(done);
        if !is_kept {
            change.signals.truncate(signals);
            sqlx::query("ROLLBACK TO command").execute(&mut change.connection).await?;
        }
        sqlx::query("RELEASE command").execute(&mut change.connection).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::future::join_all;
    use sqlx::ConnectOptions as _;
    use sqlx::sqlite::SqliteConnectOptions;
    use switchboard_model::feed::SignalKind;

    use super::*;

    struct Fixture {
        writer: Writer,
        actor: Actor,
        feed: Arc<Feed>,
        stop: CancellationToken,
    }

    impl Fixture {
        async fn new() -> Self {
            let mut connection = SqliteConnectOptions::new().in_memory(true).connect().await.unwrap();
            sqlx::query("CREATE TABLE notes (text TEXT PRIMARY KEY)").execute(&mut connection).await.unwrap();
            let (feed, stop) = (Arc::new(Feed::new()), CancellationToken::new());
            let (writer, actor) = writer(connection, feed.clone(), ScheduleClock::default(), stop.clone());
            Self { writer, actor, feed, stop }
        }
    }

    /// Signals a note and writes it, which fails if it exists.
    async fn note(change: &mut Change, text: &'static str, pos: i64) -> DbResult<()> {
        change.signal(SignalKind::TaskChanged, text, pos);
        sqlx::query("INSERT INTO notes (text) VALUES (?)").bind(text).execute(&mut change.connection).await?;
        Ok(())
    }

    #[tokio::test]
    async fn at_most_four_urgent_commands_go_before_a_normal_one() {
        let Fixture { writer, actor, stop, .. } = Fixture::new().await;
        let order = Arc::new(Mutex::new(String::new()));
        let queue = |lane, mark: char| {
            let (order, writer) = (order.clone(), writer.clone());
            async move {
                let write = writer.write(lane, move |_| {
                    order.lock().unwrap().push(mark);
                    Box::pin(async { Ok(()) })
                });
                write.await.unwrap();
            }
        };
        let normal = join_all((0..2).map(|_| queue(Lane::Normal, 'n')));
        let urgent = join_all((0..6).map(|_| queue(Lane::Urgent, 'u')));
        // All commands are queued before the actor is polled for the first time.
        let all = async {
            tokio::join!(normal, urgent);
            stop.cancel();
        };
        tokio::join!(biased; all, actor.run());
        assert_eq!(*order.lock().unwrap(), "uuuunuun");
    }

    #[tokio::test]
    async fn a_failing_command_does_not_hurt_its_neighbours_in_the_transaction() {
        let Fixture { writer, actor, feed, stop } = Fixture::new().await;
        let (start, _) = feed.since(None);
        let all = async {
            let notes = [("a", 0), ("b", 0), ("a", 1), ("c", 0)]
                .map(|(text, pos)| writer.write(Lane::Normal, move |change| Box::pin(note(change, text, pos))));
            let outcomes = join_all(notes).await;
            assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true]);
            let read = writer.write(Lane::Normal, |change| {
                Box::pin(async move {
                    let sql = "SELECT text FROM notes ORDER BY text";
                    Ok(sqlx::query_scalar::<_, String>(sql).fetch_all(&mut change.connection).await?)
                })
            });
            assert_eq!(read.await.unwrap(), ["a", "b", "c"]);
            stop.cancel();
        };
        tokio::join!(biased; all, actor.run());
        let signals = feed.since(Some(&start)).1.unwrap();
        let found: Vec<_> = signals.iter().map(|signal| (signal.key.as_str(), signal.pos)).collect();
        assert_eq!(found, [("a", 0), ("b", 0), ("c", 0)], "a failed command signals nothing");
    }

    #[tokio::test]
    async fn what_was_queued_before_the_stop_is_carried_out() {
        let Fixture { writer, actor, stop, .. } = Fixture::new().await;
        stop.cancel();
        let write = |text| writer.write(Lane::Normal, move |change| Box::pin(note(change, text, 0)));
        let (queued, ()) = tokio::join!(biased; write("a"), actor.run());
        queued.unwrap();
        assert!(matches!(write("b").await, Err(StoreError::Unavailable(_))));
    }
}
