//! The safety check: what would make this configuration unsafe, found by asking the database itself.
//!
//! `switchboard check` prints every finding; a boot logs those that are not fine, and refuses under `strict`.

use std::process::ExitCode;

use serde::Serialize;
use switchboard_model::Timestamp;
use switchboard_model::ids::InstanceId;
use switchboard_model::instance::Instance;
use switchboard_store_pg::{CONNECTIONS_BESIDE_POOL, PgDiagnosis, PgOptions};
use switchboard_store_sqlite::SqliteOptions;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cli::CheckOptions;
use crate::config::{Config, Hints, Replicas};
use crate::database::Database;
use crate::output::Form;

/// The clock difference above which logs and external times mislead.
const MOST_SKEW_MS: i64 = 5_000;

/// How a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// As it should be.
    Fine,
    /// It works, but less well than it could.
    Warning,
    /// Replicas would harm each other or their clients.
    Unsafe,
}

/// What is looked at; each has its own exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Topic {
    Database,
    Schema,
    Listen,
    Connections,
    Clock,
    Replicas,
}

impl Topic {
    const fn exit_code(self) -> u8 {
        match self {
            Self::Database => 10,
            Self::Schema => 11,
            Self::Listen => 12,
            Self::Connections => 13,
            Self::Clock => 14,
            Self::Replicas => 15,
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) topic: Topic,
    pub(crate) level: Level,
    /// What was seen, and for anything but fine which setting to change.
    pub(crate) detail: String,
}

impl Finding {
    fn new(topic: Topic, level: Level, detail: impl Into<String>) -> Self {
        Self { topic, level, detail: detail.into() }
    }
}

/// Prints all findings; the exit code is that of the first unsafe one.
pub(crate) async fn run(config: &Config, options: CheckOptions) -> anyhow::Result<ExitCode> {
    let findings = findings(config).await?;
    let form = if options.json { Form::Programs } else { Form::People };
    form.list(&findings, ["LEVEL", "CHECK", "FINDING"], |finding| {
        [
            format!("{:?}", finding.level).to_lowercase(),
            format!("{:?}", finding.topic).to_lowercase(),
            finding.detail.clone(),
        ]
    })?;
    Ok(exit_code(&findings))
}

/// Logs what is not fine before a boot. Under `strict` an unsafe finding ends it with its exit code.
pub(crate) async fn at_boot(config: &Config) -> anyhow::Result<Result<(), ExitCode>> {
    let findings = findings(config).await?;
    for finding in &findings {
        match finding.level {
            Level::Fine => {}
            Level::Warning => tracing::info!(check = ?finding.topic, "{}", finding.detail),
            Level::Unsafe => tracing::warn!(check = ?finding.topic, "{}", finding.detail),
        }
    }
    if config.strict && findings.iter().any(|finding| finding.level == Level::Unsafe) {
        tracing::error!("refusing to boot, since strict is set and the configuration is unsafe");
        return Ok(Err(exit_code(&findings)));
    }
    Ok(Ok(()))
}

fn exit_code(findings: &[Finding]) -> ExitCode {
    let worst = findings.iter().find(|finding| finding.level == Level::Unsafe);
    worst.map_or(ExitCode::SUCCESS, |finding| ExitCode::from(finding.topic.exit_code()))
}

async fn findings(config: &Config) -> anyhow::Result<Vec<Finding>> {
    match Database::of(config, InstanceId::boot("check"))? {
        Database::Sqlite(options) => Ok(vec![sqlite(&options)]),
        Database::Postgres(options) => match switchboard_store_pg::diagnose(&options).await {
            Ok(diagnosis) => {
                let live = live_instances(&options, &diagnosis).await?;
                Ok(postgres(config, &diagnosis, &live, host_time()))
            }
            Err(error) => {
                let detail = format!("{:#}; check database.url", anyhow::Error::from(error));
                Ok(vec![Finding::new(Topic::Database, Level::Unsafe, detail)])
            }
        },
    }
}

fn sqlite(options: &SqliteOptions) -> Finding {
    match switchboard_store_sqlite::probe(options) {
        Ok(()) => Finding::new(Topic::Database, Level::Fine, "the SQLite file is free for one process"),
        Err(error) => Finding::new(Topic::Database, Level::Unsafe, format!("{:#}", anyhow::Error::from(error))),
    }
}

/// Lists the live replicas, without migrating anything.
async fn live_instances(options: &PgOptions, diagnosis: &PgDiagnosis) -> anyhow::Result<Vec<Instance>> {
    if diagnosis.schema_version < switchboard_store_pg::schema_version() {
        return Ok(Vec::new());
    }
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let stores = switchboard_store_pg::open(options, &tracker, stop.clone()).await?;
    let live = stores.instances.list().await;
    drop(stores);
    stop.cancel();
    tracker.close();
    tracker.wait().await;
    Ok(live?)
}

fn host_time() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "the host clock itself is what is checked")]
    let now = std::time::SystemTime::now();
    now.into()
}

