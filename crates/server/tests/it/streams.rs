//! Streams over live servers: resumed anywhere, interrupted when a producer is lost, stopped from any replica.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use switchboard_client::{Client, Follow, Followed};
use switchboard_model::ids::RunId;
use switchboard_model::run::RunState;
use switchboard_model::stream::{StreamEnd, StreamState};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::stream::{
    Chunk, ChunkText, StreamAppendRequest, StreamAppended, StreamCloseRequest, StreamOpened, StreamRequest,
};
use switchboard_testkit::{Cluster, Signal, wait_until};
use tokio::time::{Instant, timeout};

use crate::fixtures::{cluster, command, create_task, ended, err, is_on, on_every_database, out, switchboard, trigger};

/// Within this time after the loss of its producer every stream has its end.
const INTERRUPTED_WITHIN: Duration = Duration::from_secs(15);

on_every_database! {
    a_stream_is_resumed_byte_for_byte_at_every_position,
    a_silent_producer_is_interrupted_for_every_reader,
    a_stop_reaches_the_producer_through_any_replica,
    a_reader_that_goes_away_stops_nothing,
    a_run_writes_while_it_goes_on,
    a_run_goes_on_where_its_failed_attempt_stopped,
    the_command_line_writes_and_reads_streams,
}

async fn open(client: &Client) -> StreamOpened {
    client.open_stream(&StreamRequest::default()).await.unwrap()
}

async fn append(client: &Client, opened: &StreamOpened, first: i64, chunks: &[&str]) -> StreamAppended {
    let chunks = chunks.iter().map(|chunk| ChunkText((*chunk).to_owned())).collect();
    let request = StreamAppendRequest { fence: opened.fence, first, chunks, end: None };
    client.append_stream(opened.stream.id, &request).await.unwrap()
}

async fn close(client: &Client, opened: &StreamOpened) {
    let request = StreamCloseRequest { fence: opened.fence, state: StreamState::Completed, reason: None };
    client.close_stream(opened.stream.id, &request).await.unwrap();
}

/// Follows to the end.
async fn to_end(mut stream: Follow) -> (Vec<Chunk>, StreamEnd) {
    let mut chunks = Vec::new();
    loop {
        match timeout(Duration::from_secs(60), stream.next()).await.unwrap().unwrap() {
            Some(Followed::Chunk(chunk)) => chunks.push(chunk),
            Some(Followed::End(end)) => return (chunks, end),
            None => panic!("the stream ended without saying how, after {chunks:?}"),
        }
    }
}

fn text(chunks: &[Chunk]) -> String {
    chunks.iter().map(|chunk| chunk.data.0.as_str()).collect()
}

fn completed() -> StreamEnd {
    StreamEnd { state: StreamState::Completed, reason: None }
}

/// One of the replicas, another for each number.
fn replica(cluster: &Cluster, number: usize) -> &Client {
    cluster.client(number % cluster.size())
}

/// Text whose chunks have characters of one to four bytes, line ends and U+0000.
fn texts() -> Vec<&'static str> {
    vec!["a", "é", "€", "🦀", "\0", "\r\n", "x\ny", "🦀🦀é", "\u{feff}", "z"]
}

