//! Every verdict, and where it changes.

use switchboard_model::ids::InstanceId;
use switchboard_model::instance::Role;
use switchboard_model::span::Span;

use super::*;
use crate::config::TestClock;

fn facts() -> PgDiagnosis {
    PgDiagnosis {
        server_version: "15".to_owned(),
        schema_version: switchboard_store_pg::schema_version(),
        damaged_versions: vec![],
        live: vec![],
        max_connections: 100,
        superuser_reserved_connections: 3,
        listen_works: true,
        shares_sessions: false,
        shares_direct_sessions: false,
        now: "2027-01-01T00:00:00Z".parse().unwrap(),
    }
}

fn live(pool_size: u32) -> Instance {
    let at = facts().now;
    Instance {
        id: InstanceId::boot("a"),
        name: "a".to_owned(),
        version: "1".to_owned(),
        schema_version: 1,
        roles: vec![],
        pools: vec![],
        pool_size,
        started_at: at,
        expires_at: at,
        key_check: own().to_text(),
    }
}

fn key_check(signing: &[(&str, &str)], sealing: &[(&str, &str)]) -> KeyCheck {
    let owned = |pairs: &[(&str, &str)]| pairs.iter().map(|(id, check)| ((*id).into(), (*check).into())).collect();
    KeyCheck { signing: owned(signing), sealing: owned(sealing) }
}

fn own() -> KeyCheck {
    key_check(&[("a", "1")], &[("s", "1")])
}

fn multi() -> Config {
    Config { replicas: Replicas::Multi, ..Config::default() }
}

fn level(config: &Config, facts: &PgDiagnosis, topic: Topic) -> Level {
    let findings = postgres(config, facts, Some(&own()), facts.now);
    let levels: Vec<_> = findings.iter().filter(|finding| finding.topic == topic).map(|found| found.level).collect();
    assert_eq!(levels.len(), 1, "one finding of a topic: {findings:?}");
    levels[0]
}

fn beside(others: &[Instance]) -> PgDiagnosis {
    PgDiagnosis { live: others.to_vec(), ..facts() }
}

#[test]
fn a_usual_fleet_has_no_finding() {
    for finding in postgres(&multi(), &beside(&[live(10)]), Some(&own()), facts().now) {
        assert_eq!(finding.level, Level::Fine, "{finding:?}");
    }
}

#[test]
fn the_connection_budget_counts_every_live_replica() {
    // 10 + 3 here, 81 + 3 there: 97 of 97.
    assert_eq!(level(&multi(), &beside(&[live(81)]), Topic::Connections), Level::Fine);
    assert_eq!(level(&multi(), &beside(&[live(82)]), Topic::Connections), Level::Unsafe);
}

#[test]
fn a_second_replica_needs_multi() {
    assert_eq!(level(&Config::default(), &beside(&[live(1)]), Topic::Replicas), Level::Unsafe);
    assert_eq!(level(&Config::default(), &facts(), Topic::Replicas), Level::Fine);
    assert_eq!(level(&multi(), &beside(&[live(1)]), Topic::Replicas), Level::Fine);
}

#[test]
fn other_schemas_are_warnings_and_damaged_ones_are_refused() {
    for schema_version in [1, i64::MAX] {
        let other = PgDiagnosis { schema_version, ..facts() };
        assert_eq!(level(&multi(), &other, Topic::Schema), Level::Warning);
    }
    let damaged = PgDiagnosis { damaged_versions: vec![3], ..facts() };
    assert_eq!(level(&multi(), &damaged, Topic::Schema), Level::Refused);
}

#[test]
fn a_deaf_replica_is_unsafe_unless_it_was_asked_for() {
    let deaf = PgDiagnosis { listen_works: false, ..facts() };
    assert_eq!(level(&multi(), &deaf, Topic::Listen), Level::Unsafe);
    let mut polling = multi();
    polling.realtime.hints = Hints::Off;
    assert_eq!(level(&polling, &deaf, Topic::Listen), Level::Warning);
    let mut pooled = multi();
    pooled.database.pooled = true;
    assert_eq!(level(&pooled, &deaf, Topic::Listen), Level::Warning, "the pooler is the finding");
}

