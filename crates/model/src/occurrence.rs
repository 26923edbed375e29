//! The occurrences of a task, one by one: what became of those that were due, and which are to come.
//!
//! A pure merge of what the stores keep: runs, skipped ranges and the task. It answers "why did it not run at 02:00".

use chrono::TimeDelta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::run::{OccurrenceRun, SkipCause, SkipRange, StoredSkip};
use crate::schedule::{Occurrences, Remark, Schedule, preview};
use crate::task::Task;

/// An occurrence and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Occurrence {
    /// When it was or is due.
    pub at: Timestamp,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What became of an occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It has a run.
    Run {
        /// The run.
        run: OccurrenceRun,
    },
    /// It did not run.
    Skipped {
        /// Why.
        cause: SkipCause,
        /// The whole range, when its occurrences cannot be told apart any more; this entry, at its end, then stands for
        /// all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        range: Option<SkipRange>,
    },
    /// It is due and was not fired yet.
    Due,
    /// It is to come.
    Upcoming {
        /// What a policy does to it, if any has to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remark: Option<Remark>,
    },
}

/// Which occurrences are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OccurrenceWindow {
    /// The first instant.
    pub from: Timestamp,
    /// The last instant; in the future, it asks for occurrences to come.
    pub to: Timestamp,
    /// The most occurrences of one page, at least 1. Those of one instant are never divided, which may make a few more.
    pub limit: u32,
}

/// What is known of the occurrences in a window.
#[derive(Clone, Copy, Debug)]
pub struct KnownOccurrences<'a> {
    /// The task.
    pub task: &'a Task,
    /// The runs of the window, newest first: as many as its limit, or all.
    pub runs: &'a [OccurrenceRun],
    /// The skipped ranges that touch the window, newest first: as many as its limit, or all.
    pub skips: &'a [StoredSkip],
    /// Database time at which the task was read.
    pub now: Timestamp,
}

/// A page of occurrences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OccurrenceList {
    /// The occurrences, newest first.
    pub items: Vec<Occurrence>,
    /// The last instant of the window that continues this page, if more may be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_to: Option<Timestamp>,
}

/// Entries beyond the limit that decide whether a page is the last one: no instant has more than its run and one skip
/// for each cause.
const BEYOND: usize = 8;

/// How far into the future occurrences are looked for.
const HORIZON: TimeDelta = TimeDelta::days(100 * 366);

/// Puts together the occurrences of a window, newest first; of those to come, the ones of the next 100 years.
#[must_use]
pub fn occurrences(window: &OccurrenceWindow, known: &KnownOccurrences<'_>) -> OccurrenceList {
    let window = &OccurrenceWindow { to: window.to.min(known.now + HORIZON), ..*window };
    let limit = window.limit.max(1) as usize;
    let mut newest = Newest { window: *window, keep: limit + BEYOND, entries: Vec::new() };
    for run in known.runs {
        newest.add(run.scheduled_for, Outcome::Run { run: run.clone() });
    }
    for skip in known.skips {
        newest.add_skip(skip, known.task.spec.schedule.as_ref());
    }
    newest.add_due(known);
    newest.add_upcoming(known);
    let (mut items, is_cut) = newest.into_items(known.floor(window));

    let mut end = limit.min(items.len());
    while end > 0 && items.get(end).is_some_and(|next| next.at == items[end - 1].at) {
        end += 1;
    }
    let has_more = is_cut || end < items.len();
    items.truncate(end);
    let next_to = items.last().filter(|_| has_more).map(|last| last.at - TimeDelta::microseconds(1));
    OccurrenceList { items, next_to: next_to.filter(|to| *to >= window.from) }
}

impl KnownOccurrences<'_> {
    /// Returns the instant below which rows may be missing, because as many were read as were asked for.
    fn floor(&self, window: &OccurrenceWindow) -> Option<Timestamp> {
        let limit = window.limit.max(1) as usize;
        let of_runs = self.runs.last().filter(|_| self.runs.len() >= limit).map(|run| run.scheduled_for);
        // A range that goes on beyond the window says nothing about where the others end.
        let ends = self.skips.last().filter(|_| self.skips.len() >= limit).map(|skip| skip.range.to);
        of_runs.max(ends.filter(|end| *end <= window.to))
    }
}

/// The newest occurrences that were found in a window.
struct Newest {
    window: OccurrenceWindow,
    keep: usize,
    entries: Vec<Occurrence>,
}

impl Newest {
    fn add(&mut self, at: Timestamp, outcome: Outcome) {
        if (self.window.from..=self.window.to).contains(&at) {
            self.entries.push(Occurrence { at, outcome });
        }
    }

