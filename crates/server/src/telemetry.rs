//! Logs and metrics of the process.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, Telemetry};

/// Upper bounds of duration histograms, in seconds.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Upper bounds of batch size histograms.
const SIZES: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// Starts the log on standard error: for people on a terminal, as JSON otherwise.
pub(crate) fn start_logs(options: &Telemetry) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&options.log).context("telemetry.log: not a filter such as info")?;
    let is_human = match options.format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let result =
        if is_human { builder.with_target(false).try_init() } else { builder.json().flatten_event(true).try_init() };
    result.map_err(|error| anyhow::anyhow!("the log cannot start: {error}"))
}

/// Installs the recorder of all metrics and registers them at zero.
pub(crate) fn start_metrics() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_batch_commands".to_owned()), &SIZES)?
        .install_recorder()
        .context("the metrics recorder cannot start")?;
    switchboard_events::describe_metrics();
    switchboard_scheduler::describe_metrics();
    switchboard_http::describe_metrics();
    crate::check::describe_metrics();
    crate::listen::describe_metrics();
    crate::outbound::describe_metrics();
    Ok(handle)
}
