//! Accounts: sign-in, refresh and revocation on one SQLite process and on two PostgreSQL replicas.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use switchboard_client::{Client, ClientError, Socket, SocketEvent, SocketOptions};
use switchboard_model::page::PageRequest;
use switchboard_model::secret_text::SecretText;
use switchboard_model::user::{User, UserRole};
use switchboard_model::wire::auth::{
    LoginRequest, LogoutRequest, Password, PasswordRequest, RefreshRequest, TokenResponse, UserRequest, UserUpdate,
};
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{ApiKeyRequest, TicketRequest};
use switchboard_testkit::Cluster;

use crate::fixtures::on_every_database;

const PASSWORD: &str = "correct horse battery staple";

on_every_database! {
    a_user_signs_in_refreshes_and_signs_out,
    a_refresh_race_keeps_one_chain_and_a_replay_ends_it,
    a_disabled_user_is_out_everywhere,
    a_revoked_key_is_out_everywhere,
    an_ended_session_leaves_the_others_alone,
    a_new_password_ends_the_other_sessions,
    people_see_only_what_is_theirs,
}

fn replicas(cluster: &Cluster) -> impl Iterator<Item = &Client> {
    (0..cluster.size()).map(|index| cluster.client(index))
}

async fn create_user(client: &Client, name: &str, role: UserRole) -> User {
    let request = UserRequest { id: None, name: name.parse().unwrap(), password: Some(Password::new(PASSWORD)), role };
    client.create_user(&request).await.unwrap()
}

fn credentials(name: &str) -> LoginRequest {
    LoginRequest { name: name.parse().unwrap(), password: Password::new(PASSWORD) }
}

async fn sign_in(client: &Client, name: &str) -> TokenResponse {
    client.with_credential(None).login(&credentials(name)).await.unwrap()
}

fn by(client: &Client, tokens: &TokenResponse) -> Client {
    client.with_credential(Some(SecretText::from_presented(tokens.access_token.clone())))
}

async fn refresh(client: &Client, token: &str) -> Result<TokenResponse, ClientError> {
    client.with_credential(None).refresh(&RefreshRequest { refresh_token: token.to_owned() }).await
}

/// Mints a ticket for the caller.
async fn own_ticket(client: &Client) -> SecretText {
    let ticket = TicketRequest { user_id: None, origin: None, grants: Default::default() };
    client.mint_ticket(&ticket).await.unwrap()
}

/// Opens a socket of the caller's own.
async fn socket(client: &Client) -> Socket {
    client.connect(SocketOptions::ticket(own_ticket(client).await)).await.unwrap()
}

async fn closed(mut socket: Socket) -> u16 {
    loop {
        match socket.next().await {
            Some(SocketEvent::Closed { code, .. }) => return code,
            Some(_) => {}
            None => panic!("the socket ended without a close"),
        }
    }
}

fn code<T>(result: Result<T, ClientError>) -> ErrorCode {
    result.err().unwrap().code().unwrap()
}

async fn disable(client: &Client, user: &User) {
    let update = UserUpdate { version: user.version, role: user.role, is_disabled: true };
    assert!(client.update_user(&user.id, &update).await.unwrap().is_disabled);
}

async fn a_user_signs_in_refreshes_and_signs_out(cluster: Cluster) {
    let user = create_user(cluster.any(), "ann@example.org", UserRole::Operator).await;
    let tokens = sign_in(cluster.any(), "ann@example.org").await;
    assert_eq!((tokens.token_type.as_str(), &tokens.user.id), ("Bearer", &user.id));
    let ann = by(cluster.any(), &tokens);
    let me = ann.me().await.unwrap();
    assert_eq!(
        (me.user_id, me.role, me.session_id),
        (Some(user.id), Some(UserRole::Operator), Some(tokens.session_id))
    );
    ann.list_tasks(PageRequest::default()).await.unwrap();

    let next = refresh(cluster.any(), &tokens.refresh_token).await.unwrap();
    assert_eq!(next.session_id, tokens.session_id);
    assert_ne!(next.refresh_token, tokens.refresh_token);
    by(cluster.any(), &next).logout(&LogoutRequest::default()).await.unwrap();
    for token in [&tokens, &next] {
        assert_eq!(code(by(cluster.any(), token).me().await), ErrorCode::Unauthorized, "both access tokens are void");
        assert_eq!(code(refresh(cluster.any(), &token.refresh_token).await), ErrorCode::Unauthorized);
    }
}

