//! Rate limits over several replicas: exact while the database answers, and held to their policies while it does not.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use switchboard_testkit::{Cluster, wait_until};

use crate::fixtures::cluster;

/// Posts to a replica and returns the status and the body.
async fn post(cluster: &Cluster, index: usize, path: &str, body: &Value) -> (u16, Value) {
    static HTTP: OnceLock<reqwest::Client> = OnceLock::new();
    let http = HTTP.get_or_init(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A connection belongs to the runtime of a test, so none is kept for the next.
        reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap()
    });
    let base = &cluster.base_urls()[index];
    let request = http.post(format!("{}{path}", base.trim_end_matches('/'))).bearer_auth(cluster.key().expose());
    let response = request.json(body).send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

/// An allowed request: when it was sent, and when the answer was there. It was decided in between.
struct Allowed {
    sent: Instant,
    answered: Instant,
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_allow_no_more_than_one_limit() {
    const RATE: f64 = 20.0;
    const BURST: f64 = 10.0;
    let cluster = cluster(2).await;
    // Without a fallback: a request that the database does not decide is not allowed.
    let body = json!({"rate": "20/1s burst 10", "outage": "refuse"});
    let start = Instant::now();
    let ask = async |index: usize| {
        let (mut allowed, mut denied) = (Vec::new(), 0);
        while start.elapsed() < Duration::from_secs(4) {
            let sent = Instant::now();
            let (status, answer) = post(&cluster, index, "/api/v1/limits/shared/take", &body).await;
            if (status, &answer["allowed"]) == (200, &json!(true)) {
                allowed.push(Allowed { sent, answered: Instant::now() });
            } else {
                denied += 1;
            }
        }
        (allowed, denied)
    };
    let asked = join_all((0..8).map(|worker| ask(worker % 2))).await;
    for index in 0..2 {
        let of_replica = asked.iter().skip(index).step_by(2);
        assert!(of_replica.map(|(allowed, _)| allowed.len()).sum::<usize>() > 0, "replica {index} gave nothing");
    }
    let denied: usize = asked.iter().map(|(_, denied)| denied).sum();
    let allowed: Vec<Allowed> = asked.into_iter().flat_map(|(allowed, _)| allowed).collect();
    assert!(allowed.len() > 30 && denied > allowed.len(), "{} allowed, {denied} denied", allowed.len());
    for first in &allowed {
        for last in allowed.iter().filter(|last| last.answered > first.sent) {
            let within = allowed.iter().filter(|one| one.sent >= first.sent && one.answered <= last.answered).count();
            let window = (last.answered - first.sent).as_secs_f64();
            let most = BURST + RATE * window + 1.0;
            #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
            let within = within as f64;
            assert!(within <= most, "{within} within {window} s, of which {most} are allowed");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_table_leaves_sign_in_limited_and_everybody_served() {
    let cluster = cluster(1).env("SWITCHBOARD_LIMITS__LOGIN_ACCOUNT", "5/1h").await;
    let allowed = async |key: &str, outage: &str| {
        let body = json!({"rate": "3/1h", "outage": outage});
        let path = format!("/api/v1/limits/{key}/take");
        let answers = join_all((0..20).map(|_| post(&cluster, 0, &path, &body))).await;
        answers.into_iter().filter(|(status, answer)| (*status, &answer["allowed"]) == (200, &json!(true))).count()
    };
    let logins = async || {
        let body = json!({"name": "ann", "password": "not the password"});
        let answers = join_all((0..20).map(|_| post(&cluster, 0, "/api/v1/auth/login", &body))).await;
        let count = |wanted: u16| answers.iter().filter(|(status, _)| *status == wanted).count();
        (count(401), count(429))
    };
    let body = json!({"rate": "3/1h", "outage": "refuse"});
    wait_until("the last unit to be taken", async || {
        let (status, answer) = post(&cluster, 0, "/api/v1/limits/before/take", &body).await;
        if (status, &answer["allowed"]) == (200, &json!(false)) { Ok(()) } else { Err(answer) }
    })
    .await;
    cluster.database().execute("ALTER TABLE switchboard.rate_limits RENAME TO rate_limits_away").await;
    assert_eq!(allowed("open", "open").await, 20);
    assert_eq!(allowed("local", "local").await, 3);
    assert_eq!(allowed("refuse", "refuse").await, 0);
    assert_eq!(logins().await, (5, 15), "tried and limited");
    cluster.database().execute("ALTER TABLE switchboard.rate_limits_away RENAME TO rate_limits").await;
    wait_until("the store to be asked again", async || {
        let (status, answer) = post(&cluster, 0, "/api/v1/limits/after/take", &body).await;
        if status == 200 { Ok(()) } else { Err(answer) }
    })
    .await;
    assert_eq!(allowed("before", "refuse").await, 0, "what was used up before the outage is still used up");
}
