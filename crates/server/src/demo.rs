//! The demo: the whole product at work on a temporary SQLite file, over a real socket, in a few seconds.
//!
//! Everything it prints has really happened: it talks to its server as any other program would.

mod story;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use switchboard_client::{Client, ClientOptions};
use switchboard_model::api_key::API_KEY_PREFIX;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;

use crate::app;
use crate::cli::DemoOptions;
use crate::config::{Config, Drain};
use crate::output::line;
use crate::{lifecycle, telemetry};

/// How long the demo waits for anything before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the demo; the exit code is 0 when everything arrived.
pub(crate) async fn run(options: DemoOptions) -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let key = SecretText::generate(API_KEY_PREFIX)?;
    let mut config = Config { bootstrap_key: Some(key.clone()), ..Config::default() };
    config.instance.name = "demo".to_owned();
    config.database.url = format!("sqlite:{}", folder.path().join("demo.db").display());
    config.server.bind.set_port(0);
    config.telemetry.log = if options.verbose { "info" } else { "error" }.to_owned();
    telemetry::start_logs(&config.telemetry)?;

    let app = app::start(&config, telemetry::start_metrics()?).await?;
    line(format_args!("Switchboard demo: one process on a temporary SQLite file.\n"))?;
    line(format_args!("  server   {}", app.url()))?;
    let admin = Client::new(ClientOptions { base_url: app.url(), credential: Some(key.clone()) })?;
    let story = async {
        // Until the server knows the time, nobody can sign in.
        while admin.ready().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        story::tell(&admin).await
    };
    let told = tokio::time::timeout(PATIENCE, story).await;
    let outcome = told.unwrap_or_else(|_| bail!("nothing arrived for {PATIENCE:?}"));
    if options.keep && outcome.is_ok() {
        line(format_args!("\nThe server goes on until Ctrl-C. Try:"))?;
        line(format_args!("  curl -H 'Authorization: Bearer {}' {}/api/v1/tasks", key.expose(), app.url()))?;
        tokio::signal::ctrl_c().await?;
    }
    let drain = Drain { delay: Span::default(), ..Drain::default() };
    lifecycle::stop(app, &drain).await;
    outcome.map(|()| ExitCode::SUCCESS)
}