#[test]
fn a_clock_may_be_five_seconds_off() {
    let skewed = |seconds| clock(facts().now, facts().now + Span::from_secs(seconds).to_delta()).level;
    assert_eq!((skewed(5), skewed(6)), (Level::Fine, Level::Unsafe));
    assert_eq!(clock(facts().now + Span::from_secs(6).to_delta(), facts().now).level, Level::Unsafe);
}

#[test]
fn a_transaction_pooler_needs_its_setting_and_a_way_past_it() {
    let shared = PgDiagnosis { shares_sessions: true, ..facts() };
    assert_eq!(level(&multi(), &shared, Topic::Pooler), Level::Unsafe);
    let mut pooled = multi();
    pooled.database.pooled = true;
    assert_eq!(level(&pooled, &shared, Topic::Pooler), Level::Unsafe, "nobody listens");
    let old = PgDiagnosis { schema_version: 1, ..shared.clone() };
    assert_eq!(level(&pooled, &old, Topic::Pooler), Level::Refused, "nobody can migrate");
    let mut polling = pooled.clone();
    polling.realtime.hints = Hints::Off;
    assert_eq!(level(&polling, &shared, Topic::Pooler), Level::Warning);
    pooled.database.direct_url = Some("postgres://past".to_owned());
    assert_eq!(level(&pooled, &old, Topic::Pooler), Level::Fine);
    let both = PgDiagnosis { shares_direct_sessions: true, ..shared };
    assert_eq!(level(&pooled, &both, Topic::Pooler), Level::Unsafe);
}

#[test]
fn keys_of_live_replicas_are_compared() {
    let with = |check: String| beside(&[Instance { key_check: check, ..live(1) }]);
    let other = |check: &KeyCheck| level(&multi(), &with(check.to_text()), Topic::Keys);
    assert_eq!(other(&own()), Level::Fine);
    assert_eq!(other(&key_check(&[("a", "2")], &[("s", "1")])), Level::Unsafe, "another key of the same id");
    assert_eq!(other(&key_check(&[("a", "1")], &[("s", "2")])), Level::Unsafe);
    assert_eq!(other(&key_check(&[("b", "1")], &[("s", "1")])), Level::Unsafe, "no key in common");
    assert_eq!(other(&key_check(&[("b", "1"), ("a", "1")], &[("s", "1")])), Level::Unsafe, "what it signs fails here");
    assert_eq!(other(&key_check(&[("a", "1"), ("b", "1")], &[("s", "1")])), Level::Fine, "a rotation begins");
    assert_eq!(level(&multi(), &with(String::new()), Topic::Keys), Level::Warning, "an older release");
}

#[test]
fn roles_without_a_replica_are_refused_where_no_other_can_come() {
    let only = |replicas| Config { replicas, roles: vec![Role::Api], ..Config::default() };
    assert_eq!(level(&only(Replicas::Single), &facts(), Topic::Coverage), Level::Refused);
    assert_eq!(level(&only(Replicas::Multi), &facts(), Topic::Coverage), Level::Warning);
    let rest =
        Instance { roles: vec![Role::Scheduler, Role::Worker], pools: vec!["default".parse().unwrap()], ..live(1) };
    assert_eq!(level(&only(Replicas::Multi), &beside(&[rest]), Topic::Coverage), Level::Fine);
    let heavy = Config { pools: vec!["heavy".parse().unwrap()], ..Config::default() };
    assert_eq!(alone(&heavy).level, Level::Unsafe, "nobody serves the default pool");
}

#[test]
fn a_test_clock_is_for_one_process() {
    let mut config = Config::default();
    config.scheduler.test_clock = Some(TestClock::Now);
    assert_eq!(level(&config, &facts(), Topic::State), Level::Fine);
    assert_eq!(level(&config, &beside(&[live(1)]), Topic::State), Level::Refused);
}
