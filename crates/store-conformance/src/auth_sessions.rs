//! Sign-in sessions: refresh tokens, their reuse, and every way in which a session ends.

use std::collections::HashSet;

use switchboard_model::auth_session::{Credential, NewAuthSession};
use switchboard_model::feed::SignalKind;
use switchboard_model::ids::{ApiKeyId, SessionId};
use switchboard_model::page::PageRequest;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::span::Span;
use switchboard_store_api::{PasswordChange, RefreshOutcome, Stores};

use crate::Backend;
use crate::accounts::{
    DAY, audit_actions, audited, burned, create_key, create_user, disable, is_valid, issue, new_api_key, new_session,
    phc, refresh, refreshed, sessions, sign_in, start, ticket_of, user,
};
use crate::fixtures::{LONG, Reader, SHORT, database_time, now, pages, system, until, wait_past};

/// The signal that tells of the end of a session.
fn ended(session: SessionId) -> (SignalKind, String) {
    (SignalKind::SessionRevoked, session.to_string())
}

/// Presents a refresh token with an audit entry for its reuse.
async fn refresh_audited(stores: &Stores, presented: &str, successor: &str) -> RefreshOutcome {
    let (presented, successor) = (SecretHash::of(presented), SecretHash::of(successor));
    stores.auth_sessions.refresh(&audited("session.reuse"), presented, successor, LONG).await.unwrap()
}

/// Starts a session of `ann` that is over soon, and waits for that.
async fn expired(stores: &Stores, token: &str) -> SessionId {
    let session = start(stores, &NewAuthSession { idle_ttl: SHORT, ..new_session("ann", token) }).await;
    wait_past(stores, session.expires_at).await;
    session.id
}

pub(crate) async fn a_started_session_reads_back(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ann = create_user(&stores, "ann").await;
    let before = database_time(&stores).await;
    let new = NewAuthSession { client: Some("Firefox on Linux – é😀".to_owned()), ..new_session("ann", "t1") };
    let session = start(&stores, &new).await;
    assert_eq!((session.id, &session.user_id, &session.client), (new.id, &ann.id, &new.client));
    assert!((before..=database_time(&stores).await).contains(&session.created_at));
    assert_eq!(session.refreshed_at, session.created_at);
    assert_eq!(session.expires_at, session.created_at + LONG.to_delta());
    assert_eq!(session.ends_at, session.created_at + DAY.to_delta());
    let found = stores.auth_sessions.find_valid(session.id).await.unwrap().unwrap();
    assert_eq!((&found.user, &found.session), (&ann, &session));
    assert_eq!(sessions(&stores, "ann").await, [session]);
    assert_eq!(sessions(&stores, "nobody").await, []);
    assert_eq!(stores.auth_sessions.find_valid(SessionId::new()).await.unwrap(), None);

    let brief = start(&stores, &NewAuthSession { idle_ttl: DAY, ttl: LONG, ..new_session("ann", "t2") }).await;
    assert_eq!(brief.ends_at, brief.created_at + LONG.to_delta());
    assert_eq!(brief.expires_at, brief.ends_at, "nothing lives beyond its end");
}

pub(crate) async fn nobody_who_is_disabled_or_unknown_signs_in(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_user(&stores, "ann").await;
    disable(&stores, "ann").await;
    for name in ["ann", "nobody"] {
        let new = new_session(name, name);
        assert_eq!(stores.auth_sessions.start(&audited("session.start"), &new).await.unwrap(), None);
        assert_eq!(refresh(&stores, name, "next").await, RefreshOutcome::Invalid);
        assert_eq!(sessions(&stores, name).await, []);
        assert!(!is_valid(&stores, new.id).await);
    }
    assert_eq!(audit_actions(&stores).await, [""; 0], "nothing was done");
}

