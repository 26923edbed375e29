//! Users: names, edits, passwords and their end.

use switchboard_model::auth_session::Credential;
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::UserId;
use switchboard_model::ids::SessionId;
use switchboard_model::user::{NewUser, User, UserEdit, UserRole};
use switchboard_store_api::{Login, PasswordChange, RefreshOutcome, Stores, UserCreateOutcome, UserUpdateOutcome};

use crate::Backend;
use crate::accounts::{
    audit_actions, audited, burned, create_key, create_user, disable, edit_user, is_valid, issue, new_session,
    new_user, phc, refresh, refreshed, sessions, sign_in, ticket_of, user,
};
use crate::fixtures::{ALL, Reader, now, pages, system};

/// Tries to make a user.
async fn attempt(stores: &Stores, user: &NewUser) -> UserCreateOutcome {
    now(stores.users.create(&system(), user).await.unwrap())
}

/// The signals that tell of the end of sessions, in the order of [`Reader::changes`].
fn ended(sessions: &[SessionId]) -> Vec<(SignalKind, String)> {
    let mut signals: Vec<_> = sessions.iter().map(|id| (SignalKind::SessionRevoked, id.to_string())).collect();
    signals.sort();
    signals
}

/// Signs `ann` in twice and `bob` once, gives each a ticket by session, by key and by somebody else's token, and
/// returns the sessions.
async fn crowd(stores: &Stores) -> [SessionId; 3] {
    let key = create_key(stores, "backend").await;
    let mut ids = Vec::new();
    for (name, sessions) in [("ann", &["a1", "a2"][..]), ("bob", &["b1"][..])] {
        create_user(stores, name).await;
        for token in sessions {
            let session = sign_in(stores, name, token).await;
            issue(stores, &ticket_of(name, Credential::Session(session.id), &format!("ticket of {token}"))).await;
            ids.push(session.id);
        }
        issue(stores, &ticket_of(name, Credential::ApiKey(key.id), &format!("ticket of {name} by key"))).await;
        issue(stores, &ticket_of(name, Credential::User(user(name)), &format!("ticket of {name} by token"))).await;
    }
    ids.try_into().unwrap()
}

const TICKETS: [&str; 7] = [
    "ticket of a1",
    "ticket of a2",
    "ticket of ann by key",
    "ticket of ann by token",
    "ticket of b1",
    "ticket of bob by key",
    "ticket of bob by token",
];

pub(crate) async fn a_made_user_reads_back_and_can_sign_in(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let new = NewUser { role: UserRole::Operator, name: "ann@b.example".parse().unwrap(), ..new_user("ann") };
    let UserCreateOutcome::Created(made) = attempt(&stores, &new).await else { panic!("not made") };
    let expected = User {
        id: user("ann"),
        name: new.name.clone(),
        role: UserRole::Operator,
        has_password: true,
        is_disabled: false,
        version: 1,
        created_at: made.created_at,
        updated_at: made.created_at,
    };
    assert_eq!(made, expected);
    assert_eq!(stores.users.get(&made.id).await.unwrap(), Some(made.clone()));
    let login = Login { user: made, password: new.password };
    assert_eq!(stores.users.find_login(&new.name).await.unwrap(), Some(login));

    assert_eq!(stores.users.get(&user("bob")).await.unwrap(), None);
    assert_eq!(stores.users.find_login(&"bob".parse().unwrap()).await.unwrap(), None);
    assert_eq!(stores.users.find_login(&"ann".parse().unwrap()).await.unwrap(), None, "an id is no name");
}

pub(crate) async fn a_user_of_another_issuer_has_no_password(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let new = NewUser { id: user("auth0|5f7c.~X@y"), password: None, ..new_user("carl") };
    let UserCreateOutcome::Created(made) = attempt(&stores, &new).await else { panic!("not made") };
    assert_eq!((&made.id, made.has_password), (&new.id, false));
    let login = Login { user: made.clone(), password: None };
    assert_eq!(stores.users.find_login(&new.name).await.unwrap(), Some(login));
    assert!(stores.users.set_password(&system(), &made.id, &PasswordChange::to(phc("first"))).await.unwrap());
    let login = stores.users.find_login(&new.name).await.unwrap().unwrap();
    assert_eq!((login.user.has_password, login.password), (true, Some(phc("first"))));
}

