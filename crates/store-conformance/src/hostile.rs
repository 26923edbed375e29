//! Input that breaks lesser stores: escapes, control characters, counters beyond 32 bits, ages.

use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::audit::{AuditFilter, AuditOrder};
use switchboard_model::auth_session::NewAuthSession;
use switchboard_model::feed::{Signal, SignalKind};
use switchboard_model::ids::{RunId, SessionId};
use switchboard_model::limit::Rate;
use switchboard_model::page::PageRequest;
use switchboard_model::room::{NewRoom, Retention};
use switchboard_model::run::{ERROR_CHARS, Ending, NewRun, RunState, SkipCause, SkipRange};
use switchboard_model::span::Span;
use switchboard_model::task::{Action, Backoff, Concurrency, EventAction, EventTarget};
use switchboard_model::ticket::{Grants, NewTicket};
use switchboard_model::user::NewUser;
use switchboard_store_api::{
    AppendOutcome, AuditEntry, FinishOutcome, FireReport, LimitTake, PromoteReport, RoomCreateOutcome, RunFilter,
    StoreError, UserCreateOutcome, WriteContext,
};

use crate::Backend;
use crate::accounts::{
    audit_log, create_user, is_valid, issue, new_api_key, new_session, new_ticket, new_user, sessions, user,
};
use crate::fixtures::{
    ALL, LONG, Reader, append, create, create_room, event, every, finish, json, lease, lease_one, named, new_room,
    new_run, now, occurrence, pages, plan, run, scheduled, spec, system, task, trigger, triggered,
};

/// Valid JSON that must come back byte for byte.
const TEXTS: [&str; 6] = [
    r#"{"nul":"\u0000","high":"\ud800","low":"\udc00x"}"#,
    "[ 1.0e5 ,\n\t-0, 12345678901234567890123, 1E400 ]",
    "\"\u{7f}\u{85}\u{2028}\u{feff}é😀\"",
    r#"{"a":1,"a":2,"":null}"#,
    r#""'; DROP TABLE runs; -- $1 ?1 :a @b""#,
    "0",
];

const CENTURIES: Span = Span::from_secs(300 * 365 * 86_400);

pub(crate) async fn payloads_come_back_byte_for_byte(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_room(&stores, &new_room("a")).await;
    let outcomes = stores.rooms.append(&TEXTS.map(|text| event("a", text))).await.unwrap();
    for (text, outcome) in TEXTS.iter().zip(&outcomes) {
        let AppendOutcome::Appended { event, .. } = outcome else { panic!("not appended: {outcome:?}") };
        assert_eq!(event.payload.as_str(), *text);
    }
    let page = stores.rooms.history(&named("a"), 0, 10).await.unwrap().unwrap();
    assert_eq!(page.events.iter().map(|event| event.payload.as_str()).collect::<Vec<_>>(), TEXTS);

    let mut reader = Reader::start(&stores).await;
    let signals =
        TEXTS.map(|text| Signal { kind: SignalKind::Ephemeral, key: "a".to_owned(), pos: 0, body: Some(json(text)) });
    stores.feed.emit(&signals).await.unwrap();
    assert_eq!(reader.signals().await, signals);
}

pub(crate) async fn inputs_and_results_come_back_byte_for_byte(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("hostile", |_| {})).await;
    for text in TEXTS {
        trigger(&stores, NewRun { input: Some(json(text)), ..new_run(task.id) }).await;
    }
    for (text, leased) in TEXTS.iter().zip(lease(&stores, 10, LONG).await) {
        assert_eq!(leased.input.as_ref().unwrap().as_str(), *text);
        finish(&stores, &leased, Ending::Succeeded(leased.input.clone())).await;
        let run = run(&stores, leased.id).await;
        assert_eq!((run.input.unwrap().as_str(), run.result.unwrap().as_str()), (*text, *text));
    }
}

pub(crate) async fn payloads_of_actions_come_back_byte_for_byte(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for (n, text) in TEXTS.iter().enumerate() {
        let event = EventAction {
            to: EventTarget::Room(named("lobby")),
            event: "note".parse().unwrap(),
            payload: Some(json(text)),
        };
        let made = create(&stores, &spec(&format!("t{n}"), |spec| spec.action = Action::Event(event.clone()))).await;
        assert_eq!(made.spec.action, Action::Event(event.clone()));
        assert_eq!(task(&stores, made.id).await.spec.action, Action::Event(event.clone()));
        trigger(&stores, new_run(made.id)).await;
        assert_eq!(lease_one(&stores, LONG).await.action, Action::Event(event));
    }
}

