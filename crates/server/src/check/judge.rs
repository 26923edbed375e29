//! The verdicts on what the database says. Pure, so that each of them has a test.

use switchboard_model::Timestamp;
use switchboard_model::instance::Instance;
use switchboard_store_pg::{CONNECTIONS_BESIDE_POOL, PgDiagnosis};

use super::finding::{Finding, Level, Topic};
use crate::config::{Config, Hints, Replicas};
use crate::key_check::KeyCheck;
use crate::placement::{self, Deployment};

/// The clock difference above which logs and times from outside mislead.
const MOST_SKEW_MS: i64 = 5_000;

/// Judges the facts about a PostgreSQL database and the replicas on it. `host` is the time of this host, `own` what
/// tells which keys this replica has.
pub(super) fn postgres(config: &Config, facts: &PgDiagnosis, own: Option<&KeyCheck>, host: Timestamp) -> Vec<Finding> {
    let version = format!("PostgreSQL {} answers", facts.server_version);
    let mut findings = vec![
        Finding::new(Topic::Database, Level::Fine, version),
        schema(facts, switchboard_store_pg::schema_version()),
        pooler(config, facts, switchboard_store_pg::schema_version()),
        listen(config, facts.listen_works),
        connections(config, facts),
        clock(facts.now, host),
        replicas(config, &facts.live),
    ];
    findings.extend(own.map(|own| keys(own, &facts.live)));
    findings.push(fleet(config, &facts.live));
    findings.push(state(config, &facts.live));
    findings
}

fn schema(facts: &PgDiagnosis, known: i64) -> Finding {
    let applied = facts.schema_version;
    let (level, detail) = if let Some(damaged) = facts.damaged_versions.first() {
        (
            Level::Refused,
            format!(
                "migration {damaged} was applied half only, or in another form than this binary has; restore the \
                 database of database.url from a copy, or run the release that migrated it"
            ),
        )
    } else if applied == known {
        (Level::Fine, format!("the schema has version {applied}, as this binary knows it"))
    } else if applied < known {
        (
            Level::Warning,
            format!(
                "the schema has version {applied}; this binary brings it to {known} at boot, or run `switchboard migrate` before"
            ),
        )
    } else {
        (
            Level::Warning,
            format!("the schema has version {applied}, newer than {known} of this binary; finish the rollout"),
        )
    };
    Finding::new(Topic::Schema, level, detail)
}

fn pooler(config: &Config, facts: &PgDiagnosis, known: i64) -> Finding {
    let (pooled, direct) = (config.database.pooled, config.database.direct_url.is_some());
    let (level, detail) = if facts.shares_sessions && !pooled {
        (
            Level::Unsafe,
            "database.url leads to a transaction pooler, where prepared statements and session settings reach others: \
             set database.pooled = true and database.direct_url past the pooler",
        )
    } else if facts.shares_direct_sessions {
        (
            Level::Unsafe,
            "database.direct_url leads to a transaction pooler too, where LISTEN and migrations fail: set it to a URL \
             that leads past the pooler",
        )
    } else if pooled && !direct && facts.schema_version < known {
        (
            Level::Refused,
            "the schema must be migrated, which a transaction pooler cannot do: set database.direct_url to a URL that \
             leads past the pooler",
        )
    } else if pooled && !direct && config.realtime.hints == Hints::Notify {
        (
            Level::Unsafe,
            "database.pooled is set and database.direct_url is not, so nobody listens and no release can migrate: set \
             database.direct_url to a URL that leads past the pooler, or accept polling by realtime.hints = \"off\"",
        )
    } else if pooled && !direct {
        (Level::Warning, "no release can migrate over the pooler: set database.direct_url before the next one")
    } else {
        (Level::Fine, "sessions are used as the settings say")
    };
    Finding::new(Topic::Pooler, level, detail)
}

fn listen(config: &Config, works: bool) -> Finding {
    let is_explained = config.database.pooled && config.database.direct_url.is_none();
    let (level, detail) = match (config.realtime.hints, works) {
        (Hints::Off, _) => (Level::Warning, "realtime.hints is off: replicas read the change feed four times a second"),
        (Hints::Notify, true) => (Level::Fine, "LISTEN and NOTIFY work"),
        (Hints::Notify, false) if is_explained => {
            (Level::Warning, "without database.direct_url replicas poll the change feed")
        }
        (Hints::Notify, false) => (
            Level::Unsafe,
            "LISTEN does not work here, so replicas poll: set database.direct_url past the pooler, or accept it by \
             realtime.hints = \"off\"",
        ),
    };
    Finding::new(Topic::Listen, level, detail)
}

fn connections(config: &Config, facts: &PgDiagnosis) -> Finding {
    let of = |pool_size: u32| i64::from(pool_size) + i64::from(CONNECTIONS_BESIDE_POOL);
    let others: i64 = facts.live.iter().map(|instance| of(instance.pool_size)).sum();
    let wanted = others + of(config.database.pool_size);
    let free = facts.max_connections - facts.superuser_reserved_connections;
    let live = facts.live.len();
    let sum = format!("{live} live replicas and this one open up to {wanted} connections; the server gives {free}");
    // Behind a pooler the server sees the pooler's connections, not ours.
    if config.database.pooled || wanted <= free {
        Finding::new(Topic::Connections, Level::Fine, sum)
    } else {
        let advice = format!("{sum}: lower database.pool_size, raise max_connections or use a pooler");
        Finding::new(Topic::Connections, Level::Unsafe, advice)
    }
}

