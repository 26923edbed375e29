//! Streams: what one producer writes and any reader gets.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use switchboard_model::feed::SignalKind;
use switchboard_model::ids::{Fence, InstanceId, RunId, StreamId};
use switchboard_model::run::Ending;
use switchboard_model::span::Span;
use switchboard_model::stream::{
    CHUNK_BYTES, NewStream, STREAM_PAGE_BYTES, Stream, StreamAppend, StreamChunk, StreamContent, StreamEnd, StreamPage,
    StreamState,
};
use switchboard_store_api::{OpenedStream, StopOutcome, StoreError, StoreResult, Stores, StreamAppendOutcome, Written};

use crate::Backend;
use crate::fixtures::{
    HOUR, LONG, Reader, database_time, finish, lease, now, once, pages, spec, system, triggered, wait_past,
};

/// More chunks than a case has.
const MANY: u32 = 1_000;

/// A stream of text of an external producer.
pub(crate) fn new_stream() -> NewStream {
    NewStream {
        id: StreamId::new(),
        content: StreamContent::Text,
        user_id: None,
        run_id: None,
        fence: None,
        producer: InstanceId::external("pen"),
    }
}

/// The output of a run, written by the holder of a lease with this fence.
pub(crate) fn output_of(run: RunId, fence: i64) -> NewStream {
    NewStream::output_of(run, Fence(fence), &InstanceId::external("pen"))
}

/// Opens a stream.
pub(crate) async fn open(stores: &Stores, stream: &NewStream) -> OpenedStream {
    now(stores.streams.open(&system(), stream).await.unwrap())
}

/// Chunks for a stream from number `first` on.
pub(crate) fn chunks(opened: &OpenedStream, first: i64, chunks: &[&[u8]]) -> StreamAppend {
    let chunks = chunks.iter().map(|chunk| chunk.to_vec()).collect();
    StreamAppend { stream: opened.stream.id, fence: opened.fence, first: Some(first), chunks, end: None }
}

/// The same, after which the stream ends.
pub(crate) fn ending(append: StreamAppend, state: StreamState) -> StreamAppend {
    StreamAppend { end: Some(StreamEnd { state, reason: Some("so it is".to_owned()) }), ..append }
}

/// What an accepted append gives that nobody asked to stop.
pub(crate) const fn appended(tail: i64) -> StreamAppendOutcome {
    StreamAppendOutcome::Appended { tail, is_stopping: false }
}

/// Appends to one stream.
pub(crate) async fn append(stores: &Stores, append: StreamAppend) -> StoreResult<StreamAppendOutcome> {
    Ok(stores.streams.append(&[append]).await?.remove(0))
}

/// Reads a stream that must exist, from its start.
pub(crate) async fn read(stores: &Stores, id: StreamId) -> StreamPage {
    stores.streams.read(id, 0, MANY).await.unwrap().expect("the stream exists")
}

async fn found(stores: &Stores, id: StreamId) -> Stream {
    stores.streams.find(id).await.unwrap().expect("the stream exists")
}

/// The text of all chunks.
pub(crate) fn text(page: &StreamPage) -> String {
    String::from_utf8(page.chunks.iter().flat_map(|chunk| chunk.data.clone()).collect()).unwrap()
}

pub(crate) async fn an_opened_stream_reads_back_as_it_was_given(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let new = NewStream { user_id: Some("ann".parse().unwrap()), content: StreamContent::Binary, ..new_stream() };
    let opened = open(&stores, &new).await;
    let Stream { id, content, user_id, run_id, state, reason, tail, bytes, stop_requested_at, ended_at, .. } =
        opened.stream.clone();
    assert_eq!((id, content, user_id, run_id), (new.id, new.content, new.user_id, None));
    assert_eq!((state, reason, tail, bytes), (StreamState::Open, None, 0, 0));
    assert_eq!((stop_requested_at, ended_at), (None, None));
    assert_eq!(stores.streams.find(new.id).await.unwrap(), Some(opened.stream.clone()));
    assert_eq!(read(&stores, new.id).await, StreamPage { stream: opened.stream, chunks: vec![] });
    assert_eq!(stores.streams.find(StreamId::new()).await.unwrap(), None);
    assert_eq!(stores.streams.find_of_run(RunId::new()).await.unwrap(), None);
    assert_eq!(stores.streams.read(StreamId::new(), 0, 1).await.unwrap(), None);
    let unknown = StreamAppend { stream: StreamId::new(), ..chunks(&open(&stores, &new_stream()).await, 1, &[]) };
    assert_eq!(append(&stores, unknown).await.unwrap(), StreamAppendOutcome::NotFound);
}

