//! A clock of schedules that a test moves: tasks and scheduled runs follow it, and nothing else does.

use switchboard_model::Timestamp;
use switchboard_model::feed::Agenda;
use switchboard_model::fire::{MISFIRE_GRACE, plan};
use switchboard_model::run::{Ending, RunState};
use switchboard_model::schedule::Schedule;
use switchboard_store_api::{FinishOutcome, RenewOutcome, Renewal, RunFilter, ScheduleClock, Stores, WorkerKind};

use crate::Backend;
use crate::fixtures::{
    HOUR, LONG, Reader, create, database_time, finish, lease_one, list, new_run, run, spec, system, task, trigger,
};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A clock long after every real time of this test, and stores that go by it.
async fn standing(backend: &dyn Backend) -> (Stores, ScheduleClock) {
    let clock = ScheduleClock::standing_at(at("2090-01-01T00:00:00Z"));
    (backend.stores_at(clock.clone()).await, clock)
}

fn daily() -> Option<Schedule> {
    serde_json::from_str(r#"{"cron":{"expression":"0 12 * * *","zone":"Europe/Berlin"}}"#).unwrap()
}

pub(crate) async fn tasks_become_due_by_the_set_time(backend: &dyn Backend) {
    let (stores, clock) = standing(backend).await;
    let task = create(&stores, &spec("daily", |spec| spec.schedule = daily())).await;
    assert_eq!(task.next_run_at, Some(at("2090-01-01T11:00:00Z")));
    assert!(task.created_at <= database_time(&stores).await, "what is no schedule has real times");
    assert_eq!(stores.tasks.due(10).await.unwrap().tasks.len(), 0);
    assert_eq!(stores.feed.agenda().await.unwrap(), Agenda { next: task.next_run_at, active: 0 });
    assert_eq!(Reader::start(&stores).await.tick().await.next.task, None, "no timer waits for a set time");

    clock.advance_to(at("2090-01-01T11:00:00Z"));
    let due = stores.tasks.due(10).await.unwrap();
    assert_eq!(due.now, at("2090-01-01T11:00:00Z"));
    let tick = Reader::start(&stores).await.tick().await;
    assert!(tick.next.task.is_some_and(|due| due <= tick.now), "it is due at once");
    let plans: Vec<_> = due.tasks.into_iter().map(|task| plan(task, due.now, MISFIRE_GRACE)).collect();
    assert_eq!(stores.tasks.fire(&plans).await.unwrap().runs, 1);
    let runs = list(&stores, RunFilter::default()).await;
    assert_eq!((runs[0].state, runs[0].scheduled_for), (RunState::Queued, Some(at("2090-01-01T11:00:00Z"))));
    assert!(runs[0].created_at <= database_time(&stores).await);
    let next = Some(at("2090-01-02T11:00:00Z"));
    assert_eq!(stores.feed.agenda().await.unwrap(), Agenda { next, active: 1 });
}

pub(crate) async fn delays_and_back_off_go_by_the_set_time(backend: &dyn Backend) {
    let (stores, clock) = standing(backend).await;
    let task = create(&stores, &spec("retries", |spec| spec.max_attempts = 2)).await;
    let mut delayed = new_run(task.id);
    delayed.delay = HOUR;
    let id = trigger(&stores, delayed).await;
    assert_eq!(run(&stores, id).await.run_at, at("2090-01-01T01:00:00Z"));
    assert_eq!(stores.runs.promote(10).await.unwrap().due, 0);
    clock.advance_to(at("2090-01-01T01:00:00Z"));
    assert_eq!(stores.runs.promote(10).await.unwrap().due, 1);

    let leased = lease_one(&stores, LONG).await;
    let now = database_time(&stores).await;
    assert!(leased.lease_until > now && leased.lease_until <= now + LONG.to_delta(), "leases have real times");
    let renewal = Renewal { id, fence: leased.fence };
    assert_eq!(stores.runs.renew(WorkerKind::Replica, &[renewal], LONG).await.unwrap(), [RenewOutcome::Renewed]);
    let again = Ending::Retry { error: "no".to_owned(), delay: HOUR };
    assert_eq!(finish(&stores, &leased, again).await, FinishOutcome::Accepted(RunState::Scheduled));
    let next = Some(at("2090-01-01T02:00:00Z"));
    assert_eq!(stores.feed.agenda().await.unwrap(), Agenda { next, active: 0 });
    assert_eq!(stores.runs.promote(10).await.unwrap().due, 0);
    clock.advance_to(at("2090-01-01T02:00:00Z"));
    assert_eq!(stores.runs.promote(10).await.unwrap().due, 1);
    let leased = lease_one(&stores, LONG).await;
    finish(&stores, &leased, Ending::Failed("no".to_owned())).await;
    stores.runs.retry(&system(), id).await.unwrap();
    assert_eq!(run(&stores, id).await.run_at, at("2090-01-01T02:00:00Z"));
}

pub(crate) async fn pauses_and_resumes_go_by_the_set_time(backend: &dyn Backend) {
    let (stores, clock) = standing(backend).await;
    let id = create(&stores, &spec("paused", |spec| spec.schedule = daily())).await.id;
    stores.tasks.set_active(&system(), id, false).await.unwrap();
    assert_eq!(stores.feed.agenda().await.unwrap(), Agenda::default());
    clock.advance_to(at("2090-01-10T00:00:00Z"));
    stores.tasks.set_active(&system(), id, true).await.unwrap();
    let next = task(&stores, id).await.next_run_at;
    assert_eq!(next, Some(at("2090-01-09T11:00:00Z")), "the latest one of the pause is due at once, under coalesce");
}
