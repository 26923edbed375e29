//! Benchmarks: what the product does in a second, beside the least SQL that could do the same work, on the same server
//! in the same run. Run by `cargo xtask bench`, which builds the server for release; no test judges the figures.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod backlog;
mod bus;
mod fanout;
mod fire;
mod flood;
mod idle;
mod jobs;
mod plans;
mod report;
mod start;
mod streams;
mod table;
mod tax;

use std::path::PathBuf;
use std::process::ExitCode;

use switchboard_testkit::{Cluster, ClusterBuilder};

use crate::report::{Format, Report};

/// What every benchmark is given.
struct Bench {
    server: PathBuf,
    repeats: usize,
}

impl Bench {
    /// Describes a cluster on a database that keeps what was committed through a crash.
    fn cluster(&self, size: usize) -> ClusterBuilder {
        Cluster::start(size).binary(&self.server).durable().env("SWITCHBOARD_TELEMETRY__LOG", "info")
    }
}

const USAGE: &str =
    "usage: switchboard-bench jobs|start|fire|backlog|idle|bus|fanout|tax|streams SERVER_BINARY [--json] [--repeats N]";

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(server)) = (arguments.next(), arguments.next()) else { return usage() };
    let (mut format, mut repeats) = (Format::Text, 5);
    while let Some(option) = arguments.next() {
        match option.as_str() {
            "--json" => format = Format::Json,
            "--repeats" => match arguments.next().and_then(|count| count.parse().ok()) {
                Some(count) => repeats = std::cmp::max(count, 1),
                None => return usage(),
            },
            _ => return usage(),
        }
    }
    let bench = Bench { server: server.into(), repeats };
    let report: Report = match name.as_str() {
        "jobs" => jobs::measure(&bench).await,
        "start" => start::measure(&bench).await,
        "fire" => fire::measure(&bench).await,
        "backlog" => backlog::measure(&bench).await,
        "idle" => idle::measure(&bench).await,
        "bus" => bus::measure(&bench).await,
        "fanout" => fanout::measure(&bench).await,
        "tax" => tax::measure(&bench).await,
        "streams" => streams::measure(&bench).await,
        _ => return usage(),
    };
    report.print(format);
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::FAILURE
}
