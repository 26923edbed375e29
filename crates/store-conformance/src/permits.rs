//! Permits: keys with a maximum, overlap holds, waiting and promotion.

use switchboard_model::ids::RunId;
use switchboard_model::run::{Ending, NewRun, RunState};
use switchboard_model::span::Span;
use switchboard_model::task::{Concurrency, Overlap, TaskSpec};
use switchboard_store_api::{CancelOutcome, FinishOutcome, PromoteReport, Stores, TaskUpdateOutcome};

use crate::Backend;
use crate::fixtures::{
    LONG, SHORT, create, expire, finish, lease, lease_one, new_run, run, spec, states, system, trigger, triggered,
    until,
};

const BACK_OFF: Span = Span::from_millis(30);

/// A task whose runs share the key `shared` with a maximum.
fn limited(name: &str, max: u32) -> TaskSpec {
    spec(name, |spec| spec.concurrency = Some(Concurrency { key: "shared".parse().unwrap(), max }))
}

/// A task that runs one at a time and queues the rest.
fn queueing(name: &str) -> TaskSpec {
    spec(name, |spec| spec.overlap = Overlap::Queue)
}

async fn leased_ids(stores: &Stores) -> Vec<RunId> {
    lease(stores, 10, LONG).await.iter().map(|run| run.id).collect()
}

fn retry(delay: Span) -> Ending {
    Ending::Retry { error: "again".to_owned(), delay }
}

pub(crate) async fn a_key_admits_its_maximum_and_the_rest_wait(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &limited("limited", 2), 5).await;
    assert_eq!(leased_ids(&stores).await, ids[..2]);
    let [running, waiting] = [RunState::Running, RunState::Waiting];
    assert_eq!(states(&stores, &ids).await, [running, running, waiting, waiting, waiting]);
    assert_eq!(run(&stores, ids[0]).await.key.as_deref(), Some("key:shared"));
    assert_eq!(leased_ids(&stores).await, []);
    assert_eq!(stores.runs.promote(10).await.unwrap(), PromoteReport::default());
}

pub(crate) async fn runs_without_a_key_pass_those_that_wait(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let limited = triggered(&stores, &limited("limited", 1), 3).await;
    let free = triggered(&stores, &spec("free", |_| {}), 2).await;
    assert_eq!(leased_ids(&stores).await, [limited[0], free[0], free[1]]);
}

pub(crate) async fn every_ending_frees_the_permit_for_the_oldest_waiting_run(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let endings = [
        Ending::Succeeded(None),
        Ending::Failed("no".to_owned()),
        Ending::Cancelled,
        retry(LONG),
        Ending::Succeeded(None),
    ];
    let ids = triggered(&stores, &limited("limited", 1), endings.len() + 1).await;
    for (index, ending) in endings.into_iter().enumerate() {
        let leased = lease_one(&stores, LONG).await;
        assert_eq!(leased.id, ids[index]);
        finish(&stores, &leased, ending).await;
        assert_eq!(run(&stores, ids[index + 1]).await.state, RunState::Queued, "promoted by the ending");
        assert!(states(&stores, &ids[index + 2..]).await.iter().all(|state| *state == RunState::Waiting));
    }
}

pub(crate) async fn a_death_frees_the_permit(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let one_attempt = TaskSpec { max_attempts: 1, ..limited("limited", 1) };
    let ids = triggered(&stores, &one_attempt, 3).await;
    let first = lease_one(&stores, LONG).await;
    assert_eq!(finish(&stores, &first, retry(LONG)).await, FinishOutcome::Accepted(RunState::Dead));
    let second = lease_one(&stores, SHORT).await;
    assert_eq!(second.id, ids[1]);
    expire(&stores, second.id).await;
    assert_eq!(stores.runs.recover(10).await.unwrap().dead, 1);
    assert_eq!(states(&stores, &ids).await, [RunState::Dead, RunState::Dead, RunState::Queued]);
    assert_eq!(leased_ids(&stores).await, ids[2..]);
}

