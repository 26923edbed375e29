//! The example of an application that takes parts of the product into its own process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use switchboard_testkit::{TestDatabase, wait_until};

/// A running process of the example.
struct Embedded {
    process: Child,
    /// Kept open: the process says more.
    _output: BufReader<ChildStdout>,
    url: String,
}

impl Embedded {
    fn start(database: &str) -> Self {
        // Cargo builds the examples of a package with its tests, beside its binaries.
        let program = Path::new(env!("CARGO_BIN_EXE_switchboard")).with_file_name("examples").join("embedded");
        let mut process = Command::new(program).arg(database).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { process, _output: output, url }
    }

    /// Asks for a letter of ann; returns the run that sends it, unless there were too many.
    async fn send(&self) -> Option<String> {
        let answer = reqwest::Client::new().post(format!("{}/letters/ann", self.url)).send().await.unwrap();
        if answer.status() == 429 {
            assert!(answer.headers().contains_key("retry-after"));
            return None;
        }
        assert_eq!(answer.status(), 202);
        let body: Value = answer.json().await.unwrap();
        Some(body["run"].as_str().unwrap().to_owned())
    }

    async fn sent(&self, run: &str) {
        wait_until("the letter to be sent", async || {
            let answer = reqwest::get(format!("{}/runs/{run}", self.url)).await.map_err(|error| error.to_string())?;
            let body: Value = answer.json().await.map_err(|error| error.to_string())?;
            if body["is_sent"] == true { Ok(()) } else { Err(body.to_string()) }
        })
        .await;
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends more letters than are allowed through all processes, and waits for those that are.
async fn three_letters_go_out(processes: &[Embedded]) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut runs = Vec::new();
    for number in 0..6 {
        runs.extend(processes[number % processes.len()].send().await);
    }
    assert_eq!(runs.len(), 3, "{runs:?}");
    for run in runs {
        processes[0].sent(&run).await;
    }
}

#[tokio::test]
async fn an_application_embeds_limits_and_tasks_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", folder.path().join("letters.db").display());
    three_letters_go_out(&[Embedded::start(&database)]).await;
}

#[tokio::test]
async fn processes_of_an_application_share_limits_and_tasks_on_postgresql() {
    let database = TestDatabase::empty().await;
    three_letters_go_out(&[Embedded::start(database.url()), Embedded::start(database.url())]).await;
}
