//! The commands about the audit log and the description of the API.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::cli::Cli;
use crate::fixtures::{cluster, err, out, switchboard};

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_listed_and_exported() {
    let cluster = cluster(1).sqlite().await;
    let cli = Cli::of(&cluster);
    for room in ["a", "b"] {
        cli.says(&["room", "create", room]);
    }
    cli.says(&["room", "delete", "a"]);
    let listed = cli.gives(&["audit", "list", "--action", "room."]);
    let actions: Vec<&Value> = listed.as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["room.delete", "room.create", "room.create"]);
    let table = cli.says(&["audit", "list", "--action", "room.", "--subject", "b"]);
    assert!(table.contains("room.create") && !table.contains("room.delete"), "{table}");
    assert_eq!(cli.gives(&["audit", "list", "--to", "2020-01-01T00:00:00Z"]), json!([]));
    let actor = listed[0]["actor"].as_str().unwrap();
    assert_eq!(cli.gives(&["audit", "list", "--actor", actor, "--action", "room.delete"])[0], listed[0]);

    let exported = cli.says(&["audit", "export", "--action", "room."]);
    let lines: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let oldest_first: Vec<Value> = listed.as_array().unwrap().iter().rev().cloned().collect();
    assert_eq!(lines, oldest_first);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.ndjson");
    let to_file = ["audit", "export", "--action", "room.", "--output", path.to_str().unwrap()];
    assert!(cli.says(&to_file).starts_with("Wrote 3 entries to "));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), exported);
}

#[test]
fn an_export_that_breaks_off_is_a_failure_and_leaves_no_file() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{}\n\r\n").unwrap();
        }
    });
    let env = [("SWITCHBOARD_URL", url.as_str())];
    let printed = switchboard(&["audit", "export"], &env);
    assert_eq!((printed.status.code(), out(&printed).as_str()), (Some(1), "{}\n"), "{}", err(&printed));
    assert!(err(&printed).contains("broke off after 1 entries"), "{}", err(&printed));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.ndjson");
    let written = switchboard(&["audit", "export", "-o", path.to_str().unwrap()], &env);
    assert_eq!(written.status.code(), Some(1), "{}", err(&written));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    server.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_of_the_api_is_that_of_the_server() {
    let cluster = cluster(1).sqlite().await;
    let own = out(&switchboard(&["openapi"], &[]));
    assert_eq!(Cli::of(&cluster).says(&["openapi"]), own);
    assert_eq!(serde_json::from_str::<Value>(&own).unwrap()["openapi"], "3.1.0");
}