pub(crate) async fn a_released_permit_can_be_taken_again(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &limited("limited", 1), 2).await;
    let first = lease_one(&stores, LONG).await;
    assert_eq!(finish(&stores, &first, Ending::Released).await, FinishOutcome::Accepted(RunState::Queued));
    let second = lease_one(&stores, LONG).await;
    finish(&stores, &second, Ending::Succeeded(None)).await;
    let third = lease_one(&stores, LONG).await;
    finish(&stores, &third, Ending::Succeeded(None)).await;
    assert_eq!(states(&stores, &ids).await, [RunState::Succeeded, RunState::Succeeded]);
}

pub(crate) async fn an_expired_lease_keeps_its_permit_until_it_is_recovered(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &limited("limited", 1), 2).await;
    let first = lease_one(&stores, SHORT).await;
    expire(&stores, first.id).await;
    assert_eq!(leased_ids(&stores).await, []);
    assert_eq!(stores.runs.promote(10).await.unwrap().permitted, 0, "time alone frees nothing");
    assert_eq!(run(&stores, ids[1]).await.state, RunState::Waiting);

    assert_eq!(stores.runs.recover(10).await.unwrap().requeued, 1);
    let leased = lease_one(&stores, LONG).await;
    finish(&stores, &leased, Ending::Succeeded(None)).await;
    let leased = lease_one(&stores, LONG).await;
    finish(&stores, &leased, Ending::Succeeded(None)).await;
    assert_eq!(states(&stores, &ids).await, [RunState::Succeeded, RunState::Succeeded]);
}

pub(crate) async fn a_key_is_shared_by_tasks_and_the_maximum_is_the_runs_own(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let first = triggered(&stores, &limited("first", 1), 1).await;
    assert_eq!(leased_ids(&stores).await, first);
    let narrow = triggered(&stores, &limited("narrow", 1), 1).await;
    let wide = triggered(&stores, &limited("wide", 2), 2).await;
    assert_eq!(leased_ids(&stores).await, wide[..1]);
    assert_eq!(states(&stores, &[narrow[0], wide[1]]).await, [RunState::Waiting, RunState::Waiting]);
}

pub(crate) async fn an_edited_maximum_holds_for_new_runs(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &limited("edited", 1)).await;
    let mut ids = vec![trigger(&stores, new_run(task.id)).await, trigger(&stores, new_run(task.id)).await];
    assert_eq!(leased_ids(&stores).await, ids[..1]);
    let outcome = stores.tasks.update(&system(), task.id, 1, &limited("edited", 2)).await.unwrap();
    assert!(matches!(outcome, TaskUpdateOutcome::Updated(_)));
    ids.push(trigger(&stores, new_run(task.id)).await);
    assert_eq!(leased_ids(&stores).await, ids[2..]);
    assert_eq!(run(&stores, ids[1]).await.state, RunState::Waiting);
}

pub(crate) async fn waiting_runs_are_promoted_by_priority_then_age(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let holder = triggered(&stores, &limited("holder", 1), 1).await;
    let held = lease_one(&stores, LONG).await;
    assert_eq!(held.id, holder[0]);
    let usual = triggered(&stores, &limited("usual", 1), 2).await;
    let urgent = triggered(&stores, &TaskSpec { priority: -1, ..limited("urgent", 1) }, 1).await;
    assert_eq!(leased_ids(&stores).await, []);
    finish(&stores, &held, Ending::Succeeded(None)).await;
    for expected in [urgent[0], usual[0], usual[1]] {
        let leased = lease_one(&stores, LONG).await;
        assert_eq!(leased.id, expected);
        finish(&stores, &leased, Ending::Succeeded(None)).await;
    }
}

pub(crate) async fn overlap_holds_one_run_at_a_time(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &queueing("queue"), 3).await;
    for id in &ids {
        let leased = lease_one(&stores, LONG).await;
        assert_eq!(leased.id, *id);
        assert_eq!(leased_ids(&stores).await, []);
        finish(&stores, &leased, Ending::Succeeded(None)).await;
    }
}

