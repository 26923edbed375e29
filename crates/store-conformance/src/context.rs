//! What a write carries: once-keys and audit entries.

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::TaskId;
use switchboard_model::instance::Role;
use switchboard_model::run::RunState;
use switchboard_model::setting::FleetSettings;
use switchboard_model::span::Span;
use switchboard_store_api::{
    AuditEntry, CancelOutcome, OnceClaim, OnceRecord, PutOutcome, RetryOutcome, RoomCreateOutcome, TaskCreateOutcome,
    TaskUpdateOutcome, TriggerOutcome, WriteContext, Written,
};

use crate::Backend;
use crate::fixtures::{
    ALL, LONG, Reader, create, eventually, in_state, json, new_api_key, new_instance, new_room, new_run, new_ticket,
    now, once, spec, system, trigger, until,
};

const HOUR: Span = Span::from_secs(3600);

fn replayed<T>(result_id: uuid::Uuid) -> Written<T> {
    Written::Replayed(OnceRecord { result_id })
}

pub(crate) async fn a_repeated_task_creation_is_replayed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let context = once("k", 1, HOUR);
    let spec = spec("once", |_| {});
    let first = now(stores.tasks.create(&context, TaskId::new(), &spec).await.unwrap());
    let TaskCreateOutcome::Created(task) = first else { panic!("not created: {first:?}") };
    let mut reader = Reader::start(&stores).await;
    for _ in 0..2 {
        let again = stores.tasks.create(&context, TaskId::new(), &spec).await.unwrap();
        assert_eq!(again, replayed(task.id.as_uuid()));
    }
    let other_body = stores.tasks.create(&once("k", 2, HOUR), TaskId::new(), &spec).await.unwrap();
    assert_eq!(other_body, Written::Mismatch);
    assert_eq!(stores.tasks.list(&ALL).await.unwrap().items, [task]);
    assert_eq!(reader.signals().await, [], "a replay changes nothing");
}

pub(crate) async fn a_repeated_trigger_is_replayed_also_after_the_run_ended(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("once", |_| {})).await;
    let context = once("k", 1, HOUR);
    let first = new_run(task.id);
    let outcome = stores.runs.trigger(&context, &first).await.unwrap();
    assert_eq!(outcome, Written::Now(TriggerOutcome::Created(first.id)));
    assert_eq!(stores.runs.trigger(&context, &new_run(task.id)).await.unwrap(), replayed(first.id.as_uuid()));
    stores.runs.cancel(&system(), first.id).await.unwrap();
    assert_eq!(stores.runs.trigger(&context, &new_run(task.id)).await.unwrap(), replayed(first.id.as_uuid()));
    assert_eq!(stores.runs.trigger(&once("k", 2, HOUR), &new_run(task.id)).await.unwrap(), Written::Mismatch);
    assert_eq!(in_state(&stores, RunState::Cancelled).await.len(), 1);
    assert_eq!(in_state(&stores, RunState::Queued).await, []);
}

pub(crate) async fn repeated_rooms_and_keys_are_replayed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let room = new_room("lobby");
    let outcome = now(stores.rooms.create(&once("room", 1, HOUR), &room).await.unwrap());
    assert!(matches!(outcome, RoomCreateOutcome::Created(_)));
    let again = stores.rooms.create(&once("room", 1, HOUR), &new_room("lobby")).await.unwrap();
    assert_eq!(again, replayed(room.id.as_uuid()));
    let mismatch = stores.rooms.create(&once("room", 2, HOUR), &new_room("hall")).await.unwrap();
    assert_eq!(mismatch, Written::Mismatch);

    let key = new_api_key("ci");
    assert_eq!(now(stores.api_keys.create(&once("key", 1, HOUR), &key).await.unwrap()).id, key.id);
    let again = stores.api_keys.create(&once("key", 1, HOUR), &new_api_key("other")).await.unwrap();
    assert_eq!(again, replayed(key.id.as_uuid()));
    assert_eq!(stores.api_keys.list(&ALL).await.unwrap().items.len(), 1);
}

pub(crate) async fn scopes_separate_equal_keys(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("once", |_| {})).await;
    let scoped = |scope: &str| {
        let claim = OnceClaim { scope: scope.to_owned(), key: "k".to_owned(), request_hash: [1; 32], ttl: HOUR };
        WriteContext { once: Some(claim), ..system() }
    };
    for scope in ["user:1", "user:2"] {
        let run = new_run(task.id);
        let outcome = stores.runs.trigger(&scoped(scope), &run).await.unwrap();
        assert_eq!(outcome, Written::Now(TriggerOutcome::Created(run.id)));
        assert_eq!(stores.runs.trigger(&scoped(scope), &new_run(task.id)).await.unwrap(), replayed(run.id.as_uuid()));
    }
}

