//! Races of producers, readers and those who end streams.

use rand::Rng as _;
use switchboard_model::ids::RunId;
use switchboard_model::stream::{StreamAppend, StreamPage, StreamState};
use switchboard_store_api::{StoreError, Stores, StreamAppendOutcome};

use crate::Backend;
use crate::fixtures::{Reader, abandoned, contend, now, random, replicas, system, until, wait_past};
use crate::streams::{append, appended, chunks, ending, new_stream, open, output_of, read, text};

/// How many chunks a producer of a race writes.
const CHUNKS: i64 = 30;

pub(crate) async fn of_two_producers_only_the_new_one_writes(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let run = RunId::new();
    // Each opens the stream and writes until a later one has opened it.
    let written = contend(&stores, 6, |stores, number| async move {
        let opened = match stores.streams.open(&system(), &output_of(run, number as i64)).await {
            Ok(opened) => now(opened),
            Err(StoreError::Fenced) => return (number, 0),
            Err(error) => panic!("{error:?}"),
        };
        let (mut written, mut next) = (0, opened.stream.tail + 1);
        while written < CHUNKS {
            match insist(&stores, chunks(&opened, next, &[number.to_string().as_bytes()])).await {
                StreamAppendOutcome::Appended { .. } => (written, next) = (written + 1, next + 1),
                StreamAppendOutcome::Fenced => break,
                other => panic!("unexpected {other:?}"),
            }
        }
        (number, written)
    })
    .await;
    let stream = stores[0].streams.find_of_run(run).await.unwrap().unwrap();
    let found = text(&read(&stores[1], stream.id).await);
    for (number, written) in &written {
        let digit = number.to_string();
        assert_eq!(found.matches(&digit).count() as i64, *written, "what was acknowledged, and nothing else");
        // All that one producer has written stands together: nobody wrote in between.
        let together = digit.repeat(usize::try_from(*written).unwrap());
        assert!(found.contains(&together), "{found}");
    }
    assert_eq!(stream.tail, written.iter().map(|(_, written)| written).sum::<i64>());
}

pub(crate) async fn an_abandoned_append_is_repeated_without_a_trace(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let opened = open(&stores, &new_stream()).await;
    let mut random = random();
    for seq in 1..=CHUNKS {
        let chunk = format!("{seq} ");
        loop {
            let polls = if random.random_bool(0.5) { random.random_range(1..6) } else { u32::MAX };
            match abandoned(append(&stores, chunks(&opened, seq, &[chunk.as_bytes()])), polls).await {
                Some(Ok(outcome)) => break assert_eq!(outcome, appended(seq)),
                Some(Err(error)) => assert!(error.is_transient(), "{error:?}"),
                None => {}
            }
        }
    }
    let expected: String = (1..=CHUNKS).map(|seq| format!("{seq} ")).collect();
    assert_eq!(text(&read(&stores, opened.stream.id).await), expected);
}

pub(crate) async fn readers_never_see_an_end_without_its_last_chunk(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let mut opened = Vec::new();
    for _ in 0..20 {
        opened.push(open(&stores[0], &new_stream()).await);
    }
    let ids: Vec<_> = opened.iter().map(|opened| opened.stream.id).collect();
    let producer = async {
        for seq in 1..=5 {
            let batch: Vec<_> = opened
                .iter()
                .map(|opened| {
                    let append = chunks(opened, seq, &[b"x"]);
                    if seq == 5 { ending(append, StreamState::Completed) } else { append }
                })
                .collect();
            stores[0].streams.append(&batch).await.unwrap();
        }
    };
    let reader = async {
        for id in &ids {
            let is_whole = |page: &StreamPage| {
                assert_eq!(page.chunks.len() as i64, page.stream.tail, "state and chunks are of one moment");
                page.stream.state.is_terminal()
            };
            until(|| read(&stores[1], *id), is_whole).await;
        }
    };
    tokio::join!(producer, reader);
}

