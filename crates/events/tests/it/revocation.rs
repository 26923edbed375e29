//! Sockets end with what they hang on, however the replica learns of it.

use switchboard_events::{Outgoing, SessionGuard};
use switchboard_model::auth_session::{Credential, NewAuthSession};
use switchboard_model::ids::SessionId;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::span::Span;
use switchboard_model::user::{NewUser, UserEdit, UserRole};
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::frame::{NoticeFrame, ServerFrame};
use switchboard_store_api::WriteContext;

use crate::bench::Bench;

async fn create_user(bench: &Bench, name: &str) {
    let user = NewUser { id: name.parse().unwrap(), name: name.parse().unwrap(), role: UserRole::User, password: None };
    bench.stores.users.create(&WriteContext::system("test"), &user).await.unwrap();
}

async fn sign_in(bench: &Bench, user: &str) -> SessionId {
    let id = SessionId::new();
    let hour = Span::from_secs(3_600);
    let session = NewAuthSession {
        id,
        user_id: user.parse().unwrap(),
        user_version: None,
        client: None,
        refresh: SecretHash::of(&id.to_string()),
        idle_ttl: hour,
        ttl: hour,
    };
    bench.stores.auth_sessions.start(&WriteContext::system("test"), &session).await.unwrap().unwrap();
    id
}

async fn end(bench: &Bench, user: &str, id: SessionId) {
    assert!(bench.stores.auth_sessions.end(&WriteContext::system("test"), &user.parse().unwrap(), id).await.unwrap());
}

async fn closed(session: &SessionGuard) -> CloseCode {
    loop {
        if let Outgoing::Close(code) = session.next().await {
            return code;
        }
    }
}

async fn is_open(bench: &Bench, session: &SessionGuard) {
    bench.send(session, r#"{"id":1,"op":"ping"}"#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_session_ends_its_sockets_only() {
    let bench = Bench::new().await;
    create_user(&bench, "ann").await;
    let (phone, laptop) = (sign_in(&bench, "ann").await, sign_in(&bench, "ann").await);
    let on_phone = bench.connect_by("ann", Credential::Session(phone)).await;
    let on_laptop = bench.connect_by("ann", Credential::Session(laptop)).await;
    end(&bench, "ann", phone).await;
    assert_eq!(closed(&on_phone).await, CloseCode::SessionRevoked);
    is_open(&bench, &on_laptop).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_user_loses_every_socket() {
    let bench = Bench::new().await;
    for name in ["ann", "bob"] {
        create_user(&bench, name).await;
    }
    let session = sign_in(&bench, "ann").await;
    let by_session = bench.connect_by("ann", Credential::Session(session)).await;
    let by_user = bench.connect("ann").await;
    let minted_by_ann = bench.connect_by("bob", Credential::Session(session)).await;
    let other = bench.connect("bob").await;
    let edit = UserEdit { role: UserRole::User, is_disabled: true };
    bench.stores.users.update(&WriteContext::system("test"), &"ann".parse().unwrap(), 1, &edit).await.unwrap();
    assert_eq!(closed(&by_session).await, CloseCode::SessionRevoked);
    assert_eq!(closed(&by_user).await, CloseCode::SessionRevoked);
    assert_eq!(closed(&minted_by_ann).await, CloseCode::SessionRevoked);
    is_open(&bench, &other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_revoked_while_the_feed_was_lost_is_found_by_the_resync() {
    let bench = Bench::new().await;
    create_user(&bench, "ann").await;
    let (gone, alive) = (sign_in(&bench, "ann").await, sign_in(&bench, "ann").await);
    let watch = bench.connect_by("ann", Credential::Session(gone)).await;
    end(&bench, "ann", gone).await;
    // Once one socket has heard of it, the signal is past, and a later socket hears of it no more.
    assert_eq!(closed(&watch).await, CloseCode::SessionRevoked);
    let late = bench.connect_by("ann", Credential::Session(gone)).await;
    let kept = bench.connect_by("ann", Credential::Session(alive)).await;
    let is_hello = |frame: &ServerFrame| matches!(frame, ServerFrame::Notice(NoticeFrame::Hello(_)));
    bench.frames_until(&late, is_hello).await;
    bench.lose_the_feed().await;
    assert_eq!(closed(&late).await, CloseCode::SessionRevoked);
    is_open(&bench, &kept).await;
}
