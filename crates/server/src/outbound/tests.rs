//! Tests of the client against listeners on this machine, with names that resolve as each test wants.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::*;

/// Lists of addresses, as texts.
type Lists = &'static [&'static [&'static str]];

/// Answers with one list of addresses after the other; the last one stays.
struct Answers(Mutex<VecDeque<Vec<IpAddr>>>);

#[async_trait]
impl Lookup for Answers {
    async fn addresses(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        let mut answers = self.0.lock();
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        next.filter(|addresses| !addresses.is_empty()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A client that may reach 127.0.0.2 and nothing else on this machine; every name resolves as told.
fn client(answers: Lists) -> Outbound {
    let answers = answers.iter().map(|list| list.iter().map(|text| address(text)).collect()).collect();
    let policy = Policy::new(vec!["127.0.0.2/32".parse().unwrap()]);
    let lookup = Arc::new(Answers(Mutex::new(answers)));
    Outbound::with_lookup(policy, Duration::from_secs(5), lookup).unwrap()
}

/// Listens on one port of two addresses; each answers with its own address and closes.
async fn listeners(tasks: &mut JoinSet<()>) -> u16 {
    let first = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = first.local_addr().unwrap().port();
    let second = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    for listener in [first, second] {
        tasks.spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let SocketAddr::V4(own) = socket.local_addr().unwrap() else { panic!("an IPv4 address") };
                let mut head = [0; 4096];
                let _ = socket.read(&mut head).await.unwrap();
                let body = own.ip().to_string();
                let answer =
                    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        });
    }
    port
}

async fn get(client: &Outbound, url: &str) -> Result<String, OutboundError> {
    let url = url.parse().unwrap();
    let request = OutboundRequest { method: Method::GET, url, headers: HeaderMap::new(), body: None, timeout: None };
    client.send(request).await.map(|response| String::from_utf8(response.body).unwrap())
}

/// Answers with the status that the path names, or not at all.
async fn by_path(listener: TcpListener, came: Arc<Notify>) {
    let mut open = Vec::new();
    loop {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = [0; 4096];
        let length = socket.read(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head[..length]).into_owned();
        let status = head.split(' ').nth(1).unwrap().trim_start_matches('/');
        if status == "never" {
            came.notify_one();
            open.push(socket);
        } else {
            let answer = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    }
}

#[test]
fn every_request_is_counted_once_by_how_it_ended() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    // The recorder is that of this thread, on which everything happens.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        describe_metrics();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let (mut tasks, came) = (JoinSet::new(), Arc::new(Notify::new()));
            tasks.spawn(by_path(listener, Arc::clone(&came)));
            let client = client(&[&["127.0.0.2"]]);
            let url = |path: &str| format!("http://any.test:{port}/{path}");
            for path in ["200", "204", "302", "404", "429", "503"] {
                get(&client, &url(path)).await.unwrap();
            }
            get(&client, "http://127.0.0.1:1/").await.unwrap_err();
            let never = url("never");
            tokio::select! {
                answer = get(&client, &never) => panic!("{answer:?}"),
                () = came.notified() => {}
            }
            tasks.shutdown().await;
            get(&client, &url("200")).await.unwrap_err();
        });
    });
    let text = recorder.handle().render();
    let expected =
        [("succeeded", 2), ("rejected", 3), ("failed", 1), ("unanswered", 1), ("refused", 1), ("abandoned", 1)];
    for (outcome, count) in expected {
        let line = format!("switchboard_outbound_requests_total{{outcome=\"{outcome}\"}} {count}\n");
        assert!(text.contains(&line), "{line} in\n{text}");
    }
    assert!(text.contains("switchboard_outbound_request_seconds_count 8\n"), "only what was sent takes time\n{text}");
}

#[tokio::test]
async fn what_was_checked_is_what_is_connected_to() {
    let mut tasks = JoinSet::new();
    let port = listeners(&mut tasks).await;
    let url = format!("http://rebind.test:{port}/");
    // Whoever answers for the name says something else the second time.
    let client = client(&[&["127.0.0.2"], &["127.0.0.1"]]);
    assert_eq!(get(&client, &url).await.as_deref(), Ok("127.0.0.2"));
    assert_eq!(get(&client, &url).await, Err(OutboundError::Unanswered));
}

#[tokio::test]
async fn of_several_addresses_the_allowed_ones_are_used() {
    let mut tasks = JoinSet::new();
    let port = listeners(&mut tasks).await;
    let mixed = client(&[&["127.0.0.1", "::1", "169.254.169.254", "127.0.0.2", "10.0.0.1"]]);
    assert_eq!(get(&mixed, &format!("http://mixed.test:{port}/")).await.as_deref(), Ok("127.0.0.2"));
}

#[tokio::test]
async fn nothing_tells_what_is_there_from_what_is_not() {
    let mut tasks = JoinSet::new();
    let open = listeners(&mut tasks).await;
    let closed = TcpListener::bind("127.0.0.2:0").await.unwrap().local_addr().unwrap().port();
    const INSIDE: Lists = &[&["127.0.0.1"]];
    const NOTHING: Lists = &[&[]];
    // A name that leads inside to an open port and to a closed one, a name that does not exist, and a closed port of
    // a host that is allowed.
    let cases: [(Lists, String); 4] = [
        (INSIDE, format!("http://inside.test:{open}/")),
        (INSIDE, format!("http://inside.test:{closed}/")),
        (NOTHING, format!("http://missing.test:{open}/")),
        (&[&["127.0.0.2"]], format!("http://allowed.test:{closed}/")),
    ];
    for (answers, url) in cases {
        assert_eq!(get(&client(answers), &url).await, Err(OutboundError::Unanswered), "{url}");
    }
    let client = client(NOTHING);
    for port in [open, closed] {
        for host in ["127.0.0.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"] {
            assert_eq!(get(&client, &format!("http://{host}:{port}/")).await, Err(OutboundError::Refused), "{host}");
        }
    }
}
