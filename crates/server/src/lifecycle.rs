//! The life of a server process: start, serve until told to stop, drain, end.

use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::app::{self, App};
use crate::check;
use crate::config::{Config, Drain};
use crate::telemetry;

/// The exit code after a second signal: ended before everything was put away.
const FORCED: u8 = 130;

/// How long each last phase of a stop may take once nothing is served any more.
const LAST_PHASE: Duration = Duration::from_secs(5);

/// The signals that end the process.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Serves until a signal comes, then drains. A second signal ends the process at once.
pub(crate) async fn serve(config: Config) -> anyhow::Result<ExitCode> {
    let mut signals = StopSignals::new()?;
    let prometheus = telemetry::start_metrics()?;
    if let Err(code) = check::at_boot(&config).await? {
        return Ok(code);
    }
    let app = tokio::select! {
        app = app::start(&config, prometheus) => app,
        () = signals.next() => return Ok(ExitCode::from(FORCED)),
    };
    let app = match app {
        Ok(app) => app,
        Err(error) => {
            let Some(refusal) = error.downcast_ref::<check::Refusal>() else { return Err(error) };
            tracing::error!(code = refusal.code, "{refusal}");
            return Ok(ExitCode::from(refusal.code));
        }
    };
    let url = app.url();
    tracing::info!(url = %url, api = %format!("{url}/api/v1"), socket = %format!("ws://{}/ws", app.address), "listening");
    signals.next().await;
    tokio::select! {
        () = stop(app, &config.drain) => Ok(ExitCode::SUCCESS),
        () = signals.next() => {
            tracing::warn!("stopping at once");
            Ok(ExitCode::from(FORCED))
        }
    }
}

/// Puts a replica away: first what others see, then the work, then what the work needs.
pub(crate) async fn stop(app: App, drain: &Drain) {
    tracing::info!("stopping");
    app.lifecycle.start_draining();
    tokio::time::sleep(drain.delay.to_std()).await;

    let deadline = Instant::now() + drain.timeout.to_std();
    app.stop.soft.cancel();
    // Sockets move within half of the time, so that the rest is left for their last frames.
    let moved = app.hub.drain(drain.timeout.to_std().min(Duration::from_secs(10)) / 2);
    let _ = tokio::time::timeout_at(deadline, async { tokio::join!(moved, app.scheduler.drained()) }).await;
    app.stop.hard.cancel();
    finish("work", &app.trackers.work, LAST_PHASE).await;

    app.stop.edge.cancel();
    let left = deadline.saturating_duration_since(Instant::now()).max(LAST_PHASE);
    finish("requests", &app.trackers.edge, left).await;
    // Who moved to another replica must not seem to be lost with this one.
    let _ = tokio::time::timeout(LAST_PHASE, app.hub.settled()).await;
    app.membership.leave().await;
    app.stop.core.cancel();
    finish("loops", &app.trackers.core, LAST_PHASE).await;
    drop(app.stores);
    app.stop.stores.cancel();
    finish("stores", &app.trackers.stores, LAST_PHASE).await;
    tracing::info!("stopped");
}

async fn finish(what: &'static str, tracker: &TaskTracker, within: Duration) {
    tracker.close();
    if tokio::time::timeout(within, tracker.wait()).await.is_err() {
        tracing::warn!(what, left = tracker.len(), "not everything ended in time");
    }
}
