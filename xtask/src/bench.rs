//! `cargo xtask bench`: the benchmarks, built for release and run on a PostgreSQL server of their own.

use std::path::Path;

use clap::{Args, ValueEnum};

use crate::run;

/// What can be measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Subject {
    /// Draining 100,000 queued runs.
    Jobs,
    /// The time from a trigger to its action.
    Start,
    /// How late runs start when many tasks are due.
    Fire,
    /// What a lease costs beside a long history.
    Backlog,
    /// What 100,000 tasks cost while none is due.
    Idle,
    /// Events from 64 publishers on one replica to a socket on another.
    Bus,
    /// One event to 5,000 sockets, and what an idle socket costs.
    Fanout,
    /// What the hints of the bus cost the commits of another application.
    Tax,
    /// Chunks of 200 producers on one replica, and readers that resume on another.
    Streams,
}

/// What `bench` measures, and how it tells.
#[derive(Args)]
pub(crate) struct BenchOptions {
    /// What is measured.
    #[arg(value_enum)]
    subject: Subject,
    /// How many times; medians are told.
    #[arg(long, default_value_t = 5, value_name = "N")]
    repeats: u32,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// Builds for release and measures.
pub(crate) fn run(root: &Path, options: &BenchOptions) -> anyhow::Result<()> {
    let name = match options.subject {
        Subject::Jobs => "jobs",
        Subject::Start => "start",
        Subject::Fire => "fire",
        Subject::Backlog => "backlog",
        Subject::Idle => "idle",
        Subject::Bus => "bus",
        Subject::Fanout => "fanout",
        Subject::Tax => "tax",
        Subject::Streams => "streams",
    };
    let server = ["build", "--release", "--package", "switchboard-server"];
    run::cargo(root, &server)?;
    let server = run::target_folder()?.join("release/switchboard");
    let (server, repeats) = (server.to_string_lossy(), options.repeats.to_string());
    let program = ["run", "--release", "--package", "switchboard-testkit", "--bin", "switchboard-bench", "--", name];
    let mut arguments = program.to_vec();
    arguments.extend([&*server, "--repeats", &repeats]);
    if options.json {
        arguments.push("--json");
    }
    run::cargo(root, &arguments)
}
