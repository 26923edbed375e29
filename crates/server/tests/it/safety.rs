//! The safety check: what a boot refuses, with which exit code, and what it says.

use std::process::Stdio;

use switchboard_testkit::{Cluster, TestDatabase, wait_until};

use crate::fixtures::{cluster, command, err, out, switchboard};

type Env<'a> = [(&'a str, &'a str)];

const STRICT: (&str, &str) = ("SWITCHBOARD_STRICT", "true");
const MULTI: (&str, &str) = ("SWITCHBOARD_REPLICAS", "multi");
const URL: &str = "SWITCHBOARD_DATABASE__URL";
const SIGNING: &str = "SWITCHBOARD_AUTH__SIGNING_KEYS";
const SEALING: &str = "SWITCHBOARD_SECRETS__KEYS";

/// Keys as the server takes them.
const KEYS: [(&str, &str); 2] = [
    (SIGNING, "test:hs256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    (SEALING, "test:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
];
const OTHER_KEY: &str = "test:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA";

/// Requires that a boot ends with a code and says each of the texts.
#[track_caller]
fn refuses(code: u8, env: &Env<'_>, texts: &[&str]) {
    let ended = switchboard(&["serve"], &[env, &[("SWITCHBOARD_SERVER__BIND", "127.0.0.1:0")]].concat());
    let log = err(&ended);
    assert_eq!(ended.status.code(), Some(code.into()), "{log}");
    for text in texts {
        assert!(log.contains(text), "{text} is missing in:\n{log}");
    }
}

/// The settings of one more replica on a database, with the keys above.
fn on(database: &TestDatabase) -> Vec<(&str, &str)> {
    [&[(URL, database.url()), MULTI][..], &KEYS].concat()
}

fn fleet(size: usize) -> switchboard_testkit::ClusterBuilder {
    KEYS.into_iter().fold(cluster(size), |cluster, (name, value)| cluster.env(name, value))
}

/// Tells whether a replica that runs counts a finding of its boot.
async fn counts(cluster: &Cluster, index: usize, finding: &str) -> bool {
    let url = format!("{}/metrics", cluster.base_urls()[index].trim_end_matches('/'));
    let metrics = reqwest::get(url).await.unwrap().text().await.unwrap();
    let line = |value| format!("switchboard_safety_findings{{finding=\"{finding}\"}} {value}\n");
    assert!(metrics.contains(&line(0)) || metrics.contains(&line(1)), "{metrics}");
    metrics.contains(&line(1))
}

#[tokio::test]
async fn a_file_serves_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("s.db").display());
    let env = [(URL, url.as_str()), ("SWITCHBOARD_SERVER__BIND", "127.0.0.1:0")];
    let mut first = command(&["serve"], &env).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the first process to have the file", async || {
        let checked = switchboard(&["check"], &env);
        if checked.status.code() == Some(18) { Ok(()) } else { Err(out(&checked)) }
    })
    .await;
    refuses(18, &env, &["another process has the database", "database.url"]);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(switchboard(&["check"], &env).status.success());
}

#[test]
fn a_file_serves_no_fleet() {
    refuses(15, &[MULTI], &["replicas = ", "database.url"]);
    assert_eq!(switchboard(&["check"], &[MULTI]).status.code(), Some(15));
}

