//! The change feed: which write leaves which signal, folding, resync and what is due next.

use switchboard_model::feed::{FeedCursor, ListenerMode, NextDue, Signal, SignalKind, TickRequest};
use switchboard_model::ids::{ApiKeyId, SessionId};
use switchboard_model::instance::Role;
use switchboard_model::run::{Ending, NewRun};
use switchboard_model::setting::FleetSettings;
use switchboard_model::span::Span;
use switchboard_model::task::{Concurrency, Overlap};
use switchboard_store_api::{PasswordChange, RefreshOutcome};

use crate::Backend;
use crate::accounts::{create_user, disable, new_api_key, phc, refresh, refreshed, sign_in, user};
use crate::fixtures::{
    LONG, Reader, SHORT, append, create, create_room, event, every, expire, finish, json, lease_one, named,
    new_instance, new_room, new_run, plan, replicas, request, run, scheduled, spec, system, task, trigger, triggered,
    until,
};

fn ephemeral(key: &str, body: &str) -> Signal {
    Signal { kind: SignalKind::Ephemeral, key: key.to_owned(), pos: 0, body: Some(json(body)) }
}

fn queued() -> (SignalKind, String) {
    (SignalKind::PoolQueued, "default".to_owned())
}

pub(crate) async fn a_first_tick_and_a_foreign_cursor_ask_for_a_resync(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_room(&stores, &new_room("old")).await;
    let foreign = FeedCursor("of another database".to_owned());
    for cursor in [None, Some(&foreign)] {
        let tick = stores.feed.tick(cursor, &TickRequest::default()).await.unwrap();
        assert!(tick.resync);
        assert_eq!(tick.signals, []);

        let next = stores.feed.tick(Some(&tick.cursor), &TickRequest::default()).await.unwrap();
        assert!(!next.resync, "its cursor starts anew");
        assert_eq!(next.signals, []);
        assert!(next.now >= tick.now);
    }
}

pub(crate) async fn a_tick_from_the_same_cursor_reads_the_same(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let start = stores.feed.tick(None, &TickRequest::default()).await.unwrap().cursor;
    stores.feed.emit(&[ephemeral("a", "1")]).await.unwrap();
    let read = async || stores.feed.tick(Some(&start), &TickRequest::default()).await.unwrap().signals;
    let first = until(&read, |signals| !signals.is_empty()).await;
    assert_eq!(first, [ephemeral("a", "1")]);
    assert_eq!(read().await, first, "nothing is consumed by reading");
}

pub(crate) async fn signals_without_a_body_are_folded(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_room(&stores, &new_room("a")).await;
    create_room(&stores, &new_room("b")).await;
    let mut reader = Reader::start(&stores).await;
    append(&stores, &[event("a", "1"), event("b", "1"), event("a", "2")]).await;
    let start = stores.feed.tick(None, &TickRequest::default()).await.unwrap().cursor;
    append(&stores, &[event("a", "3")]).await;
    append(&stores, &[event("a", "4")]).await;
    let tops = |signals: &[Signal]| {
        let mut tops: Vec<_> = signals.iter().map(|signal| (signal.kind, signal.key.clone(), signal.pos)).collect();
        tops.sort();
        tops
    };
    let a = (SignalKind::RoomEvents, "a".to_owned(), 4);
    let late = until(
        async || tops(&stores.feed.tick(Some(&start), &TickRequest::default()).await.unwrap().signals),
        |tops| tops.first().is_some_and(|top| top.2 == 4),
    )
    .await;
    assert_eq!(late, std::slice::from_ref(&a));
    let signals = reader.tick().await.signals;
    assert_eq!(tops(&signals), [a, (SignalKind::RoomEvents, "b".to_owned(), 1)]);
}

pub(crate) async fn signals_with_a_body_come_one_by_one_in_order(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut reader = Reader::start(&stores).await;
    let mut expected = Vec::new();
    for n in 0..20 {
        let batch = [ephemeral("a", &format!("[{n}]")), ephemeral("b", &format!("[{n}]"))];
        stores.feed.emit(&batch).await.unwrap();
        expected.extend(batch);
    }
    assert_eq!(reader.signals().await, expected);
    stores.feed.emit(&[]).await.unwrap();
    assert_eq!(reader.signals().await, []);
}

