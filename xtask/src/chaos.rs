//! `cargo xtask chaos`: mixed faults over a live load of all kinds of work, and the ledgers afterwards.

use std::path::Path;

use clap::Args;

use crate::soak;

/// How long faults strike, and which.
#[derive(Args)]
pub(crate) struct ChaosOptions {
    /// How many minutes.
    #[arg(long, default_value_t = 3)]
    minutes: u64,
    /// The seed that a failed run has printed.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the chaos; fails when a ledger does not balance.
pub(crate) fn run(root: &Path, options: &ChaosOptions) -> anyhow::Result<()> {
    // Without a seed each run draws other faults.
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}");
    soak::program(root, "chaos", &[options.minutes.to_string(), seed.to_string()])
}