pub(crate) async fn a_repeated_opening_is_answered_with_the_same_fence(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let first = now(stores.streams.open(&once("k", 1, HOUR), &new_stream()).await.unwrap());
    let again = stores.streams.open(&once("k", 1, HOUR), &new_stream()).await.unwrap();
    assert_eq!(again, Written::Replayed(first.record()));
    assert_eq!(first.record().result.unwrap().as_str(), first.fence.0.to_string());
    assert_eq!(stores.streams.open(&once("k", 2, HOUR), &new_stream()).await.unwrap(), Written::Mismatch);
}

pub(crate) async fn chunks_come_back_byte_for_byte(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let opened = open(&stores, &new_stream()).await;
    let emoji = "🦀".as_bytes();
    let given: Vec<&[u8]> =
        vec!["é".as_bytes(), &emoji[..1], &emoji[1..3], &emoji[3..], b"\0", b"a\0\r\n\0", b"", &[0xff, 0xfe]];
    assert_eq!(append(&stores, chunks(&opened, 1, &given)).await.unwrap(), appended(8));
    let page = read(&stores, opened.stream.id).await;
    assert_eq!(page.chunks.iter().map(|chunk| &*chunk.data).collect::<Vec<_>>(), given);
    assert_eq!(page.chunks.iter().map(|chunk| chunk.seq).collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    assert_eq!((page.stream.tail, page.stream.bytes), (8, given.iter().map(|chunk| chunk.len() as i64).sum()));
    for after in 0..=8 {
        let rest = stores.streams.read(opened.stream.id, after, MANY).await.unwrap().unwrap();
        assert_eq!(rest.chunks, page.chunks[usize::try_from(after).unwrap()..]);
    }
}

pub(crate) async fn a_repeated_append_adds_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let opened = open(&stores, &new_stream()).await;
    for (first, given, tail) in [
        (1, &[&b"a"[..], b"b"][..], 2),
        (1, &[&b"a"[..], b"b"], 2),
        (1, &[&b"a"[..], b"b", b"c"], 3),
        (3, &[&b"c"[..]], 3),
        (4, &[], 3),
    ] {
        assert_eq!(append(&stores, chunks(&opened, first, given)).await.unwrap(), appended(tail));
    }
    let twice = [chunks(&opened, 4, &[b"d"]), chunks(&opened, 4, &[b"d"]), chunks(&opened, 5, &[b"e"])];
    assert_eq!(stores.streams.append(&twice).await.unwrap(), [appended(4), appended(4), appended(5)]);
    assert_eq!(text(&read(&stores, opened.stream.id).await), "abcde");
}

pub(crate) async fn a_hole_is_refused(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let opened = open(&stores, &new_stream()).await;
    append(&stores, chunks(&opened, 1, &[b"a"])).await.unwrap();
    assert_eq!(append(&stores, chunks(&opened, 3, &[b"c"])).await.unwrap(), StreamAppendOutcome::Gap(1));
    assert_eq!(text(&read(&stores, opened.stream.id).await), "a");
}

pub(crate) async fn an_end_comes_with_its_last_chunk_and_is_final(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for state in [StreamState::Completed, StreamState::Failed, StreamState::Cancelled, StreamState::Interrupted] {
        let opened = open(&stores, &new_stream()).await;
        let last = ending(chunks(&opened, 1, &[b"a"]), state);
        assert_eq!(append(&stores, last.clone()).await.unwrap(), appended(1));
        let page = read(&stores, opened.stream.id).await;
        assert_eq!((page.stream.state, page.stream.reason.as_deref()), (state, Some("so it is")));
        assert!(page.stream.ended_at.is_some());
        assert_eq!(text(&page), "a");
        assert_eq!(append(&stores, last.clone()).await.unwrap(), appended(1), "the answer to an end may be lost");
        for late in [chunks(&opened, 2, &[b"b"]), chunks(&opened, 2, &[]), ending(chunks(&opened, 2, &[b"b"]), state)] {
            assert_eq!(append(&stores, late).await.unwrap(), StreamAppendOutcome::Fenced);
        }
        assert_eq!(stores.streams.stop(&system(), opened.stream.id).await.unwrap(), StopOutcome::Ended);
        assert_eq!(read(&stores, opened.stream.id).await, page);
    }
}