pub(crate) async fn names_and_ids_are_unique(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ann = create_user(&stores, "ann").await;
    let same_name = NewUser { id: user("other"), role: UserRole::Admin, password: None, ..new_user("ann") };
    let same_id = NewUser { name: "other".parse().unwrap(), ..same_name.clone() };
    let same_id = NewUser { id: ann.id.clone(), ..same_id };
    for taken in [new_user("ann"), same_name, same_id] {
        assert_eq!(attempt(&stores, &taken).await, UserCreateOutcome::Taken(ann.id.clone()));
    }
    let bob = create_user(&stores, "bob").await;
    let both = NewUser { id: ann.id.clone(), ..new_user("bob") };
    let outcome = attempt(&stores, &both).await;
    assert!([&ann.id, &bob.id].map(|id| UserCreateOutcome::Taken(id.clone())).contains(&outcome), "{outcome:?}");
    assert_eq!(stores.users.list(&ALL).await.unwrap().items, [ann, bob], "nothing was changed");
    let login = stores.users.find_login(&"ann".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(login.password, Some(phc("ann")));
}

pub(crate) async fn an_edit_needs_the_version_that_was_read(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let before = create_user(&stores, "ann").await;
    let promote = UserEdit { role: UserRole::Admin, is_disabled: false };
    let update = async |id: &UserId, version| stores.users.update(&system(), id, version, &promote).await.unwrap();
    assert_eq!(update(&before.id, 2).await, UserUpdateOutcome::VersionMismatch(1));
    assert_eq!(stores.users.get(&before.id).await.unwrap(), Some(before.clone()));

    let UserUpdateOutcome::Updated(after) = update(&before.id, 1).await else { panic!("the edit must be accepted") };
    assert!(after.updated_at >= before.updated_at);
    assert_eq!(after, User { role: UserRole::Admin, version: 2, updated_at: after.updated_at, ..before.clone() });
    assert_eq!(stores.users.get(&before.id).await.unwrap(), Some(after));
    assert_eq!(update(&before.id, 1).await, UserUpdateOutcome::VersionMismatch(2));
    assert_eq!(update(&user("nobody"), 1).await, UserUpdateOutcome::NotFound);
}

pub(crate) async fn an_edit_without_a_change_keeps_the_version(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let before = create_user(&stores, "ann").await;
    let same = UserEdit { role: before.role, is_disabled: false };
    let mut reader = Reader::start(&stores).await;
    let outcome = stores.users.update(&audited("user.edit"), &before.id, 1, &same).await.unwrap();
    assert_eq!(outcome, UserUpdateOutcome::Updated(before.clone()));
    let outcome = stores.users.update(&audited("user.edit"), &before.id, 7, &same).await.unwrap();
    assert_eq!(outcome, UserUpdateOutcome::VersionMismatch(1));
    assert_eq!(stores.users.get(&before.id).await.unwrap(), Some(before));
    assert_eq!(reader.changes().await, []);
    assert_eq!(audit_actions(&stores).await, [""; 0]);
}

pub(crate) async fn another_role_ends_all_sessions_and_tickets(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = crowd(&stores).await;
    let mut reader = Reader::start(&stores).await;
    let promoted = edit_user(&stores, "ann", |edit| edit.role = UserRole::Admin).await;
    assert_eq!(reader.changes().await, [(SignalKind::UserRevoked, "ann".to_owned())]);
    assert_eq!(sessions(&stores, "ann").await, []);
    assert!(is_valid(&stores, ids[2]).await, "nobody else is affected");
    assert_eq!(refresh(&stores, "a2", "a2'").await, RefreshOutcome::Invalid);
    let again = sign_in(&stores, "ann", "a3").await;
    assert_eq!(stores.auth_sessions.find_valid(again.id).await.unwrap().unwrap().user, promoted);
}

pub(crate) async fn disabling_ends_all_sessions_and_tickets(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = crowd(&stores).await;
    let disabling = UserEdit { role: UserRole::User, is_disabled: true };
    let lost = stores.users.update(&system(), &user("ann"), 9, &disabling).await.unwrap();
    assert_eq!(lost, UserUpdateOutcome::VersionMismatch(1));
    assert!(is_valid(&stores, ids[0]).await, "a lost edit ends nothing");

    let mut reader = Reader::start(&stores).await;
    let disabled = disable(&stores, "ann").await;
    assert_eq!((disabled.is_disabled, disabled.version), (true, 2));
    assert_eq!(reader.changes().await, [(SignalKind::UserRevoked, "ann".to_owned())]);
    assert_eq!([is_valid(&stores, ids[0]).await, is_valid(&stores, ids[1]).await], [false, false]);
    assert_eq!(sessions(&stores, "ann").await, []);
    assert_eq!(refresh(&stores, "a1", "a1'").await, RefreshOutcome::Invalid);
    assert_eq!(stores.auth_sessions.start(&system(), &new_session("ann", "a3")).await.unwrap(), None);
    assert_eq!(burned(&stores, &TICKETS).await, TICKETS[4..], "those of others stay");
    assert!(is_valid(&stores, ids[2]).await);
    let login = stores.users.find_login(&"ann".parse().unwrap()).await.unwrap();
    assert_eq!(login, Some(Login { user: disabled, password: Some(phc("ann")) }));

    disable(&stores, "ann").await;
    let enabled = edit_user(&stores, "ann", |edit| edit.is_disabled = false).await;
    assert_eq!((enabled.is_disabled, enabled.version), (false, 3));
    assert_eq!(reader.changes().await, [], "disabling twice and enabling revoke nothing");
    assert_eq!(sessions(&stores, "ann").await, [], "what has ended stays ended");
    assert_eq!(refresh(&stores, "a1", "a1'").await, RefreshOutcome::Invalid);
    sign_in(&stores, "ann", "a4").await;
}

pub(crate) async fn a_new_password_ends_all_sessions_but_the_kept_one(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = crowd(&stores).await;
    let mut reader = Reader::start(&stores).await;
    let set = async |name: &str, keep| {
        stores
            .users
            .set_password(&system(), &user(name), &PasswordChange { keep, ..PasswordChange::to(phc("fresh")) })
            .await
            .unwrap()
    };
    assert!(!set("nobody", None).await);
    assert_eq!(reader.changes().await, []);
    assert!(set("ann", Some(ids[1])).await);
    assert_eq!(reader.changes().await, ended(&ids[..1]));
    assert_eq!(sessions(&stores, "ann").await.iter().map(|session| session.id).collect::<Vec<_>>(), ids[1..2]);
    assert_eq!(refresh(&stores, "a1", "a1'").await, RefreshOutcome::Invalid);
    refreshed(&stores, "a2", "a2'").await;
    assert_eq!(burned(&stores, &TICKETS).await, TICKETS[1..], "a ticket goes with its own session only");
    let login = stores.users.find_login(&"ann".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((login.password, login.user.has_password), (Some(phc("fresh")), true));
    let login = stores.users.find_login(&"bob".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(login.password, Some(phc("bob")));

    let third = sign_in(&stores, "ann", "a3").await;
    assert!(!set("ann", Some(ids[2])).await, "a session of somebody else is none of this user");
    assert_eq!(reader.changes().await, []);
    assert!(set("ann", None).await);
    assert_eq!(reader.changes().await, ended(&[ids[1], third.id]));
    assert_eq!(sessions(&stores, "ann").await, []);
    assert!(is_valid(&stores, ids[2]).await);
    assert!(set("bob", None).await);
    assert_eq!(reader.changes().await, ended(&ids[2..]));
}

pub(crate) async fn a_password_is_rehashed_only_over_the_hash_that_was_verified(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = crowd(&stores).await;
    let mut reader = Reader::start(&stores).await;
    let rehash = async |name: &str, old: &str, new: &str| {
        stores.users.rehash_password(&user(name), &phc(old), &phc(new)).await.unwrap();
    };
    let password = async || stores.users.find_login(&"ann".parse().unwrap()).await.unwrap().unwrap().password;
    rehash("ann", "ann", "stronger").await;
    assert_eq!(password().await, Some(phc("stronger")));
    rehash("ann", "ann", "late").await;
    assert_eq!(password().await, Some(phc("stronger")));
    rehash("nobody", "ann", "late").await;
    assert_eq!(reader.changes().await, []);
    assert!(is_valid(&stores, ids[0]).await, "the same password ends no session");

    let carl = NewUser { password: None, ..new_user("carl") };
    attempt(&stores, &carl).await;
    rehash("carl", "carl", "late").await;
    let login = stores.users.find_login(&carl.name).await.unwrap().unwrap();
    assert_eq!((login.password, login.user.has_password), (None, false));
}

pub(crate) async fn a_deleted_user_leaves_nothing_behind(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = crowd(&stores).await;
    disable(&stores, "bob").await;
    let mut reader = Reader::start(&stores).await;
    assert!(stores.users.delete(&system(), &user("ann")).await.unwrap());
    assert_eq!(reader.changes().await, [(SignalKind::UserRevoked, "ann".to_owned())]);
    assert!(!stores.users.delete(&system(), &user("ann")).await.unwrap());
    assert!(!stores.users.delete(&system(), &user("nobody")).await.unwrap());
    assert_eq!(reader.changes().await, []);
    assert_eq!(stores.users.get(&user("ann")).await.unwrap(), None);
    assert_eq!(stores.users.find_login(&"ann".parse().unwrap()).await.unwrap(), None);
    assert!(!is_valid(&stores, ids[0]).await);
    assert_eq!(refresh(&stores, "a1", "a1'").await, RefreshOutcome::Invalid);
    assert_eq!(stores.auth_sessions.start(&system(), &new_session("ann", "a3")).await.unwrap(), None);
    assert_eq!(burned(&stores, &TICKETS).await, [""; 0]);

    let again = create_user(&stores, "ann").await;
    assert_eq!(again.version, 1);
    assert_eq!(sessions(&stores, "ann").await, []);
    assert_eq!(refresh(&stores, "a1", "a1'").await, RefreshOutcome::Invalid);
    assert!(stores.users.delete(&system(), &user("bob")).await.unwrap(), "also one who is disabled");
}

pub(crate) async fn users_are_listed_in_the_order_of_their_ids(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut made = Vec::new();
    for (n, id) in ["a", "~", "Z", "10", "-", "A|1", "9", "a.b"].into_iter().enumerate() {
        let new = NewUser { id: user(id), name: format!("{}", 9 - n).parse().unwrap(), ..new_user("x") };
        let UserCreateOutcome::Created(user) = attempt(&stores, &new).await else { panic!("not made") };
        made.push(user);
    }
    made.sort_by(|a, b| a.id.cmp(&b.id));
    for limit in [1, 3, 8, 100] {
        assert_eq!(pages(limit, async |page| stores.users.list(&page).await).await, made);
    }
}
