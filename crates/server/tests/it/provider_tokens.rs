//! Tokens of providers: one request for all callers of all replicas, also when a replica dies or the provider fails.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use futures_util::future::join_all;
use serde_json::json;
use switchboard_client::{Client, ClientError};
use switchboard_model::identity::TokenName;
use switchboard_model::secret::SecretValue;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::secret::{SecretRequest, TokenAccess, TokenAccessRequest, TokenSetRequest};
use switchboard_testkit::{Cluster, ClusterBuilder, Signal};
use tokio::task::JoinSet;

use crate::cli::Cli;
use crate::fixtures::cluster;
use crate::receiver::{Received, Receiver};

/// How many callers ask each replica at once.
const CALLERS: usize = 50;

fn allowing(builder: ClusterBuilder) -> ClusterBuilder {
    builder.env("SWITCHBOARD_OUTBOUND__ALLOW", "127.0.0.1/32")
}

fn name() -> TokenName {
    "crm".parse().unwrap()
}

fn grant(_: &Received) -> Response {
    r#"{"access_token":"granted-token","token_type":"Bearer","expires_in":3600,"refresh_token":"next-token"}"#
        .into_response()
}

/// Sets a token whose access token has expired.
async fn set(client: &Client, receiver: &Receiver) {
    let provider = serde_json::from_value(json!({"token_url": receiver.url("/token")})).unwrap();
    let token = TokenSetRequest {
        provider,
        refresh_token: Some(SecretValue::new("first-token")),
        access_token: Some(SecretValue::new("expired-token")),
        expires_in: Some("0s".parse().unwrap()),
    };
    client.put_token(&name(), &token).await.unwrap();
}

type Access = Result<TokenAccess, ClientError>;

/// Lets many callers ask some replicas at once.
fn callers(cluster: &Cluster, replicas: &[usize]) -> JoinSet<Access> {
    let mut callers = JoinSet::new();
    for client in replicas.iter().map(|index| cluster.client(*index)) {
        for _ in 0..CALLERS {
            let client = client.clone();
            callers.spawn(async move { client.token_access(&name(), &TokenAccessRequest::default()).await });
        }
    }
    callers
}

fn all_have_it(answers: Vec<Access>, count: usize) {
    assert_eq!(answers.len(), count);
    let tokens: BTreeSet<_> =
        answers.into_iter().map(Result::unwrap).map(|access| (access.access_token, access.version)).collect();
    assert_eq!(tokens, BTreeSet::from([("granted-token".to_owned(), 2)]));
}

async fn all_callers_share_one_request(cluster: Cluster) {
    let (receiver, open) = Receiver::held(grant).await;
    set(cluster.client(0), &receiver).await;
    let replicas: Vec<usize> = (0..cluster.size()).collect();
    let waiting = callers(&cluster, &replicas);
    receiver.first().await;
    open.cancel();
    all_have_it(waiting.join_all().await, CALLERS * cluster.size());
    all_have_it(callers(&cluster, &replicas).join_all().await, CALLERS * cluster.size());
    let [asked] = &receiver.received()[..] else { panic!("one request: {}", receiver.received().len()) };
    assert_eq!(&asked.body[..], b"grant_type=refresh_token&refresh_token=first-token");
    for index in replicas {
        assert!(!cluster.logs(index).contains("-token"), "no token is in a log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_callers_share_one_request_on_sqlite() {
    all_callers_share_one_request(allowing(cluster(1).sqlite()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_callers_share_one_request_on_postgres() {
    all_callers_share_one_request(allowing(cluster(3)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_dies_while_it_asks_is_followed_by_one_other() {
    let mut cluster = allowing(cluster(3)).env("SWITCHBOARD_SECRETS__TOKEN_TIMEOUT", "5s").await;
    let (receiver, open) = Receiver::held(grant).await;
    set(cluster.client(0), &receiver).await;
    let lost = callers(&cluster, &[0]);
    receiver.first().await;
    let waiting = callers(&cluster, &[1, 2]);
    cluster.kill(0, Signal::SIGKILL);
    open.cancel();
    assert!(lost.join_all().await.iter().all(Result::is_err));
    all_have_it(waiting.join_all().await, 2 * CALLERS);
    let asked = receiver.received();
    assert_eq!(asked.len(), 2, "the one that was lost, and the one that took over");
    assert!(asked.iter().all(|request| request.body == asked[0].body));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_fails_is_asked_once_and_then_left_alone() {
    let busy = |_: &Received| (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "120")], "busy").into_response();
    let (receiver, open) = Receiver::held(busy).await;
    let cluster = allowing(cluster(2)).await;
    set(cluster.client(0), &receiver).await;
    let waiting = callers(&cluster, &[0, 1]);
    receiver.first().await;
    open.cancel();
    let late = callers(&cluster, &[0, 1]);
    for answers in join_all([waiting.join_all(), late.join_all()]).await {
        for answer in answers {
            let error = answer.map(drop).unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::Unavailable));
            assert!(error.to_string().contains("the provider answered with status 503"), "{error}");
        }
    }
    assert_eq!(receiver.received().len(), 1);
    let token = cluster.client(1).get_token(&name()).await.unwrap();
    assert_eq!((token.failures, token.version), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_the_name_of_the_server_is_set_and_taken_by_commands() {
    let receiver = Receiver::answering(grant).await;
    let cluster = allowing(cluster(1).sqlite()).await;
    let cli = Cli::of(&cluster);
    let secret = SecretRequest { value: SecretValue::new("client-secret"), version: None };
    cluster.client(0).put_secret(&"crm.client".parse().unwrap(), &secret).await.unwrap();
    let url = receiver.url("/token");
    let set =
        ["provider-token", "set", "crm", "--token-url", &url, "--client-id", "me", "--client-secret", "crm.client"];
    assert_eq!(cli.says(&[&set[..], &["--client-credentials"]].concat()), "Set token crm, version 1.\n");
    assert_eq!(cli.says(&["provider-token", "access", "crm"]), "granted-token\n");
    assert_eq!(cli.gives(&["provider-token", "get", "crm"])["version"], 2);
    assert!(cli.says(&["provider-token", "list"]).contains("crm"));
    assert!(!cli.says(&["provider-token", "get", "crm"]).contains("granted-token"));
    let asked = receiver.received().remove(0);
    assert_eq!(&asked.body[..], b"grant_type=client_credentials");
    assert!(asked.header("authorization").starts_with("Basic "));
    assert_eq!(cli.says_to(&[&set[..], &["--value-stdin"]].concat(), "refresh-me\n"), "Set token crm, version 3.\n");
    assert_eq!(cli.gives(&["provider-token", "access", "crm", "--min-ttl", "1m"])["version"], 4);
    assert_eq!(cli.says(&["provider-token", "delete", "crm"]), "Deleted token crm.\n");
    assert!(cli.fails(&["provider-token", "access", "crm"]).contains("no such token"));
}
