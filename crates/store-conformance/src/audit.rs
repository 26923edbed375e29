//! The audit log: what every administrative write leaves there, who finds it, and when it goes.

use std::sync::Arc;

use switchboard_model::audit::{AuditFilter, AuditOrder, AuditRecord};
use switchboard_model::identity::Actor;
use switchboard_model::ids::{ApiKeyId, RunId, SessionId, TaskId, WebhookSecretId};
use switchboard_model::json_text::JsonText;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::setting::FleetSettings;
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_model::user::{UserEdit, UserRole};
use switchboard_store_api::{
    AppendAnswer, AuditEntry, PasswordChange, PutOutcome, RefreshOutcome, Stores, TaskUpdateOutcome, TriggerOutcome,
    WriteContext, Written,
};

use crate::Backend;
use crate::accounts::{
    audit_actions, audit_log, audited, create_user, new_api_key, new_secret, new_session, new_ticket, new_user, phc,
    refreshed, sign_in, user,
};
use crate::fixtures::{
    ALL, HOUR, LONG, create, create_room, database_time, event, json, named, new_room, new_run, now, once, pages, spec,
    system, trigger, wait_past,
};

/// Writes entries of actors, actions and subjects, each with a room of its own.
async fn write(stores: &Stores, entries: &[(Actor, &'static str, &str)]) -> Vec<AuditRecord> {
    for (n, (actor, action, subject)) in entries.iter().enumerate() {
        let entry = AuditEntry { action, subject: (*subject).to_owned(), before: None, after: None };
        let context = WriteContext { actor: actor.clone(), audit: Some(entry), ..system() };
        stores.rooms.create(&context, &new_room(&format!("r{n}"))).await.unwrap();
    }
    let written = audit_log(stores).await;
    assert_eq!(written.len(), entries.len());
    written
}

/// Leaves one entry.
async fn leave_entry(stores: &Stores, n: usize) {
    stores.rooms.create(&audited("room.create"), &new_room(&format!("r{n}"))).await.unwrap();
}

/// Lists what a filter lets through, oldest first.
async fn found(stores: &Stores, filter: &AuditFilter) -> Vec<AuditRecord> {
    stores.audit.list(filter, AuditOrder::OldestFirst, &ALL).await.unwrap().items
}

pub(crate) async fn an_entry_reads_back_as_it_was_written(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let key = ApiKeyId::new();
    let actors = [Actor::User(user("auth0|7")), Actor::ApiKey(key), Actor::System("scheduler")];
    let names = ["user:auth0|7".to_owned(), format!("key:{key}"), "system:scheduler".to_owned()];
    let (before, after) = (json(r#"{"a":"\u0000", "n" : 1.0}"#), json(r#""\ud800""#));
    let start = database_time(&stores).await;
    for (n, actor) in actors.into_iter().enumerate() {
        let entry = AuditEntry {
            action: "room.create",
            subject: format!("é😀 {n}"),
            before: (n > 0).then(|| before.clone()),
            after: (n < 2).then(|| after.clone()),
        };
        let request_id = Arc::from(format!("request {n}"));
        let context = WriteContext { actor, request_id, once: None, audit: Some(entry) };
        stores.rooms.create(&context, &new_room(&format!("r{n}"))).await.unwrap();
    }
    let records = audit_log(&stores).await;
    assert_eq!(records.len(), 3);
    for (n, (record, name)) in records.iter().zip(names).enumerate() {
        assert!((start..=database_time(&stores).await).contains(&record.at));
        let expected = AuditRecord {
            id: record.id,
            at: record.at,
            actor: name,
            request_id: format!("request {n}"),
            action: "room.create".to_owned(),
            subject: format!("é😀 {n}"),
            before: (n > 0).then(|| before.clone()),
            after: (n < 2).then(|| after.clone()),
        };
        assert_eq!(*record, expected);
    }
    assert!(records.is_sorted_by(|a, b| a.id < b.id && a.at <= b.at), "later entries have greater ids");
}

pub(crate) async fn every_administrative_write_leaves_its_entry(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let spec = spec("audited", |_| {});
    let id = TaskId::new();
    stores.tasks.create(&audited("task.create"), id, &spec).await.unwrap();
    let edit = TaskSpec { priority: 1, ..spec };
    stores.tasks.update(&audited("task.edit"), id, 1, &edit).await.unwrap();
    stores.tasks.set_active(&audited("task.pause"), id, false).await.unwrap();
    let run = new_run(id);
    stores.runs.trigger(&audited("task.trigger"), &run).await.unwrap();
    stores.runs.cancel(&audited("run.cancel"), run.id).await.unwrap();
    stores.runs.retry(&audited("run.retry"), run.id).await.unwrap();
    let secret = new_secret(id);
    stores.webhooks.add(&audited("webhook.add"), &secret).await.unwrap();
    assert!(stores.webhooks.delete(&audited("webhook.delete"), id, secret.id).await.unwrap());
    assert!(stores.tasks.delete(&audited("task.delete"), id).await.unwrap());

    let room = new_room("audited");
    stores.rooms.create(&audited("room.create"), &room).await.unwrap();
    let answer: AppendAnswer = Arc::new(|_| JsonText::null());
    stores.rooms.append_once(&audited("room.append"), &[event("audited", "1")], &answer).await.unwrap();
    assert!(stores.rooms.delete(&audited("room.delete"), &room.name).await.unwrap());

    let key = now(stores.api_keys.create(&audited("key.create"), &new_api_key("audited")).await.unwrap());
    assert!(stores.api_keys.revoke(&audited("key.revoke"), key.id).await.unwrap());
    stores.tickets.issue(&audited("ticket.issue"), &new_ticket("a", LONG)).await.unwrap();
    let value = FleetSettings { pause_all: true, ..FleetSettings::default() };
    let put = stores.settings.put_fleet(&audited("setting.put"), 0, &value).await.unwrap();
    assert_eq!(put, PutOutcome::Written(1));

    let ann = user("ann");
    stores.users.create(&audited("user.create"), &new_user("ann")).await.unwrap();
    let first = new_session("ann", "t1");
    stores.auth_sessions.start(&audited("session.start"), &first).await.unwrap();
    assert!(stores.auth_sessions.end(&audited("session.end"), &ann, first.id).await.unwrap());
    sign_in(&stores, "ann", "t2").await;
    assert_eq!(stores.auth_sessions.end_all(&audited("session.end_all"), &ann, None).await.unwrap(), 1);
    let edit = UserEdit { role: UserRole::Admin, is_disabled: false };
    stores.users.update(&audited("user.edit"), &ann, 1, &edit).await.unwrap();
    assert!(stores.users.set_password(&audited("user.password"), &ann, &PasswordChange::to(phc("new"))).await.unwrap());
    assert!(stores.users.delete(&audited("user.delete"), &ann).await.unwrap());

    let expected = [
        "task.create",
        "task.edit",
        "task.pause",
        "task.trigger",
        "run.cancel",
        "run.retry",
        "webhook.add",
        "webhook.delete",
        "task.delete",
        "room.create",
        "room.append",
        "room.delete",
        "key.create",
        "key.revoke",
        "ticket.issue",
        "setting.put",
        "user.create",
        "session.start",
        "session.end",
        "session.end_all",
        "user.edit",
        "user.password",
        "user.delete",
    ];
    assert_eq!(audit_actions(&stores).await, expected);
}

pub(crate) async fn what_was_not_done_leaves_no_entry(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("there", |_| {})).await;
    let room = create_room(&stores, &new_room("there")).await;
    let ann = create_user(&stores, "ann").await;
    let context = || audited("refused");
    stores.tasks.create(&context(), TaskId::new(), &task.spec).await.unwrap();
    let bad = spec("bad", |spec| spec.max_attempts = 0);
    stores.tasks.create(&context(), TaskId::new(), &bad).await.unwrap();
    stores.tasks.update(&context(), task.id, 7, &bad).await.unwrap();
    let same = stores.tasks.update(&context(), task.id, 1, &task.spec).await.unwrap();
    assert_eq!(same, TaskUpdateOutcome::Updated(task.clone()), "nor does an edit without a change");
    stores.tasks.set_active(&context(), TaskId::new(), false).await.unwrap();
    stores.tasks.delete(&context(), TaskId::new()).await.unwrap();
    stores.runs.trigger(&context(), &new_run(TaskId::new())).await.unwrap();
    stores.runs.cancel(&context(), RunId::new()).await.unwrap();
    stores.runs.retry(&context(), RunId::new()).await.unwrap();
    stores.rooms.create(&context(), &new_room("there")).await.unwrap();
    stores.rooms.delete(&context(), &named("missing")).await.unwrap();
    stores.settings.put_fleet(&context(), 7, &FleetSettings::default()).await.unwrap();
    stores.api_keys.revoke(&context(), ApiKeyId::new()).await.unwrap();
    stores.users.create(&context(), &new_user("ann")).await.unwrap();
    let edit = UserEdit { role: UserRole::Admin, is_disabled: true };
    stores.users.update(&context(), &ann.id, 7, &edit).await.unwrap();
    stores.users.update(&context(), &user("nobody"), 1, &edit).await.unwrap();
    stores.users.set_password(&context(), &user("nobody"), &PasswordChange::to(phc("new"))).await.unwrap();
    stores.users.delete(&context(), &user("nobody")).await.unwrap();
    stores.auth_sessions.start(&context(), &new_session("nobody", "t")).await.unwrap();
    stores.auth_sessions.end(&context(), &ann.id, SessionId::new()).await.unwrap();
    stores.webhooks.add(&context(), &new_secret(TaskId::new())).await.unwrap();
    stores.webhooks.delete(&context(), task.id, WebhookSecretId::new()).await.unwrap();

    sign_in(&stores, "ann", "t1").await;
    refreshed(&stores, "t1", "t2").await;
    let [unknown, latest, next] = ["unknown", "t2", "t3"].map(SecretHash::of);
    let outcome = stores.auth_sessions.refresh(&context(), unknown, next, LONG).await.unwrap();
    assert_eq!(outcome, RefreshOutcome::Invalid);
    let outcome = stores.auth_sessions.refresh(&context(), latest, next, LONG).await.unwrap();
    assert!(matches!(outcome, RefreshOutcome::Refreshed(_)));
    assert_eq!(audit_actions(&stores).await, [""; 0]);

    let claimed = WriteContext { once: once("k", 1, HOUR).once, ..audited("once") };
    let made = stores.runs.trigger(&claimed, &new_run(task.id)).await.unwrap();
    assert!(matches!(made, Written::Now(TriggerOutcome::Created(_))));
    stores.runs.trigger(&claimed, &new_run(task.id)).await.unwrap();
    stores.runs.trigger(&WriteContext { once: once("k", 2, HOUR).once, ..claimed }, &new_run(task.id)).await.unwrap();
    trigger(&stores, new_run(task.id)).await;
    assert!(stores.rooms.delete(&system(), &room.name).await.unwrap());
    assert_eq!(audit_actions(&stores).await, ["once"], "a replay is no second write");
}

pub(crate) async fn entries_are_found_by_what_they_say(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let [ann, bob] = ["ann", "bob"].map(|name| Actor::User(user(name)));
    let entries = [
        (ann.clone(), "task.create", "a"),
        (bob.clone(), "task.edit", "a"),
        (ann.clone(), "task.edit", "b"),
        (ann.clone(), "tasks.create", "a"),
        (bob.clone(), "Task.create", "A"),
        (bob.clone(), "task", "%"),
        (ann.clone(), "t_sk.create", "_"),
        (ann, "room.create", "a"),
    ];
    let all = write(&stores, &entries).await;
    let check = async |filter: AuditFilter, expected: &[usize]| {
        let expected: Vec<_> = expected.iter().map(|n| all[*n].clone()).collect();
        assert_eq!(found(&stores, &filter).await, expected, "{filter:?}");
    };
    let none = AuditFilter::default;
    let text = |text: &str| Some(text.to_owned());
    check(none(), &[0, 1, 2, 3, 4, 5, 6, 7]).await;
    check(AuditFilter { actor: text("user:bob"), ..none() }, &[1, 4, 5]).await;
    check(AuditFilter { actor: text("user:BOB"), ..none() }, &[]).await;
    check(AuditFilter { action: text("task.edit"), ..none() }, &[1, 2]).await;
    check(AuditFilter { action: text("task."), ..none() }, &[0, 1, 2]).await;
    check(AuditFilter { action: text("t_sk."), ..none() }, &[6]).await;
    check(AuditFilter { action: text("%."), ..none() }, &[]).await;
    check(AuditFilter { action: text("task"), ..none() }, &[5]).await;
    check(AuditFilter { action: text("."), ..none() }, &[]).await;
    check(AuditFilter { subject: text("a"), ..none() }, &[0, 1, 3, 7]).await;
    check(AuditFilter { subject: text("%"), ..none() }, &[5]).await;
    check(AuditFilter { subject: text(""), ..none() }, &[]).await;
    let narrow = AuditFilter { actor: text("user:ann"), action: text("task."), subject: text("a"), ..none() };
    check(narrow, &[0]).await;
}

pub(crate) async fn entries_are_found_by_their_time(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut all = Vec::new();
    for n in 0..4 {
        leave_entry(&stores, n).await;
        all = audit_log(&stores).await;
        wait_past(&stores, all[n].at).await;
    }
    let within = async |from: Option<usize>, to: Option<usize>| {
        let at = |n: Option<usize>| n.map(|n| all[n].at);
        found(&stores, &AuditFilter { from: at(from), to: at(to), ..AuditFilter::default() }).await
    };
    assert_eq!(within(Some(1), None).await, all[1..], "from an instant on, that one included");
    assert_eq!(within(None, Some(2)).await, all[..2], "up to an instant, that one excluded");
    assert_eq!(within(Some(1), Some(3)).await, all[1..3]);
    assert_eq!(within(Some(2), Some(2)).await, []);
    let late = AuditFilter { from: Some(database_time(&stores).await), ..AuditFilter::default() };
    assert_eq!(found(&stores, &late).await, []);
}

pub(crate) async fn pages_go_both_ways(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let entries: Vec<_> =
        (0..9).map(|n| (Actor::System("tests"), ["a.x", "b.x", "a.y"][n % 3], ["even", "odd"][n % 2])).collect();
    let mut all = write(&stores, &entries).await;
    let listed = async |filter: &AuditFilter, order, limit| {
        pages(limit, async |page| stores.audit.list(filter, order, &page).await).await
    };
    let filter = AuditFilter { action: Some("a.".to_owned()), ..AuditFilter::default() };
    let passes = |record: &AuditRecord| record.action.starts_with("a.");
    for order in [AuditOrder::OldestFirst, AuditOrder::NewestFirst] {
        for limit in [1, 2, 3, 9, 100] {
            assert_eq!(listed(&AuditFilter::default(), order, limit).await, all);
            let some: Vec<_> = all.iter().filter(|record| passes(record)).cloned().collect();
            assert_eq!(listed(&filter, order, limit).await, some);
        }
        all.reverse();
    }
}

pub(crate) async fn sweep_deletes_old_entries_in_batches(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for n in 0..5 {
        leave_entry(&stores, n).await;
    }
    wait_past(&stores, audit_log(&stores).await[4].at).await;
    assert_eq!(stores.audit.sweep(LONG, 10).await.unwrap(), 0, "nothing is that old");
    assert_eq!(stores.audit.sweep(Span::MAX, 10).await.unwrap(), 0);
    for expected in [3, 2, 0] {
        assert_eq!(stores.audit.sweep(Span::default(), 3).await.unwrap(), expected);
    }
    assert_eq!(audit_log(&stores).await, []);
    leave_entry(&stores, 9).await;
    assert_eq!(audit_log(&stores).await.len(), 1);
}