    /// Adds the newest of many occurrences that are in the window.
    fn add_newest(&mut self, all: Occurrences, outcome: &Outcome) {
        let end = all.count_before(self.window.to + TimeDelta::microseconds(1));
        let start = all.count_before(self.window.from).max(end.saturating_sub(self.keep as u64));
        for at in all.take(end).and_then(|all| all.skip(start)).into_iter().flat_map(Occurrences::iter) {
            self.add(at, outcome.clone());
        }
        if self.entries.len() > 4 * self.keep {
            self.sort();
            self.entries.truncate(self.keep);
        }
    }

    /// Adds the occurrences of a range by the schedule that was kept with it, or else by the present one if that
    /// counts as many.
    fn add_skip(&mut self, skip: &StoredSkip, present: Option<&Schedule>) {
        let range = &skip.range;
        let cause = range.cause;
        if range.count == 1 {
            return self.add(range.to, Outcome::Skipped { cause, range: None });
        }
        let all = skip.schedule.as_ref().or(present).and_then(|schedule| schedule.between(range.from, range.to));
        match all.filter(|all| all.count == range.count && all.last() == range.to) {
            Some(all) => self.add_newest(all, &Outcome::Skipped { cause, range: None }),
            None => self.add(range.to.min(self.window.to), Outcome::Skipped { cause, range: Some(range.clone()) }),
        }
    }

    /// Adds what was due and is neither run nor skipped, because it was not fired yet or is held back by a pause.
    fn add_due(&mut self, known: &KnownOccurrences<'_>) {
        let task = known.task;
        let Some(schedule) = &task.spec.schedule else { return };
        let (first, outcome) = match task.paused_from {
            Some(from) => {
                let first = schedule.next_after(from - TimeDelta::microseconds(1));
                (first, Outcome::Skipped { cause: SkipCause::Paused, range: None })
            }
            None => (task.next_run_at, Outcome::Due),
        };
        let Some(all) = first.and_then(|first| schedule.between(first, known.now)) else { return };
        // The task may have been read before it fired.
        let is_known = |entry: &Occurrence| entry.at >= all.first && entry.at <= known.now;
        let fired: Vec<Timestamp> = self.entries.iter().filter(|entry| is_known(entry)).map(|entry| entry.at).collect();
        let mut due = Self { entries: vec![], ..*self };
        due.add_newest(all, &outcome);
        self.entries.extend(due.entries.into_iter().filter(|entry| !fired.contains(&entry.at)));
    }

    /// Adds the newest of what is to come in the window.
    fn add_upcoming(&mut self, known: &KnownOccurrences<'_>) {
        let task = known.task;
        let Some(schedule) = task.spec.schedule.as_ref().filter(|_| task.spec.is_active && task.parked.is_none())
        else {
            return;
        };
        let next = task.next_run_at.filter(|next| *next > known.now).or_else(|| schedule.next_after(known.now));
        let Some(all) = next.and_then(|next| schedule.between(next, self.window.to)) else { return };
        let unwanted = all.count.saturating_sub(self.keep as u64).max(all.count_before(self.window.from));
        let Some(wanted) = all.skip(unwanted) else { return };
        let before = wanted.first - TimeDelta::microseconds(1);
        let end = self.window.to + TimeDelta::microseconds(1);
        let shown = wanted.count.saturating_add(schedule.gaps(before, end).len() as u64);
        for upcoming in preview(schedule, before, usize::try_from(shown).unwrap_or(usize::MAX)) {
            self.add(upcoming.at, Outcome::Upcoming { remark: upcoming.remark });
        }
    }

    fn sort(&mut self) {
        self.entries.sort_by_key(|entry| std::cmp::Reverse(entry.at));
    }