/// Judges the facts; pure, so that every verdict has a test.
fn postgres(config: &Config, facts: &PgDiagnosis, live: &[Instance], host: Timestamp) -> Vec<Finding> {
    let version = format!("PostgreSQL {} answers", facts.server_version);
    vec![
        Finding::new(Topic::Database, Level::Fine, version),
        schema(facts.schema_version, switchboard_store_pg::schema_version()),
        listen(config, facts.listen_works),
        connections(config, facts, live),
        clock(facts.now, host),
        replicas(config, live),
    ]
}

fn schema(applied: i64, known: i64) -> Finding {
    let (level, detail) = if applied == known {
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

fn listen(config: &Config, works: bool) -> Finding {
    let (level, detail) = match (config.realtime.hints, works) {
        (Hints::Off, _) => (Level::Warning, "realtime.hints is off: replicas read the change feed four times a second"),
        (Hints::Notify, true) => (Level::Fine, "LISTEN and NOTIFY work"),
        (Hints::Notify, false) => {
            (Level::Warning, "LISTEN does not work here, so replicas poll; set database.direct_url past the pooler")
        }
    };
    Finding::new(Topic::Listen, level, detail)
}

fn connections(config: &Config, facts: &PgDiagnosis, live: &[Instance]) -> Finding {
    let of = |pool_size: u32| i64::from(pool_size) + i64::from(CONNECTIONS_BESIDE_POOL);
    let others: i64 = live.iter().map(|instance| of(instance.pool_size)).sum();
    let wanted = others + of(config.database.pool_size);
    let free = facts.max_connections - facts.superuser_reserved_connections;
    let sum =
        format!("{} live replicas and this one open up to {wanted} connections; the server gives {free}", live.len());
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
    if skew.abs() <= MOST_SKEW_MS {
        return Finding::new(Topic::Clock, Level::Fine, format!("the host clock is {skew} ms off the database"));
    }
    let detail = format!("the host clock is {skew} ms off the database; leases are safe, logs mislead: synchronise it");
    Finding::new(Topic::Clock, Level::Warning, detail)
}

fn replicas(config: &Config, live: &[Instance]) -> Finding {
    let names: Vec<&str> = live.iter().map(|instance| instance.id.as_str()).collect();
    match (config.replicas, names.is_empty()) {
        (Replicas::Single, false) => Finding::new(
            Topic::Replicas,
            Level::Unsafe,
            format!("replicas is \"single\", but {} is alive; set replicas = \"multi\" on all", names.join(", ")),
        ),
        _ => Finding::new(Topic::Replicas, Level::Fine, format!("{} live replicas", names.len())),
    }
}

#[cfg(test)]
mod tests {
    use switchboard_model::span::Span;

    use super::*;

    fn facts() -> PgDiagnosis {
        PgDiagnosis {
            server_version: "15".to_owned(),
            schema_version: switchboard_store_pg::schema_version(),
            max_connections: 100,
            superuser_reserved_connections: 3,
            listen_works: true,
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
        }
    }

    fn level(config: &Config, facts: &PgDiagnosis, live: &[Instance], topic: Topic) -> Level {
        let findings = postgres(config, facts, live, facts.now);
        findings.into_iter().find(|finding| finding.topic == topic).unwrap().level
    }

    fn multi() -> Config {
        Config { replicas: Replicas::Multi, ..Config::default() }
    }

    #[test]
    fn the_connection_budget_counts_every_live_replica() {
        // 10 + 2 here, 83 + 2 there: 97 of 97.
        assert_eq!(level(&multi(), &facts(), &[live(83)], Topic::Connections), Level::Fine);
        assert_eq!(level(&multi(), &facts(), &[live(84)], Topic::Connections), Level::Unsafe);
    }

    #[test]
    fn a_second_replica_needs_multi() {
        assert_eq!(level(&Config::default(), &facts(), &[live(1)], Topic::Replicas), Level::Unsafe);
        assert_eq!(level(&Config::default(), &facts(), &[], Topic::Replicas), Level::Fine);
        assert_eq!(level(&multi(), &facts(), &[live(1)], Topic::Replicas), Level::Fine);
    }

    #[test]
    fn polling_skew_and_other_schemas_are_warnings() {
        let deaf = PgDiagnosis { listen_works: false, schema_version: 1, ..facts() };
        assert_eq!(level(&multi(), &deaf, &[], Topic::Listen), Level::Warning);
        assert_eq!(level(&multi(), &deaf, &[], Topic::Schema), Level::Warning);
        assert_eq!(clock(facts().now, facts().now + Span::from_secs(30).to_delta()).level, Level::Warning);
    }

    #[test]
    fn the_exit_code_is_that_of_the_first_unsafe_finding() {
        let findings = [
            Finding::new(Topic::Listen, Level::Warning, ""),
            Finding::new(Topic::Connections, Level::Unsafe, ""),
            Finding::new(Topic::Replicas, Level::Unsafe, ""),
        ];
        assert_eq!(format!("{:?}", exit_code(&findings)), format!("{:?}", ExitCode::from(13)));
        assert_eq!(format!("{:?}", exit_code(&findings[..1])), format!("{:?}", ExitCode::SUCCESS));
    }
}