pub(crate) async fn a_new_producer_fences_the_old_one(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let run = RunId::new();
    let old = open(&stores, &output_of(run, 7)).await;
    append(&stores, chunks(&old, 1, &[b"a"])).await.unwrap();
    let again = open(&stores, &output_of(run, 7)).await;
    assert_eq!((again.fence, again.stream.id, again.stream.tail), (Fence(7), old.stream.id, 1), "it is theirs still");
    let new = open(&stores, &output_of(run, 8)).await;
    let late = stores.streams.open(&system(), &output_of(run, 7)).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
    assert!(new.fence > old.fence);
    for late in [chunks(&old, 2, &[b"b"]), chunks(&old, 2, &[]), ending(chunks(&old, 2, &[]), StreamState::Failed)] {
        assert_eq!(append(&stores, late).await.unwrap(), StreamAppendOutcome::Fenced);
    }
    let unknown = OpenedStream { fence: Fence(0), ..new.clone() };
    assert_eq!(append(&stores, chunks(&unknown, 2, &[b"b"])).await.unwrap(), StreamAppendOutcome::Fenced);
    append(&stores, chunks(&new, 2, &[b"c"])).await.unwrap();
    assert_eq!(text(&read(&stores, old.stream.id).await), "ac");
}

pub(crate) async fn a_run_goes_on_where_its_last_attempt_stopped(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let run = RunId::new();
    let first = open(&stores, &output_of(run, 1)).await;
    stores.streams.stop(&system(), first.stream.id).await.unwrap();
    append(&stores, ending(chunks(&first, 1, &[b"a"]), StreamState::Failed)).await.unwrap();
    for fence in [2, 3] {
        let next = open(&stores, &output_of(run, fence)).await;
        let Stream { id, state, reason, stop_requested_at, ended_at, .. } = next.stream.clone();
        assert_eq!(id, first.stream.id);
        assert_eq!((state, reason, stop_requested_at, ended_at), (StreamState::Open, None, None, None));
        let tail = next.stream.tail;
        append(&stores, ending(chunks(&next, tail + 1, &[b"b"]), StreamState::Completed)).await.unwrap();
    }
    assert_eq!(stores.streams.find_of_run(run).await.unwrap(), Some(found(&stores, first.stream.id).await));
    assert_eq!(text(&read(&stores, first.stream.id).await), "abb");
}

pub(crate) async fn an_ended_output_is_not_opened_again_by_its_own_fence(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for state in [StreamState::Completed, StreamState::Failed, StreamState::Cancelled] {
        let run = RunId::new();
        let opened = open(&stores, &output_of(run, 4)).await;
        append(&stores, ending(chunks(&opened, 1, &[b"a"]), state)).await.unwrap();
        let ended = found(&stores, opened.stream.id).await;
        for fence in [3, 4] {
            let late = stores.streams.open(&system(), &output_of(run, fence)).await;
            assert!(matches!(late, Err(StoreError::Fenced)), "{state:?}: {late:?}");
            assert_eq!(found(&stores, opened.stream.id).await, ended);
        }
        let next = open(&stores, &output_of(run, 5)).await;
        assert_eq!((next.stream.id, next.stream.state), (opened.stream.id, StreamState::Open));
    }
    // Who was only silent for too long goes on.
    let silent = open(&stores, &output_of(RunId::new(), 4)).await;
    append(&stores, ending(chunks(&silent, 1, &[b"a"]), StreamState::Interrupted)).await.unwrap();
    let again = open(&stores, &output_of(silent.stream.run_id.unwrap(), 4)).await;
    assert_eq!((again.stream.id, again.stream.state), (silent.stream.id, StreamState::Open));
}

pub(crate) async fn runs_are_waited_for_until_they_write_or_end(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &spec("job", |_| {}), 3).await;
    assert_eq!(stores.streams.settled_runs(&ids).await.unwrap(), []);
    assert_eq!(stores.streams.settled_runs(&[]).await.unwrap(), []);
    let first = lease(&stores, 1, LONG).await.remove(0);
    assert_eq!(stores.streams.settled_runs(&ids).await.unwrap(), [], "it may write yet");
    let mut reader = Reader::start(&stores).await;
    open(&stores, &output_of(first.id, first.fence.0)).await;
    assert_eq!(reader.changes().await, [(SignalKind::OutputBegan, first.id.to_string())]);
    assert_eq!(stores.streams.settled_runs(&ids).await.unwrap(), [first.id]);
    let second = lease(&stores, 1, LONG).await.remove(0);
    finish(&stores, &second, Ending::Succeeded(None)).await;
    let gone = RunId::new();
    let asked = [&ids[..], &[gone]].concat();
    let settled: BTreeSet<RunId> = stores.streams.settled_runs(&asked).await.unwrap().into_iter().collect();
    assert_eq!(settled, BTreeSet::from([first.id, second.id, gone]));
}

