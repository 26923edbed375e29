//! The `switchboard` binary: reads the command line, does one thing, ends with an honest exit code.

mod actions;
mod app;
mod check;
mod cli;
mod commands;
mod config;
mod database;
mod demo;
mod lifecycle;
mod membership;
mod telemetry;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the async runtime cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Demo(options) => demo::run(options).await,
        Command::Serve(flags) => {
            let config = config::load(cli.config.as_deref(), &flags.overrides())?;
            config::arm_fail_points()?;
            telemetry::start_logs(&config.telemetry)?;
            lifecycle::serve(config).await
        }
        Command::Migrate => {
            let config = config::load(cli.config.as_deref(), &[])?;
            commands::migrate(&config).await
        }
        Command::Check(options) => {
            let config = config::load(cli.config.as_deref(), &[])?;
            check::run(&config, options).await
        }
        Command::ApiKey(command) => {
            let config = config::load(cli.config.as_deref(), &[])?;
            commands::api_key(&config, command).await
        }
    }
}
