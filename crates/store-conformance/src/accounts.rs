//! Builders of users, sign-in sessions, keys, tickets, secrets of webhooks and audit entries. Knows no backend.

use switchboard_model::Timestamp;
use switchboard_model::api_key::{ApiKey, NewApiKey};
use switchboard_model::audit::{AuditFilter, AuditOrder, AuditRecord};
use switchboard_model::auth_session::{AuthSession, Credential, NewAuthSession, SignedIn};
use switchboard_model::identity::UserId;
use switchboard_model::ids::{ApiKeyId, SessionId, TaskId, WebhookSecretId};
use switchboard_model::scope::Scope;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::span::Span;
use switchboard_model::ticket::{Grants, NewTicket};
use switchboard_model::user::{NewUser, PasswordHash, User, UserEdit, UserRole};
use switchboard_model::webhook::{NewWebhookSecret, SecretPurpose};
use switchboard_store_api::{
    AuditEntry, BurnOutcome, RefreshOutcome, Stores, UserCreateOutcome, UserUpdateOutcome, WriteContext,
};

use crate::fixtures::{ALL, LONG, now, system};

/// How long a session lives whatever happens, where no case waits for it.
pub(crate) const DAY: Span = Span::from_secs(86_400);

// Users.

/// Parses a user id.
pub(crate) fn user(id: &str) -> UserId {
    id.parse().unwrap()
}

/// The hash of a password, in no form that a store may care about.
pub(crate) fn phc(password: &str) -> PasswordHash {
    PasswordHash::from_phc(format!("$argon2id$v=19$m=8,t=1,p=1$c2FsdA${password}"))
}

/// A user without special rights whose id and password are the name.
pub(crate) fn new_user(name: &str) -> NewUser {
    NewUser { id: user(name), name: name.parse().unwrap(), role: UserRole::User, password: Some(phc(name)) }
}

/// Makes a user.
pub(crate) async fn create_user(stores: &Stores, name: &str) -> User {
    match now(stores.users.create(&system(), &new_user(name)).await.unwrap()) {
        UserCreateOutcome::Created(user) => user,
        other => panic!("user not made: {other:?}"),
    }
}

/// Edits a user whatever the version is.
pub(crate) async fn edit_user(stores: &Stores, name: &str, change: impl FnOnce(&mut UserEdit)) -> User {
    let before = stores.users.get(&user(name)).await.unwrap().expect("the user exists");
    let mut edit = UserEdit { role: before.role, is_disabled: before.is_disabled };
    change(&mut edit);
    match stores.users.update(&system(), &before.id, before.version, &edit).await.unwrap() {
        UserUpdateOutcome::Updated(user) => user,
        other => panic!("user not edited: {other:?}"),
    }
}

/// Disables a user.
pub(crate) async fn disable(stores: &Stores, name: &str) -> User {
    edit_user(stores, name, |edit| edit.is_disabled = true).await
}

// Sign-in sessions.

/// A session of a user that outlives its case, with its first refresh token.
pub(crate) fn new_session(name: &str, token: &str) -> NewAuthSession {
    NewAuthSession {
        id: SessionId::new(),
        user_id: user(name),
        user_version: None,
        client: None,
        refresh: SecretHash::of(token),
        idle_ttl: LONG,
        ttl: DAY,
    }
}

/// Starts a session that must be accepted.
pub(crate) async fn start(stores: &Stores, session: &NewAuthSession) -> AuthSession {
    stores.auth_sessions.start(&system(), session).await.unwrap().expect("the user may sign in")
}

/// Starts a session of a user with its first refresh token.
pub(crate) async fn sign_in(stores: &Stores, name: &str, token: &str) -> AuthSession {
    start(stores, &new_session(name, token)).await
}

/// Presents a refresh token.
pub(crate) async fn refresh(stores: &Stores, presented: &str, successor: &str) -> RefreshOutcome {
    let (presented, successor) = (SecretHash::of(presented), SecretHash::of(successor));
    stores.auth_sessions.refresh(&system(), presented, successor, LONG).await.unwrap()
}

/// Presents a refresh token that must be accepted.
pub(crate) async fn refreshed(stores: &Stores, presented: &str, successor: &str) -> SignedIn {
    match refresh(stores, presented, successor).await {
        RefreshOutcome::Refreshed(signed_in) => signed_in,
        other => panic!("not refreshed: {other:?}"),
    }
}

/// Lists the sessions of a user.
pub(crate) async fn sessions(stores: &Stores, name: &str) -> Vec<AuthSession> {
    stores.auth_sessions.list(&user(name), &ALL).await.unwrap().items
}

/// Tells whether a session is valid.
pub(crate) async fn is_valid(stores: &Stores, session: SessionId) -> bool {
    stores.auth_sessions.find_valid(session).await.unwrap().is_some()
}

// Keys and tickets.

/// An API key with its own hash and no end.
pub(crate) fn new_api_key(name: &str) -> NewApiKey {
    NewApiKey {
        id: ApiKeyId::new(),
        name: name.to_owned(),
        hash: SecretHash::of(name),
        scopes: vec![Scope::Admin],
        ttl: None,
    }
}

/// Makes an API key.
pub(crate) async fn create_key(stores: &Stores, name: &str) -> ApiKey {
    now(stores.api_keys.create(&system(), &new_api_key(name)).await.unwrap())
}

/// A ticket of the user `7`.
pub(crate) fn new_ticket(text: &str, ttl: Span) -> NewTicket {
    NewTicket {
        hash: SecretHash::of(text),
        user_id: user("7"),
        minted_by: Credential::User(user("7")),
        origin: None,
        grants: Grants::default(),
        ttl,
    }
}

/// A ticket of a user that hangs on a credential.
pub(crate) fn ticket_of(name: &str, minted_by: Credential, text: &str) -> NewTicket {
    NewTicket { user_id: user(name), minted_by, ..new_ticket(text, LONG) }
}

/// Issues a ticket and returns when it expires.
pub(crate) async fn issue(stores: &Stores, ticket: &NewTicket) -> Timestamp {
    now(stores.tickets.issue(&system(), ticket).await.unwrap())
}

/// Burns tickets and tells which of them there were.
pub(crate) async fn burned<'a>(stores: &Stores, texts: &[&'a str]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for text in texts {
        if matches!(stores.tickets.burn(SecretHash::of(text)).await.unwrap(), BurnOutcome::Burned(_)) {
            found.push(*text);
        }
    }
    found
}

// Webhooks and the audit log.

/// A secret of a task that never expires.
pub(crate) fn new_secret(task_id: TaskId) -> NewWebhookSecret {
    let id = WebhookSecretId::new();
    let sealed = id.as_uuid().as_bytes().to_vec();
    NewWebhookSecret { id, task_id, purpose: SecretPurpose::Receive, sealed, ttl: None }
}

/// A context with an audit entry that says nothing but its action.
pub(crate) fn audited(action: &'static str) -> WriteContext {
    let entry = AuditEntry { action, subject: "it".to_owned(), before: None, after: None };
    WriteContext { audit: Some(entry), ..system() }
}

/// Reads the audit log, oldest entry first.
pub(crate) async fn audit_log(stores: &Stores) -> Vec<AuditRecord> {
    stores.audit.list(&AuditFilter::default(), AuditOrder::OldestFirst, &ALL).await.unwrap().items
}

/// Reads the actions in the audit log, oldest first.
pub(crate) async fn audit_actions(stores: &Stores) -> Vec<String> {
    audit_log(stores).await.into_iter().map(|record| record.action).collect()
}