pub(crate) async fn many_streams_are_written_in_one_commit(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut opened = Vec::new();
    for _ in 0..200 {
        opened.push(open(&stores, &new_stream()).await);
    }
    let mut appends: Vec<_> = opened
        .iter()
        .map(|opened| {
            ending(chunks(opened, 1, &[opened.stream.id.to_string().as_bytes(), b"!"]), StreamState::Completed)
        })
        .collect();
    // The bad ones do not disturb the others.
    appends[50].first = Some(7);
    appends[100].fence = Fence(0);
    appends[150].stream = StreamId::new();
    let outcomes = stores.streams.append(&appends).await.unwrap();
    let odd: Vec<_> = outcomes.iter().enumerate().filter(|(_, outcome)| **outcome != appended(2)).collect();
    assert_eq!(
        odd,
        [
            (50, &StreamAppendOutcome::Gap(0)),
            (100, &StreamAppendOutcome::Fenced),
            (150, &StreamAppendOutcome::NotFound)
        ]
    );
    let texts = join_all(opened.iter().map(async |opened| text(&read(&stores, opened.stream.id).await))).await;
    for (index, (text, opened)) in texts.iter().zip(&opened).enumerate() {
        let expected = if index % 50 == 0 && index > 0 { String::new() } else { format!("{}!", opened.stream.id) };
        assert_eq!(*text, expected);
    }
}

pub(crate) async fn pages_are_bounded_in_chunks_and_bytes(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let opened = open(&stores, &new_stream()).await;
    let large = vec![b'x'; CHUNK_BYTES];
    let given: Vec<&[u8]> = vec![&large; STREAM_PAGE_BYTES / CHUNK_BYTES + 4];
    append(&stores, chunks(&opened, 1, &given)).await.unwrap();
    let seqs = async |after, limit| {
        let page = stores.streams.read(opened.stream.id, after, limit).await.unwrap().unwrap();
        page.chunks.iter().map(|chunk: &StreamChunk| chunk.seq).collect::<Vec<_>>()
    };
    assert_eq!(seqs(0, 3).await, [1, 2, 3]);
    assert_eq!(seqs(2, 1).await, [3]);
    let most = (STREAM_PAGE_BYTES / CHUNK_BYTES) as i64;
    assert_eq!(seqs(0, MANY).await, (1..=most).collect::<Vec<_>>());
    assert_eq!(seqs(most, MANY).await, (most + 1..=most + 4).collect::<Vec<_>>());
    assert_eq!(seqs(most + 4, MANY).await, [] as [i64; 0]);
    assert_eq!(seqs(most + 9, MANY).await, [] as [i64; 0]);
}

pub(crate) async fn what_is_too_large_is_refused_as_a_whole(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let opened = open(&stores, &new_stream()).await;
    let large = vec![b'x'; CHUNK_BYTES + 1];
    let refused = append(&stores, ending(chunks(&opened, 1, &[b"a", &large]), StreamState::Completed)).await.unwrap();
    assert_eq!(refused, StreamAppendOutcome::TooLarge);
    assert_eq!(found(&stores, opened.stream.id).await, opened.stream);
}

pub(crate) async fn a_stop_reaches_the_producer(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let opened = open(&stores, &new_stream()).await;
    let mut reader = Reader::start(&stores).await;
    for _ in 0..2 {
        assert_eq!(stores.streams.stop(&system(), opened.stream.id).await.unwrap(), StopOutcome::Requested);
    }
    assert_eq!(reader.changes().await, [(SignalKind::StreamStopped, opened.stream.id.to_string())]);
    let requested = found(&stores, opened.stream.id).await.stop_requested_at;
    assert!(requested.is_some());
    let outcome = append(&stores, chunks(&opened, 1, &[b"a"])).await.unwrap();
    assert_eq!(outcome, StreamAppendOutcome::Appended { tail: 1, is_stopping: true });
    assert_eq!(found(&stores, opened.stream.id).await.stop_requested_at, requested);
    assert_eq!(stores.streams.stop(&system(), StreamId::new()).await.unwrap(), StopOutcome::NotFound);
}

