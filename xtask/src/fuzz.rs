//! `cargo xtask fuzz`: the fuzz targets in `fuzz/`, each for the same time. They need a nightly toolchain and cargo-fuzz.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};

use crate::run;

/// The folder of the targets.
const FOLDER: &str = "fuzz";

/// What watches over memory while a target runs.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sanitizer {
    /// AddressSanitizer, which finds what unsafe code of dependencies does wrong.
    Address,
    /// Nothing; twice as fast.
    None,
}

/// What is fuzzed, and for how long.
#[derive(Args)]
pub(crate) struct FuzzOptions {
    /// Only this target; may be given several times.
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// How many minutes all of them take together.
    #[arg(long, default_value_t = 10, value_name = "M")]
    minutes: u64,
    /// What watches over memory.
    #[arg(long, value_enum, default_value_t = Sanitizer::None)]
    sanitizer: Sanitizer,
}

/// Builds the targets and runs one after the other; what they have learned is kept in `fuzz/corpus`.
///
/// # Errors
/// When an input breaks what a target asserts; it is kept in `fuzz/artifacts`, and the message says where.
pub(crate) fn run(root: &Path, options: &FuzzOptions) -> anyhow::Result<()> {
    let fuzz = |arguments: &[&str]| {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(["+nightly", "fuzz"]).args(arguments);
        // This program was started by another toolchain, which must not be taken for the one asked for.
        cargo.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
        cargo
    };
    let known =
        run::printed(&mut fuzz(&["list"])).context("`cargo install cargo-fuzz` and a nightly toolchain are needed")?;
    let mut targets: Vec<&str> = known.lines().collect();
    if !options.target.is_empty() {
        for wanted in &options.target {
            ensure!(
                targets.contains(&wanted.as_str()),
                "there is no target {wanted}; known are {}",
                targets.join(", ")
            );
        }
        targets.retain(|target| options.target.iter().any(|wanted| wanted == target));
    }
    let sanitizer = match options.sanitizer {
        Sanitizer::Address => "address",
        Sanitizer::None => "none",
    };
    let built = format!("{FOLDER}/target");
    run::shown(&mut fuzz(&["build", "--release", "--sanitizer", sanitizer, "--target-dir", &built]))?;
    let seconds = (options.minutes * 60).div_ceil(targets.len() as u64);
    for target in targets {
        println!("\n== {target}, {seconds} s ==");
        let folders = ["corpus", "artifacts"].map(|folder| format!("{FOLDER}/{folder}/{target}"));
        for folder in &folders {
            std::fs::create_dir_all(root.join(folder))?;
        }
        let [corpus, artifacts] = folders;
        let mut program = Command::new(root.join(&built).join(host()?).join("release").join(target));
        program.current_dir(root).arg(corpus).arg(format!("{FOLDER}/seeds/{target}"));
        program.arg(format!("-artifact_prefix={artifacts}/")).arg(format!("-max_total_time={seconds}"));
        program.args(["-max_len=4096", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]);
        run::shown(&mut program).with_context(|| format!("see {artifacts} for the input"))?;
    }
    Ok(())
}

/// Returns the name of this machine's platform, which is in the path of what cargo-fuzz builds.
fn host() -> anyhow::Result<String> {
    let version = run::printed(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not say what its host is")
}
