//! The proxy before PostgreSQL and before replicas fails as it is told, and not otherwise.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};
use switchboard_testkit::proxy::{Cut, Direction, Ending, FaultProxy, Traffic, Unit};
use switchboard_testkit::{TestDatabase, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

struct Bed {
    database: TestDatabase,
    proxy: FaultProxy,
}

impl Bed {
    async fn new() -> Self {
        let database = TestDatabase::empty().await;
        database.execute("CREATE TABLE public.numbers (n bigint)").await;
        let proxy = FaultProxy::start(database.url()).await;
        Self { database, proxy }
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(self.proxy.url()).await.unwrap()
    }

    /// Inserts a number in a transaction whose COMMIT is the third exchange.
    async fn insert(&self, connection: &mut PgConnection, direction: Direction, ending: Ending) -> bool {
        self.proxy.cut(Cut { direction, unit: Unit::Exchange, after: 2, ending });
        connection.execute("BEGIN").await.unwrap();
        connection.execute("INSERT INTO public.numbers VALUES (1)").await.unwrap();
        let committed = connection.execute("COMMIT").await;
        assert!(self.proxy.disarm());
        committed.is_ok()
    }

    async fn count(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM public.numbers").fetch_one(self.database.pool()).await.unwrap()
    }
}

#[tokio::test]
async fn a_connection_dies_before_a_commit_or_after_it() {
    let bed = Bed::new().await;
    for ending in [Ending::Close, Ending::Reset] {
        let mut connection = bed.connect().await;
        assert!(!bed.insert(&mut connection, Direction::ToServer, ending).await);
        assert_eq!(bed.count().await, 0, "it never came to the server");
        let mut connection = bed.connect().await;
        assert!(!bed.insert(&mut connection, Direction::ToClient, ending).await);
        assert_eq!(bed.count().await, 1, "only the answer was lost");
        bed.database.execute("DELETE FROM public.numbers").await;
    }
}

#[tokio::test]
async fn bytes_and_messages_are_counted_behind_the_start_up() {
    let bed = Bed::new().await;
    let mut connection = bed.connect().await;
    let before = bed.proxy.passed(Direction::ToServer, Unit::Message);
    connection.execute("SELECT 1").await.unwrap();
    assert_eq!(bed.proxy.passed(Direction::ToServer, Unit::Message), before + 1);
    bed.proxy.cut(Cut { direction: Direction::ToClient, unit: Unit::Byte, after: 3, ending: Ending::Close });
    assert!(connection.execute("SELECT 1").await.is_err());
}

#[tokio::test]
async fn all_connections_end_at_once_and_new_ones_work() {
    let bed = Bed::new().await;
    let mut connections = [bed.connect().await, bed.connect().await];
    bed.proxy.end_all(Ending::Reset);
    for connection in &mut connections {
        assert!(connection.ping().await.is_err());
    }
    bed.connect().await.ping().await.unwrap();
}

#[tokio::test]
async fn what_is_swallowed_stays_away_and_new_connections_work_afterwards() {
    let bed = Bed::new().await;
    let (mut idle, mut lost) = (bed.connect().await, bed.connect().await);
    bed.proxy.set(Traffic::Swallowed);
    let silence = Duration::from_millis(100);
    timeout(silence, lost.ping()).await.unwrap_err();
    assert!(timeout(silence, PgConnection::connect(bed.proxy.url())).await.is_err());
    bed.proxy.set(Traffic::Flows);
    timeout(silence, lost.ping()).await.unwrap_err();
    idle.ping().await.unwrap();
    bed.connect().await.ping().await.unwrap();
}

#[tokio::test]
async fn traffic_is_slowed_down() {
    let bed = Bed::new().await;
    let mut connection = bed.connect().await;
    for traffic in [Traffic::Delayed(Duration::from_millis(20)), Traffic::Throttled(250)] {
        bed.proxy.set(traffic);
        let started = Instant::now();
        connection.ping().await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(40), "{traffic:?}: {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_half_open_connection_loses_one_way_only() {
    let bed = Bed::new().await;
    let insert = "INSERT INTO public.numbers VALUES (1)";
    let silence = Duration::from_millis(100);
    let (mut deaf, mut mute) = (bed.connect().await, bed.connect().await);
    bed.proxy.set(Traffic::Dropped(Direction::ToClient));
    timeout(silence, deaf.execute(insert)).await.unwrap_err();
    wait_until("the row of a client that hears nothing", async || (bed.count().await == 1).then_some(())).await;
    bed.proxy.set(Traffic::Dropped(Direction::ToServer));
    timeout(silence, mute.execute(insert)).await.unwrap_err();
    bed.proxy.set(Traffic::Flows);
    timeout(silence, mute.ping()).await.unwrap_err();
    assert_eq!(bed.count().await, 1, "the other one was never heard");
    bed.connect().await.ping().await.unwrap();
}

/// A server that gives back what it gets, as a stand-in for a replica.
async fn echo() -> (JoinSet<()>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut from, mut to) = connection.split();
                let _ = copy(&mut from, &mut to).await;
            });
        }
    });
    (tasks, url)
}

/// Sends a word and waits for it.
async fn said(connection: &mut TcpStream, word: &[u8]) -> std::io::Result<Vec<u8>> {
    connection.write_all(word).await?;
    let mut answer = vec![0; word.len()];
    connection.read_exact(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn what_passes_to_a_replica_is_cut_and_lost_and_late_just_so() {
    let (_server, url) = echo().await;
    let proxy = FaultProxy::before(&url).await;
    let connect = async || TcpStream::connect(proxy.url().trim_start_matches("http://")).await.unwrap();
    let silence = Duration::from_millis(100);
    let mut connection = connect().await;
    assert_eq!(said(&mut connection, b"hello").await.unwrap(), b"hello");
    proxy.set(Traffic::Delayed(Duration::from_millis(20)));
    let started = Instant::now();
    assert_eq!(said(&mut connection, b"slow").await.unwrap(), b"slow");
    assert!(started.elapsed() >= Duration::from_millis(40), "{:?}", started.elapsed());
    for lost in [Traffic::Swallowed, Traffic::Dropped(Direction::ToServer), Traffic::Dropped(Direction::ToClient)] {
        proxy.set(Traffic::Flows);
        let mut lossy = connect().await;
        assert_eq!(said(&mut lossy, b"before").await.unwrap(), b"before");
        proxy.set(lost);
        timeout(silence, said(&mut lossy, b"lost")).await.unwrap_err();
        timeout(silence, said(&mut connect().await, b"new")).await.unwrap_err();
        proxy.set(Traffic::Flows);
        timeout(silence, said(&mut lossy, b"after")).await.unwrap_err();
        assert_eq!(said(&mut connection, b"idle").await.unwrap(), b"idle");
    }
    proxy.cut(Cut { direction: Direction::ToClient, unit: Unit::Byte, after: 3, ending: Ending::Close });
    assert!(said(&mut connection, b"hello").await.is_err());
    let mut connection = connect().await;
    assert_eq!(said(&mut connection, b"another").await.unwrap(), b"another");
    proxy.end_all(Ending::Reset);
    assert!(said(&mut connection, b"hello").await.is_err());
    assert_eq!(said(&mut connect().await, b"again").await.unwrap(), b"again");
}