pub(crate) async fn a_silent_producer_is_lost(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let silent = open(&stores, &new_stream()).await;
    let ended = open(&stores, &new_stream()).await;
    append(&stores, chunks(&silent, 1, &[b"a"])).await.unwrap();
    append(&stores, ending(chunks(&ended, 1, &[]), StreamState::Completed)).await.unwrap();
    assert_eq!(stores.streams.interrupt(10).await.unwrap(), 0);
    let mut reader = Reader::start(&stores).await;
    let due = reader.tick().await.next.stream.expect("an open stream has a lease");
    wait_past(&stores, due).await;
    let late = open(&stores, &new_stream()).await;
    assert_eq!(stores.streams.interrupt(10).await.unwrap(), 1);
    assert_eq!(stores.streams.interrupt(10).await.unwrap(), 0);
    let page = read(&stores, silent.stream.id).await;
    assert_eq!((page.stream.state, text(&page).as_str()), (StreamState::Interrupted, "a"));
    assert!(page.stream.ended_at.is_some() && page.stream.reason.is_some());
    assert_eq!(append(&stores, chunks(&silent, 2, &[b"b"])).await.unwrap(), StreamAppendOutcome::Fenced);
    assert_eq!(reader.changes().await, [(SignalKind::StreamGrew, silent.stream.id.to_string())]);
    assert_eq!(found(&stores, late.stream.id).await.state, StreamState::Open);
    assert_eq!(found(&stores, ended.stream.id).await.state, StreamState::Completed);
}

pub(crate) async fn growth_is_signalled_once_and_leases_not_at_all(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let [a, b, c] = [open(&stores, &new_stream()).await, open(&stores, &new_stream()).await, {
        open(&stores, &new_stream()).await
    }];
    let mut reader = Reader::start(&stores).await;
    let batch = [
        chunks(&a, 1, &[b"a", b"b"]),
        ending(chunks(&b, 1, &[]), StreamState::Completed),
        chunks(&c, 1, &[]),
        chunks(&a, 3, &[b"c"]),
    ];
    stores.streams.append(&batch).await.unwrap();
    let mut signals = reader.signals().await;
    signals.sort_by(|one, other| one.key.cmp(&other.key));
    let seen: BTreeSet<_> = signals.iter().map(|signal| (signal.kind, signal.key.clone(), signal.pos)).collect();
    let grew = |opened: &OpenedStream, pos| (SignalKind::StreamGrew, opened.stream.id.to_string(), pos);
    assert_eq!(seen, BTreeSet::from([grew(&a, 3), grew(&b, 0)]));
    assert_eq!(signals.len(), 2);
}

pub(crate) async fn streams_are_listed_newest_first(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.insert(0, open(&stores, &new_stream()).await.stream.id);
    }
    let listed = pages(2, async |page| stores.streams.list(&page).await).await;
    assert_eq!(listed.iter().map(|stream| stream.id).collect::<Vec<_>>(), ids);
}

pub(crate) async fn old_streams_are_deleted_in_batches(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let kept = open(&stores, &new_stream()).await;
    append(&stores, chunks(&kept, 1, &[b"a"])).await.unwrap();
    let old = open(&stores, &new_stream()).await;
    append(&stores, ending(chunks(&old, 1, &[b"a", b"b", b"c"]), StreamState::Completed)).await.unwrap();
    wait_past(&stores, database_time(&stores).await).await;
    assert_eq!(stores.streams.sweep(LONG, 10).await.unwrap(), 0, "nothing is that old");
    assert_eq!(stores.streams.sweep(Span::default(), 2).await.unwrap(), 2);
    assert_eq!(stores.streams.read(old.stream.id, 0, MANY).await.unwrap(), None, "what is left has no start");
    assert_eq!(stores.streams.sweep(Span::default(), 2).await.unwrap(), 2, "the last chunk and the row");
    assert_eq!(stores.streams.sweep(Span::default(), 2).await.unwrap(), 0);
    assert_eq!(stores.streams.find(old.stream.id).await.unwrap(), None);
    assert_eq!(text(&read(&stores, kept.stream.id).await), "a");
}
