//! What a write carries to happen once; its audit entry has a module of its own.

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::TaskId;
use switchboard_model::run::RunState;
use switchboard_model::span::Span;
use switchboard_model::user::NewUser;
use switchboard_model::webhook::WEBHOOK_SECRETS;
use switchboard_store_api::{
    OnceClaim, RoomCreateOutcome, TaskCreateOutcome, TriggerOutcome, UserCreateOutcome, WebhookSecretOutcome,
    WriteContext, Written,
};

use crate::Backend;
use crate::accounts::{burned, create_user, new_api_key, new_secret, new_ticket, new_user, user};
use crate::fixtures::{
    ALL, HOUR, LONG, Reader, create, eventually, in_state, json, new_room, new_run, now, once, replayed, spec, system,
    until,
};

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

pub(crate) async fn repeated_users_and_secrets_are_replayed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let id = uuid::Uuid::now_v7();
    let ann = NewUser { id: user(&id.to_string()), ..new_user("ann") };
    let outcome = now(stores.users.create(&once("user", 1, HOUR), &ann).await.unwrap());
    let UserCreateOutcome::Created(made) = outcome else { panic!("not made: {outcome:?}") };
    for again in [&ann, &new_user("bob")] {
        assert_eq!(stores.users.create(&once("user", 1, HOUR), again).await.unwrap(), replayed(id));
    }
    let mismatch = stores.users.create(&once("user", 2, HOUR), &new_user("bob")).await.unwrap();
    assert_eq!(mismatch, Written::Mismatch);
    assert_eq!(stores.users.list(&ALL).await.unwrap().items, [made]);

    let foreign = NewUser { id: user("auth0|7"), ..new_user("carl") };
    stores.users.create(&once("foreign", 1, HOUR), &foreign).await.unwrap();
    let Written::Replayed(first) = stores.users.create(&once("foreign", 1, HOUR), &foreign).await.unwrap() else {
        panic!("a replay expected")
    };
    assert_eq!(first.result, Some(json(r#""auth0|7""#)), "an identity that is no UUID is remembered as text");
    let again = stores.users.create(&once("foreign", 1, HOUR), &foreign).await.unwrap();
    assert_eq!(again, Written::Replayed(first));

    let task = create(&stores, &spec("hooked", |_| {})).await.id;
    let secret = new_secret(task);
    let outcome = now(stores.webhooks.add(&once("secret", 1, HOUR), &secret).await.unwrap());
    let WebhookSecretOutcome::Added(made) = outcome else { panic!("not added: {outcome:?}") };
    let again = stores.webhooks.add(&once("secret", 1, HOUR), &new_secret(task)).await.unwrap();
    assert_eq!(again, replayed(secret.id.as_uuid()));
    let mismatch = stores.webhooks.add(&once("secret", 2, HOUR), &new_secret(task)).await.unwrap();
    assert_eq!(mismatch, Written::Mismatch);
    assert_eq!(stores.webhooks.list(task).await.unwrap(), [made]);
}

pub(crate) async fn a_repeated_ticket_is_not_shown_again(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let [first, second] = [new_ticket("first", LONG), new_ticket("second", LONG)];
    let issue = async |body, ticket| stores.tickets.issue(&once("k", body, HOUR), ticket).await.unwrap();
    now(issue(1, &first).await);
    let Written::Replayed(record) = issue(1, &second).await else { panic!("a replay expected") };
    assert_eq!(record.result, None);
    assert_eq!(issue(2, &second).await, Written::Mismatch);
    assert_eq!(burned(&stores, &["first", "second"]).await, ["first"]);
    assert_eq!(issue(1, &first).await, Written::Replayed(record), "also after the ticket was used");
    assert_eq!(burned(&stores, &["first"]).await, [""; 0]);
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

    let ann = create_user(&stores, "ann").await;
    let outcome = stores.users.create(&context, &new_user("ann")).await.unwrap();
    assert_eq!(outcome, Written::Now(UserCreateOutcome::Taken(ann.id)));
    let outcome = stores.webhooks.add(&context, &new_secret(TaskId::new())).await.unwrap();
    assert_eq!(outcome, Written::Now(WebhookSecretOutcome::TaskNotFound));
    for _ in 0..WEBHOOK_SECRETS {
        stores.webhooks.add(&system(), &new_secret(taken.id)).await.unwrap();
    }
    let outcome = stores.webhooks.add(&context, &new_secret(taken.id)).await.unwrap();
    assert_eq!(outcome, Written::Now(WebhookSecretOutcome::TooMany));

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
