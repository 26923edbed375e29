//! Ledgers: what a test collected, checked against what must be true of it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::iter;
use std::ops::RangeInclusive;

use switchboard_model::Timestamp;
use switchboard_model::ids::{Fence, RunId};
use switchboard_model::run::{Run, SkipCause, SkipRange};
use switchboard_model::schedule::Schedule;
use switchboard_model::wire::frame::EventFrame;
use tokio::time::Instant;

/// How many faults a message shows.
const SHOWN: usize = 20;

/// What is wrong with a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<String>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} faults", self.0.len())?;
        self.0.iter().take(SHOWN).try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl Error for Faults {}

pub(crate) fn judged(faults: Vec<String>) -> Result<(), Faults> {
    if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
}

/// Checks that every occurrence of an anchored schedule within `window` is a run or a recorded skip, exactly once, and
/// that nothing else is. Runs without an occurrence, and what lies outside the window, do not count.
///
/// # Errors
/// Names the occurrences that are missing, doubled or invented.
pub fn occurrences(
    schedule: &Schedule,
    window: RangeInclusive<Timestamp>,
    runs: &[Run],
    skips: &[SkipRange],
) -> Result<(), Faults> {
    let mut faults = Vec::new();
    let mut found: BTreeMap<Timestamp, Vec<String>> = BTreeMap::new();
    for run in runs {
        if let Some(at) = run.scheduled_for {
            found.entry(at).or_default().push(format!("run {}", run.id));
        }
    }
    for skip in skips {
        let span: Vec<Timestamp> = match skip.cause {
            // Always one instant, and none of those that run.
            SkipCause::Gap => vec![skip.from],
            _ => occurrences_of(schedule, &(skip.from..=skip.to)).collect(),
        };
        if u64::try_from(span.len()).ok() != Some(skip.count) {
            faults.push(format!("the skip from {} counts {} instead of {}", skip.from, skip.count, span.len()));
        }
        for at in span {
            found.entry(at).or_default().push(format!("skip {}", skip.cause));
        }
    }
    found.retain(|at, _| window.contains(at));
    let gaps = schedule.gaps(*window.start(), *window.end());
    for at in occurrences_of(schedule, &window).chain(gaps) {
        match found.remove(&at) {
            None => faults.push(format!("{at} is neither a run nor a skip")),
            Some(entries) if entries.len() > 1 => faults.push(format!("{at} is {}", entries.join(" and "))),
            Some(_) => {}
        }
    }
    faults.extend(found.iter().map(|(at, entries)| format!("{at} is no occurrence but {}", entries.join(" and "))));
    judged(faults)
}

fn occurrences_of(schedule: &Schedule, window: &RangeInclusive<Timestamp>) -> impl Iterator<Item = Timestamp> {
    // Both databases count in microseconds, so this is the last instant before the window.
    let before = *window.start() - std::time::Duration::from_micros(1);
    let end = *window.end();
    iter::successors(schedule.next_after(before), |at| schedule.next_after(*at)).take_while(move |at| *at <= end)
}

/// Checks that the stored events of one room carry exactly the `expected` offsets, in order, in one history.
///
/// # Errors
/// Names the first places where they do not.
pub fn positions(events: &[EventFrame], expected: RangeInclusive<i64>) -> Result<(), Faults> {
    let mut faults = Vec::new();
    let stored: Vec<_> = events.iter().filter_map(EventFrame::position).collect();
    let mut next = *expected.start();
    for position in &stored {
        if position.offset != next {
            faults.push(format!("offset {} where {next} was due", position.offset));
        }
        next = position.offset.saturating_add(1);
    }
    if next != expected.end().saturating_add(1) {
        faults.push(format!("the next offset would be {next}, the last expected one is {}", expected.end()));
    }
    if let Some(first) = stored.first() {
        let foreign = stored.iter().find(|position| position.epoch != first.epoch);
        faults.extend(foreign.map(|position| format!("history {} goes on as {}", first.epoch, position.epoch)));
    }
    faults.extend(events.windows(2).filter_map(|pair| match pair {
        [a, b] if a.room != b.room => Some(format!("events of {} and {} are mixed", a.room, b.room)),
        _ => None,
    }));
    judged(faults)
}