async fn a_stream_is_resumed_byte_for_byte_at_every_position(cluster: Cluster) {
    let opened = open(cluster.client(0)).await;
    let id = opened.stream.id;
    let texts = texts();
    let live: Vec<_> = (0..4).map(|number| to_end(replica(&cluster, number).follow_stream(id, 0))).collect();
    let writing = async {
        for (first, chunk) in (1..).zip(&texts) {
            append(replica(&cluster, usize::try_from(first).unwrap()), &opened, first, &[chunk]).await;
        }
        close(cluster.any(), &opened).await;
    };
    let (live, ()) = tokio::join!(futures_util::future::join_all(live), writing);
    for (chunks, end) in live {
        assert_eq!(
            (chunks.iter().map(|chunk| chunk.data.0.as_str()).collect::<Vec<_>>(), end),
            (texts.clone(), completed())
        );
    }
    for after in 0..=texts.len() {
        let (seq, rest) = (i64::try_from(after).unwrap(), &texts[after..]);
        for number in 0..2 {
            let client = replica(&cluster, after + number);
            let (chunks, end) = to_end(client.follow_stream(id, seq)).await;
            assert_eq!((text(&chunks), end), (rest.concat(), completed()));
            let read = client.read_stream(id, seq).await.unwrap();
            assert_eq!((text(&read.chunks), read.ended), (rest.concat(), true));
        }
    }
    // One reader that goes to another replica after every chunk.
    let mut reader = cluster.client(0).follow_stream(id, 0);
    let mut seen = String::new();
    for number in 1..=texts.len() {
        let Some(Followed::Chunk(chunk)) = reader.next().await.unwrap() else { panic!("a chunk expected") };
        seen += &chunk.data.0;
        reader = reader.at(replica(&cluster, number));
    }
    assert_eq!(seen, texts.concat());
    assert_eq!(reader.next().await.unwrap(), Some(Followed::End(completed())));
    assert_eq!(reader.next().await.unwrap(), None);
}

async fn a_silent_producer_is_interrupted_for_every_reader(cluster: Cluster) {
    let opened = open(cluster.client(0)).await;
    append(cluster.client(0), &opened, 1, &["half 🦀"]).await;
    let silent_from = Instant::now();
    let readers = (0..6).map(|number| to_end(replica(&cluster, number).follow_stream(opened.stream.id, 0)));
    for (chunks, end) in futures_util::future::join_all(readers).await {
        assert_eq!((text(&chunks).as_str(), end.state), ("half 🦀", StreamState::Interrupted));
    }
    assert!(silent_from.elapsed() < INTERRUPTED_WITHIN, "{:?}", silent_from.elapsed());
    let request = StreamAppendRequest { fence: opened.fence, first: 2, chunks: vec![], end: None };
    let late = cluster.any().append_stream(opened.stream.id, &request).await.unwrap_err();
    assert_eq!(late.code(), Some(ErrorCode::Fenced));
}

async fn a_stop_reaches_the_producer_through_any_replica(cluster: Cluster) {
    let opened = open(cluster.client(0)).await;
    assert!(!append(cluster.client(0), &opened, 1, &["a"]).await.stopping);
    replica(&cluster, 1).stop_stream(opened.stream.id).await.unwrap();
    assert!(append(cluster.client(0), &opened, 2, &["b"]).await.stopping);
}

async fn a_reader_that_goes_away_stops_nothing(cluster: Cluster) {
    let opened = open(cluster.client(0)).await;
    append(cluster.client(0), &opened, 1, &["a"]).await;
    let mut reader = replica(&cluster, 1).follow_stream(opened.stream.id, 0);
    assert!(matches!(reader.next().await.unwrap(), Some(Followed::Chunk(_))));
    drop(reader);
    assert!(!append(cluster.client(0), &opened, 2, &["b"]).await.stopping);
    close(cluster.client(0), &opened).await;
    let (chunks, end) = to_end(replica(&cluster, 1).follow_stream(opened.stream.id, 0)).await;
    assert_eq!((text(&chunks).as_str(), end), ("ab", completed()));
}

fn writing_task(name: &str, function: &str) -> serde_json::Value {
    json!({"name": name, "action": {"system": {"function": function}}, "max_attempts": 2,
           "backoff": {"base": "10ms", "cap": "10ms"}})
}

async fn a_run_writes_while_it_goes_on(cluster: Cluster) {
    let task = create_task(cluster.any(), writing_task("talk", "test.write")).await;
    let run = trigger(cluster.any(), task.id).await;
    let readers = (0..4).map(|number| to_end(replica(&cluster, number).follow_output(run, 0)));
    let expected: String = (1..=20).map(|line| format!("line {line} 🦀\n")).collect();
    for (chunks, end) in futures_util::future::join_all(readers).await {
        assert_eq!((text(&chunks), end), (expected.clone(), completed()));
    }
    ended(cluster.any(), run).await;
    let read = cluster.any().read_output(run, 0).await.unwrap();
    assert_eq!((text(&read.chunks), read.ended, read.run_state), (expected, true, Some(RunState::Succeeded)));
    // What writes nothing has an empty output, which ends with the run.
    let silent = create_task(cluster.any(), writing_task("silent", "noop")).await;
    let run = trigger(cluster.any(), silent.id).await;
    assert_eq!(to_end(cluster.any().follow_output(run, 0)).await, (vec![], completed()));
}

