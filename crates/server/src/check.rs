//! The safety check: what would make this configuration unsafe, found by asking the database itself.
//!
//! `switchboard check` prints every finding; a boot logs and counts those that are not fine, refuses what cannot work,
//! and under `strict` what is unsafe.

mod finding;
mod judge;

use std::process::ExitCode;

use metrics::{describe_gauge, gauge};
use switchboard_http::CanaryError;
use switchboard_model::Timestamp;
use switchboard_model::ids::InstanceId;
use switchboard_store_api::Stores;
use switchboard_store_pg::PgOptions;
use switchboard_store_sqlite::SqliteOptions;

pub(crate) use self::finding::Topic;
use self::finding::{Finding, Level, worst};
use crate::cli::CheckOptions;
use crate::config::{Config, Replicas};
use crate::database::Database;
use crate::key_check::KeyCheck;
use crate::keys::Keys;
use crate::output::Form;

const FINDINGS: &str = "switchboard_safety_findings";

/// Describes the metric of the check and brings it into being at zero.
pub(crate) fn describe_metrics() {
    describe_gauge!(FINDINGS, "Whether the safety check at the boot found something unsafe, by what it looked at");
    for topic in Topic::ALL {
        gauge!(FINDINGS, "finding" => topic.as_str()).set(0.0);
    }
}

/// Prints all findings; the exit code is that of the first of the worst ones if it is unsafe.
pub(crate) async fn run(config: &Config, options: CheckOptions) -> anyhow::Result<ExitCode> {
    let findings = if options.deployments.is_empty() {
        findings(config).await?
    } else {
        vec![judge::planned(&options.deployments)]
    };
    let form = if options.json { Form::Programs } else { Form::People };
    form.list(&findings, ["LEVEL", "CHECK", "FINDING"], |finding| {
        [format!("{:?}", finding.level).to_lowercase(), finding.topic.as_str().to_owned(), finding.detail.clone()]
    })?;
    let unsafe_one = worst(&findings, Level::Unsafe);
    Ok(unsafe_one.map_or(ExitCode::SUCCESS, |finding| ExitCode::from(finding.topic.exit_code())))
}

/// Logs what is not fine before a boot. What cannot work, and under `strict` what is unsafe, ends it with an exit code.
pub(crate) async fn at_boot(config: &Config) -> anyhow::Result<Result<(), ExitCode>> {
    let findings = findings(config).await?;
    for finding in &findings {
        let check = finding.topic.as_str();
        match finding.level {
            Level::Fine => {}
            Level::Warning => tracing::info!(check, "{}", finding.detail),
            Level::Unsafe => tracing::warn!(check, "{}", finding.detail),
            Level::Refused => tracing::error!(check, "{}", finding.detail),
        }
        if finding.level >= Level::Unsafe {
            gauge!(FINDINGS, "finding" => check).set(1.0);
        }
    }
    let refused = if config.strict { Level::Unsafe } else { Level::Refused };
    Ok(match worst(&findings, refused) {
        None => Ok(()),
        Some(finding) => {
            let (check, code) = (finding.topic.as_str(), finding.topic.exit_code());
            tracing::error!(check, code, strict = config.strict, "refusing to boot");
            Err(ExitCode::from(code))
        }
    })
}

/// A boot that was refused once the database was open; the exit code says why.
#[derive(Debug, thiserror::Error)]
#[error("refusing to boot: {detail}")]
pub(crate) struct Refusal {
    detail: String,
    pub(crate) code: u8,
}

/// Compares the keys again under `strict`, once this replica is listed: of two that boot together, neither of which the
/// check of the other could see, at least one sees the other now.
pub(crate) async fn after_joining(config: &Config, own: &KeyCheck, stores: &Stores) -> anyhow::Result<()> {
    if !config.strict || config.replicas == Replicas::Single {
        return Ok(());
    }
    let finding = judge::keys(own, &stores.instances.list().await?);
    if finding.level < Level::Unsafe {
        return Ok(());
    }
    Err(Refusal { detail: format!("{}; strict is set", finding.detail), code: finding.topic.exit_code() }.into())
}

/// Refuses keys that cannot open what is stored, whether `strict` is set or not.
pub(crate) fn of_canaries(error: CanaryError) -> anyhow::Error {
    match error {
        CanaryError::Missing(_) | CanaryError::Wrong(_) | CanaryError::Retired(..) => {
            Refusal { detail: format!("secrets.keys: {error}"), code: Topic::Keys.exit_code() }.into()
        }
        error => anyhow::Error::new(error).context("secrets.keys"),
    }
}

async fn findings(config: &Config) -> anyhow::Result<Vec<Finding>> {
    let is_sqlite = config.database.url.starts_with("sqlite:");
    if is_sqlite && config.replicas == Replicas::Multi {
        let detail =
            "replicas = \"multi\" needs PostgreSQL: set database.url to postgres://…, or replicas = \"single\"";
        return Ok(vec![Finding::new(Topic::Replicas, Level::Refused, detail)]);
    }
    let missing = Keys::missing(config).map(|missing| Finding::new(Topic::Keys, Level::Refused, missing));
    // The keys that a replica makes for itself are compared with nobody's.
    let has_keys = config.replicas == Replicas::Multi && missing.is_none();
    let own = if has_keys { Keys::configured(config)?.map(|keys| keys.check()) } else { None };
    let found = match Database::of(config, InstanceId::boot("check"))? {
        Database::Sqlite(options) => vec![sqlite(&options), judge::alone(config), judge::state(config, &[])],
        Database::Postgres(options) => postgres(config, &options, own.as_ref()).await,
    };
    Ok(missing.into_iter().chain(found).collect())
}

fn sqlite(options: &SqliteOptions) -> Finding {
    match switchboard_store_sqlite::probe(options) {
        Ok(()) => Finding::new(Topic::File, Level::Fine, "the SQLite file is free for one process"),
        Err(error) => {
            let detail = format!("{:#}; check database.url", anyhow::Error::from(error));
            Finding::new(Topic::File, Level::Refused, detail)
        }
    }
}

async fn postgres(config: &Config, options: &PgOptions, own: Option<&KeyCheck>) -> Vec<Finding> {
    match switchboard_store_pg::diagnose(options).await {
        Ok(facts) => judge::postgres(config, &facts, own, host_time()),
        Err(error) => {
            let error = format!("{:#}", anyhow::Error::from(error));
            // Poolers say so to whoever speaks to them as to a server.
            let (topic, advice) = if error.contains("unsupported startup parameter") {
                (Topic::Pooler, "set database.pooled = true, since database.url leads to a pooler")
            } else {
                (Topic::Database, "check database.url")
            };
            vec![Finding::new(topic, Level::Refused, format!("{error}; {advice}"))]
        }
    }
}

fn host_time() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "the host clock itself is what is checked")]
    let now = std::time::SystemTime::now();
    now.into()
}