pub(crate) async fn every_replica_reads_every_signal(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    let mut readers = Vec::new();
    for stores in &stores {
        readers.push(Reader::start(stores).await);
    }
    for (n, stores) in stores.iter().enumerate() {
        stores.feed.emit(&[ephemeral("a", &n.to_string())]).await.unwrap();
    }
    for reader in &mut readers {
        let found = reader.signals().await;
        let ours: Vec<_> = found.into_iter().filter(|signal| signal.key == "a").collect();
        assert_eq!(ours, ["0", "1", "2"].map(|body| ephemeral("a", body)));
    }
}

pub(crate) async fn task_writes_signal_the_task(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut reader = Reader::start(&stores).await;
    let made = create(&stores, &scheduled("task", |_| {})).await;
    let changed = [(SignalKind::TaskChanged, made.id.to_string())];
    assert_eq!(reader.changes().await, changed);
    let edit = scheduled("task", |spec| spec.priority = 1);
    stores.tasks.update(&system(), made.id, 1, &edit).await.unwrap();
    assert_eq!(reader.changes().await, changed);
    for active in [false, true] {
        stores.tasks.set_active(&system(), made.id, active).await.unwrap();
        assert_eq!(reader.changes().await, changed);
    }
    stores.tasks.delete(&system(), made.id).await.unwrap();
    assert_eq!(reader.changes().await, changed);
}

pub(crate) async fn runs_that_become_ready_signal_their_pool(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let made = create(&stores, &scheduled("task", |_| {})).await;
    let mut reader = Reader::start(&stores).await;
    trigger(&stores, new_run(made.id)).await;
    assert_eq!(reader.changes().await, [queued()], "a trigger");

    let leased = lease_one(&stores, SHORT).await;
    expire(&stores, leased.id).await;
    assert_eq!(reader.changes().await, [], "a lease signals nobody");
    stores.runs.recover(10).await.unwrap();
    assert_eq!(reader.changes().await, [queued()], "a recovery");

    let leased = lease_one(&stores, LONG).await;
    finish(&stores, &leased, Ending::Released).await;
    assert_eq!(reader.changes().await, [queued()], "a release");

    let leased = lease_one(&stores, LONG).await;
    finish(&stores, &leased, Ending::Retry { error: "no".to_owned(), delay: Span::from_millis(20) }).await;
    reader.changes().await;
    until(|| async { stores.runs.promote(10).await.unwrap().due }, |due| *due == 1).await;
    assert_eq!(reader.changes().await, [queued()], "a promotion");

    let leased = lease_one(&stores, LONG).await;
    finish(&stores, &leased, Ending::Failed("no".to_owned())).await;
    assert_eq!(reader.changes().await, []);
    stores.runs.retry(&system(), leased.id).await.unwrap();
    assert_eq!(reader.changes().await, [queued()], "a retry");

    let armed = task(&stores, made.id).await;
    stores.tasks.fire(&[plan(&armed, 0, 5)]).await.unwrap();
    assert!(reader.changes().await.contains(&queued()), "a firing");
}

pub(crate) async fn a_freed_permit_signals_the_pool_of_the_promoted_run(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let limited = |name, pool: &str| {
        spec(name, |spec| {
            spec.concurrency = Some(Concurrency { key: "k".parse().unwrap(), max: 1 });
            spec.pool = pool.parse().unwrap();
        })
    };
    triggered(&stores, &limited("holder", "default"), 1).await;
    let held = lease_one(&stores, LONG).await;
    triggered(&stores, &limited("waiter", "other"), 1).await;
    let mut request = request(10, LONG);
    request.pools = vec!["other".parse().unwrap()];
    until(async || stores.runs.lease(&request).await.unwrap(), |batch| !batch.again).await;
    let mut reader = Reader::start(&stores).await;
    finish(&stores, &held, Ending::Succeeded(None)).await;
    assert_eq!(reader.changes().await, [(SignalKind::PoolQueued, "other".to_owned())]);
}

