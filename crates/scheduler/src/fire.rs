//! The fire loop: due tasks become runs.
//!
//! It reads what is due, plans outside any transaction and hands the plans to the store, which drops
//! those that another replica was faster with. Knows nothing of how runs are executed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::fire::{FirePlan, plan};
use switchboard_model::span::Span;
use switchboard_store_api::{FireReport, SettingStore, StoreError, StoreResult, TaskStore};
use tokio::time::Instant;

use crate::activation::Activity;
use crate::meters;
use crate::observer::Wakes;

/// The most tasks of one pass.
const BATCH: u32 = 500;
/// The most runs of one transaction, unless one task alone has more.
const MOST_RUNS: usize = 2_000;

pub(crate) struct Fire {
    pub(crate) tasks: Arc<dyn TaskStore>,
    pub(crate) settings: Arc<dyn SettingStore>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) grace: Span,
    /// Whether the fleet settings have changed since they were last read.
    pub(crate) is_outdated: bool,
    /// What the fleet settings said when they were last read.
    pub(crate) is_enabled: bool,
    /// The earliest next occurrence of the tasks that were fired here.
    pub(crate) upcoming: Option<Timestamp>,
}

#[async_trait]
impl Activity for Fire {
    async fn run_once(&mut self) -> StoreResult<String> {
        self.follow_settings().await?;
        if !self.is_enabled {
            return Ok("disabled by the fleet settings".to_owned());
        }
        let due = self.tasks.due(BATCH).await?;
        let read_at = Instant::now();
        let is_full = due.tasks.len() >= BATCH as usize;
        let plans: Vec<_> = due.tasks.into_iter().map(|task| plan(task, due.now, self.grace)).collect();
        let (report, failure) = self.fire(&plans).await;
        measure(&plans, due.now, &report);

        if report.runs > 0 {
            self.wakes.dispatch.now();
        }
        if report.fired > 0 {
            self.wakes.progress.send_modify(|progress| progress.runs += report.runs);
        }
        if is_full && report.fired > 0 {
            self.wakes.fire.now();
        }
        // A timer of an older tick may wake this pass in place of its own; that is then set again.
        let known = self.upcoming.filter(|upcoming| *upcoming > due.now);
        self.upcoming = plans.iter().filter_map(|plan| plan.next_run_at).chain(known).min();
        if let Some(upcoming) = self.upcoming {
            self.wakes.fire.when(upcoming - due.now, read_at);
        }
        let FireReport { fired, lost, runs, skipped } = report;
        failure.map_or_else(
            || Ok(format!("{fired} tasks fired, {lost} lost to others, {runs} runs, {skipped} skipped")),
            Err,
        )
    }
}

impl Fire {
    async fn follow_settings(&mut self) -> StoreResult<()> {
        // Remembered here until they are read, for this pass may fail or be dropped at the reading.
        self.is_outdated |= self.wakes.settings_changed.swap(false, Ordering::SeqCst);
        if self.is_outdated {
            self.is_enabled = self.settings.fleet().await?.value.scheduler_enabled;
            self.is_outdated = false;
        }
        Ok(())
    }

    /// Applies plans. A batch that the database refuses is tried again task by task, so that a bad
    /// one does not hold up the others; the first error is returned beside what was done.
    async fn fire(&self, plans: &[FirePlan]) -> (FireReport, Option<StoreError>) {
        let mut pending: VecDeque<_> = batches(plans).collect();
        let mut total = FireReport::default();
        let mut failure = None;
        while let Some(batch) = pending.pop_front() {
            match self.tasks.fire(batch).await {
                Ok(report) => total = sum(total, report),
                Err(error) if error.is_transient() => return (total, Some(error)),
                Err(_) if batch.len() > 1 => pending.extend(batch.chunks(1)),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        (total, failure)
    }
}

/// Divides plans so that no transaction inserts too many runs.
fn batches(mut plans: &[FirePlan]) -> impl Iterator<Item = &[FirePlan]> {
    std::iter::from_fn(move || {
        let mut runs = 0;
        let fitting = plans.iter().take_while(|plan| {
            runs += plan.runs.len();
            runs <= MOST_RUNS
        });
        let count = fitting.count().max(1);
        let (batch, rest) = plans.split_at_checked(count)?;
        plans = rest;
        Some(batch)
    })
}

const fn sum(a: FireReport, b: FireReport) -> FireReport {
    FireReport {
        fired: a.fired + b.fired,
        lost: a.lost + b.lost,
        runs: a.runs + b.runs,
        skipped: a.skipped + b.skipped,
    }
}

fn measure(plans: &[FirePlan], now: Timestamp, report: &FireReport) {
    meters::skipped(report.skipped);
    // The report does not name the plans that were lost; they were about as late as the others.
    let made = usize::try_from(report.runs).unwrap_or(usize::MAX);
    let on_time = plans.iter().flat_map(|plan| &plan.runs).filter(|run| !run.is_catch_up);
    for run in on_time.take(made) {
        meters::fire_lag(now - run.scheduled_for);
    }
}

#[cfg(test)]
mod tests {
    use switchboard_model::fire::{DueTask, PlannedRun};
    use switchboard_model::ids::TaskId;

    use super::*;

    fn planned(runs: usize) -> FirePlan {
        let at: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
        let spec = serde_json::from_str(r#"{"name":"t","action":{"system":{"function":"sweep"}}}"#).unwrap();
        FirePlan {
            task: DueTask { id: TaskId::new(), spec, next_run_at: at, version: 1 },
            runs: vec![PlannedRun { scheduled_for: at, is_catch_up: false }; runs],
            skips: vec![],
            next_run_at: Some(at),
        }
    }

    #[test]
    fn transactions_are_bounded_and_every_plan_is_in_one() {
        let sizes = |runs: &[usize]| {
            let plans: Vec<_> = runs.iter().map(|runs| planned(*runs)).collect();
            batches(&plans).map(<[FirePlan]>::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[]), [] as [usize; 0]);
        assert_eq!(sizes(&[1; 500]), [500]);
        assert_eq!(sizes(&[1_000, 1_000, 1, 2_500, 1_999, 1, 0]), [2, 1, 1, 3]);
    }
}