pub(crate) async fn a_password_that_was_replaced_meanwhile_opens_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let before = create_user(&stores, "ann").await;
    assert!(stores.users.set_password(&system(), &before.id, &PasswordChange::to(phc("fresh"))).await.unwrap());
    let decided_on = |version, token| NewAuthSession { user_version: Some(version), ..new_session("ann", token) };
    let late = decided_on(before.version, "t1");
    assert_eq!(stores.auth_sessions.start(&system(), &late).await.unwrap(), None);
    assert_eq!(sessions(&stores, "ann").await, []);
    let now = stores.users.get(&before.id).await.unwrap().unwrap();
    start(&stores, &decided_on(now.version, "t2")).await;
}

pub(crate) async fn a_password_change_needs_what_it_was_decided_on(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ann = create_user(&stores, "ann").await;
    let (kept, ended) = (new_session("ann", "t1"), new_session("ann", "t2"));
    for session in [&kept, &ended] {
        start(&stores, session).await;
    }
    assert!(stores.auth_sessions.end(&system(), &ann.id, ended.id).await.unwrap());
    let change = |verified: &str, session| PasswordChange {
        new: phc("mine"),
        verified: Some(phc(verified)),
        keep: Some(session),
    };
    let set = async |change: &PasswordChange| stores.users.set_password(&system(), &ann.id, change).await.unwrap();
    assert!(!set(&change("ann", ended.id)).await, "the session has ended");
    assert!(set(&PasswordChange { keep: Some(kept.id), ..PasswordChange::to(phc("reset")) }).await);
    assert!(!set(&change("ann", kept.id)).await, "the password was replaced");
    let login = stores.users.find_login(&ann.name).await.unwrap().unwrap();
    assert_eq!(login.password, Some(phc("reset")));
    assert!(set(&change("reset", kept.id)).await);
    assert!(is_valid(&stores, kept.id).await);
}

pub(crate) async fn each_refresh_token_is_succeeded_by_the_next(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ann = create_user(&stores, "ann").await;
    let mut before = sign_in(&stores, "ann", "t0").await;
    for n in 0..5 {
        wait_past(&stores, before.refreshed_at).await;
        let after = refreshed(&stores, &format!("t{n}"), &format!("t{}", n + 1)).await;
        assert_eq!(after.user, ann);
        assert!(after.session.refreshed_at > before.refreshed_at);
        assert_eq!(after.session.expires_at, after.session.refreshed_at + LONG.to_delta());
        before.refreshed_at = after.session.refreshed_at;
        before.expires_at = after.session.expires_at;
        assert_eq!(after.session, before, "nothing else changes");
        assert_eq!(stores.auth_sessions.find_valid(before.id).await.unwrap(), Some(after));
    }
    assert_eq!(sessions(&stores, "ann").await, [before]);
}

pub(crate) async fn a_lost_answer_can_be_asked_for_again(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_user(&stores, "ann").await;
    let session = sign_in(&stores, "ann", "t1").await;
    for _ in 0..3 {
        assert_eq!(refreshed(&stores, "t1", "t2").await.session.id, session.id);
    }
    for _ in 0..3 {
        assert_eq!(refreshed(&stores, "t2", "t3").await.session.id, session.id);
    }
    refreshed(&stores, "t3", "t4").await;
    assert!(matches!(refresh(&stores, "t2", "t3").await, RefreshOutcome::Reused(_)), "t3 was used since");
    assert!(!is_valid(&stores, session.id).await);
}

pub(crate) async fn an_unused_successor_is_replaced_by_another_one(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_user(&stores, "ann").await;
    let session = sign_in(&stores, "ann", "t1").await;
    refreshed(&stores, "t1", "t2").await;
    assert_eq!(refreshed(&stores, "t1", "other t2").await.session.id, session.id);
    assert_eq!(refresh(&stores, "t2", "t3").await, RefreshOutcome::Invalid, "it is no token any more");
    assert!(is_valid(&stores, session.id).await);
    refreshed(&stores, "t1", "other t2").await;
    refreshed(&stores, "other t2", "t3").await;
    assert!(matches!(refresh(&stores, "t1", "other t2").await, RefreshOutcome::Reused(_)));
    assert_eq!(refresh(&stores, "t3", "t4").await, RefreshOutcome::Invalid);
}

