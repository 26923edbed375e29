//! The metrics of the scheduler, all with closed sets of labels.

use std::time::Duration;

use chrono::TimeDelta;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use switchboard_model::run::RunState;
use switchboard_store_api::{RecoverReport, RelayReport};

use crate::loops::SchedulerLoop;

const FIRE_LAG: &str = "switchboard_scheduler_fire_lag_seconds";
const START_LAG: &str = "switchboard_scheduler_start_lag_seconds";
const RUNNING: &str = "switchboard_scheduler_running_runs";
const FINISHED: &str = "switchboard_scheduler_finished_runs_total";
const LOST: &str = "switchboard_scheduler_lost_leases_total";
const SKIPPED: &str = "switchboard_scheduler_skipped_occurrences_total";
const RECOVERED: &str = "switchboard_scheduler_recovered_runs_total";
const RELAYED: &str = "switchboard_scheduler_relayed_entries_total";
const UNARMED: &str = "switchboard_scheduler_unarmed_tasks";
const UNCOVERED: &str = "switchboard_scheduler_uncovered_pools";
const LOOP_AGE: &str = "switchboard_loop_last_success_seconds";

/// Describes every metric of the scheduler and brings each into being at zero.
pub fn describe_metrics() {
    describe_histogram!(FIRE_LAG, Unit::Seconds, "Time from an occurrence to the run that it became");
    describe_histogram!(START_LAG, Unit::Seconds, "Time from the readiness of a run to its lease");
    describe_gauge!(RUNNING, "Runs that this replica holds");
    describe_counter!(FINISHED, "Attempts that ended on this replica, by the state that followed");
    describe_counter!(LOST, "Leases that this replica lost before the end of their run was recorded");
    describe_counter!(SKIPPED, "Occurrences that were recorded as skipped");
    describe_counter!(RECOVERED, "Runs taken away from holders that were gone, by what became of them");
    describe_counter!(RELAYED, "Entries of the outbox that this replica relayed, by whether they took effect");
    describe_gauge!(UNARMED, "Active scheduled tasks without a next occurrence; must be 0");
    describe_gauge!(UNCOVERED, "Pools that have queued runs and no live worker; must be 0");
    describe_gauge!(LOOP_AGE, Unit::Seconds, "Time since a background loop last succeeded");
    // A histogram exists once it is named; there is nothing to record yet.
    drop((histogram!(FIRE_LAG), histogram!(START_LAG)));
    running(0);
    for state in RunState::ALL {
        counter!(FINISHED, "state" => state.as_str()).increment(0);
    }
    counter!(LOST).increment(0);
    skipped(0);
    recovered(&RecoverReport::default());
    relayed(&RelayReport::default());
    unarmed(0);
    uncovered_pools(0);
    for each in SchedulerLoop::ALL {
        loop_age(each.name(), Duration::ZERO);
    }
}

pub(crate) fn fire_lag(lag: TimeDelta) {
    histogram!(FIRE_LAG).record(seconds(lag));
}

pub(crate) fn start_lag(lag: TimeDelta) {
    histogram!(START_LAG).record(seconds(lag));
}

pub(crate) fn running(runs: usize) {
    // The number of runs is bounded by the permits, an u32.
    gauge!(RUNNING).set(f64::from(u32::try_from(runs).unwrap_or(u32::MAX)));
}

pub(crate) fn finished(state: RunState) {
    counter!(FINISHED, "state" => state.as_str()).increment(1);
}

pub(crate) fn lost() {
    counter!(LOST).increment(1);
}

pub(crate) fn skipped(occurrences: u64) {
    counter!(SKIPPED).increment(occurrences);
}

pub(crate) fn recovered(report: &RecoverReport) {
    let RecoverReport { requeued, dead, cancelled, timed_out } = *report;
    for (outcome, runs) in [("requeued", requeued), ("dead", dead), ("cancelled", cancelled), ("timed_out", timed_out)]
    {
        counter!(RECOVERED, "outcome" => outcome).increment(runs);
    }
}

pub(crate) fn relayed(report: &RelayReport) {
    for (outcome, entries) in [("applied", report.applied), ("failed", report.failed)] {
        counter!(RELAYED, "outcome" => outcome).increment(entries);
    }
}

pub(crate) fn unarmed(tasks: u64) {
    gauge!(UNARMED).set(f64::from(u32::try_from(tasks).unwrap_or(u32::MAX)));
}

pub(crate) fn uncovered_pools(pools: usize) {
    gauge!(UNCOVERED).set(f64::from(u32::try_from(pools).unwrap_or(u32::MAX)));
}

pub(crate) fn loop_age(name: &'static str, age: Duration) {
    gauge!(LOOP_AGE, "loop" => name).set(age.as_secs_f64());
}

fn seconds(lag: TimeDelta) -> f64 {
    lag.to_std().unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_exists_at_zero_from_the_start() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, describe_metrics);
        let text = recorder.handle().render();
        for name in [RUNNING, LOST, SKIPPED, UNARMED, UNCOVERED] {
            assert!(text.contains(&format!("{name} 0\n")), "{name} in\n{text}");
        }
        for state in RunState::ALL {
            assert!(text.contains(&format!("{FINISHED}{{state=\"{state}\"}} 0\n")), "{state} in\n{text}");
        }
        for outcome in ["requeued", "dead", "cancelled", "timed_out"] {
            assert!(text.contains(&format!("{RECOVERED}{{outcome=\"{outcome}\"}} 0\n")), "{outcome} in\n{text}");
        }
        for outcome in ["applied", "failed"] {
            assert!(text.contains(&format!("{RELAYED}{{outcome=\"{outcome}\"}} 0\n")), "{outcome} in\n{text}");
        }
        for each in SchedulerLoop::ALL {
            assert!(text.contains(&format!("{LOOP_AGE}{{loop=\"{}\"}} 0\n", each.name())), "{each:?} in\n{text}");
        }
    }
}
