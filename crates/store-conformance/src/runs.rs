//! Runs: triggers, leases, renewals, endings, retries and lists.

use switchboard_model::feed::TickRequest;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::{Fence, RunId, TaskId};
use switchboard_model::page::PageRequest;
use switchboard_model::run::{Ending, Finish, NewRun, Run, RunState, Trigger};
use switchboard_model::setting::FleetSettings;
use switchboard_model::span::Span;
use switchboard_model::task::{Backoff, Overlap};
use switchboard_store_api::{
    FinishOutcome, LeaseBatch, LeaseRequest, PutOutcome, RenewOutcome, Renewal, RetryOutcome, RunFilter,
    TriggerOutcome, WorkerKind,
};

use crate::Backend;
use crate::fixtures::{
    LONG, SHORT, create, expire, finish, fired, in_state, json, lease, lease_one, list, new_run, now, occurrence,
    request, run, scheduled, spec, states, system, trigger, triggered, until,
};

const SOON: Span = Span::from_millis(30);

pub(crate) async fn a_triggered_run_is_queued_with_what_it_was_given(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = spec("given", |spec| {
        spec.pool = "heavy".parse().unwrap();
        spec.priority = -3;
        spec.max_attempts = 5;
    });
    let task = create(&stores, &wanted).await;
    let key = Some("k1".parse().unwrap());
    let new = NewRun { trigger: Trigger::Webhook, input: Some(json("[1, 2]")), dedupe_key: key, ..new_run(task.id) };
    trigger(&stores, new.clone()).await;
    let run = run(&stores, new.id).await;
    assert_eq!((run.id, run.task_id, run.state, run.trigger), (new.id, task.id, RunState::Queued, Trigger::Webhook));
    assert_eq!((run.pool.as_str(), run.priority, run.attempt, run.max_attempts), ("heavy", -3, 0, 5));
    assert_eq!((run.input, run.dedupe_key, run.scheduled_for), (new.input, new.dedupe_key, None));
    assert_eq!((run.leased_by, run.started_at, run.finished_at), (None, None, None));
    assert_eq!(stores.runs.get(RunId::new()).await.unwrap(), None);
}

pub(crate) async fn triggering_an_unknown_task_makes_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let new = new_run(TaskId::new());
    let outcome = now(stores.runs.trigger(&system(), &new).await.unwrap());
    assert_eq!(outcome, TriggerOutcome::TaskNotFound);
    assert_eq!(stores.runs.get(new.id).await.unwrap(), None);
}

pub(crate) async fn a_delayed_run_becomes_ready_when_it_is_due(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("delayed", |_| {})).await;
    let soon = trigger(&stores, NewRun { delay: SOON, ..new_run(task.id) }).await;
    let later = trigger(&stores, NewRun { delay: LONG, ..new_run(task.id) }).await;
    let before = run(&stores, soon).await;
    assert_eq!(before.state, RunState::Scheduled);
    assert_eq!(before.run_at, before.created_at + SOON.to_delta());
    assert_eq!(lease(&stores, 10, LONG).await, []);

    let due = until(|| async { stores.runs.promote(10).await.unwrap().due }, |due| *due > 0).await;
    assert_eq!(due, 1);
    assert_eq!(states(&stores, &[soon, later]).await, [RunState::Queued, RunState::Scheduled]);
    assert_eq!(lease_one(&stores, LONG).await.id, soon);
}

pub(crate) async fn an_active_run_with_the_same_dedupe_key_is_found(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("deduped", |_| {})).await;
    let other = create(&stores, &spec("other", |_| {})).await;
    let keyed = |task_id| NewRun { dedupe_key: Some("order-7".parse().unwrap()), ..new_run(task_id) };
    let first = trigger(&stores, keyed(task.id)).await;
    for _ in 0..2 {
        let second = keyed(task.id);
        let outcome = now(stores.runs.trigger(&system(), &second).await.unwrap());
        assert_eq!(outcome, TriggerOutcome::Duplicate(first));
        assert_eq!(stores.runs.get(second.id).await.unwrap(), None);
    }
    let elsewhere = trigger(&stores, keyed(other.id)).await;
    let leased = lease(&stores, 10, LONG).await;
    assert_eq!(leased.iter().map(|run| run.id).collect::<Vec<_>>(), [first, elsewhere]);
    let outcome = now(stores.runs.trigger(&system(), &keyed(task.id)).await.unwrap());
    assert_eq!(outcome, TriggerOutcome::Duplicate(first), "running is active too");
    finish(&stores, &leased[0], Ending::Succeeded(None)).await;
    trigger(&stores, keyed(task.id)).await;
}