fn clock(database: Timestamp, host: Timestamp) -> Finding {
    let skew = (host - database).num_milliseconds();
    let seen = format!("the host clock is {skew} ms off the database");
    if skew.abs() <= MOST_SKEW_MS {
        return Finding::new(Topic::Clock, Level::Fine, seen);
    }
    let detail = format!(
        "{seen} of database.url: leases are safe, but logs mislead and tokens of auth.external expire at the wrong \
         time; synchronise the clock"
    );
    Finding::new(Topic::Clock, Level::Unsafe, detail)
}

fn replicas(config: &Config, live: &[Instance]) -> Finding {
    match (config.replicas, live.is_empty()) {
        (Replicas::Single, false) => Finding::new(
            Topic::Replicas,
            Level::Unsafe,
            format!("replicas is \"single\", but {} is alive; set replicas = \"multi\" on all", names(live)),
        ),
        _ => Finding::new(Topic::Replicas, Level::Fine, format!("{} live replicas", live.len())),
    }
}

fn names(live: &[Instance]) -> String {
    live.iter().map(|instance| instance.id.as_str()).collect::<Vec<_>>().join(", ")
}

/// Compares the keys of this replica with those of live ones, itself included or not.
pub(super) fn keys(own: &KeyCheck, live: &[Instance]) -> Finding {
    let (mut differences, mut silent) = (Vec::new(), Vec::new());
    for instance in live {
        match KeyCheck::from_text(&instance.key_check) {
            Some(theirs) => differences.extend(own.differences(&theirs, instance.id.as_str())),
            None => silent.push(instance.id.as_str()),
        }
    }
    let (level, detail) = if !differences.is_empty() {
        (Level::Unsafe, format!("{}; give every replica the same keys", differences.join("; ")))
    } else if !silent.is_empty() {
        let silent = silent.join(", ");
        (
            Level::Warning,
            format!("the keys of {silent} are not known, since its release does not tell; finish the rollout"),
        )
    } else {
        (Level::Fine, format!("{} live replicas have the same keys", live.len()))
    };
    Finding::new(Topic::Keys, level, detail)
}

/// Judges what this replica and the live ones do together.
fn fleet(config: &Config, live: &[Instance]) -> Finding {
    let own = Deployment { roles: config.roles.clone(), pools: config.pools.clone() };
    let others =
        live.iter().map(|instance| Deployment { roles: instance.roles.clone(), pools: instance.pools.clone() });
    let gaps = placement::gaps(&others.chain([own]).collect::<Vec<_>>());
    match config.replicas {
        _ if gaps.is_empty() => coverage(&gaps),
        Replicas::Single => alone(config),
        Replicas::Multi => {
            let detail = format!("{}; start the replicas that are missing", sentence(&gaps));
            Finding::new(Topic::Coverage, Level::Warning, detail)
        }
    }
}

/// Judges what the only replica of a database does.
pub(super) fn alone(config: &Config) -> Finding {
    let own = Deployment { roles: config.roles.clone(), pools: config.pools.clone() };
    let gaps = placement::gaps(&[own]);
    if gaps.iter().all(placement::Gap::is_named_pool) {
        return coverage(&gaps);
    }
    let advice = "give the only replica every role by roles = [\"api\", \"scheduler\", \"worker\"]";
    Finding::new(Topic::Coverage, Level::Refused, format!("{}; {advice}", sentence(&gaps)))
}

/// Judges the deployments of a fleet that is planned.
pub(super) fn planned(deployments: &[Deployment]) -> Finding {
    coverage(&placement::gaps(deployments))
}

fn coverage(gaps: &[placement::Gap]) -> Finding {
    if gaps.is_empty() {
        return Finding::new(Topic::Coverage, Level::Fine, "every role is held and every pool is served");
    }
    let detail = format!("{}; add them to the roles or pools of a deployment", sentence(gaps));
    Finding::new(Topic::Coverage, Level::Unsafe, detail)
}

fn sentence(gaps: &[placement::Gap]) -> String {
    gaps.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Judges settings that keep in one process what replicas would have to share. That nothing else does is a rule of the
/// source (`cargo xtask tidy`).
pub(super) fn state(config: &Config, live: &[Instance]) -> Finding {
    let is_shared = config.replicas == Replicas::Multi || !live.is_empty();
    if config.scheduler.test_clock.is_some() && is_shared {
        let detail =
            "scheduler.test_clock keeps the time of schedules in one process, but replicas share them: leave it out";
        return Finding::new(Topic::State, Level::Refused, detail);
    }
    Finding::new(Topic::State, Level::Fine, "no setting keeps shared state in one process")
}

#[cfg(test)]
mod tests;
