//! `cargo xtask fuzz-api`: a server on a temporary database, and Schemathesis, which sends it whatever the OpenAPI
//! document allows and forbids and judges the answers by the document.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use switchboard_testkit_postgres::{Durability, PostgresServer, find_binaries};

use crate::run;

/// The version of Schemathesis, so that a run can be repeated.
const VERSION: &str = "4.32.5";

/// What is looked for in every answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// The key of the run; the server is gone with it.
const KEY: &str = "sbk_0123456789abcdefghijklmn";

/// How long the server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long an answer may take: longer than the server lets a request live.
const REQUEST_SECONDS: u32 = 60;

/// What is left out: with the ids that answers show, it would revoke the key of the run.
const LEFT_OUT: &str = "api_keys_revoke";

/// How the surface is fuzzed.
#[derive(Args)]
pub(crate) struct FuzzApiOptions {
    /// The database behind the server.
    #[arg(long, value_enum, default_value_t = Database::Sqlite)]
    database: Database,
    /// How many requests are made up for each operation.
    #[arg(long, value_name = "N", default_value_t = 100)]
    examples: u32,
    /// Goes on for this long instead of ending after the examples.
    #[arg(long, value_name = "N")]
    minutes: Option<u32>,
    /// The seed of an earlier run, to repeat it.
    #[arg(long, value_name = "SEED")]
    seed: Option<u128>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Database {
    Sqlite,
    Postgres,
}

/// Builds, starts and fuzzes the server.
///
/// # Errors
/// When an answer is not as documented, or something needed for the run is missing.
pub(crate) fn run(root: &Path, options: &FuzzApiOptions) -> anyhow::Result<()> {
    run::cargo(root, &["build", "--package", "switchboard-server"])?;
    let target = run::target_folder()?;
    let schemathesis = install(&target)?;

    let folder = target.join("fuzz-api").join(std::process::id().to_string());
    fs::create_dir_all(&folder)?;
    let postgres = match options.database {
        Database::Sqlite => None,
        Database::Postgres => {
            // Never a server that somebody named for tests: its database `postgres` is not ours to fill.
            let binaries = find_binaries().context("the binaries of a PostgreSQL server are needed")?;
            Some(PostgresServer::start(&binaries, Durability::Fast)?)
        }
    };
    let own_file = format!("sqlite:{}", folder.join("switchboard.db").display());
    let server = Server::start(&target, &folder, postgres.as_ref().map_or(&own_file, PostgresServer::url))?;

    println!("the log of the server: {}", server.log.display());
    let mut fuzz = Command::new(schemathesis);
    fuzz.current_dir(&folder).arg("run").arg(format!("{}/openapi.json", server.url)).args([
        "--checks",
        CHECKS,
        "--continue-on-failure",
    ]);
    fuzz.args(["--exclude-operation-id", LEFT_OUT]);
    fuzz.args(["--header", &format!("Authorization: Bearer {KEY}"), "--max-examples", &options.examples.to_string()]);
    fuzz.args(["--request-timeout", &REQUEST_SECONDS.to_string()]);
    if let Some(seed) = options.seed {
        fuzz.args(["--seed", &seed.to_string()]);
    }
    if let Some(minutes) = options.minutes {
        fuzz.args(["--max-time", &(minutes * 60).to_string()]);
    }
    run::shown(&mut fuzz).context("repeat with --seed and the seed above")?;
    server.stop()?;
    Ok(fs::remove_dir_all(&folder)?)
}

/// Returns the program after installing it, once for each version.
fn install(target: &Path) -> anyhow::Result<PathBuf> {
    let folder = target.join(format!("schemathesis-{VERSION}"));
    let program = folder.join("bin/schemathesis");
    if !run::succeeds(Command::new(&program).arg("--version")) {
        run::shown(Command::new("python3").args(["-m", "venv"].map(OsStr::new)).arg(&folder))
            .context("python3 with venv is needed")?;
        let package = format!("schemathesis=={VERSION}");
        run::shown(Command::new(folder.join("bin/pip")).args(["install", "--quiet", &package]))?;
    }
    Ok(program)
}

/// A running server; dropping it kills the process.
struct Server {
    process: Child,
    log: PathBuf,
    url: String,
}

impl Server {
    /// Starts the server and waits until it has announced its address.
    fn start(target: &Path, folder: &Path, database_url: &str) -> anyhow::Result<Self> {
        let log = folder.join("server.log");
        let output = File::create(&log)?;
        let process = Command::new(target.join("debug/switchboard"))
            .arg("serve")
            .current_dir(folder)
            .env("SWITCHBOARD_DATABASE__URL", database_url)
            .env("SWITCHBOARD_SERVER__BIND", "127.0.0.1:0")
            .env("SWITCHBOARD_BOOTSTRAP_KEY", KEY)
            .env("SWITCHBOARD_AUTH__REGISTRATION", "true")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let mut server = Self { process, log, url: String::new() };
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let text = fs::read_to_string(&server.log)?;
            if let Some(url) = text.lines().find_map(announced_url) {
                server.url = url;
                return Ok(server);
            }
            ensure!(server.process.try_wait()?.is_none(), "the server ended:\n{text}");
            thread::sleep(Duration::from_millis(50));
        }
        bail!("the server announced no address: see {}", server.log.display())
    }

    /// Requires that the server has outlived the run, and ends it.
    fn stop(mut self) -> anyhow::Result<()> {
        ensure!(self.process.try_wait()?.is_none(), "the server died: see {}", self.log.display());
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to save; a process that has ended already is as good.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Reads the address from the log entry that announces it.
fn announced_url(line: &str) -> Option<String> {
    let entry: serde_json::Value = serde_json::from_str(line).ok()?;
    (entry["message"] == "listening").then(|| entry["url"].as_str().map(str::to_owned))?
}