pub(crate) async fn a_token_two_generations_old_ends_the_session(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_user(&stores, "ann").await;
    let session = sign_in(&stores, "ann", "t1").await;
    let other = sign_in(&stores, "ann", "o1").await;
    for (session, text) in [(session.id, "ours"), (other.id, "other")] {
        issue(&stores, &ticket_of("ann", Credential::Session(session), text)).await;
    }
    let mut reader = Reader::start(&stores).await;
    assert!(matches!(refresh_audited(&stores, "t1", "t2").await, RefreshOutcome::Refreshed(_)));
    assert!(matches!(refresh_audited(&stores, "t1", "t2").await, RefreshOutcome::Refreshed(_)));
    let RefreshOutcome::Refreshed(last) = refresh_audited(&stores, "t2", "t3").await else { panic!("not refreshed") };
    assert_eq!(refresh_audited(&stores, "unknown", "t2").await, RefreshOutcome::Invalid);
    assert_eq!((audit_actions(&stores).await, reader.changes().await), (vec![], vec![]));

    assert_eq!(refresh_audited(&stores, "t1", "t2").await, RefreshOutcome::Reused(last.session));
    assert_eq!(audit_actions(&stores).await, ["session.reuse"]);
    assert_eq!(reader.changes().await, [ended(session.id)]);
    for token in ["t1", "t2", "t3"] {
        assert_eq!(refresh_audited(&stores, token, "t9").await, RefreshOutcome::Invalid);
    }
    assert_eq!(audit_actions(&stores).await, ["session.reuse"], "it ended once");
    assert_eq!(reader.changes().await, []);
    assert_eq!(sessions(&stores, "ann").await, [other]);
    assert_eq!(burned(&stores, &["ours", "other"]).await, ["other"]);
    refreshed(&stores, "o1", "o2").await;
}

pub(crate) async fn an_expired_session_is_invalid(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_user(&stores, "ann").await;
    let idle = expired(&stores, "t1").await;
    let over = start(&stores, &NewAuthSession { ttl: SHORT, ..new_session("ann", "u1") }).await;
    refresh(&stores, "u1", "u2").await;
    wait_past(&stores, over.ends_at).await;
    for id in [idle, over.id] {
        assert!(!is_valid(&stores, id).await);
    }
    let mut reader = Reader::start(&stores).await;
    for token in ["t1", "u1", "u2"] {
        assert_eq!(refresh_audited(&stores, token, "t9").await, RefreshOutcome::Invalid);
    }
    assert_eq!(sessions(&stores, "ann").await, []);
    assert_eq!((audit_actions(&stores).await, reader.changes().await), (vec![], vec![]));
}

pub(crate) async fn a_refresh_prolongs_a_session_but_not_beyond_its_end(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_user(&stores, "ann").await;
    let brief = NewAuthSession { idle_ttl: Span::from_secs(30), ttl: LONG, ..new_session("ann", "t1") };
    let session = start(&stores, &brief).await;
    let prolong = async |presented, successor, idle_ttl| {
        let (presented, successor) = (SecretHash::of(presented), SecretHash::of(successor));
        match stores.auth_sessions.refresh(&system(), presented, successor, idle_ttl).await.unwrap() {
            RefreshOutcome::Refreshed(signed_in) => signed_in.session,
            other => panic!("not refreshed: {other:?}"),
        }
    };
    let minute = Span::from_secs(60);
    let once = prolong("t1", "t2", minute).await;
    assert_eq!(once.expires_at, once.refreshed_at + minute.to_delta());
    let twice = prolong("t2", "t3", DAY).await;
    assert_eq!((twice.expires_at, twice.ends_at), (session.ends_at, session.ends_at));
    let thrice = prolong("t3", "t4", Span::MAX).await;
    assert_eq!((thrice.expires_at, thrice.ends_at), (session.ends_at, session.ends_at));
}

