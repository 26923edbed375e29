//! Streams in one replica: producers, their ends, and readers.

use std::sync::Arc;
use std::time::Duration;

use switchboard_events::{Feed, StreamReader, StreamWriter, Streams, WriteError};
use switchboard_model::feed::TickRequest;
use switchboard_model::ids::{InstanceId, RunId, StreamId};
use switchboard_model::stream::{
    NewStream, STREAM_BYTES, StreamAppend, StreamContent, StreamEnd, StreamPage, StreamState,
};
use switchboard_store_api::{StopOutcome, Stores, StreamAppendOutcome, WriteContext};
use switchboard_store_sqlite::{SqliteOptions, open};
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The streams of a replica on an SQLite file.
struct Place {
    stores: Stores,
    streams: Arc<Streams>,
    tracker: TaskTracker,
    stop: CancellationToken,
    _folder: TempDir,
}

impl Place {
    async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let options = SqliteOptions::new(folder.path().join("switchboard.db"));
        let stores = open(&options, &TaskTracker::new(), CancellationToken::new()).await.unwrap();
        let (streams, lanes) = Streams::new(stores.streams.clone());
        let feed = Feed::new(stores.feed.clone(), TickRequest::default(), vec![streams.clone()]);
        tracker.spawn(lanes.run(stop.clone()));
        tracker.spawn(feed.run(stop.clone()));
        Self { stores, streams, tracker, stop, _folder: folder }
    }

    async fn writer(&self, content: StreamContent) -> StreamWriter {
        self.streams.open(&NewStream { content, ..new_stream() }).await.unwrap()
    }

    /// Reads a stream to its end.
    async fn read(&self, id: StreamId) -> (Vec<Vec<u8>>, StreamState) {
        to_end(&mut self.streams.reader(id, 0)).await
    }
}

fn new_stream() -> NewStream {
    NewStream {
        id: StreamId::new(),
        content: StreamContent::Text,
        user_id: None,
        run_id: None,
        fence: None,
        producer: InstanceId::boot("test"),
    }
}

fn end(state: StreamState) -> StreamEnd {
    StreamEnd { state, reason: None }
}

async fn next(reader: &mut StreamReader) -> StreamPage {
    timeout(Duration::from_secs(30), reader.next()).await.unwrap().unwrap().unwrap()
}