pub(crate) async fn batches_in_opposite_order_do_not_block_each_other(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let mut opened = Vec::new();
    for _ in 0..10 {
        opened.push(open(&stores[0], &new_stream()).await);
    }
    let all = contend(&stores, 8, |stores, number| {
        let mut opened = opened.clone();
        if number % 2 == 1 {
            opened.reverse();
        }
        async move {
            for _ in 0..10 {
                // The same chunk by everybody: one of them adds it.
                let batch: Vec<_> = opened.iter().map(|opened| chunks(opened, 1, &[b"x"])).collect();
                let outcomes = stores.streams.append(&batch).await.unwrap();
                assert!(outcomes.iter().all(|outcome| *outcome == appended(1)), "{outcomes:?}");
            }
        }
    });
    all.await;
}

pub(crate) async fn equal_openings_of_a_run_agree_on_one_stream(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let run = RunId::new();
    let opened = contend(&stores, 12, |stores, _| async move { open(&stores, &output_of(run, 7)).await }).await;
    for other in &opened {
        assert_eq!((other.stream.id, other.fence), (opened[0].stream.id, opened[0].fence));
    }
}

pub(crate) async fn interrupters_and_late_appends_agree_on_one_end(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let mut opened = Vec::new();
    for _ in 0..40 {
        opened.push(open(&stores[0], &new_stream()).await);
    }
    let mut reader = Reader::start(&stores[0]).await;
    let last = reader.tick().await.next.stream.expect("an open stream has a lease");
    wait_past(&stores[0], last).await;
    let interrupter = contend(&stores, 4, |stores, _| async move {
        let mut interrupted = 0;
        for _ in 0..20 {
            interrupted += stores.streams.interrupt(3).await.unwrap();
        }
        interrupted
    });
    let late = contend(&stores, opened.len(), |stores, number| {
        let opened = opened[number].clone();
        async move { insist(&stores, ending(chunks(&opened, 1, &[b"x"]), StreamState::Completed)).await }
    });
    let (_, outcomes) = tokio::join!(interrupter, late);
    let mut completed = 0;
    for opened in &opened {
        let page = until(
            || read(&stores[0], opened.stream.id),
            |page| page.stream.state.is_terminal() && page.stream.tail == page.chunks.len() as i64,
        )
        .await;
        match page.stream.state {
            StreamState::Completed => completed += 1,
            StreamState::Interrupted => assert_eq!(page.stream.tail, 0),
            other => panic!("unexpected {other:?}"),
        }
    }
    let accepted = outcomes.iter().filter(|outcome| **outcome == appended(1)).count();
    assert_eq!(accepted, completed);
    assert!(
        outcomes.iter().all(|outcome| [appended(1), StreamAppendOutcome::Fenced].contains(outcome)),
        "{outcomes:?}"
    );
}

/// Appends, again after a collision.
async fn insist(stores: &Stores, wanted: switchboard_model::stream::StreamAppend) -> StreamAppendOutcome {
    loop {
        match append(stores, wanted.clone()).await {
            Ok(outcome) => return outcome,
            Err(StoreError::Conflict(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

pub(crate) async fn chunks_without_a_number_are_all_kept(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let opened = open(&stores[0], &new_stream()).await;
    // Two of each batch are for the same stream, and several batches come at once.
    contend(&stores, 6, |stores, number| {
        let at_end = |text: String| StreamAppend { first: None, ..chunks(&opened, 1, &[text.as_bytes()]) };
        let batches: Vec<_> =
            (0..CHUNKS).map(|n| [at_end(format!("{number}.{n}a ")), at_end(format!("{number}.{n}b "))]).collect();
        async move {
            for batch in batches {
                let outcomes = stores.streams.append(&batch).await.unwrap();
                let [StreamAppendOutcome::Appended { tail: first, .. }, StreamAppendOutcome::Appended { tail, .. }] =
                    outcomes.as_slice()
                else {
                    panic!("{outcomes:?}")
                };
                assert_eq!(*tail, first + 1);
            }
        }
    })
    .await;
    let page = read(&stores[1], opened.stream.id).await;
    assert_eq!(page.stream.tail, 2 * 6 * CHUNKS);
    let found = text(&page);
    let mut words: Vec<&str> = found.split_whitespace().collect();
    let count = words.len();
    words.sort_unstable();
    words.dedup();
    assert_eq!((count, words.len()), (360, 360), "none is lost and none is doubled");
}
