//! Soaks: the long forms of what the tests check briefly. They measure times, which no test judges.
//!
//! Run by `cargo xtask soak`, which builds the server and finds a database.

#![expect(clippy::unwrap_used, reason = "a soak fails by panicking")]

mod leases;
mod realtime;
mod sign_in;
mod slow_readers;

use std::process::ExitCode;
use std::time::Duration;

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
        _ => usage(),
    }
}

const fn verdict(holds: bool) -> ExitCode {
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: switchboard-soak sign-in SERVER | realtime SERVER MINUTES SEED | slow-readers SERVER MINUTES
       | leases SERVER HOLDS SEED"
    );
    ExitCode::FAILURE
}