pub(crate) async fn a_request_to_cancel_signals_the_run(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let replaced = create(&stores, &scheduled("replaced", |spec| spec.overlap = Overlap::Replace)).await;
    trigger(&stores, new_run(replaced.id)).await;
    let leased = lease_one(&stores, LONG).await;
    let mut reader = Reader::start(&stores).await;
    let asked = (SignalKind::RunCancelled, leased.id.to_string());
    stores.runs.cancel(&system(), leased.id).await.unwrap();
    assert_eq!(reader.changes().await, [asked]);

    finish(&stores, &leased, Ending::Cancelled).await;
    trigger(&stores, new_run(replaced.id)).await;
    let leased = lease_one(&stores, LONG).await;
    reader.changes().await;
    stores.tasks.fire(&[plan(&task(&stores, replaced.id).await, 0, 1)]).await.unwrap();
    let changes = reader.changes().await;
    assert!(changes.contains(&(SignalKind::RunCancelled, leased.id.to_string())), "replaced: {changes:?}");
}

pub(crate) async fn room_writes_signal_the_room(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut reader = Reader::start(&stores).await;
    create_room(&stores, &new_room("a")).await;
    let changed = (SignalKind::RoomChanged, "a".to_owned());
    assert_eq!(reader.changes().await, std::slice::from_ref(&changed));
    append(&stores, &[event("a", "1"), event("a", "2")]).await;
    let found = reader.signals().await;
    assert_eq!(found, [Signal { kind: SignalKind::RoomEvents, key: "a".to_owned(), pos: 2, body: None }]);
    stores.rooms.append(&[event("missing", "1")]).await.unwrap();
    assert_eq!(reader.signals().await, [], "a refused event is no change");
    stores.rooms.delete(&system(), &named("a")).await.unwrap();
    assert!(reader.changes().await.contains(&changed));
}

pub(crate) async fn administration_signals_what_it_changed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut reader = Reader::start(&stores).await;
    stores.settings.put_fleet(&system(), 0, &FleetSettings::default()).await.unwrap();
    assert_eq!(reader.changes().await, [(SignalKind::SettingChanged, "fleet".to_owned())]);
    stores.settings.put_fleet(&system(), 0, &FleetSettings::default()).await.unwrap();
    assert_eq!(reader.changes().await, [], "a lost compare-and-set is no change");

    let key = new_api_key("ci");
    stores.api_keys.create(&system(), &key).await.unwrap();
    reader.changes().await;
    assert!(stores.api_keys.revoke(&system(), key.id).await.unwrap());
    assert_eq!(reader.changes().await, [(SignalKind::ApiKeyRevoked, key.id.to_string())]);
    assert!(!stores.api_keys.revoke(&system(), ApiKeyId::new()).await.unwrap());
    assert_eq!(reader.changes().await, []);

    let instance = new_instance("one", &[Role::Api]);
    let changed = [(SignalKind::InstanceChanged, instance.id.to_string())];
    stores.instances.register(&instance, LONG).await.unwrap();
    assert_eq!(reader.changes().await, changed);
    stores.instances.deregister(&instance.id).await.unwrap();
    assert_eq!(reader.changes().await, changed);
    let lost = new_instance("two", &[Role::Api]);
    stores.instances.register(&lost, SHORT).await.unwrap();
    reader.changes().await;
    until(async || stores.instances.sweep().await.unwrap(), |swept| !swept.is_empty()).await;
    assert_eq!(reader.changes().await, [(SignalKind::InstanceChanged, lost.id.to_string())]);
}