async fn a_run_goes_on_where_its_failed_attempt_stopped(cluster: Cluster) {
    let task = create_task(cluster.any(), writing_task("fail", "test.write_and_fail")).await;
    let run = trigger(cluster.any(), task.id).await;
    assert_eq!(ended(cluster.any(), run).await.state, RunState::Dead);
    let (chunks, end) = to_end(cluster.any().follow_output(run, 0)).await;
    assert_eq!(text(&chunks), "trying\ntrying\n");
    assert_eq!((end.state, end.reason.as_deref()), (StreamState::Failed, Some("as asked")));
}

async fn the_command_line_writes_and_reads_streams(cluster: Cluster) {
    let env = [("SWITCHBOARD_URL", cluster.client(0).base_url()), ("SWITCHBOARD_API_KEY", cluster.key().expose())];
    let made = switchboard(&["stream", "create", "--json", "--producer", "pen"], &env);
    let opened: StreamOpened = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{}", err(&made)));
    let (id, fence) = (opened.stream.id.to_string(), opened.fence.0.to_string());
    let mut writer = command(&["stream", "append", &id, "--fence", &fence], &env);
    let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut pen = writer.stdin.take().unwrap();
    let other = [("SWITCHBOARD_URL", replica(&cluster, 1).base_url()), env[1]];
    let reader = command(&["stream", "read", &id], &other).stdout(Stdio::piped()).spawn().unwrap();
    let crab = "🦀".as_bytes();
    for part in ["first ".as_bytes(), &crab[..2], &crab[2..], b" last\n"] {
        pen.write_all(part).unwrap();
        pen.flush().unwrap();
    }
    drop(pen);
    assert!(writer.wait().unwrap().success());
    let read = tokio::task::spawn_blocking(|| reader.wait_with_output().unwrap()).await.unwrap();
    assert_eq!((out(&read).as_str(), read.status.code()), ("first 🦀 last\n", Some(0)));
    let shown = switchboard(&["stream", "list"], &env);
    assert!(out(&shown).contains(&id) && out(&shown).contains("completed"), "{}", out(&shown));

    // One that is stopped while it waits for input.
    let opened = open(cluster.client(0)).await;
    let (id, fence) = (opened.stream.id.to_string(), opened.fence.0.to_string());
    let mut writer =
        command(&["stream", "append", &id, "--fence", &fence], &env).stdin(Stdio::piped()).spawn().unwrap();
    // Held open, so that the input does not end.
    let pen = writer.stdin.take();
    let stopped = switchboard(&["stream", "stop", &id], &other);
    assert!(stopped.status.success(), "{}", err(&stopped));
    let ended = wait_until("the end of the producer", async || writer.try_wait().unwrap()).await;
    assert!(ended.success());
    drop(pen);
    let read = switchboard(&["stream", "read", &id], &env);
    assert!(!read.status.success() && err(&read).contains("cancelled"), "{}", err(&read));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_hints_readers_on_other_replicas_follow_all_the_same() {
    let cluster = cluster(2).polling().await;
    let opened = open(cluster.client(0)).await;
    let mut reader = cluster.client(1).follow_stream(opened.stream.id, 0);
    for first in 1..=5 {
        let start = Instant::now();
        append(cluster.client(0), &opened, first, &["x"]).await;
        assert!(matches!(reader.next().await.unwrap(), Some(Followed::Chunk(_))));
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
    let opened = open(cluster.client(0)).await;
    let (chunks, end) = to_end(cluster.client(1).follow_stream(opened.stream.id, 0)).await;
    assert_eq!((chunks, end.state), (vec![], StreamState::Interrupted));
}

/// Waits until a run goes on, and returns on which replica.
async fn running(cluster: &Cluster, run: RunId) -> usize {
    wait_until("a run that has written something", async || {
        let found = cluster.any().get_run(run).await.unwrap();
        let has_written = cluster.any().read_output(run, 0).await.unwrap().next > 2;
        let holder = ["a-", "b-", "c-"].iter().position(|prefix| is_on(&found, prefix));
        holder.filter(|_| has_written && found.state == RunState::Running)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_killed_leaves_interrupted_output_and_another_goes_on() {
    let mut cluster = cluster(3).env("SWITCHBOARD_SCHEDULER__LEASE", "30s").await;
    let task = create_task(cluster.any(), writing_task("endless", "test.write_on")).await;
    let run = trigger(cluster.any(), task.id).await;
    let victim = running(&cluster, run).await;
    let others: Vec<usize> = (0..3).filter(|index| *index != victim).collect();
    let readers: Vec<_> = (0..4).map(|n| to_end(cluster.client(others[n % 2]).follow_output(run, 0))).collect();
    cluster.kill(victim, Signal::SIGKILL);
    let killed = Instant::now();
    let mut seen = Vec::new();
    for (chunks, end) in futures_util::future::join_all(readers).await {
        assert_eq!(end.state, StreamState::Interrupted);
        assert!(chunks.iter().map(|chunk| chunk.seq).eq(1..=i64::try_from(chunks.len()).unwrap()));
        seen.push(text(&chunks));
    }
    assert!(killed.elapsed() < INTERRUPTED_WITHIN, "{:?}", killed.elapsed());
    assert!(seen.iter().all(|text| *text == seen[0]), "all readers have seen the same");
    // The next attempt goes on with the same stream.
    let grown = wait_until("the next attempt", async || {
        let read = cluster.client(others[0]).read_output(run, 0).await.unwrap();
        let stream = read.stream.unwrap();
        (stream.state == StreamState::Open).then_some(text(&read.chunks))
    })
    .await;
    assert!(grown.starts_with(&seen[0]));
    cluster.client(others[0]).cancel_run(run).await.unwrap();
    let (_, end) = to_end(cluster.client(others[1]).follow_output(run, 0)).await;
    assert_eq!(end.state, StreamState::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stops_sends_its_readers_elsewhere() {
    let mut cluster = cluster(2).await;
    let opened = open(cluster.client(0)).await;
    append(cluster.client(0), &opened, 1, &["a"]).await;
    let url = format!("{}/api/v1/streams/{}/chunks", cluster.client(1).base_url(), opened.stream.id);
    let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    let answer = http.get(url).header("accept", "text/event-stream").bearer_auth(cluster.key().expose());
    let answer = answer.send().await.unwrap();
    let (body, _) = tokio::join!(answer.text(), async {
        append(cluster.client(0), &opened, 2, &["b"]).await;
        cluster.stop(1).await
    });
    let body = body.unwrap();
    assert!(body.starts_with("id: 1\nevent: chunk\n"), "{body}");
    assert!(body.contains("event: goaway\n") && body.ends_with("\n\n"), "{body}");
    close(cluster.client(0), &opened).await;
    let (chunks, end) = to_end(cluster.client(0).follow_stream(opened.stream.id, 0)).await;
    assert_eq!((text(&chunks).as_str(), end), ("ab", completed()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_ends_what_it_follows() {
    let cluster = cluster(1).sqlite().await;
    let opened = open(cluster.client(0)).await;
    append(cluster.client(0), &opened, 1, &["a"]).await;
    let request = switchboard_model::wire::rest::ApiKeyRequest {
        name: "reader".into(),
        scopes: vec!["streams:read".parse().unwrap()],
        ttl: None,
    };
    let key = cluster.client(0).create_api_key(&request).await.unwrap();
    let secret = switchboard_model::secret_text::SecretText::from_presented(key.secret);
    let reader = cluster.client(0).with_credential(Some(secret));
    let mut reader = reader.follow_stream(opened.stream.id, 0);
    assert!(matches!(reader.next().await.unwrap(), Some(Followed::Chunk(_))));
    cluster.client(0).revoke_api_key(key.key.id).await.unwrap();
    let refused = timeout(Duration::from_secs(5), reader.next()).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Unauthorized));
}