#[tokio::test]
async fn a_fleet_is_given_its_keys() {
    let database = TestDatabase::empty().await;
    let (url, advice) = ((URL, database.url()), ["auth.signing_keys and secrets.keys", "token new-key"]);
    refuses(16, &[url, MULTI], &advice);
    refuses(16, &[url, MULTI, KEYS[0]], &advice);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_keys_than_those_of_a_live_replica_are_refused() {
    let mut cluster = fleet(1).await;
    assert!(!counts(&cluster, 0, "keys").await);
    let mut env = on(cluster.database());
    env.push(STRICT);
    let place = env.iter().position(|(name, _)| *name == SEALING).unwrap();
    env[place].1 = OTHER_KEY;
    let name = cluster.any().list_instances(Default::default()).await.unwrap().items.remove(0).id.to_string();
    refuses(16, &env, &["secrets.keys: key test is another one than key test of", &name]);
    let signing = format!("new:hs256:{}", &OTHER_KEY["test:".len()..]);
    let other = [(URL, cluster.database().url()), MULTI, STRICT, KEYS[1], (SIGNING, signing.as_str())];
    refuses(16, &other, &["auth.signing_keys: key new, which is in use here, is missing on"]);

    let without_strict: Vec<_> = env.into_iter().filter(|setting| *setting != STRICT).collect();
    refuses(16, &without_strict, &["secrets.keys: the key test is not the one by which stored secrets are encrypted"]);

    let signing = format!("test:hs256:{}", &OTHER_KEY["test:".len()..]);
    let added = cluster.add_with(&[(SIGNING, &signing)]).await;
    assert!(counts(&cluster, added, "keys").await, "without strict it is told and counted");
    assert!(cluster.logs(added).contains("auth.signing_keys: key test is another one"));
    for secret in [OTHER_KEY, KEYS[1].1] {
        assert!(!cluster.logs(added).contains(&secret["test:".len()..]), "no key is logged");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "exit status: 16")]
async fn two_that_boot_together_with_different_keys_do_not_both_stay() {
    fleet(2).env_of(1, SEALING, OTHER_KEY).env(STRICT.0, STRICT.1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_replica_is_alone() {
    let cluster = fleet(1).await;
    let url = (URL, cluster.database().url());
    refuses(15, &[url, KEYS[0], KEYS[1], STRICT], &["replicas is \\\"single\\\"", "replicas = \\\"multi\\\""]);
    let clock = ("SWITCHBOARD_SCHEDULER__TEST_CLOCK", "now");
    refuses(20, &[url, KEYS[0], KEYS[1], clock], &["scheduler.test_clock"]);
}

#[tokio::test]
async fn a_listener_that_hears_nothing_is_refused() {
    let (database, elsewhere) = (TestDatabase::create().await, TestDatabase::create().await);
    let mut env = on(&database);
    env.extend([STRICT, ("SWITCHBOARD_DATABASE__DIRECT_URL", elsewhere.url())]);
    refuses(12, &env, &["LISTEN does not work", "database.direct_url", "realtime.hints"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_is_told_and_counted() {
    let cluster = cluster(1).clock_offset(0, 30).await;
    assert!(counts(&cluster, 0, "clock").await);
    assert!(cluster.logs(0).contains("ms off the database"));
}

#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "exit status: 14")]
async fn a_wrong_clock_is_refused_under_strict() {
    cluster(1).clock_offset(0, 30).env(STRICT.0, STRICT.1).await;
}

#[tokio::test]
async fn a_damaged_migration_is_refused() {
    let database = TestDatabase::create().await;
    database.execute("UPDATE switchboard._sqlx_migrations SET checksum = '' WHERE version = 2").await;
    refuses(11, &on(&database), &["migration 2 was applied half only, or in another form"]);
}

#[tokio::test]
async fn a_newer_schema_is_no_reason_to_refuse() {
    let database = TestDatabase::create().await;
    database
        .execute(
            "INSERT INTO switchboard._sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (9999, 'from a newer release', true, '', 0)",
        )
        .await;
    let checked = switchboard(&["check"], &on(&database));
    assert!(checked.status.success() && out(&checked).contains("newer than"), "{}", out(&checked));
}

#[tokio::test]
async fn a_pooler_needs_a_way_past_it() {
    let (empty, migrated) = (TestDatabase::empty().await, TestDatabase::create().await);
    let pooled = ("SWITCHBOARD_DATABASE__POOLED", "true");
    let env = |database| [on(database), vec![pooled, STRICT]].concat();
    refuses(17, &env(&empty), &["the schema must be migrated", "database.direct_url"]);
    refuses(17, &env(&migrated), &["database.pooled is set", "database.direct_url"]);
    let refused = switchboard(&["migrate"], &[(URL, empty.url()), pooled]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(err(&refused).contains("set database.direct_url to a URL that leads past the pooler"), "{}", err(&refused));
}

#[test]
fn roles_that_nobody_has_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("s.db").display());
    let env = [(URL, url.as_str()), ("SWITCHBOARD_ROLES", "api,worker")];
    refuses(19, &env, &["no replica has the role scheduler", "scheduler.fire", "roles = "]);
    let planned = |deployments: &[&str]| {
        let pairs = deployments.iter().flat_map(|deployment| ["--deployment", deployment]);
        switchboard(&["check"].into_iter().chain(pairs).collect::<Vec<_>>(), &[])
    };
    let complete = planned(&["api", "scheduler", "worker/default,heavy"]);
    assert!(complete.status.success(), "{}{}", out(&complete), err(&complete));
    let headless = planned(&["api", "worker"]);
    assert_eq!(headless.status.code(), Some(19), "{}", out(&headless));
    assert!(out(&headless).contains("nobody runs scheduler.fire"), "{}", out(&headless));
    let unserved = planned(&["api,scheduler/heavy", "worker"]);
    assert!(out(&unserved).contains("no worker serves the pool heavy"), "{}", out(&unserved));
    let unknown = planned(&["boss"]);
    assert!(err(&unknown).contains("unknown role \"boss\""), "{}", err(&unknown));
}