pub(crate) async fn an_ended_session_takes_its_tickets_along(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let key = create_key(&stores, "backend").await;
    for name in ["ann", "bob"] {
        create_user(&stores, name).await;
    }
    let session = sign_in(&stores, "ann", "t1").await;
    let kept = sign_in(&stores, "ann", "u1").await;
    let minted = [Credential::Session(session.id), Credential::Session(kept.id), Credential::ApiKey(key.id)];
    for (credential, text) in minted.into_iter().zip(["ended", "kept", "by key"]) {
        issue(&stores, &ticket_of("ann", credential, text)).await;
    }
    let mut reader = Reader::start(&stores).await;
    let end = async |name: &str, id| stores.auth_sessions.end(&system(), &user(name), id).await.unwrap();
    assert!(!end("bob", session.id).await, "nobody ends the sessions of others");
    assert!(!end("ann", SessionId::new()).await);
    assert!(is_valid(&stores, session.id).await);
    assert_eq!(reader.changes().await, []);

    assert!(end("ann", session.id).await);
    assert_eq!(reader.changes().await, [ended(session.id)]);
    assert!(!end("ann", session.id).await);
    assert_eq!(reader.changes().await, []);
    assert_eq!(refresh(&stores, "t1", "t2").await, RefreshOutcome::Invalid);
    assert_eq!(sessions(&stores, "ann").await, [kept]);
    assert_eq!(burned(&stores, &["ended", "kept", "by key"]).await, ["kept", "by key"]);
}

pub(crate) async fn all_sessions_but_one_can_be_ended(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for name in ["ann", "bob"] {
        create_user(&stores, name).await;
    }
    let bob = sign_in(&stores, "bob", "bob").await;
    let mut ids = Vec::new();
    for token in ["t1", "t2", "t3"] {
        let session = sign_in(&stores, "ann", token).await;
        issue(&stores, &ticket_of("ann", Credential::Session(session.id), token)).await;
        ids.push(session.id);
    }
    let mut reader = Reader::start(&stores).await;
    let end_all = async |keep| stores.auth_sessions.end_all(&system(), &user("ann"), keep).await.unwrap();
    assert_eq!(end_all(Some(ids[1])).await, 2);
    let mut both = [ended(ids[0]), ended(ids[2])];
    both.sort();
    assert_eq!(reader.changes().await, both);
    assert!(is_valid(&stores, ids[1]).await);
    assert_eq!(burned(&stores, &["t1", "t2", "t3"]).await, ["t2"]);
    assert_eq!(end_all(Some(ids[1])).await, 0);
    assert_eq!(end_all(Some(bob.id)).await, 1, "a session of somebody else keeps none of this user");
    assert_eq!(end_all(None).await, 0);
    assert_eq!(reader.changes().await, [ended(ids[1])]);
    assert!(is_valid(&stores, bob.id).await);
}

pub(crate) async fn sessions_are_listed_in_the_order_of_their_start(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for name in ["ann", "bob"] {
        create_user(&stores, name).await;
    }
    let mut started = Vec::new();
    for n in 0..5 {
        started.push(sign_in(&stores, "ann", &format!("ann {n}")).await);
        sign_in(&stores, "bob", &format!("bob {n}")).await;
    }
    expired(&stores, "over").await;
    for limit in [2, 5, 100] {
        let list = async |page: PageRequest| stores.auth_sessions.list(&user("ann"), &page).await;
        assert_eq!(pages(limit, list).await, started);
    }
    let last = refreshed(&stores, "ann 0", "ann 0'").await.session;
    assert_eq!(sessions(&stores, "ann").await[0], last, "a refresh moves nothing");
}

