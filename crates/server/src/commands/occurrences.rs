//! Occurrences as people read them: what became of each, and why.

use switchboard_model::occurrence::{Occurrence, Outcome};
use switchboard_model::run::{OccurrenceRun, RunState, SkipCause};

use super::task::remark;
use crate::output::{maybe, time};

/// Makes the row of an occurrence: when, what, why, and its run.
pub(super) fn row(occurrence: &Occurrence) -> [String; 4] {
    let at = time(Some(occurrence.at));
    match &occurrence.outcome {
        Outcome::Run { run } => [at, run.state.to_string(), of_run(run), run.id.to_string()],
        Outcome::Skipped { cause, range: None } => {
            [at, "skipped".to_owned(), why(*cause).to_owned(), maybe::<String>(None)]
        }
        Outcome::Skipped { cause, range: Some(range) } => {
            let text = format!("{}; one of {} since {}", why(*cause), range.count, time(Some(range.from)));
            [at, "skipped".to_owned(), text, maybe::<String>(None)]
        }
        Outcome::Due => [at, "due".to_owned(), "it is not fired yet".to_owned(), maybe::<String>(None)],
        Outcome::Upcoming { remark: note } => {
            [at, "upcoming".to_owned(), maybe(note.map(remark)), maybe::<String>(None)]
        }
    }
}

fn of_run(run: &OccurrenceRun) -> String {
    match (run.state, &run.error) {
        (_, Some(error)) => error.clone(),
        (RunState::Waiting, None) => "a limit holds it back".to_owned(),
        (RunState::Queued, None) => "no worker has taken it yet".to_owned(),
        (_, None) => maybe(run.started_at.map(|at| format!("started at {}", time(Some(at))))),
    }
}

/// Says why an occurrence did not run.
fn why(cause: SkipCause) -> &'static str {
    match cause {
        SkipCause::Overlap => "overlap: a run of the task was active, and its policy allows no second one",
        SkipCause::Missed => "missed: it was noticed too late, and the policy for missed ones left it out",
        SkipCause::Deadline => "deadline: its time to start had passed",
        SkipCause::Gap => "gap: its local time does not exist on that day",
        SkipCause::Limit => "limit: as many runs were waiting as the task allows",
        SkipCause::Paused => "paused: the task was paused",
    }
}