pub(crate) async fn overlap_is_held_through_back_off(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &queueing("queue"), 2).await;
    let first = lease_one(&stores, LONG).await;
    finish(&stores, &first, retry(BACK_OFF)).await;
    assert_eq!(leased_ids(&stores).await, [], "the next run waits while the first backs off");
    until(|| async { stores.runs.promote(10).await.unwrap().due }, |due| *due == 1).await;
    let again = lease_one(&stores, LONG).await;
    assert_eq!((again.id, again.attempt), (ids[0], 2), "the holder itself goes on");
    finish(&stores, &again, Ending::Succeeded(None)).await;
    assert_eq!(leased_ids(&stores).await, ids[1..]);
}

pub(crate) async fn other_keys_are_free_during_back_off(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &limited("limited", 1), 2).await;
    let first = lease_one(&stores, LONG).await;
    finish(&stores, &first, retry(LONG)).await;
    assert_eq!(leased_ids(&stores).await, ids[1..]);
}

pub(crate) async fn overlap_is_held_through_recovery_and_release(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &queueing("queue"), 2).await;
    let first = lease_one(&stores, SHORT).await;
    expire(&stores, first.id).await;
    assert_eq!(stores.runs.recover(10).await.unwrap().requeued, 1);
    let second = lease_one(&stores, LONG).await;
    assert_eq!((second.id, second.attempt, second.reclaimed), (ids[0], 2, true));
    finish(&stores, &second, Ending::Released).await;
    let third = lease_one(&stores, LONG).await;
    assert_eq!((third.id, third.attempt), (ids[0], 2));
    finish(&stores, &third, Ending::Succeeded(None)).await;
    assert_eq!(leased_ids(&stores).await, ids[1..]);
}

pub(crate) async fn cancelling_a_run_in_back_off_frees_its_overlap_hold(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &queueing("queue"), 2).await;
    let first = lease_one(&stores, LONG).await;
    assert_eq!(leased_ids(&stores).await, []);
    finish(&stores, &first, retry(LONG)).await;
    assert_eq!(stores.runs.cancel(&system(), ids[0]).await.unwrap(), CancelOutcome::Cancelled);
    assert_eq!(states(&stores, &ids).await, [RunState::Cancelled, RunState::Queued]);
    assert_eq!(leased_ids(&stores).await, ids[1..]);
}

pub(crate) async fn cancelling_a_waiting_run_leaves_the_holder_alone(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &limited("limited", 1), 3).await;
    let first = lease_one(&stores, LONG).await;
    assert_eq!(stores.runs.cancel(&system(), ids[1]).await.unwrap(), CancelOutcome::Cancelled);
    let expected = [RunState::Running, RunState::Cancelled, RunState::Waiting];
    assert_eq!(states(&stores, &ids).await, expected);
    finish(&stores, &first, Ending::Succeeded(None)).await;
    assert_eq!(leased_ids(&stores).await, ids[2..]);
}

pub(crate) async fn a_retried_run_competes_for_its_permit_again(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &limited("limited", 1), 2).await;
    let first = lease_one(&stores, LONG).await;
    finish(&stores, &first, Ending::Failed("no".to_owned())).await;
    let second = lease_one(&stores, LONG).await;
    assert_eq!(second.id, ids[1]);
    stores.runs.retry(&system(), ids[0]).await.unwrap();
    assert_eq!(leased_ids(&stores).await, []);
    assert_eq!(run(&stores, ids[0]).await.state, RunState::Waiting);
    finish(&stores, &second, Ending::Succeeded(None)).await;
    assert_eq!(leased_ids(&stores).await, ids[..1]);
}

pub(crate) async fn delayed_runs_take_no_permit_before_they_are_leased(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &limited("limited", 1)).await;
    trigger(&stores, NewRun { delay: LONG, ..new_run(task.id) }).await;
    let ready = trigger(&stores, new_run(task.id)).await;
    assert_eq!(leased_ids(&stores).await, [ready]);
}