pub(crate) async fn revoked_credentials_are_told_from_those_that_work(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for name in ["ann", "bob", "gone"] {
        create_user(&stores, name).await;
    }
    let [live, over] = [sign_in(&stores, "ann", "t1").await.id, sign_in(&stores, "ann", "t2").await.id];
    assert!(stores.auth_sessions.end(&system(), &user("ann"), over).await.unwrap());
    let of_disabled = sign_in(&stores, "bob", "t3").await.id;
    disable(&stores, "bob").await;
    let of_deleted = sign_in(&stores, "gone", "t4").await.id;
    assert!(stores.users.delete(&system(), &user("gone")).await.unwrap());
    let stale = expired(&stores, "t5").await;
    let [key, revoked] = [create_key(&stores, "works").await.id, create_key(&stores, "revoked").await.id];
    assert!(stores.api_keys.revoke(&system(), revoked).await.unwrap());
    let mut brief = new_api_key("expired");
    brief.ttl = Some(SHORT);
    now(stores.api_keys.create(&system(), &brief).await.unwrap());
    until(async || stores.api_keys.find_valid(brief.hash).await.unwrap(), Option::is_none).await;

    let works = [
        Credential::Session(live),
        Credential::ApiKey(key),
        Credential::User(user("ann")),
        Credential::User(user("gone")),
        Credential::User(user("auth0|somebody")),
    ];
    let ended = [
        Credential::Session(over),
        Credential::Session(of_disabled),
        Credential::Session(of_deleted),
        Credential::Session(stale),
        Credential::Session(SessionId::new()),
        Credential::ApiKey(revoked),
        Credential::ApiKey(brief.id),
        Credential::ApiKey(ApiKeyId::new()),
        Credential::User(user("bob")),
    ];
    let revoked = async |asked: &[Credential]| stores.auth_sessions.revoked(asked).await.unwrap();
    for credential in &works {
        assert_eq!(revoked(std::slice::from_ref(credential)).await, []);
    }
    for credential in &ended {
        assert_eq!(revoked(std::slice::from_ref(credential)).await, std::slice::from_ref(credential));
    }
    let mixed: Vec<_> = ended.iter().chain(&works).cloned().collect();
    let found: Vec<_> = revoked(&mixed).await;
    assert_eq!(found.len(), ended.len(), "each is named once");
    assert_eq!(found.into_iter().collect::<HashSet<_>>(), ended.into_iter().collect());
    assert_eq!(revoked(&[]).await, []);
}

pub(crate) async fn thousands_of_credentials_are_asked_about_at_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_user(&stores, "ann").await;
    disable(&stores, "ann").await;
    let key = create_key(&stores, "works").await;
    let mut asked = vec![Credential::ApiKey(key.id), Credential::User(user("ann"))];
    let mut expected = HashSet::from([Credential::User(user("ann"))]);
    for n in 0..2_000 {
        asked.push(Credential::User(user(&format!("auth0|{n}"))));
        let ended = [Credential::Session(SessionId::new()), Credential::ApiKey(ApiKeyId::new())];
        asked.extend(ended.clone());
        expected.extend(ended);
    }
    let found = stores.auth_sessions.revoked(&asked).await.unwrap();
    assert_eq!(found.len(), expected.len());
    assert_eq!(found.into_iter().collect::<HashSet<_>>(), expected);
}

pub(crate) async fn sweep_forgets_sessions_that_ended_by_themselves(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_user(&stores, "ann").await;
    let live = sign_in(&stores, "ann", "live").await;
    let mut last = None;
    for token in ["a", "b", "c"] {
        let session = start(&stores, &NewAuthSession { idle_ttl: SHORT, ..new_session("ann", token) }).await;
        issue(&stores, &ticket_of("ann", Credential::Session(session.id), token)).await;
        last = Some(session.expires_at);
    }
    issue(&stores, &ticket_of("ann", Credential::Session(live.id), "live")).await;
    wait_past(&stores, last.unwrap()).await;
    let mut reader = Reader::start(&stores).await;
    for expected in [2, 1, 0] {
        assert_eq!(stores.auth_sessions.sweep(2).await.unwrap(), expected);
    }
    assert_eq!(reader.changes().await, [], "they did not end before their time");
    for token in ["a", "b", "c"] {
        assert_eq!(refresh(&stores, token, "next").await, RefreshOutcome::Invalid);
    }
    assert_eq!(burned(&stores, &["a", "b", "c", "live"]).await, ["live"]);
    assert_eq!(sessions(&stores, "ann").await, [live]);
    refreshed(&stores, "live", "live'").await;
}