pub(crate) async fn a_refusal_keeps_no_claim(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let taken = create(&stores, &spec("taken", |_| {})).await;
    let context = once("k", 1, HOUR);
    let outcome = stores.tasks.create(&context, TaskId::new(), &taken.spec).await.unwrap();
    assert_eq!(outcome, Written::Now(TaskCreateOutcome::NameTaken(taken.id)));
    let bad = spec("bad", |spec| spec.max_attempts = 0);
    let outcome = stores.tasks.create(&context, TaskId::new(), &bad).await.unwrap();
    assert!(matches!(outcome, Written::Now(TaskCreateOutcome::Refused(_))));
    let outcome = stores.runs.trigger(&context, &new_run(TaskId::new())).await.unwrap();
    assert_eq!(outcome, Written::Now(TriggerOutcome::TaskNotFound));

    let id = TaskId::new();
    let outcome = stores.tasks.create(&once("k", 2, HOUR), id, &spec("free", |_| {})).await.unwrap();
    assert!(matches!(outcome, Written::Now(TaskCreateOutcome::Created(_))), "the key is still free: {outcome:?}");
}

pub(crate) async fn an_expired_claim_is_overwritten(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("once", |_| {})).await;
    let first = new_run(task.id);
    let outcome = stores.runs.trigger(&once("k", 1, Span::from_millis(50)), &first).await.unwrap();
    assert_eq!(outcome, Written::Now(TriggerOutcome::Created(first.id)));
    let context = once("k", 2, HOUR);
    let second = eventually(async || {
        let run = new_run(task.id);
        match stores.runs.trigger(&context, &run).await.unwrap() {
            Written::Now(outcome) => Ok((run.id, outcome)),
            other => Err(other),
        }
    })
    .await;
    assert_eq!(second.1, TriggerOutcome::Created(second.0));
    assert_eq!(stores.runs.trigger(&context, &new_run(task.id)).await.unwrap(), replayed(second.0.as_uuid()));
}

pub(crate) async fn sweep_forgets_expired_claims_only(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("once", |_| {})).await;
    for key in ["a", "b", "c"] {
        stores.runs.trigger(&once(key, 1, Span::from_millis(1)), &new_run(task.id)).await.unwrap();
    }
    let kept = new_run(task.id);
    stores.runs.trigger(&once("kept", 1, HOUR), &kept).await.unwrap();
    let mut swept = 0;
    while swept < 3 {
        let more = until(async || stores.once.sweep(2).await.unwrap(), |deleted| *deleted > 0).await;
        assert!(more <= 2);
        swept += more;
    }
    assert_eq!((swept, stores.once.sweep(10).await.unwrap()), (3, 0));
    let again = stores.runs.trigger(&once("kept", 1, HOUR), &new_run(task.id)).await.unwrap();
    assert_eq!(again, replayed(kept.id.as_uuid()));
}

pub(crate) async fn every_write_takes_an_audit_entry(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let audit = AuditEntry {
        action: "test.write",
        subject: "line\u{7}break\u{1b}[0m".to_owned(),
        before: Some(json(r#"{"a":"\u0000"}"#)),
        after: Some(json(r#""\ud800""#)),
    };
    let context = || WriteContext { audit: Some(audit.clone()), ..system() };
    let spec = spec("audited", |_| {});
    let outcome = now(stores.tasks.create(&context(), TaskId::new(), &spec).await.unwrap());
    let TaskCreateOutcome::Created(task) = outcome else { panic!("not created: {outcome:?}") };
    let outcome = stores.tasks.update(&context(), task.id, 1, &spec).await.unwrap();
    assert_eq!(outcome, TaskUpdateOutcome::Updated(task.clone()));
    let paused = stores.tasks.set_active(&context(), task.id, false).await.unwrap();
    assert!(paused.is_some_and(|task| !task.spec.is_active));

    let run = new_run(task.id);
    let outcome = stores.runs.trigger(&context(), &run).await.unwrap();
    assert_eq!(outcome, Written::Now(TriggerOutcome::Created(run.id)));
    assert_eq!(stores.runs.cancel(&context(), run.id).await.unwrap(), CancelOutcome::Cancelled);
    assert_eq!(stores.runs.retry(&context(), run.id).await.unwrap(), RetryOutcome::Queued);
    trigger(&stores, new_run(task.id)).await;
    assert!(stores.tasks.delete(&context(), task.id).await.unwrap());

    let room = new_room("audited");
    let outcome = now(stores.rooms.create(&context(), &room).await.unwrap());
    assert!(matches!(outcome, RoomCreateOutcome::Created(_)));
    assert!(stores.rooms.delete(&context(), &room.name).await.unwrap());
    stores.tickets.issue(&context(), &new_ticket("a", LONG)).await.unwrap();
    let key = now(stores.api_keys.create(&context(), &new_api_key("audited")).await.unwrap());
    assert!(stores.api_keys.revoke(&context(), key.id).await.unwrap());
    let value = FleetSettings { pause_all: true, ..FleetSettings::default() };
    assert_eq!(stores.settings.put_fleet(&context(), 0, &value).await.unwrap(), PutOutcome::Written(1));
    stores.instances.register(&new_instance("one", &Role::ALL), LONG).await.unwrap();
}

pub(crate) async fn a_lost_race_on_a_name_leaves_no_signal(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("taken", |_| {})).await;
    stores.rooms.create(&system(), &new_room("taken")).await.unwrap();
    let mut reader = Reader::start(&stores).await;
    stores.tasks.create(&system(), TaskId::new(), &task.spec).await.unwrap();
    stores.rooms.create(&system(), &new_room("taken")).await.unwrap();
    stores.tasks.update(&system(), task.id, 9, &task.spec).await.unwrap();
    let noise: Vec<_> = reader.changes().await;
    assert_eq!(noise, Vec::<(SignalKind, String)>::new());
}