async fn a_refresh_race_keeps_one_chain_and_a_replay_ends_it(cluster: Cluster) {
    create_user(cluster.any(), "ann", UserRole::User).await;
    let first = sign_in(cluster.any(), "ann").await;
    let race = (0..20).map(|index| {
        let (client, token) = (cluster.client(index % cluster.size()).clone(), first.refresh_token.clone());
        async move { refresh(&client, &token).await.unwrap().refresh_token }
    });
    let successors: BTreeSet<String> = join_all(race).await.into_iter().collect();
    assert_eq!(successors.len(), 1, "whoever asked, there is one next token");
    let second = successors.into_iter().next().unwrap();
    let third = refresh(cluster.any(), &second).await.unwrap();
    // The first token is two behind now: whoever presents it has a copy.
    assert_eq!(code(refresh(cluster.any(), &first.refresh_token).await), ErrorCode::Unauthorized);
    assert_eq!(code(refresh(cluster.any(), &third.refresh_token).await), ErrorCode::Unauthorized, "the family is dead");
    assert_eq!(code(by(cluster.any(), &third).me().await), ErrorCode::Unauthorized);
}

async fn a_disabled_user_is_out_everywhere(cluster: Cluster) {
    let user = create_user(cluster.any(), "ann", UserRole::Operator).await;
    create_user(cluster.any(), "bob", UserRole::Operator).await;
    let (ann, bob) = (sign_in(cluster.any(), "ann").await, sign_in(cluster.any(), "bob").await);
    let mut sockets = Vec::new();
    for replica in replicas(&cluster) {
        sockets.push(socket(&by(replica, &ann)).await);
    }
    let others = socket(&by(cluster.any(), &bob)).await;
    let unused = own_ticket(&by(cluster.any(), &ann)).await;
    disable(cluster.any(), &user).await;
    for replica in replicas(&cluster) {
        assert_eq!(code(by(replica, &ann).me().await), ErrorCode::Unauthorized);
        assert_eq!(code(replica.with_credential(None).login(&credentials("ann")).await), ErrorCode::Unauthorized);
        assert_eq!(code(refresh(replica, &ann.refresh_token).await), ErrorCode::Unauthorized);
    }
    for socket in sockets {
        assert_eq!(closed(socket).await, CloseCode::SessionRevoked.number());
    }
    assert!(cluster.any().connect(SocketOptions::ticket(unused)).await.is_err(), "a ticket from before is void");
    by(cluster.any(), &bob).me().await.unwrap();
    others.handle().ping().await.unwrap();
}

async fn a_revoked_key_is_out_everywhere(cluster: Cluster) {
    let request = ApiKeyRequest {
        name: "app".to_owned(),
        scopes: vec!["rooms:write".parse().unwrap(), "publish:*".parse().unwrap()],
        ttl: None,
    };
    let made = cluster.any().create_api_key(&request).await.unwrap();
    let key = |client: &Client| client.with_credential(Some(SecretText::from_presented(made.secret.clone())));
    let mut sockets = Vec::new();
    for replica in replicas(&cluster) {
        let ticket = TicketRequest { user_id: Some("cyd".parse().unwrap()), origin: None, grants: Default::default() };
        let ticket = key(replica).mint_ticket(&ticket).await.unwrap();
        sockets.push(replica.connect(SocketOptions::ticket(ticket)).await.unwrap());
    }
    cluster.any().revoke_api_key(made.key.id).await.unwrap();
    for replica in replicas(&cluster) {
        assert_eq!(code(key(replica).me().await), ErrorCode::Unauthorized);
    }
    for socket in sockets {
        assert_eq!(closed(socket).await, CloseCode::SessionRevoked.number());
    }
}