pub(crate) async fn error_texts_are_cleaned_and_bounded(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("failing", |_| {}), 3).await;
    let leased = lease(&stores, 10, LONG).await;
    let text = "nul \u{0} bell \u{7}\nnext \u{1b}[31m \u{9f} é😀";
    let retry = Ending::Retry { error: text.to_owned(), delay: LONG };
    finish(&stores, &leased[0], Ending::Failed(text.to_owned())).await;
    finish(&stores, &leased[1], retry).await;
    finish(&stores, &leased[2], Ending::Failed("é".repeat(ERROR_CHARS + 1))).await;
    let clean = "nul   bell   next  [31m   é😀";
    assert_eq!(run(&stores, leased[0].id).await.error.as_deref(), Some(clean));
    assert_eq!(run(&stores, leased[1].id).await.error.as_deref(), Some(clean));
    assert_eq!(run(&stores, leased[2].id).await.error, Some("é".repeat(ERROR_CHARS)));
}

pub(crate) async fn counters_go_beyond_32_bits(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let large = (1_i64 << 40) + 1;
    let retention = Retention { max_count: large, max_age: Span::MAX, max_bytes: i64::MAX };
    let room = create_room(&stores, &NewRoom { retention: retention.clone(), ..new_room("a") }).await;
    assert_eq!(room.retention, retention);
    append(&stores, &[event("a", "1")]).await;
    assert_eq!(stores.rooms.sweep(10).await.unwrap(), 0);
    assert_eq!(stores.rooms.find(&room.name).await.unwrap().unwrap().retention, retention);
    let ahead = stores.rooms.history(&room.name, i64::MAX, 10).await.unwrap().unwrap();
    assert_eq!((ahead.top, ahead.events), (1, vec![]));

    let mut reader = Reader::start(&stores).await;
    let signal = Signal { kind: SignalKind::RoomEvents, key: "a".to_owned(), pos: i64::MAX, body: None };
    stores.feed.emit(std::slice::from_ref(&signal)).await.unwrap();
    assert_eq!(reader.signals().await, [signal]);

    let skipping = create(&stores, &scheduled("skipping", |_| {})).await;
    let skip = SkipRange {
        from: "1750-01-01T00:00:00.000001Z".parse().unwrap(),
        to: occurrence(0),
        count: large.unsigned_abs(),
        cause: SkipCause::Missed,
    };
    let mut plan = plan(&skipping, 1, 1);
    plan.skips.push(skip.clone());
    let report = stores.tasks.fire(&[plan]).await.unwrap();
    assert_eq!(report, FireReport { fired: 1, lost: 0, runs: 1, skipped: skip.count });
    assert_eq!(stores.tasks.skips(skipping.id, &ALL).await.unwrap().items, [skip]);
}

pub(crate) async fn a_run_may_have_a_million_attempts(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = spec("patient", |spec| {
        spec.max_attempts = 1_000_000;
        spec.queue_max = 1_000;
        spec.concurrency = Some(Concurrency { key: "k".parse().unwrap(), max: 2_000_000_000 });
        spec.priority = i16::MIN;
        spec.timeout = Some(Span::MAX);
        spec.backoff = Backoff { base: Span::MAX, cap: Span::MAX, jitter: 1.0 };
    });
    let ids = triggered(&stores, &wanted, 1).await;
    let leased = lease_one(&stores, LONG).await;
    assert_eq!((leased.attempt, leased.max_attempts, leased.timeout), (1, 1_000_000, Some(Span::MAX)));
    assert_eq!(leased.backoff, wanted.backoff);
    let leased = run(&stores, ids[0]).await;
    assert_eq!((leased.max_attempts, leased.priority), (1_000_000, i16::MIN));
    assert_eq!(leased.deadline_at, Some(leased.started_at.unwrap() + Span::MAX.to_delta()));
}

pub(crate) async fn centuries_of_delay_are_kept(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("patient", |_| {})).await;
    let delayed = trigger(&stores, NewRun { delay: CENTURIES, ..new_run(task.id) }).await;
    let found = run(&stores, delayed).await;
    assert_eq!((found.state, found.run_at), (RunState::Scheduled, found.created_at + CENTURIES.to_delta()));

    trigger(&stores, new_run(task.id)).await;
    let leased = lease_one(&stores, CENTURIES).await;
    let until = run(&stores, leased.id).await.lease_until;
    assert_eq!(until, Some(leased.leased_at + CENTURIES.to_delta()));
    let retry = Ending::Retry { error: "later".to_owned(), delay: CENTURIES };
    assert_eq!(finish(&stores, &leased, retry).await, FinishOutcome::Accepted(RunState::Scheduled));
    assert!(run(&stores, leased.id).await.run_at >= leased.leased_at + CENTURIES.to_delta());
    assert_eq!(stores.runs.promote(10).await.unwrap(), PromoteReport::default());

    let made = create(&stores, &spec("ages", |spec| spec.schedule = every(CENTURIES))).await;
    let first: Timestamp = "2020-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(made.next_run_at, Some(first + CENTURIES.to_delta()));
}

