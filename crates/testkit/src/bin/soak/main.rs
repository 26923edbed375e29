//! Soaks: the long forms of what the tests check briefly. They measure times, which no test judges.
//!
//! Run by `cargo xtask soak`, which builds the server and finds a database.

#![expect(clippy::unwrap_used, reason = "a soak fails by panicking")]

mod leases;
mod realtime;
mod sign_in;
mod slow_readers;

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
        "slow-readers" => {
            let Some(minutes) = arguments.next().and_then(|number| number.parse().ok()) else { return usage() };
            verdict(slow_readers::soak(server.as_ref(), minutes).await)
        }
        "leases" => {
            let mut numbers = arguments.map_while(|number| number.parse().ok());
            let (Some(holds), Some(seed)) = (numbers.next(), numbers.next()) else { return usage() };
            verdict(leases::soak(server.as_ref(), usize::try_from(holds).unwrap(), seed).await)
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
        "usage: switchboard-soak sign-in|rolling|restarts SERVER | realtime|chaos SERVER MINUTES SEED
       | slow-readers SERVER MINUTES | leases SERVER HOLDS SEED"
    );
    ExitCode::FAILURE
}