pub(crate) async fn the_overlap_policy_governs_triggers(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let outcome = async |task_id| now(stores.runs.trigger(&system(), &new_run(task_id)).await.unwrap());
    let skip = create(&stores, &spec("skip", |spec| spec.overlap = Overlap::Skip)).await;
    let active = trigger(&stores, new_run(skip.id)).await;
    assert_eq!(outcome(skip.id).await, TriggerOutcome::Active(active));

    let queue = spec("queue", |spec| {
        spec.overlap = Overlap::Queue;
        spec.queue_max = 2;
    });
    let queue = create(&stores, &queue).await;
    trigger(&stores, new_run(queue.id)).await;
    trigger(&stores, new_run(queue.id)).await;
    assert_eq!(outcome(queue.id).await, TriggerOutcome::QueueFull);

    let replace = create(&stores, &spec("replace", |spec| spec.overlap = Overlap::Replace)).await;
    let old = trigger(&stores, new_run(replace.id)).await;
    let new = trigger(&stores, new_run(replace.id)).await;
    assert_eq!(states(&stores, &[old, new]).await, [RunState::Cancelled, RunState::Queued]);
}

pub(crate) async fn lease_hands_out_all_a_worker_needs(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = spec("whole", |spec| {
        spec.timeout = Some(Span::from_secs(90));
        spec.max_attempts = 8;
        spec.backoff = Backoff { base: Span::from_millis(10), cap: Span::from_secs(1), jitter: 0.5 };
    });
    let task = create(&stores, &wanted).await;
    let id = trigger(&stores, NewRun { input: Some(json(r#"{"a": 1}"#)), ..new_run(task.id) }).await;
    let request = request(10, LONG);
    let LeaseBatch { runs, .. } = stores.runs.lease(&request).await.unwrap();
    let [leased] = runs.as_slice() else { panic!("one run expected, found {runs:?}") };
    assert_eq!((leased.id, leased.task_id, &leased.task_name), (id, task.id, &wanted.name));
    assert_eq!((leased.attempt, leased.max_attempts, leased.reclaimed), (1, 8, false));
    assert_eq!((&leased.timeout, &leased.backoff, &leased.action), (&wanted.timeout, &wanted.backoff, &wanted.action));
    assert_eq!((leased.scheduled_for, leased.input.as_ref()), (None, Some(&json(r#"{"a": 1}"#))));
    assert!(leased.fence > Fence(0));

    let run = run(&stores, id).await;
    assert_eq!((run.state, run.attempt, run.fence), (RunState::Running, 1, leased.fence));
    assert_eq!((run.leased_by, run.started_at), (Some(request.holder), Some(leased.leased_at)));
    assert_eq!(run.lease_until, Some(leased.leased_at + LONG.to_delta()));
    assert_eq!(run.deadline_at, Some(leased.leased_at + Span::from_secs(90).to_delta()));
    assert_eq!(run.run_at, leased.run_at);
}

pub(crate) async fn lease_skips_leased(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &spec("shared", |_| {}), 5).await;
    let first = lease(&stores, 2, LONG).await;
    let second = lease(&stores, 10, LONG).await;
    assert_eq!(first.iter().map(|run| run.id).collect::<Vec<_>>(), ids[..2]);
    assert_eq!(second.iter().map(|run| run.id).collect::<Vec<_>>(), ids[2..]);
    assert_eq!(lease(&stores, 10, LONG).await, []);
    let mut fences: Vec<_> = first.iter().chain(&second).map(|run| run.fence).collect();
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), 5, "no two leases share a fence");
}

pub(crate) async fn lease_goes_by_priority_then_due_time(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut expected = Vec::new();
    for (name, priority) in [("usual", 0), ("urgent", -10), ("idle", 10)] {
        let ids = triggered(&stores, &spec(name, |spec| spec.priority = priority), 2).await;
        expected.extend(ids.into_iter().map(|id| (priority, id)));
    }
    expected.sort();
    let leased = lease(&stores, 10, LONG).await;
    assert_eq!(
        leased.iter().map(|run| run.id).collect::<Vec<_>>(),
        expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>()
    );
}

pub(crate) async fn lease_serves_the_asked_pools_only(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut ids = Vec::new();
    for name in ["red", "green", "blue"] {
        ids.extend(triggered(&stores, &spec(name, |spec| spec.pool = name.parse().unwrap()), 1).await);
    }
    let pools = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect::<Vec<PoolName>>();
    let ask = async |names: &[&str]| {
        let request = LeaseRequest { pools: pools(names), ..request(10, LONG) };
        stores.runs.lease(&request).await.unwrap().runs.iter().map(|run| run.id).collect::<Vec<_>>()
    };
    assert_eq!(ask(&[]).await, []);
    assert_eq!(ask(&["yellow"]).await, []);
    assert_eq!(ask(&["red", "blue"]).await, [ids[0], ids[2]]);
    let tick = stores.feed.tick(None, &TickRequest { pools: pools(&["red", "blue"]) }).await.unwrap();
    assert!(!tick.next.has_queued);
    let tick = stores.feed.tick(None, &TickRequest { pools: pools(&["red", "green"]) }).await.unwrap();
    assert!(tick.next.has_queued);
    assert_eq!(ask(&["green"]).await, [ids[1]]);
}

pub(crate) async fn lease_gives_nothing_while_the_fleet_is_paused(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &spec("paused", |_| {}), 1).await;
    let put = async |expected, pause_all| {
        let value = FleetSettings { pause_all, ..FleetSettings::default() };
        let outcome = stores.settings.put_fleet(&system(), expected, &value).await.unwrap();
        assert_eq!(outcome, PutOutcome::Written(expected + 1));
    };
    put(0, true).await;
    assert_eq!(stores.runs.lease(&request(10, LONG)).await.unwrap(), LeaseBatch::default());
    assert_eq!(states(&stores, &ids).await, [RunState::Queued]);
    put(1, false).await;
    assert_eq!(lease_one(&stores, LONG).await.id, ids[0]);
}

pub(crate) async fn renew_prolongs_live_leases_in_order(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("renewed", |_| {}), 3).await;
    let leased = lease(&stores, 10, Span::from_secs(60)).await;
    let before = run(&stores, leased[0].id).await.lease_until;
    let renewal = |index: usize| Renewal { id: leased[index].id, fence: leased[index].fence };
    let stale = Renewal { fence: Fence(leased[1].fence.0 - 1_000), ..renewal(1) };
    let unknown = Renewal { id: RunId::new(), ..renewal(1) };
    finish(&stores, &leased[2], Ending::Succeeded(None)).await;
    let outcomes = stores
        .runs
        .renew(WorkerKind::Replica, &[renewal(2), renewal(0), stale, unknown, renewal(1)], LONG)
        .await
        .unwrap();
    assert_eq!(
        outcomes,
        [RenewOutcome::Lost, RenewOutcome::Renewed, RenewOutcome::Lost, RenewOutcome::Lost, RenewOutcome::Renewed]
    );
    let after = run(&stores, leased[0].id).await;
    assert!(after.lease_until > before);
    assert_eq!((after.fence, after.attempt, after.state), (leased[0].fence, 1, RunState::Running));
    assert_eq!(stores.runs.renew(WorkerKind::Replica, &[], LONG).await.unwrap(), []);
}

pub(crate) async fn an_expired_lease_cannot_be_renewed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("expired", |_| {}), 1).await;
    let leased = lease_one(&stores, SHORT).await;
    expire(&stores, leased.id).await;
    let renewal = Renewal { id: leased.id, fence: leased.fence };
    assert_eq!(stores.runs.renew(WorkerKind::Replica, &[renewal], LONG).await.unwrap(), [RenewOutcome::Lost]);
    assert_eq!(run(&stores, leased.id).await.state, RunState::Running, "expiry alone changes nothing");
}

pub(crate) async fn endings_lead_to_their_states(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &spec("endings", |_| {}), 3).await;
    let leased = lease(&stores, 10, LONG).await;
    let endings =
        [Ending::Succeeded(Some(json(r#"{"n": 1}"#))), Ending::Failed("no such host".to_owned()), Ending::Cancelled];
    let finishes: Vec<_> =
        leased.iter().zip(endings).map(|(run, ending)| Finish { id: run.id, fence: run.fence, ending }).collect();
    let expected = [RunState::Succeeded, RunState::Failed, RunState::Cancelled];
    assert_eq!(stores.runs.finish(&finishes).await.unwrap(), expected.map(FinishOutcome::Accepted));
    assert_eq!(states(&stores, &ids).await, expected);
    let succeeded = run(&stores, ids[0]).await;
    assert_eq!((succeeded.result, succeeded.error), (Some(json(r#"{"n": 1}"#)), None));
    assert!(succeeded.finished_at >= succeeded.started_at);
    let failed = run(&stores, ids[1]).await;
    assert_eq!((failed.result, failed.error.as_deref()), (None, Some("no such host")));
    assert_eq!(stores.runs.finish(&[]).await.unwrap(), []);
}

pub(crate) async fn finish_with_a_stale_fence_changes_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("fenced", |_| {}), 2).await;
    let leased = lease(&stores, 10, LONG).await;
    let before = run(&stores, leased[0].id).await;
    let stale = Finish { id: before.id, fence: Fence(before.fence.0 - 1), ending: Ending::Succeeded(None) };
    let unknown = Finish { id: RunId::new(), ..stale.clone() };
    let good = Finish { id: leased[1].id, fence: leased[1].fence, ending: Ending::Failed("first".to_owned()) };
    let outcomes = stores.runs.finish(&[stale, unknown, good.clone()]).await.unwrap();
    let failed = FinishOutcome::Accepted(RunState::Failed);
    assert_eq!(outcomes, [FinishOutcome::Fenced, FinishOutcome::Fenced, failed]);
    assert_eq!(run(&stores, before.id).await, before);

    let ended = run(&stores, good.id).await;
    let late = Finish { ending: Ending::Succeeded(Some(json("1"))), ..good };
    assert_eq!(stores.runs.finish(&[late]).await.unwrap(), [FinishOutcome::Repeated(RunState::Failed)]);
    assert_eq!(run(&stores, ended.id).await, ended, "a run ends once");
}

pub(crate) async fn a_retry_waits_until_attempts_are_used_up(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &spec("flaky", |spec| spec.max_attempts = 2), 1).await;
    let retry = || Ending::Retry { error: "try again".to_owned(), delay: SOON };
    let first = lease_one(&stores, LONG).await;
    assert_eq!(finish(&stores, &first, retry()).await, FinishOutcome::Accepted(RunState::Scheduled));
    let waiting = run(&stores, ids[0]).await;
    assert_eq!((waiting.state, waiting.attempt, waiting.finished_at), (RunState::Scheduled, 1, None));
    assert_eq!(waiting.error.as_deref(), Some("try again"));
    assert!(waiting.run_at >= first.leased_at + SOON.to_delta());

    until(|| async { stores.runs.promote(10).await.unwrap().due }, |due| *due == 1).await;
    let second = lease_one(&stores, LONG).await;
    assert_eq!((second.id, second.attempt, second.reclaimed), (ids[0], 2, false));
    assert!(second.fence > first.fence);
    assert_eq!(finish(&stores, &first, retry()).await, FinishOutcome::Fenced);
    assert_eq!(finish(&stores, &second, retry()).await, FinishOutcome::Accepted(RunState::Dead));
    let dead = run(&stores, ids[0]).await;
    assert_eq!((dead.state, dead.attempt), (RunState::Dead, 2));
    assert!(dead.finished_at.is_some());
}

pub(crate) async fn a_released_run_gets_its_attempt_back(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &spec("released", |spec| spec.max_attempts = 1), 1).await;
    let first = lease_one(&stores, LONG).await;
    assert_eq!(finish(&stores, &first, Ending::Released).await, FinishOutcome::Accepted(RunState::Queued));
    let released = run(&stores, ids[0]).await;
    assert_eq!((released.state, released.attempt, released.finished_at), (RunState::Queued, 0, None));
    let second = lease_one(&stores, LONG).await;
    assert_eq!((second.id, second.attempt, second.reclaimed), (ids[0], 1, false));
    assert!(second.fence > first.fence, "a fence never goes down");
    assert_eq!(finish(&stores, &first, Ending::Succeeded(None)).await, FinishOutcome::Fenced);
}

pub(crate) async fn an_ended_run_can_be_retried(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &spec("again", |spec| spec.max_attempts = 1), 1).await;
    assert_eq!(stores.runs.retry(&system(), ids[0]).await.unwrap(), RetryOutcome::NotEnded(RunState::Queued));
    assert_eq!(stores.runs.retry(&system(), RunId::new()).await.unwrap(), RetryOutcome::NotFound);
    let first = lease_one(&stores, LONG).await;
    assert_eq!(stores.runs.retry(&system(), ids[0]).await.unwrap(), RetryOutcome::NotEnded(RunState::Running));
    stores.runs.cancel(&system(), ids[0]).await.unwrap();
    finish(&stores, &first, Ending::Failed("no".to_owned())).await;

    assert_eq!(stores.runs.retry(&system(), ids[0]).await.unwrap(), RetryOutcome::Queued);
    let again = run(&stores, ids[0]).await;
    assert_eq!((again.state, again.attempt, again.fence), (RunState::Queued, 0, first.fence));
    assert_eq!((again.finished_at, again.cancel_requested_at, again.started_at), (None, None, None));
    assert_eq!((again.trigger, again.result, again.error), (Trigger::Retry, None, None));
    let second = lease_one(&stores, LONG).await;
    assert_eq!((second.id, second.attempt), (ids[0], 1));
    assert!(second.fence > first.fence);
    let renewal = Renewal { id: second.id, fence: second.fence };
    assert_eq!(stores.runs.renew(WorkerKind::Replica, &[renewal], LONG).await.unwrap(), [RenewOutcome::Renewed]);
}

pub(crate) async fn a_retry_respects_overlap_and_dedupe_keys(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let skip = create(&stores, &spec("skip", |spec| spec.overlap = Overlap::Skip)).await;
    let replace = create(&stores, &spec("replace", |spec| spec.overlap = Overlap::Replace)).await;
    let keyed = create(&stores, &spec("keyed", |_| {})).await;
    let with_key = || NewRun { dedupe_key: Some("k".parse().unwrap()), ..new_run(keyed.id) };
    let three = async || {
        let alone = [trigger(&stores, new_run(skip.id)).await, trigger(&stores, new_run(replace.id)).await];
        [alone[0], alone[1], trigger(&stores, with_key()).await]
    };
    let old = three().await;
    for leased in lease(&stores, 10, LONG).await {
        finish(&stores, &leased, Ending::Failed("once".to_owned())).await;
    }
    let new = three().await;
    for (old, new) in old.into_iter().zip(new) {
        assert_eq!(stores.runs.retry(&system(), old).await.unwrap(), RetryOutcome::Active(new));
        assert_eq!(run(&stores, old).await.state, RunState::Failed);
    }
}

pub(crate) async fn lists_are_filtered_and_newest_first(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut one = triggered(&stores, &spec("one", |_| {}), 5).await;
    let task = run(&stores, one[0]).await.task_id;
    let leased = lease(&stores, 2, LONG).await;
    let other = triggered(&stores, &spec("other", |_| {}), 1).await;
    let of_task = RunFilter { task_id: Some(task), state: None };
    let mut page = PageRequest { after: None, limit: 2 };
    let mut found = Vec::new();
    for expected in [2, 2, 1] {
        let next = stores.runs.list(&of_task, &page).await.unwrap();
        assert_eq!(next.items.len(), expected);
        found.extend(next.items.into_iter().map(|run| run.id));
        page.after = next.next_cursor;
    }
    assert_eq!(page.after, None);
    one.reverse();
    assert_eq!(found, one);

    let ids = |runs: Vec<Run>| runs.iter().map(|run| run.id).collect::<Vec<_>>();
    assert_eq!(ids(in_state(&stores, RunState::Running).await), [leased[1].id, leased[0].id]);
    let both = RunFilter { task_id: Some(task), state: Some(RunState::Queued) };
    assert_eq!(ids(list(&stores, both).await), one[..3]);
    assert_eq!(ids(list(&stores, RunFilter::default()).await), [&other[..], &one[..]].concat());
}

pub(crate) async fn runs_of_one_firing_are_leased_oldest_occurrence_first(backend: &dyn Backend) {
    let stores = backend.stores().await;
    fired(&stores, &scheduled("ordered", |_| {}), 40).await;
    let leased = lease(&stores, 40, LONG).await;
    let occurrences: Vec<_> = leased.iter().map(|run| run.scheduled_for).collect();
    assert_eq!(occurrences, (0..40).map(|n| Some(occurrence(n))).collect::<Vec<_>>());
}
