//! Rate limits over several replicas: exact while the database answers, and held to their policies while it does not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use switchboard_model::wire::rest::{LimitTakeRequest, Outage};
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
    const RATE: f64 = 1.0;
    const BURST: f64 = 5.0;
    /// How many times as much is asked for.
    const DEMAND: f64 = 10.0;
    let cluster = cluster(2).env("SWITCHBOARD_LIMITS__PATIENCE", "1m").await;
    // Without a fallback: a request that the database does not decide is not allowed.
    let request = LimitTakeRequest { rate: "1/1s burst 5".parse().unwrap(), cost: 1, outage: Outage::Refuse };
    let key = "shared".parse().unwrap();
    let (start, asked) = (Instant::now(), AtomicU32::new(0));
    let is_enough = || {
        let time = start.elapsed().as_secs_f64();
        time > 4.0 && f64::from(asked.load(Ordering::SeqCst)) > DEMAND * (BURST + RATE * time)
    };
    let ask = async |index: usize| {
        let mut allowed = Vec::new();
        while !is_enough() {
            let sent = Instant::now();
            let answer = cluster.client(index).take_limit(&key, &request).await;
            if answer.is_ok_and(|answer| answer.allowed) {
                allowed.push(Allowed { sent, answered: Instant::now() });
            }
            asked.fetch_add(1, Ordering::SeqCst);
        }
        allowed
    };
    let asking = join_all((0..8).map(|worker| ask(worker % 2)));
    let allowed = tokio::time::timeout(Duration::from_secs(200), asking).await.expect("ten times as many requests");
    let allowed: Vec<Allowed> = allowed.into_iter().flatten().collect();
    assert!(allowed.len() >= 5, "the burst is there at once");
    for first in &allowed {
        for last in allowed.iter().filter(|last| last.answered > first.sent) {
            let within = allowed.iter().filter(|one| one.sent >= first.sent && one.answered <= last.answered).count();
            let window = (last.answered - first.sent).as_secs_f64();
            let within = f64::from(u32::try_from(within).unwrap());
            assert!(within <= BURST + RATE * window + 1.0, "{within} within {window} s");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_table_leaves_sign_in_limited_and_everybody_served() {
    let cluster =
        cluster(1).env("SWITCHBOARD_LIMITS__LOGIN_ACCOUNT", "5/1h").env("SWITCHBOARD_LIMITS__PATIENCE", "1m").await;
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