/// Checks that every run has ended, by exactly one accepted terminal write, made under its last lease.
///
/// # Errors
/// Names the runs of which that is not true, and writes for runs that do not exist.
pub fn endings(runs: &[Run], accepted: &[(RunId, Fence)]) -> Result<(), Faults> {
    let mut faults = Vec::new();
    let mut writes: BTreeMap<RunId, Vec<Fence>> = BTreeMap::new();
    for (run, fence) in accepted {
        writes.entry(*run).or_default().push(*fence);
    }
    for run in runs {
        if !run.state.is_terminal() {
            faults.push(format!("run {} is {}", run.id, run.state));
        }
        match writes.remove(&run.id).as_deref() {
            Some([fence]) if *fence == run.fence => {}
            Some(fences) => faults.push(format!("run {} at {:?} was ended by {fences:?}", run.id, run.fence)),
            None => faults.push(format!("run {} was ended by nobody", run.id)),
        }
    }
    faults.extend(writes.into_keys().map(|run| format!("run {run} was ended but does not exist")));
    judged(faults)
}

/// A permit that a run takes, or gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitMove {
    /// The key.
    pub key: String,
    /// How many runs may hold a permit of it.
    pub max: usize,
    /// The run.
    pub run: RunId,
    /// Whether it takes the permit.
    pub is_taken: bool,
}

/// Checks that no key ever had more holders than it may; the moves of each key are in order.
///
/// # Errors
/// Names the runs that took a permit too many.
pub fn permits(moves: &[PermitMove]) -> Result<(), Faults> {
    let mut holders: BTreeMap<&str, BTreeSet<RunId>> = BTreeMap::new();
    let mut faults = Vec::new();
    for step in moves {
        let of_key = holders.entry(&step.key).or_default();
        if !step.is_taken {
            of_key.remove(&step.run);
            continue;
        }
        of_key.insert(step.run);
        if of_key.len() > step.max {
            faults.push(format!("run {} is number {} of {} with key {}", step.run, of_key.len(), step.max, step.key));
        }
    }
    judged(faults)
}

/// A request that a rate limit allowed: it was decided between these instants.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// When it was sent.
    pub sent: Instant,
    /// When the answer was there.
    pub answered: Instant,
}

/// A time in which what was used up may have been forgotten, once.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// When it began.
    pub began: Instant,
    /// When it was over.
    pub ended: Instant,
}

/// What a rate limit allows.
#[derive(Clone, Copy, Debug)]
pub struct LimitTerms {
    /// Units a second in the long run.
    pub per_second: f64,
    /// Units at once.
    pub burst: f64,
}

/// Checks that in no stretch of time more was allowed than the burst and the rate give; each loss in it gives another
/// burst.
///
/// # Errors
/// Names the stretches in which it was.
pub fn limit(takes: &[Take], losses: &[Loss], terms: LimitTerms) -> Result<(), Faults> {
    let mut faults = Vec::new();
    for first in takes.iter().map(|take| take.sent) {
        let mut within: Vec<Instant> =
            takes.iter().filter(|take| take.sent >= first).map(|take| take.answered).collect();
        within.sort_unstable();
        let worst = within.iter().enumerate().find_map(|(index, last)| {
            let count = f64::from(u32::try_from(index + 1).unwrap_or(u32::MAX));
            let lost = losses.iter().filter(|loss| loss.ended >= first && loss.began <= *last).count();
            let bursts = f64::from(u32::try_from(lost + 1).unwrap_or(u32::MAX));
            let time = (*last - first).as_secs_f64();
            // One unit more, since both ends of the stretch count.
            (count > terms.burst * bursts + terms.per_second * time + 1.0).then_some((count, time))
        });
        faults.extend(worst.map(|(count, time)| format!("{count} units within {time:.3} s")));
    }
    judged(faults)
}

#[cfg(test)]
mod tests {
    use switchboard_model::json_text::JsonText;
    use switchboard_model::room::Epoch;

    use super::*;

    fn at(second: u32) -> Timestamp {
        format!("2027-01-01T00:00:{second:02}Z").parse().unwrap()
    }

    fn run(scheduled_for: Option<Timestamp>, state: &str, fence: i64) -> Run {
        let run = serde_json::json!({
            "id": RunId::new(), "task_id": "0190a0b0-0000-7000-8000-000000000000", "state": state,
            "trigger": "schedule", "pool": "default", "priority": 0, "run_at": at(0), "scheduled_for": scheduled_for,
            "attempt": 1, "max_attempts": 3, "fence": fence, "created_at": at(0),
        });
        serde_json::from_str(&run.to_string()).unwrap()
    }

    fn skip(from: u32, to: u32, count: u64) -> SkipRange {
        SkipRange { from: at(from), to: at(to), count, cause: SkipCause::Missed }
    }

    fn faults(result: Result<(), Faults>) -> usize {
        result.err().map_or(0, |faults| faults.0.len())
    }