async fn to_end(reader: &mut StreamReader) -> (Vec<Vec<u8>>, StreamState) {
    let mut chunks = Vec::new();
    loop {
        let before = reader.position();
        let page = next(reader).await;
        chunks.extend(page.chunks.iter().map(|chunk| chunk.data.clone()));
        if page.is_last(before) {
            return (chunks, page.stream.state);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_gathered_and_cut_between_characters() {
    let place = Place::new().await;
    let writer = place.writer(StreamContent::Text).await;
    let text = "a🦀é\0\r\n".repeat(500);
    for byte in text.as_bytes() {
        writer.write(&[*byte]).await.unwrap();
    }
    let id = writer.id();
    writer.end(end(StreamState::Completed)).await.unwrap();
    let (chunks, state) = place.read(id).await;
    assert_eq!(state, StreamState::Completed);
    assert_eq!(String::from_utf8(chunks.concat()).unwrap(), text);
    assert!(chunks.iter().all(|chunk| std::str::from_utf8(chunk).is_ok()), "every chunk is valid by itself");
    assert!(chunks.len() < text.len() / 20, "{} chunks", chunks.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_character_at_the_end_is_replaced_and_bytes_are_kept() {
    let place = Place::new().await;
    for (content, expected) in [(StreamContent::Text, "x\u{fffd}".as_bytes()), (StreamContent::Binary, &[b'x', 0xf0])] {
        let writer = place.writer(content).await;
        let id = writer.id();
        writer.write(&[b'x', 0xf0]).await.unwrap();
        writer.end(end(StreamState::Completed)).await.unwrap();
        assert_eq!(place.read(id).await.0.concat(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_get_what_comes_as_it_comes() {
    let place = Place::new().await;
    let writer = place.writer(StreamContent::Text).await;
    let mut readers: Vec<_> = (0..20).map(|_| place.streams.reader(writer.id(), 0)).collect();
    for number in 1..=5 {
        writer.write(b"x").await.unwrap();
        for reader in &mut readers {
            let page = next(reader).await;
            assert_eq!(page.chunks.iter().map(|chunk| chunk.seq).collect::<Vec<_>>(), [number]);
        }
    }
    writer.end(end(StreamState::Completed)).await.unwrap();
    for reader in &mut readers {
        assert_eq!(to_end(reader).await, (vec![], StreamState::Completed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_told_to_the_producer() {
    let place = Place::new().await;
    let writer = place.writer(StreamContent::Text).await;
    let stopped = place.stores.streams.stop(&WriteContext::system("test"), writer.id()).await.unwrap();
    assert_eq!(stopped, StopOutcome::Requested);
    timeout(Duration::from_secs(2), writer.stopping().cancelled()).await.unwrap();
    writer.write(b"last words").await.unwrap();
    let id = writer.id();
    writer.end(end(StreamState::Cancelled)).await.unwrap();
    assert_eq!(place.read(id).await, (vec![b"last words".to_vec()], StreamState::Cancelled));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_goes_away_leaves_an_interrupted_stream() {
    let place = Place::new().await;
    let writer = place.writer(StreamContent::Text).await;
    let id = writer.id();
    writer.write(b"half").await.unwrap();
    drop(writer);
    assert_eq!(place.read(id).await, (vec![b"half".to_vec()], StreamState::Interrupted));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stops_ends_its_streams() {
    let place = Place::new().await;
    let writer = place.writer(StreamContent::Text).await;
    writer.write(b"half").await.unwrap();
    place.stop.cancel();
    place.tracker.close();
    timeout(Duration::from_secs(30), place.tracker.wait()).await.unwrap();
    let page = place.stores.streams.read(writer.id(), 0, 10).await.unwrap().unwrap();
    assert_eq!((page.stream.state, page.chunks.len()), (StreamState::Interrupted, 1));
    assert_eq!(writer.write(b"more").await, Err(WriteError::Fenced));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_learns_that_somebody_else_has_taken_over() {
    let place = Place::new().await;
    let writer = place.writer(StreamContent::Text).await;
    let foreign = StreamAppend {
        stream: writer.id(),
        // The fences of a fresh database begin at 1.
        fence: switchboard_model::ids::Fence(1),
        first: None,
        chunks: vec![],
        end: Some(end(StreamState::Cancelled)),
    };
    let outcome = place.streams.append(foreign).await.unwrap();
    assert!(matches!(outcome, StreamAppendOutcome::Appended { .. }), "{outcome:?}");
    writer.write(b"x").await.unwrap();
    timeout(Duration::from_secs(5), writer.stopping().cancelled()).await.unwrap();
    assert_eq!(writer.write(b"y").await, Err(WriteError::Fenced));
    assert_eq!(writer.end(end(StreamState::Completed)).await, Err(WriteError::Fenced));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_does_not_grow_without_bound() {
    let place = Place::new().await;
    let writer = place.writer(StreamContent::Binary).await;
    let block = vec![0; 256 * 1024];
    let mut written = 0;
    let error = loop {
        match writer.write(&block).await {
            Ok(()) => written += block.len() as i64,
            Err(error) => break error,
        }
        assert!(written <= STREAM_BYTES + 2 * block.len() as i64);
    };
    assert_eq!(error, WriteError::TooLarge);
    drop(writer);
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_for_a_run_are_told_when_it_writes_and_when_it_is_gone() {
    let place = Place::new().await;
    let (writing, gone) = (RunId::new(), RunId::new());
    let mut first = place.streams.await_output(writing);
    let mut second = place.streams.await_output(writing);
    place.streams.open(&NewStream { run_id: Some(writing), ..new_stream() }).await.unwrap();
    let both = async { tokio::join!(first.changed(), second.changed()) };
    timeout(Duration::from_secs(30), both).await.unwrap();
    // No signal tells of a run that is not there: the common look does.
    timeout(Duration::from_secs(30), place.streams.await_output(gone).changed()).await.unwrap();
}
