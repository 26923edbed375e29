//! The keys that encrypt what is stored are exchanged while replicas serve, and nothing is unreadable at any time.

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::json;
use switchboard_client::{Client, WebhookDelivery};
use switchboard_model::ids::TaskId;
use switchboard_model::json_text::JsonText;
use switchboard_model::run::RunState;
use switchboard_model::secret::SecretValue;
use switchboard_model::secret_text::SecretText;
use switchboard_model::task::Task;
use switchboard_model::wire::rest::WebhookSecretRequest;
use switchboard_model::wire::secret::{RewrapRequest, SecretRequest, TokenAccessRequest, TokenSetRequest};
use switchboard_testkit::Cluster;

use crate::cli::Cli;
use crate::fixtures::{cluster, create_task, ended, err, out, switchboard, trigger};
use crate::receiver::{Received, Receiver};

const KEYS: &str = "SWITCHBOARD_SECRETS__KEYS";
const VALUE: &str = "value-of-the-secret";

/// Makes a key as an operator does.
fn new_key(id: &str) -> String {
    out(&switchboard(&["token", "new-key", "--kind", "secrets", "--id", id], &[])).trim().to_owned()
}

/// Gives tokens under `/token`, and takes everything else.
fn provider(request: &Received) -> Response {
    if request.path != "/token" {
        return StatusCode::NO_CONTENT.into_response();
    }
    let refreshed = String::from_utf8_lossy(&request.body).contains("refresh_token=long-lived-token");
    let status = if refreshed { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    (status, r#"{"access_token":"granted","expires_in":3600}"#).into_response()
}

/// Everything that is sealed: a secret that a task sends, a secret of its webhook, and a token.
struct Treasure {
    receiver: Receiver,
    task: Task,
    webhook: SecretText,
    deliveries: u32,
}

impl Treasure {
    async fn bury(client: &Client) -> Self {
        let receiver = Receiver::answering(provider).await;
        let secret = SecretRequest { value: SecretValue::new(VALUE), version: None };
        client.put_secret(&"crm.key".parse().unwrap(), &secret).await.unwrap();
        let action = json!({"http": {"url": receiver.url("/"), "headers": {"x-key": {"secret": "crm.key"}}}});
        let task = create_task(client, json!({"name": "call", "action": action, "max_attempts": 1})).await;
        let webhook = client.create_webhook_secret(task.id, &WebhookSecretRequest::default()).await.unwrap();
        let provider = serde_json::from_value(json!({"token_url": receiver.url("/token")})).unwrap();
        let refresh_token = Some(SecretValue::new("long-lived-token"));
        let token = TokenSetRequest { provider, refresh_token, access_token: None, expires_in: None };
        client.put_token(&"crm".parse().unwrap(), &token).await.unwrap();
        Self { receiver, task, webhook: SecretText::from_presented(webhook.secret), deliveries: 0 }
    }

    /// Uses all of it through each of the replicas, whichever of them has sealed it.
    async fn is_readable_on(&mut self, cluster: &Cluster, replicas: &[usize]) {
        for index in replicas {
            let client = cluster.client(*index);
            self.deliveries += 1;
            let body = JsonText::parse("{}").unwrap();
            let delivery = WebhookDelivery::of_json(format!("msg_{}", self.deliveries), &body);
            let run = client.send_webhook(&self.task.spec.name, &self.webhook, &delivery).await.unwrap().run_id;
            self.sends(client, run).await;
            // A replica executes runs of all, so this one may not have opened the secret itself; it opens the token.
            let name = "crm".parse().unwrap();
            let version = client.get_token(&name).await.unwrap().version;
            let renewed = TokenAccessRequest { min_ttl: None, refused_version: Some(version) };
            let access = client.token_access(&name, &renewed).await.unwrap();
            assert_eq!((access.access_token.as_str(), access.version), ("granted", version + 1));
        }
        for _ in 0..5 {
            let run = trigger(cluster.client(replicas[0]), self.id()).await;
            self.sends(cluster.client(replicas[0]), run).await;
        }
    }

    async fn sends(&self, client: &Client, run: switchboard_model::ids::RunId) {
        let run = ended(client, run).await;
        assert_eq!(run.state, RunState::Succeeded, "{:?}", run.error);
        let sent = self.receiver.received().into_iter().rfind(|request| request.path == "/").unwrap();
        assert_eq!(sent.header("x-key"), VALUE);
    }

    const fn id(&self) -> TaskId {
        self.task.id
    }
}

/// Tries to start one more replica that must not start, and returns what it says.
fn refused(cluster: &Cluster, keys: &str) -> String {
    let signing = out(&switchboard(&["token", "new-key", "--id", "s"], &[]));
    let env = [
        ("SWITCHBOARD_DATABASE__URL", cluster.database().url()),
        ("SWITCHBOARD_REPLICAS", "multi"),
        ("SWITCHBOARD_AUTH__SIGNING_KEYS", signing.trim()),
        ("SWITCHBOARD_SERVER__BIND", "127.0.0.1:0"),
        (KEYS, keys),
    ];
    let output = switchboard(&["serve"], &env);
    assert_eq!(output.status.code(), Some(16), "{}{}", out(&output), err(&output));
    let text = err(&output);
    assert!(text.contains("secrets.keys"), "it names the setting: {text}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_exchanged_while_replicas_serve() {
    let (old, new) = (new_key("old"), new_key("new"));
    let mut cluster = cluster(2).env(KEYS, &old).env("SWITCHBOARD_OUTBOUND__ALLOW", "127.0.0.1/32").await;
    // What the test does by a command is not to be done before by the upkeep.
    let upkeep = cluster.client(0).find_task(&"system:rewrap_secrets".parse().unwrap()).await.unwrap();
    cluster.client(0).pause_task(upkeep.id).await.unwrap();
    let mut treasure = Treasure::bury(cluster.client(0)).await;
    treasure.is_readable_on(&cluster, &[0, 1]).await;
    assert!(refused(&cluster, &new).contains("the key old is missing"));
    assert!(refused(&cluster, &new_key("old")).contains("the key old is not the one"));

    // The new key decrypts everywhere before it encrypts anywhere.
    let both = format!("{old},{new}");
    for stopped in [0, 1] {
        let added = cluster.add_with(&[(KEYS, &both)]).await;
        treasure.is_readable_on(&cluster, &[1, added]).await;
        cluster.stop(stopped).await;
    }
    // It encrypts on one replica after the other: both write while the other reads.
    let switched = format!("{new},{old}");
    for stopped in [2, 3] {
        let added = cluster.add_with(&[(KEYS, &switched)]).await;
        for index in [3, added] {
            let secret = SecretRequest { value: SecretValue::new(VALUE), version: None };
            cluster.client(index).put_secret(&"crm.key".parse().unwrap(), &secret).await.unwrap();
            treasure.is_readable_on(&cluster, &[3, added]).await;
        }
        if stopped == 2 {
            let early = cluster.client(3).rewrap(&RewrapRequest::default()).await.unwrap_err().to_string();
            assert!(early.contains("encrypts by the key old, and the current key is new"), "{early}");
        }
        cluster.stop(stopped).await;
    }
    // What the old key has encrypted goes to the new one.
    let address = cluster.base_urls().remove(5);
    let key = cluster.key().expose().to_owned();
    let cli = Cli { env: vec![("SWITCHBOARD_URL", address), ("SWITCHBOARD_API_KEY", key)] };
    let before = cli.gives(&["secret", "keys"]);
    assert!(before["keys"].as_array().unwrap().iter().any(|key| key["key_id"] == "old"), "{before}");
    let done = cli.gives(&["secret", "rewrap"]);
    assert_eq!((&done["left"], &done["retired"]), (&json!(0), &json!(["old"])), "{done}");
    assert!(done["rewrapped"].as_u64().unwrap() > 0, "{done}");
    let after = cli.gives(&["secret", "keys"]);
    assert!(after["keys"].as_array().unwrap().iter().all(|key| key["key_id"] == "new"), "{after}");
    treasure.is_readable_on(&cluster, &[4, 5]).await;

    // Nothing needs the old key any more.
    for stopped in [4, 5] {
        let added = cluster.add_with(&[(KEYS, &new)]).await;
        treasure.is_readable_on(&cluster, &[5, added]).await;
        cluster.stop(stopped).await;
    }
    assert!(refused(&cluster, &old).contains("the key new is missing"));
    assert!(refused(&cluster, &both).contains("the key old was retired"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_lost_is_given_up_and_servers_start_again() {
    let (lost, new) = (new_key("lost"), new_key("new"));
    let mut cluster = cluster(1).env(KEYS, &lost).await;
    let name = "crm.key".parse().unwrap();
    let secret = SecretRequest { value: SecretValue::new(VALUE), version: None };
    cluster.client(0).put_secret(&name, &secret).await.unwrap();
    cluster.stop(0).await;
    let advice = refused(&cluster, &new);
    assert!(advice.contains("switchboard secret retire-key lost"), "{advice}");
    let url = cluster.database().url().to_owned();
    let env = [("SWITCHBOARD_DATABASE__URL", url.as_str())];
    let given_up = switchboard(&["secret", "retire-key", "lost"], &env);
    assert!(out(&given_up).contains("Retired key lost"), "{}{}", out(&given_up), err(&given_up));
    assert!(err(&switchboard(&["secret", "retire-key", "lost"], &env)).contains("there is no key lost"));
    let index = cluster.add_with(&[(KEYS, &new)]).await;
    let client = cluster.client(index);
    let report = client.rewrap(&RewrapRequest::default()).await.unwrap();
    assert_eq!((report.rewrapped, report.unreadable, report.left), (0, 1, 1));
    client.put_secret(&name, &secret).await.unwrap();
    assert_eq!(client.rewrap(&RewrapRequest::default()).await.unwrap().left, 0, "it was set anew");
}
