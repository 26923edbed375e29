//! The `switchboard` binary: reads the command line, does one thing, ends with an honest exit code.

mod actions;
mod app;
mod check;
mod cli;
mod commands;
mod config;
mod database;
mod demo;
mod key_check;
mod keys;
mod lifecycle;
mod listen;
mod membership;
mod outbound;
mod output;
mod placement;
mod provider;
mod telemetry;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};
use crate::output::ReaderGone;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::warn(format_args!("error: the async runtime cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli)) {
        Ok(code) => code,
        // Whoever read the output has seen enough.
        Err(error) if error.is::<ReaderGone>() => ExitCode::SUCCESS,
        Err(error) => {
            output::warn(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let file = cli.config.as_deref();
    match cli.command {
        Command::Demo(options) => return demo::run(options).await,
        Command::Serve(flags) => {
            let config = config::load(file, &flags.overrides())?;
            config::arm_fail_points()?;
            config::pretend_next_release().await?;
            telemetry::start_logs(&config.telemetry)?;
            return lifecycle::serve(config).await;
        }
        Command::Check(options) => return check::run(&config::load(file, &[])?, options).await,
        Command::Migrate => commands::migrate(&config::load(file, &[])?).await,
        Command::ApiKey(command) => commands::api_key(command, file).await,
        Command::User(command) => commands::user(command, file).await,
        Command::Token(command) => commands::token(command).await,
        Command::Task(command) => commands::task(command).await,
        Command::Webhook(command) => commands::webhook(command).await,
        Command::Run(command) => commands::run(command).await,
        Command::Work(command) => commands::work(command).await,
        Command::Room(command) => commands::room(command).await,
        Command::Stream(command) => commands::stream(command).await,
        Command::Lease(command) => commands::lease(command).await,
        Command::Once(command) => commands::once(command).await,
        Command::State(command) => commands::state(command).await,
        Command::Session(command) => commands::session(command).await,
        Command::Secret(command) => commands::secret(command, file).await,
        Command::ProviderToken(command) => commands::provider_token(command).await,
        Command::Publish(command) => commands::publish(command).await,
        Command::Call(command) => commands::call(command).await,
        Command::Tail(command) => commands::tail(command).await,
        Command::Fleet(command) => commands::fleet(command).await,
        Command::Instance(command) => commands::instance(command).await,
        Command::Audit(command) => commands::audit(command).await,
        Command::Outbox(command) => commands::outbox(command).await,
        Command::Clock(command) => commands::clock(command).await,
        Command::Openapi(remote) => commands::openapi(&remote).await,
        Command::Asyncapi(remote) => commands::asyncapi(&remote).await,
        Command::Completions { shell } => commands::completions(shell),
        Command::Reference { page } => commands::reference(page),
    }?;
    Ok(ExitCode::SUCCESS)
}