async fn an_ended_session_leaves_the_others_alone(cluster: Cluster) {
    create_user(cluster.any(), "ann", UserRole::User).await;
    let (phone, laptop) = (sign_in(cluster.any(), "ann").await, sign_in(cluster.any(), "ann").await);
    let on_phone = socket(&by(cluster.any(), &phone)).await;
    let on_laptop = socket(&by(cluster.any(), &laptop)).await;
    let ann = by(cluster.any(), &laptop);
    let sessions = ann.list_own_sessions(PageRequest::default()).await.unwrap().items;
    assert_eq!(sessions.iter().map(|session| session.id).collect::<Vec<_>>(), [phone.session_id, laptop.session_id]);
    ann.end_own_session(phone.session_id).await.unwrap();
    assert_eq!(closed(on_phone).await, CloseCode::SessionRevoked.number());
    assert_eq!(code(by(cluster.any(), &phone).me().await), ErrorCode::Unauthorized);
    ann.me().await.unwrap();
    on_laptop.handle().ping().await.unwrap();
}

async fn a_new_password_ends_the_other_sessions(cluster: Cluster) {
    create_user(cluster.any(), "ann", UserRole::User).await;
    let (phone, laptop) = (sign_in(cluster.any(), "ann").await, sign_in(cluster.any(), "ann").await);
    let change = |current: &str| PasswordRequest {
        current: Some(Password::new(current)),
        new: Password::new("another horse and staple"),
    };
    let ann = by(cluster.any(), &laptop);
    assert!(ann.change_password(&change("a wrong guess")).await.is_err());
    by(cluster.any(), &phone).me().await.unwrap();
    ann.change_password(&change(PASSWORD)).await.unwrap();
    ann.me().await.unwrap();
    assert_eq!(code(by(cluster.any(), &phone).me().await), ErrorCode::Unauthorized);
    let old = cluster.any().with_credential(None).login(&credentials("ann")).await;
    assert_eq!(code(old), ErrorCode::Unauthorized);
    let new = LoginRequest { name: "ann".parse().unwrap(), password: Password::new("another horse and staple") };
    cluster.any().with_credential(None).login(&new).await.unwrap();
}

async fn people_see_only_what_is_theirs(cluster: Cluster) {
    create_user(cluster.any(), "ann", UserRole::User).await;
    create_user(cluster.any(), "bob", UserRole::User).await;
    let (ann, bob) = (sign_in(cluster.any(), "ann").await, sign_in(cluster.any(), "bob").await);
    let ann_client = by(cluster.any(), &ann);
    assert_eq!(code(ann_client.end_own_session(bob.session_id).await), ErrorCode::NotFound);
    by(cluster.any(), &bob).me().await.unwrap();
    assert_eq!(code(ann_client.list_users(PageRequest::default()).await), ErrorCode::Forbidden);
    assert_eq!(code(ann_client.get_user(&bob.user.id).await), ErrorCode::Forbidden);
    let foreign = TicketRequest { user_id: Some(bob.user.id.clone()), origin: None, grants: Default::default() };
    assert_eq!(code(ann_client.mint_ticket(&foreign).await), ErrorCode::Forbidden);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_login_limit_holds_over_both_replicas() {
    let cluster = crate::fixtures::cluster(2)
        .env("SWITCHBOARD_LIMITS__LOGIN_ACCOUNT", "5/1h")
        .env("SWITCHBOARD_LIMITS__PATIENCE", "1m")
        .await;
    create_user(cluster.any(), "ann", UserRole::User).await;
    let wrong = LoginRequest { name: "ann".parse().unwrap(), password: Password::new("a wrong guess") };
    let guesses = (0..24).map(|index| {
        let (client, wrong) = (cluster.client(index % 2).with_credential(None), wrong.clone());
        async move { code(client.login(&wrong).await) }
    });
    let answers = join_all(guesses).await;
    let count = |wanted| answers.iter().filter(|code| **code == wanted).count();
    assert_eq!((count(ErrorCode::Unauthorized), count(ErrorCode::RateLimited)), (5, 19), "{answers:?}");
    assert_eq!(code(cluster.any().with_credential(None).login(&credentials("ann")).await), ErrorCode::RateLimited);
    create_user(cluster.any(), "bob", UserRole::User).await;
    sign_in(cluster.any(), "bob").await;
}
