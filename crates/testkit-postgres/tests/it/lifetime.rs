//! The lifetime of a server: it answers, hangs, crashes, comes back, and never outlives its owner.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use switchboard_testkit_postgres::{BIN_VARIABLE, Durability, PostgresServer, URL_VARIABLE, find_binaries};

/// The question whether the server speaks TLS, which it answers before anything else.
const TLS_QUESTION: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// How long an answer may take that must come.
const LONG: Duration = Duration::from_secs(60);
/// How long nothing must come from a server that stands still.
const SILENCE: Duration = Duration::from_millis(500);

fn answers(url: &str) -> bool {
    answers_within(LONG, url)
}

fn answers_within(patience: Duration, url: &str) -> bool {
    let address = url.trim_start_matches("postgres://postgres@").trim_end_matches("/postgres");
    let Ok(mut socket) = TcpStream::connect(address) else { return false };
    socket.set_read_timeout(Some(patience)).unwrap();
    socket.write_all(&TLS_QUESTION).is_ok() && socket.read_exact(&mut [0]).is_ok()
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start() -> PostgresServer {
    PostgresServer::start(&find_binaries().expect("server binaries"), Durability::Durable).unwrap()
}

#[test]
fn a_started_server_answers_and_is_gone_when_dropped() {
    let server = start();
    let url = server.url().to_owned();
    assert!(answers(&url));
    drop(server);
    assert!(!answers(&url));
}

#[test]
fn a_paused_server_is_silent_until_resumed() {
    let mut server = start();
    server.pause().unwrap();
    assert!(!answers_within(SILENCE, server.url()));
    server.resume().unwrap();
    assert!(answers(server.url()));
}

#[test]
fn a_paused_server_is_gone_when_dropped() {
    let mut server = start();
    let url = server.url().to_owned();
    server.pause().unwrap();
    drop(server);
    assert!(!answers(&url));
}

#[test]
fn a_restarted_server_keeps_its_address_and_gets_a_new_process() {
    let mut server = start();
    let before = server.process_id().unwrap();
    server.stop().unwrap();
    assert!(!answers(server.url()));
    assert_eq!(server.process_id(), None);
    server.restart().unwrap();
    assert!(answers(server.url()));
    assert_ne!(server.process_id(), Some(before));
}

#[test]
fn servers_live_side_by_side() {
    let (left, right) = (start(), start());
    assert_ne!(left.url(), right.url());
    assert!(answers(left.url()) && answers(right.url()));
}

#[test]
fn a_killed_owner_leaves_nothing_behind() {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_switchboard-testkit-postgres"))
        .env_remove(URL_VARIABLE)
        .env(BIN_VARIABLE, find_binaries().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut url).unwrap();
    assert!(answers(url.trim()));
    let folder = std::env::temp_dir().join(format!("switchboard-pg-{}-0", owner.id()));
    assert!(folder.exists());

    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually("the server is stopped and its folder removed", || !answers(url.trim()) && !folder.exists());
}

#[test]
fn a_given_server_is_used_and_cannot_be_steered() {
    let output = Command::new(env!("CARGO_BIN_EXE_switchboard-testkit-postgres"))
        .env(URL_VARIABLE, "postgres://someone@db.example/postgres")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "postgres://someone@db.example/postgres");
}

#[test]
fn a_failed_start_tells_what_the_program_said() {
    let error = PostgresServer::start(Path::new("/no/such/folder"), Durability::Fast).unwrap_err();
    assert!(error.to_string().starts_with("initdb failed: "), "{error}");
}
