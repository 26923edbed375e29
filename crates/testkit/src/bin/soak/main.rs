//! Soaks: the long forms of what the tests check briefly. They measure times, which no test judges.
//!
//! Run by `cargo xtask soak`, which builds the server and finds a database.

#![expect(clippy::unwrap_used, reason = "a soak fails by panicking")]

mod realtime;
mod sign_in;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use switchboard_testkit::{Chaos, Cluster, Restarts, Rolling};

/// Returns the median of samples.
fn median(samples: &mut [Duration]) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (name, server) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    match name.as_str() {
        "sign-in" => verdict(sign_in::soak(server.as_ref()).await),
        "realtime" => {
            let mut numbers = arguments.map_while(|number| number.parse().ok());
            let (Some(minutes), Some(seed)) = (numbers.next(), numbers.next()) else { return usage() };
            verdict(realtime::soak(server.as_ref(), minutes, seed).await)
        }
        "chaos" => {
            let mut numbers = arguments.map_while(|number| number.parse().ok());
            let (Some(minutes), Some(seed)) = (numbers.next(), numbers.next()) else { return usage() };
            let report = Chaos { duration: Duration::from_secs(minutes * 60), seed }.run(server.as_ref()).await;
            println!("{report}");
            verdict(report.violations.is_empty())
        }
        "rolling" => verdict(rolling(server.as_ref()).await),
        "restarts" => verdict(restarts(server.as_ref()).await),
        _ => usage(),
    }
}

/// Replaces three replicas, three times each, under a thousand sockets and fifty streams.
async fn rolling(server: &Path) -> bool {
    let mut cluster = Rolling::cluster(Cluster::start(3).binary(server)).durable().await;
    let report = Rolling { sockets: 1_000, streams: 50, rounds: 3 }.run(&mut cluster).await;
    println!("{report}");
    report.violations.is_empty()
}

/// Crashes the database of three replicas twenty times within ten minutes.
async fn restarts(server: &Path) -> bool {
    let mut cluster = Cluster::start(3).binary(server).own_server().await;
    let report = Restarts { count: 20, period: Duration::from_secs(30) }.run(&mut cluster).await;
    println!("{report}");
    report.violations.is_empty()
}

const fn verdict(holds: bool) -> ExitCode {
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: switchboard-soak sign-in|rolling|restarts SERVER_BINARY | realtime|chaos SERVER_BINARY MINUTES SEED"
    );
    ExitCode::FAILURE
}
