//! `cargo xtask soak`: the long forms of what the tests check briefly. They measure times, on a database of their own.

use std::path::Path;
use std::process::Command;

use clap::{Args, ValueEnum};

use crate::run;

/// What can be soaked.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Subject {
    /// Whether refused sign-ins differ in time, and how fast a disabled user is out on every replica.
    SignIn,
    /// Whether every client sees every event once and in order beside cut sockets, killed replicas and lost listeners,
    /// with NOTIFY and without.
    Realtime,
    /// Whether two ever hold a lease at the same time, beside holders and replicas that stand still, one of them with a wrong
    /// clock.
    Leases,
    /// Whether nobody notices that all replicas are replaced, three times: 1,000 sockets, 50 streams, plain requests.
    Rolling,
    /// Whether every replica recovers by itself from 20 crashes of its database in 10 minutes, and lives meanwhile.
    Restarts,
    /// Whether connections that are cut at random statements of the scheduler lose or double anything.
    Cuts,
    /// Whether 500 sockets that read nothing cost bounded memory and delay nobody, and miss nothing when they read again.
    SlowReaders,
}

/// What `soak` runs.
#[derive(Args)]
pub(crate) struct SoakOptions {
    /// What is soaked.
    #[arg(value_enum)]
    subject: Subject,
    /// How many connections are cut.
    #[arg(long, default_value_t = 500)]
    trials: u64,
    /// How many minutes the realtime load lasts, twice, 10 unless given; how long slow readers read nothing, 5 unless given.
    #[arg(long)]
    minutes: Option<u64>,
    /// How many leases are acquired.
    #[arg(long, default_value_t = 10_000)]
    holds: u64,
    /// The seed that a failed soak has printed.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the soak; fails when a bound did not hold.
pub(crate) fn run(root: &Path, options: &SoakOptions) -> anyhow::Result<()> {
    match options.subject {
        Subject::SignIn => program(root, "sign-in", &[]),
        Subject::Realtime => {
            // Without a seed each soak draws other faults.
            let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
            let minutes = options.minutes.unwrap_or(10);
            program(root, "realtime", &[minutes.to_string(), seed.to_string()])
        }
        Subject::Leases => {
            let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
            program(root, "leases", &[options.holds.to_string(), seed.to_string()])
        }
        Subject::Rolling => program(root, "rolling", &[]),
        Subject::Restarts => program(root, "restarts", &[]),
        Subject::Cuts => cuts(root, options),
        Subject::SlowReaders => program(root, "slow-readers", &[options.minutes.unwrap_or(5).to_string()]),
    }
}

/// Builds the server and runs the program that soaks it.
pub(crate) fn program(root: &Path, subject: &str, arguments: &[String]) -> anyhow::Result<()> {
    let build = ["build", "--package", "switchboard-server", "--package", "switchboard-testkit"];
    run::cargo(root, &build)?;
    let server = run::target_folder()?.join("debug/switchboard");
    let server = server.to_string_lossy();
    let program = ["run", "--package", "switchboard-testkit", "--bin", "switchboard-soak", "--", subject, &server];
    let arguments: Vec<&str> = program.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    run::cargo(root, &arguments)
}

/// The test itself, with more trials.
fn cuts(root: &Path, options: &SoakOptions) -> anyhow::Result<()> {
    let mut test = Command::new("cargo");
    test.current_dir(root).env("SWITCHBOARD_TEST_TRIALS", options.trials.to_string());
    if let Some(seed) = options.seed {
        test.env("SWITCHBOARD_TEST_SEED", seed.to_string());
    }
    test.args(["test", "--package", "switchboard-store-pg", "--test", "it", "--"]);
    run::shown(test.args(["cuts::connections_cut_anywhere_lose_and_double_nothing", "--exact", "--nocapture"]))
}
