//! `clock`: the test clock of a server. `outbox`: what applications have left there in vain.

use anyhow::{Result, bail};
use switchboard_model::Timestamp;
use switchboard_model::span::Span;
use switchboard_model::wire::test_clock::{TestClockMove, TestClockReport};

use super::listing::collect;
use super::{Session, remotely};
use crate::cli::{ClockCommand, OutboxCommand, RemoteCommand};
use crate::output::time;

/// Shows or moves the clock.
pub(crate) async fn run(command: RemoteCommand<ClockCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| match command {
        ClockCommand::Show => session.form.one(&session.client.test_clock().await?),
        ClockCommand::Advance { duration, patience } => {
            let now = session.client.test_clock().await?.now;
            advance(&session, now + duration.to_delta(), patience).await
        }
        ClockCommand::Set { instant, patience } => advance(&session, instant, patience).await,
    })
    .await
}

/// Moves the clock in as many requests as that takes, as long as it comes further with each.
async fn advance(session: &Session, to: Timestamp, patience: Option<Span>) -> Result<()> {
    let request = TestClockMove { to: Some(to), advance: None, patience };
    let mut total: Option<TestClockReport> = None;
    loop {
        let mut report = session.client.move_test_clock(&request).await?;
        let is_stuck = !report.is_there && report.instants == 0 && report.attempts == 0;
        if let Some(before) = &total {
            report.instants += before.instants;
            report.runs += before.runs;
            report.attempts += before.attempts;
        }
        if is_stuck {
            bail!(
                "the clock stands at {} because what became due there is not done: {} runs are active; look at them \
                 with: switchboard run list",
                time(Some(report.state.now)),
                report.state.active
            );
        }
        if report.is_there {
            return session.form.done(
                &report,
                format_args!(
                    "The clock stands at {}: {} instants, {} runs of schedules, {} attempts ended.",
                    time(Some(report.state.now)),
                    report.instants,
                    report.runs,
                    report.attempts
                ),
            );
        }
        total = Some(report);
    }
}

/// Shows what could not take effect.
pub(crate) async fn outbox(command: RemoteCommand<OutboxCommand>) -> Result<()> {
    let RemoteCommand { remote, command: OutboxCommand::Failed { limit } } = command;
    remotely(&remote, async |session| {
        let entries = collect(limit, async |page| session.client.list_failed_entries(page).await).await?;
        session.form.list(&entries, ["LEFT", "KIND", "SUBJECT", "ERROR"], |entry| {
            [time(Some(entry.created_at)), entry.kind.clone(), entry.subject.clone(), entry.error.clone()]
        })
    })
    .await
}