pub(crate) async fn only_what_ends_before_its_time_is_signalled_as_revoked(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut reader = Reader::start(&stores).await;
    let session = |id: SessionId| (SignalKind::SessionRevoked, id.to_string());
    create_user(&stores, "ann").await;
    let [first, second] = [sign_in(&stores, "ann", "t1").await.id, sign_in(&stores, "ann", "u1").await.id];
    refreshed(&stores, "t1", "t2").await;
    refreshed(&stores, "t2", "t3").await;
    assert_eq!(reader.changes().await, []);
    assert!(matches!(refresh(&stores, "t1", "t2").await, RefreshOutcome::Reused(_)));
    assert_eq!(reader.changes().await, [session(first)]);
    stores.auth_sessions.end(&system(), &user("ann"), second).await.unwrap();
    assert_eq!(reader.changes().await, [session(second)]);
    let third = sign_in(&stores, "ann", "v1").await.id;
    stores.auth_sessions.end_all(&system(), &user("ann"), None).await.unwrap();
    assert_eq!(reader.changes().await, [session(third)]);
    let fourth = sign_in(&stores, "ann", "w1").await.id;
    stores.users.set_password(&system(), &user("ann"), &PasswordChange::to(phc("new"))).await.unwrap();
    assert_eq!(reader.changes().await, [session(fourth)]);
    disable(&stores, "ann").await;
    let revoked = [(SignalKind::UserRevoked, "ann".to_owned())];
    assert_eq!(reader.changes().await, revoked);
    stores.users.delete(&system(), &user("ann")).await.unwrap();
    assert_eq!(reader.changes().await, revoked, "also when the user was disabled before");
}

pub(crate) async fn next_due_is_nothing_in_an_empty_database(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let tick = stores.feed.tick(None, &TickRequest::default()).await.unwrap();
    assert_eq!(tick.next, NextDue::default());
}

pub(crate) async fn next_due_names_the_earliest_of_each_kind(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let next = async || stores.feed.tick(None, &TickRequest::default()).await.unwrap().next;
    let late = create(&stores, &scheduled("late", |_| {})).await;
    let wanted = spec("early", |spec| spec.schedule = every(Span::from_secs(86_400)));
    let early = create(&stores, &wanted).await;
    assert!(early.next_run_at < late.next_run_at);
    assert_eq!(next().await.task, early.next_run_at);
    stores.tasks.set_active(&system(), early.id, false).await.unwrap();
    assert_eq!(next().await.task, late.next_run_at);
    stores.tasks.delete(&system(), late.id).await.unwrap();
    assert_eq!(next().await.task, None);

    let target = create(&stores, &spec("target", |_| {})).await;
    trigger(&stores, NewRun { delay: LONG, ..new_run(target.id) }).await;
    let sooner = trigger(&stores, NewRun { delay: Span::from_secs(300), ..new_run(target.id) }).await;
    assert_eq!(next().await.scheduled_run, Some(run(&stores, sooner).await.run_at));

    trigger(&stores, new_run(target.id)).await;
    let leased = lease_one(&stores, LONG).await;
    assert_eq!(next().await.lease, run(&stores, leased.id).await.lease_until);
    finish(&stores, &leased, Ending::Succeeded(None)).await;
    assert_eq!(next().await.lease, None);

    if stores.capabilities.needs_instance_lease {
        stores.instances.register(&new_instance("later", &[Role::Api]), Span::from_secs(900)).await.unwrap();
        let sooner = new_instance("sooner", &[Role::Api]);
        stores.instances.register(&sooner, LONG).await.unwrap();
        let listed = stores.instances.list().await.unwrap();
        let expires_at = listed.iter().find(|instance| instance.id == sooner.id).unwrap().expires_at;
        assert_eq!(next().await.instance, Some(expires_at));
    }
}

pub(crate) async fn a_sweep_keeps_what_readers_may_still_need(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut reader = Reader::start(&stores).await;
    stores.feed.emit(&[ephemeral("a", "1")]).await.unwrap();
    assert_eq!(stores.feed.sweep(1_000).await.unwrap(), 0, "nothing is a minute old");
    assert_eq!(reader.signals().await, [ephemeral("a", "1")]);
}

pub(crate) async fn a_write_raises_a_hint_where_hints_arrive(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut hints = stores.feed.hints();
    stores.feed.ping().await.unwrap();
    if hints.mode() == ListenerMode::Polling {
        return;
    }
    stores.feed.emit(&[ephemeral("a", "1")]).await.unwrap();
    hints.changed().await;
}