    #[test]
    fn each_occurrence_is_a_run_or_a_skip_exactly_once() {
        let text = format!(r#"{{"every":{{"interval":"5s","anchor":"{}"}}}}"#, at(0).to_rfc3339());
        let schedule: Schedule = serde_json::from_str(&text).unwrap();
        let window = || at(0)..=at(20);
        let ran = |seconds: &[u32]| -> Vec<Run> { seconds.iter().map(|s| run(Some(at(*s)), "queued", 0)).collect() };
        assert_eq!(occurrences(&schedule, window(), &ran(&[0, 15, 20, 25]), &[skip(5, 10, 2)]), Ok(()));
        assert_eq!(faults(occurrences(&schedule, window(), &ran(&[0, 15]), &[skip(5, 10, 2)])), 1, "missing");
        assert_eq!(faults(occurrences(&schedule, window(), &ran(&[0, 10, 15, 20]), &[skip(5, 10, 2)])), 1, "doubled");
        assert_eq!(faults(occurrences(&schedule, window(), &ran(&[0, 7, 15, 20]), &[skip(5, 10, 2)])), 1, "invented");
        assert_eq!(faults(occurrences(&schedule, window(), &ran(&[0, 15, 20]), &[skip(5, 10, 3)])), 1, "miscounted");
    }

    #[test]
    fn positions_have_no_hole_no_double_and_one_history() {
        let event = |offset: i64, epoch: &str| EventFrame {
            event: "tick".parse().unwrap(),
            room: "lobby".parse().unwrap(),
            payload: JsonText::null(),
            ts: 0,
            msg_id: String::new(),
            offset: Some(offset),
            epoch: Some(Epoch::new(epoch, "1")),
        };
        let events = |offsets: &[i64]| -> Vec<EventFrame> { offsets.iter().map(|o| event(*o, "e")).collect() };
        assert_eq!(positions(&events(&[1, 2, 3]), 1..=3), Ok(()));
        assert_eq!(faults(positions(&events(&[1, 3]), 1..=3)), 1);
        assert_eq!(faults(positions(&events(&[1, 2, 2, 3]), 1..=3)), 1);
        assert_eq!(faults(positions(&events(&[1, 2]), 1..=3)), 1);
        assert_eq!(faults(positions(&events(&[]), 1..=3)), 1);
        assert_eq!(faults(positions(&[event(1, "e"), event(2, "f")], 1..=2)), 1);
    }

    #[test]
    fn each_run_ends_once_under_its_last_lease() {
        let runs = [run(None, "succeeded", 4), run(None, "dead", 7)];
        let accepted = [(runs[0].id, Fence(4)), (runs[1].id, Fence(7))];
        assert_eq!(endings(&runs, &accepted), Ok(()));
        assert_eq!(faults(endings(&runs, &accepted[..1])), 1);
        assert_eq!(faults(endings(&runs, &[accepted[0], accepted[1], (runs[1].id, Fence(6))])), 1);
        assert_eq!(faults(endings(&runs, &[accepted[0], (runs[1].id, Fence(6))])), 1);
        assert_eq!(faults(endings(&runs[..1], &accepted)), 1);
        assert_eq!(faults(endings(&[run(None, "running", 1)], &[])), 2);
    }
    #[test]
    fn no_key_has_more_holders_than_permits() {
        let runs = [RunId::new(), RunId::new(), RunId::new()];
        let step = |run: usize, is_taken| PermitMove { key: "k".to_owned(), max: 2, run: runs[run], is_taken };
        let fine = [step(0, true), step(1, true), step(0, false), step(2, true), step(2, true)];
        assert_eq!(permits(&fine), Ok(()));
        assert_eq!(faults(permits(&[step(0, true), step(1, true), step(2, true)])), 1);
    }

    #[test]
    fn no_stretch_of_time_allows_more_than_burst_and_rate() {
        let began = Instant::now();
        let at = |ms: u64| began + std::time::Duration::from_millis(ms);
        let takes = |times: &[u64]| -> Vec<Take> {
            times.iter().map(|ms| Take { sent: at(*ms), answered: at(ms + 1) }).collect()
        };
        let terms = LimitTerms { per_second: 1.0, burst: 2.0 };
        assert_eq!(limit(&takes(&[0, 0, 1000, 2000, 3000]), &[], terms), Ok(()));
        let crowd = takes(&[0, 1, 2, 3]);
        assert_eq!(faults(limit(&crowd, &[], terms)), 1);
        let loss = Loss { began: at(1), ended: at(2) };
        assert_eq!(limit(&crowd, &[loss], terms), Ok(()), "a loss gives another burst");
        assert_eq!(faults(limit(&crowd, &[Loss { began: at(9), ended: at(9) }], terms)), 1, "a later one does not");
    }
}
