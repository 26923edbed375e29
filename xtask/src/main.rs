//! The tasks around the code: `cargo xtask test` is everything that a change needs.
//!
//! It must stay light, since it is built before anything else, and it knows no crate of the product.

mod bench;
mod chaos;
mod fuzz;
mod fuzz_api;
mod run;
mod soak;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::bench::BenchOptions;
use crate::chaos::ChaosOptions;
use crate::fuzz::FuzzOptions;
use crate::fuzz_api::FuzzApiOptions;
use crate::soak::SoakOptions;
use crate::test::Step;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The tasks around the code")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs everything that a change needs.
    Test(TestOptions),
    /// Sends the server whatever its OpenAPI document allows and forbids, and judges the answers.
    FuzzApi(FuzzApiOptions),
    /// Feeds the parsers of everything that comes from outside with inputs that reach ever more of their code.
    Fuzz(FuzzOptions),
    /// Measures what the product does in a second, beside the least SQL that could do the same work.
    Bench(BenchOptions),
    /// Lets mixed faults strike three replicas under a load of all kinds of work, and checks the ledgers.
    Chaos(ChaosOptions),
    /// Measures for a while what the tests only check; never a part of `test`.
    Soak(SoakOptions),
    /// Checks the rules of the house that no compiler knows.
    Tidy,
    /// Formats the whole tree.
    Fmt,
    /// Adds the checksums of new migrations, after which they must not be edited.
    RecordMigrations,
}

/// What `test` runs, and with which server.
#[derive(Args)]
struct TestOptions {
    /// The folder of the PostgreSQL server binaries to test with.
    #[arg(long, value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// Only tests whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only this step; may be given several times.
    #[arg(long, value_name = "STEP")]
    only: Vec<Step>,
}

fn main() -> ExitCode {
    // The manifest of this package is in the folder `xtask` of the root, so it always has a parent.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let result = match CommandLine::parse().command {
        Command::Test(options) => test::run(root, &options),
        Command::FuzzApi(options) => fuzz_api::run(root, &options),
        Command::Fuzz(options) => fuzz::run(root, &options),
        Command::Bench(options) => bench::run(root, &options),
        Command::Chaos(options) => chaos::run(root, &options),
        Command::Soak(options) => soak::run(root, &options),
        Command::Tidy => tidy::run(root),
        Command::Fmt => run::cargo(root, &["fmt", "--all"]),
        Command::RecordMigrations => tidy::record_migrations(root),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