pub(crate) async fn names_are_stored_as_they_are(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let key = "!\"#$%&'()*+,-./;<=>?[\\]^_`{|}~";
    let wanted = spec("a.b_c:d/e-f", |spec| {
        spec.concurrency = Some(Concurrency { key: key.parse().unwrap(), max: 1 });
    });
    let task = create(&stores, &wanted).await;
    let run =
        run(&stores, trigger(&stores, NewRun { dedupe_key: Some(key.parse().unwrap()), ..new_run(task.id) }).await);
    let run = run.await;
    assert_eq!((run.key, run.dedupe_key), (Some(format!("key:{key}")), Some(key.parse().unwrap())));
    assert_eq!(lease_one(&stores, LONG).await.task_name, wanted.name);

    let room = create_room(&stores, &new_room("chat:A|b~c@d.e:X")).await;
    assert_eq!(stores.rooms.find(&named("chat:a|b~c@d.e:x")).await.unwrap(), None, "names are case-sensitive");
    assert_eq!(stores.rooms.find(&room.name).await.unwrap(), Some(room));
    let name = "Robert'); DROP TABLE api_keys;-- 😀";
    assert_eq!(now(stores.api_keys.create(&system(), &new_api_key(name)).await.unwrap()).name, name);
    let grants: Grants = serde_json::from_str(r#"{"join":["chat:*"]}"#).unwrap();
    let ticket = NewTicket { grants, ..new_ticket("t", CENTURIES) };
    issue(&stores, &ticket).await;
}

/// Texts that people and programs call themselves, and worse.
const FREE: [&str; 5] = [
    "Mozilla/5.0 (é😀)",
    "nul \u{0} bell \u{7}\nnext \u{1b}[31m \u{9f}",
    "",
    "'; DROP TABLE users; --",
    "\u{202e}\u{feff}",
];

/// A text as long as the longest names, which no compression makes shorter.
fn random_text() -> String {
    (0..20).map(|_| RunId::new().as_uuid().simple().to_string()).collect()
}

pub(crate) async fn clients_may_call_themselves_anything(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_user(&stores, "ann").await;
    let start = async |client: String| {
        let token = SessionId::new().to_string();
        let new = NewAuthSession { client: Some(client), ..new_session("ann", &token) };
        let session = stores.auth_sessions.start(&system(), &new).await.unwrap().unwrap();
        let found = stores.auth_sessions.find_valid(session.id).await.unwrap().unwrap();
        assert_eq!(found.session, session, "what was answered is what is stored");
        session.client
    };
    for text in FREE {
        let client = start(text.to_owned()).await;
        if text.contains('\0') {
            assert!(client.is_none_or(|client| !client.contains('\0')), "no store keeps a NUL");
        } else {
            assert_eq!(client.as_deref(), Some(text));
        }
    }
    let long = start("é".repeat(100_000)).await;
    assert_eq!(long, Some("é".repeat(200)), "cut at 200 characters");
    assert_eq!(sessions(&stores, "ann").await.len(), FREE.len() + 1);
}

pub(crate) async fn the_audit_log_takes_any_text(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let long = random_text();
    let texts: Vec<&str> = FREE.into_iter().chain([long.as_str()]).collect();
    for (n, text) in texts.iter().enumerate() {
        let entry = AuditEntry { action: "test.write", subject: (*text).to_owned(), before: None, after: None };
        let context = WriteContext { request_id: Arc::from(*text), audit: Some(entry), ..system() };
        let outcome = now(stores.rooms.create(&context, &new_room(&format!("r{n}"))).await.unwrap());
        assert!(matches!(outcome, RoomCreateOutcome::Created(_)));
    }
    let records = audit_log(&stores).await;
    assert_eq!(records.len(), texts.len(), "each write left its entry");
    for (record, text) in records.iter().zip(&texts).filter(|(_, text)| !text.chars().any(char::is_control)) {
        assert!(!record.subject.is_empty() || text.is_empty());
        assert!(text.starts_with(&record.subject) && text.starts_with(&record.request_id), "kept, or cut");
    }
    for text in texts {
        let some = || Some(text.to_owned());
        let filters = [
            AuditFilter { actor: some(), ..AuditFilter::default() },
            AuditFilter { action: some(), ..AuditFilter::default() },
            AuditFilter { action: Some(format!("{text}.")), ..AuditFilter::default() },
            AuditFilter { subject: some(), ..AuditFilter::default() },
        ];
        for filter in filters {
            let page = stores.audit.list(&filter, AuditOrder::NewestFirst, &ALL).await.unwrap();
            let is_about = filter.subject.is_some() && page.items.iter().all(|record| record.subject == text);
            assert!(page.items.is_empty() || is_about, "{filter:?}");
        }
    }
    let ages = [Timestamp::MIN_UTC, Timestamp::MAX_UTC, "0001-01-01T00:00:00Z".parse().unwrap()];
    for at in ages {
        let filter = AuditFilter { from: Some(at), to: Some(at), ..AuditFilter::default() };
        assert_eq!(stores.audit.list(&filter, AuditOrder::OldestFirst, &ALL).await.unwrap().items, []);
    }
}

pub(crate) async fn keys_of_limits_may_be_any_text(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let rate: Rate = "1/1h".parse().unwrap();
    let long = random_text();
    let keys = ["login:ann@b.example", "ip:2001:db8::/64", "é😀", "E\u{301}", "'; --", "A", "a", " a", long.as_str()];
    for expected in [true, false] {
        for key in keys {
            let take = LimitTake { key: key.to_owned(), rate, cost: 1 };
            assert_eq!(stores.limits.take(&[take]).await.unwrap()[0].allowed, expected, "{key:?}");
        }
    }
    let takes = keys.map(|key| LimitTake { key: format!("{key}2"), rate, cost: 1 });
    assert!(stores.limits.take(&takes).await.unwrap().iter().all(|decision| decision.allowed));
}

pub(crate) async fn the_longest_names_of_users_are_kept(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let long = NewUser { id: user(&"~".repeat(128)), name: "a".repeat(128).parse().unwrap(), ..new_user("x") };
    let marks = NewUser { id: user("-._~|@"), name: "0._~|@+-".parse().unwrap(), ..new_user("x") };
    for new in [long, marks] {
        let outcome = now(stores.users.create(&system(), &new).await.unwrap());
        let UserCreateOutcome::Created(made) = outcome else { panic!("not made: {outcome:?}") };
        assert_eq!((&made.id, &made.name), (&new.id, &new.name));
        assert_eq!(stores.users.find_login(&new.name).await.unwrap().unwrap().user, made);
        let token = new.name.as_str();
        let session = NewAuthSession { user_id: new.id, ..new_session("x", token) };
        let session = NewAuthSession { idle_ttl: Span::MAX, ttl: Span::MAX, ..session };
        let session = stores.auth_sessions.start(&system(), &session).await.unwrap().unwrap();
        assert_eq!(session.ends_at, session.created_at + Span::MAX.to_delta());
        assert!(is_valid(&stores, session.id).await);
    }
    assert_eq!(pages(1, async |page| stores.users.list(&page).await).await.len(), 2);
}

pub(crate) async fn a_cursor_that_was_not_made_here_is_refused_or_harmless(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("task", |_| {})).await.id;
    let long = "x".repeat(100_000);
    for text in ["\0", "a\0b", "", "no cursor", "é😀", "'; --", "-1", "18446744073709551616", long.as_str()] {
        let page = PageRequest { after: Some(text.to_owned()), limit: 10 };
        let filter = AuditFilter::default();
        let answers = [
            stores.tasks.list(&page).await.map(drop),
            stores.tasks.skips(task, &page).await.map(drop),
            stores.runs.list(&RunFilter::default(), &page).await.map(drop),
            stores.rooms.list(&page).await.map(drop),
            stores.leases.list(&page).await.map(drop),
            stores.state.list(&"box".parse().unwrap(), "", &page).await.map(drop),
            stores.api_keys.list(&page).await.map(drop),
            stores.users.list(&page).await.map(drop),
            stores.auth_sessions.list(&user("ann"), &page).await.map(drop),
            stores.audit.list(&filter, AuditOrder::NewestFirst, &page).await.map(drop),
            stores.audit.list(&filter, AuditOrder::OldestFirst, &page).await.map(drop),
        ];
        for (n, answer) in answers.into_iter().enumerate() {
            let is_fine = matches!(answer, Ok(()) | Err(StoreError::Corrupt { what: StoreError::PAGE_CURSOR, .. }));
            assert!(is_fine, "list {n} with {:?}: {answer:?}", text.chars().take(20).collect::<String>());
        }
    }
}