    /// Returns what was found from `floor` on, and whether anything was left out for it.
    fn into_items(mut self, floor: Option<Timestamp>) -> (Vec<Occurrence>, bool) {
        self.sort();
        if let Some(floor) = floor {
            self.entries.retain(|entry| entry.at >= floor);
        }
        (self.entries, floor.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{RunId, TaskId};
    use crate::run::{RunState, Trigger};
    use crate::schedule::Every;
    use crate::span::Span;
    use crate::timetable::{Cron, DstGap};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn minutely() -> Schedule {
        Schedule::Every(Every { interval: Span::from_secs(60), anchor: Some(at("2027-01-01T00:00:00Z")) })
    }

    fn task(schedule: Schedule, next: Option<&str>) -> Task {
        let text = r#"{"name":"t","action":{"pull":{}}}"#;
        let created = at("2026-01-01T00:00:00Z");
        let mut task = Task {
            id: TaskId::new(),
            spec: serde_json::from_str(text).unwrap(),
            next_run_at: next.map(at),
            version: 1,
            paused_from: None,
            parked: None,
            created_at: created,
            updated_at: created,
        };
        task.spec.schedule = Some(schedule);
        task
    }

    fn run(scheduled_for: &str) -> OccurrenceRun {
        OccurrenceRun {
            id: RunId::new(),
            scheduled_for: at(scheduled_for),
            state: RunState::Succeeded,
            trigger: Trigger::Schedule,
            started_at: None,
            finished_at: None,
            error: None,
        }
    }

    fn skip(from: &str, to: &str, count: u64, cause: SkipCause) -> StoredSkip {
        let range = SkipRange { from: at(from), to: at(to), count, cause };
        StoredSkip { range, schedule: Some(minutely()) }
    }

    fn window(from: &str, to: &str, limit: u32) -> OccurrenceWindow {
        OccurrenceWindow { from: at(from), to: at(to), limit }
    }

    fn brief(list: &OccurrenceList) -> Vec<(String, String)> {
        let what = |occurrence: &Occurrence| match &occurrence.outcome {
            Outcome::Run { .. } => "run".to_owned(),
            Outcome::Skipped { cause, range: None } => cause.to_string(),
            Outcome::Skipped { cause, range: Some(range) } => format!("{} times {cause}", range.count),
            Outcome::Due => "due".to_owned(),
            Outcome::Upcoming { remark } => remark.map_or("upcoming".to_owned(), |remark| format!("{remark:?}")),
        };
        list.items.iter().map(|item| (item.at.format("%H:%M").to_string(), what(item))).collect()
    }

    fn named(found: &[(String, String)]) -> Vec<(&str, &str)> {
        found.iter().map(|(at, what)| (at.as_str(), what.as_str())).collect()
    }

    #[test]
    fn why_did_it_not_run_at_two() {
        let two = "2027-01-01T02:00:00Z";
        let task = task(minutely(), Some("2027-01-01T03:00:00Z"));
        for cause in SkipCause::ALL {
            let alone = skip(two, two, 1, *cause);
            let among = skip("2027-01-01T01:50:00Z", "2027-01-01T02:10:00Z", 21, *cause);
            for stored in [alone, among] {
                let known = KnownOccurrences { task: &task, runs: &[], skips: &[stored], now: at(two) };
                let answer = occurrences(&window(two, two, 10), &known);
                let skipped = Outcome::Skipped { cause: *cause, range: None };
                assert_eq!(answer.items, [Occurrence { at: at(two), outcome: skipped }], "{cause}");
                assert_eq!(answer.next_to, None);
            }
        }
    }

    #[test]
    fn runs_skips_what_is_due_and_what_is_to_come_are_one_list() {
        let task = task(minutely(), Some("2027-01-01T00:06:00Z"));
        let runs = [run("2027-01-01T00:05:00Z"), run("2027-01-01T00:01:00Z")];
        let skips = [skip("2027-01-01T00:02:00Z", "2027-01-01T00:04:00Z", 3, SkipCause::Overlap)];
        let known = KnownOccurrences { task: &task, runs: &runs, skips: &skips, now: at("2027-01-01T00:07:30Z") };
        let all = occurrences(&window("2027-01-01T00:00:00Z", "2027-01-01T00:09:00Z", 100), &known);
        let expected = [
            ("00:09", "upcoming"),
            ("00:08", "upcoming"),
            ("00:07", "due"),
            ("00:06", "due"),
            ("00:05", "run"),
            ("00:04", "overlap"),
            ("00:03", "overlap"),
            ("00:02", "overlap"),
            ("00:01", "run"),
        ];
        assert_eq!(named(&brief(&all)), expected);
        assert_eq!(all.next_to, None);

        // In pages it is the same list.
        let mut asked = window("2027-01-01T00:00:00Z", "2027-01-01T00:09:00Z", 2);
        let mut found = Vec::new();
        loop {
            let runs: Vec<_> = runs.iter().filter(|run| run.scheduled_for <= asked.to).take(2).cloned().collect();
            let skips: Vec<_> = skips.iter().filter(|skip| skip.range.from <= asked.to).cloned().collect();
            let page = occurrences(&asked, &KnownOccurrences { runs: &runs, skips: &skips, ..known });
            found.extend(brief(&page));
            let Some(to) = page.next_to else { break };
            asked.to = to;
        }
        assert_eq!(named(&found), expected);
    }

    #[test]
    fn a_task_that_fired_meanwhile_is_not_due() {
        let task = task(minutely(), Some("2027-01-01T00:01:00Z"));
        let runs = [run("2027-01-01T00:01:00Z")];
        let known = KnownOccurrences { task: &task, runs: &runs, skips: &[], now: at("2027-01-01T00:01:30Z") };
        let answer = occurrences(&window("2027-01-01T00:00:00Z", "2027-01-01T00:01:30Z", 10), &known);
        assert_eq!(named(&brief(&answer)), [("00:01", "run")]);
    }

    #[test]
    fn a_pause_shows_what_it_holds_back() {
        let mut task = task(minutely(), None);
        task.spec.is_active = false;
        task.paused_from = Some(at("2027-01-01T00:01:00Z"));
        let known = KnownOccurrences { task: &task, runs: &[], skips: &[], now: at("2027-01-01T00:02:30Z") };
        let answer = occurrences(&window("2027-01-01T00:00:00Z", "2027-01-01T00:09:00Z", 10), &known);
        assert_eq!(named(&brief(&answer)), [("00:02", "paused"), ("00:01", "paused")]);
    }

    #[test]
    fn a_range_that_cannot_be_told_apart_is_shown_as_one() {
        let task = task(minutely(), Some("2028-01-01T00:00:00Z"));
        let unknown = StoredSkip {
            schedule: None,
            ..skip("2027-01-01T00:00:00Z", "2027-01-01T00:10:00Z", 21, SkipCause::Missed)
        };
        let agreeing =
            StoredSkip { schedule: None, ..skip("2027-01-01T00:11:00Z", "2027-01-01T00:12:00Z", 2, SkipCause::Missed) };
        let known =
            KnownOccurrences { task: &task, runs: &[], skips: &[agreeing, unknown], now: at("2027-01-02T00:00:00Z") };
        let answer = occurrences(&window("2027-01-01T00:00:00Z", "2027-01-01T01:00:00Z", 10), &known);
        let expected = [("00:12", "missed"), ("00:11", "missed"), ("00:10", "21 times missed")];
        assert_eq!(named(&brief(&answer)), expected);
    }

    #[test]
    fn years_of_seconds_are_shown_page_by_page() {
        let every = Every { interval: Span::from_secs(1), anchor: Some(at("2020-01-01T00:00:00Z")) };
        let task = task(Schedule::Every(every.clone()), Some("2030-01-01T00:00:00Z"));
        let (from, to) = (at("2020-01-01T00:00:00Z"), at("2029-12-31T23:59:59Z"));
        let count = u64::try_from((to - from).num_seconds()).unwrap() + 1;
        let range = SkipRange { from, to, count, cause: SkipCause::Paused };
        let skips = [StoredSkip { range, schedule: Some(Schedule::Every(every)) }];
        let known = KnownOccurrences { task: &task, runs: &[], skips: &skips, now: to };
        let page = occurrences(&OccurrenceWindow { from, to, limit: 3 }, &known);
        assert_eq!(
            page.items.iter().map(|item| item.at).collect::<Vec<_>>(),
            [to, to - TimeDelta::seconds(1), to - TimeDelta::seconds(2)]
        );
        assert!(page.next_to.unwrap() > to - TimeDelta::seconds(3));
    }

    #[test]
    fn what_is_to_come_says_what_policies_do_to_it() {
        let skipping = Cron { dst_gap: DstGap::Skip, ..Cron::new("30 2 * * *", "America/New_York") };
        let task = task(Schedule::Cron(skipping), Some("2027-03-13T07:30:00Z"));
        let known = KnownOccurrences { task: &task, runs: &[], skips: &[], now: at("2027-03-13T00:00:00Z") };
        let answer = occurrences(&window("2027-03-12T00:00:00Z", "2027-03-15T12:00:00Z", 10), &known);
        let expected = [("06:30", "upcoming"), ("07:00", "SkippedInGap"), ("07:30", "upcoming")];
        assert_eq!(named(&brief(&answer)), expected);
    }

    #[test]
    fn the_json_form_names_the_outcome() {
        let at = at("2027-01-01T02:00:00Z");
        let skipped = Occurrence { at, outcome: Outcome::Skipped { cause: SkipCause::Overlap, range: None } };
        let text = serde_json::to_string(&skipped).unwrap();
        assert_eq!(text, r#"{"at":"2027-01-01T02:00:00Z","outcome":"skipped","cause":"overlap"}"#);
        assert_eq!(serde_json::from_str::<Occurrence>(&text).unwrap(), skipped);
    }
}
