//! Configuration: a TOML file, then `SWITCHBOARD_*` variables, then flags; unknown keys are errors.
//!
//! The one owner of the process environment.

mod auth;
mod kind;
mod layers;
mod reference;
mod sections;
mod text;
mod validate;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use switchboard_model::identity::PoolName;
use switchboard_model::instance::Role;
use switchboard_model::secret_text::SecretText;

pub(crate) use self::auth::{Auth, Limits, Secrets};
use self::layers::{Layer, merge};
pub(crate) use self::reference::reference;
pub(crate) use self::sections::{
    Audit, Database, Drain, Hints, Instance, LogFormat, Outbound, Realtime, Scheduler, Server, Telemetry, TestClock,
};

/// Everything an operator can set.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Whether this is the only process on its database.
    pub(crate) replicas: Replicas,
    /// Whether unsafe settings end the boot instead of being logged.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) strict: bool,
    /// What this replica does: api, scheduler, worker.
    #[serde(deserialize_with = "text::list")]
    #[schemars(with = "Vec<kind::Role>")]
    pub(crate) roles: Vec<Role>,
    /// The pools its worker serves, beside `system`, that of upkeep.
    #[serde(deserialize_with = "text::list")]
    #[schemars(with = "Vec<kind::Pool>")]
    pub(crate) pools: Vec<PoolName>,
    /// An API key with every permission, for the first steps of an automated deployment.
    #[serde(deserialize_with = "text::secret")]
    #[schemars(with = "Option<kind::Secret>")]
    pub(crate) bootstrap_key: Option<SecretText>,
    /// A file that holds the bootstrap key.
    #[schemars(with = "Option<kind::Path>")]
    pub(crate) bootstrap_key_file: Option<PathBuf>,
    /// Where a single replica on PostgreSQL keeps the keys that it makes for itself; on SQLite they are beside the
    /// database.
    #[schemars(with = "kind::Path")]
    pub(crate) data_dir: PathBuf,
    pub(crate) instance: Instance,
    pub(crate) database: Database,
    pub(crate) server: Server,
    pub(crate) auth: Auth,
    pub(crate) secrets: Secrets,
    pub(crate) limits: Limits,
    pub(crate) scheduler: Scheduler,
    pub(crate) outbound: Outbound,
    pub(crate) audit: Audit,
    pub(crate) realtime: Realtime,
    pub(crate) drain: Drain,
    pub(crate) telemetry: Telemetry,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            replicas: Replicas::default(),
            strict: false,
            roles: Role::ALL.to_vec(),
            pools: vec![PoolName::default_pool()],
            bootstrap_key: None,
            bootstrap_key_file: None,
            data_dir: PathBuf::from("."),
            instance: Instance::default(),
            database: Database::default(),
            server: Server::default(),
            auth: Auth::default(),
            secrets: Secrets::default(),
            limits: Limits::default(),
            scheduler: Scheduler::default(),
            outbound: Outbound::default(),
            audit: Audit::default(),
            realtime: Realtime::default(),
            drain: Drain::default(),
            telemetry: Telemetry::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Replicas {
    /// One process.
    #[default]
    Single,
    /// Any number of processes on one PostgreSQL database.
    Multi,
}

/// Reads the file, the environment and the flags.
pub(crate) fn load(file: Option<&Path>, flags: &[(&str, String)]) -> anyhow::Result<Config> {
    #[expect(clippy::disallowed_methods, reason = "this module owns the environment")]
    let variables = std::env::vars();
    let mut layers = Vec::new();
    if let Some(path) = file {
        layers.push(Layer::file(path)?);
    }
    layers.extend(Layer::variables(variables));
    layers.extend(flags.iter().map(|(key, value)| Layer::flag(key, value)));
    complete(merge(layers)?)
}

/// Reads the files that settings name, and checks everything.
fn complete(mut config: Config) -> anyhow::Result<Config> {
    if let Some(path) = &config.bootstrap_key_file {
        let text = read_secret("bootstrap_key_file", path)?;
        config.bootstrap_key = Some(SecretText::from_presented(text.trim().to_owned()));
    }
    read_keys("auth.signing_keys", &mut config.auth.signing_keys, config.auth.signing_keys_file.as_deref())?;
    read_keys("secrets.keys", &mut config.secrets.keys, config.secrets.keys_file.as_deref())?;
    validate::validate(&config)?;
    Ok(config)
}

/// Reads a file of keys, one a line; empty lines and those that start with # count for nothing.
fn read_keys(setting: &str, keys: &mut Vec<SecretText>, file: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = file else { return Ok(()) };
    if !keys.is_empty() {
        bail!("{setting}: is given both itself and as a file ({setting}_file); leave one of them out");
    }
    let text = read_secret(&format!("{setting}_file"), path)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    keys.extend(lines.map(|line| SecretText::from_presented(line.to_owned())));
    if keys.is_empty() {
        bail!("{setting}_file: {} holds no key", path.display());
    }
    Ok(())
}

fn read_secret(setting: &str, path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{setting}: cannot read {}", path.display()))
}

/// Arms the fail points that a test asked for; release builds have none.
pub(crate) fn arm_fail_points() -> anyhow::Result<()> {
    #[cfg(debug_assertions)]
    {
        #[expect(clippy::disallowed_methods, reason = "this module owns the environment")]
        let points = std::env::var("SWITCHBOARD_TEST_FAIL_POINTS");
        if let Ok(points) = points {
            switchboard_store_api::fail_point::arm(&points).map_err(anyhow::Error::msg)?;
        }
    }
    Ok(())
}

/// Makes the process one of a next release, with migrations of its own, if a test asked for that; release builds cannot.
pub(crate) async fn pretend_next_release() -> anyhow::Result<()> {
    #[cfg(debug_assertions)]
    {
        #[expect(clippy::disallowed_methods, reason = "this module owns the environment")]
        let folder = std::env::var("SWITCHBOARD_TEST_MIGRATIONS");
        if let Ok(folder) = folder {
            switchboard_store_pg::pretend_next_release(Path::new(&folder)).await.map_err(anyhow::Error::msg)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use switchboard_model::span::Span;

    use super::*;

    fn from(variables: &[(&str, &str)], file: &str) -> anyhow::Result<Config> {
        let mut layers = vec![Layer::of("file", file)];
        layers.extend(Layer::variables(variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))));
        complete(merge(layers)?)
    }

    #[test]
    fn variables_go_over_the_file() {
        let config = from(
            &[
                ("SWITCHBOARD_DATABASE__POOL_SIZE", "7"),
                ("SWITCHBOARD_ROLES", "api, worker"),
                ("SWITCHBOARD_INSTANCE__NAME", "1"),
                ("SWITCHBOARD_SCHEDULER__LEASE", "2s"),
                ("SWITCHBOARD_SERVER__TRUSTED_PROXIES", "10.0.0.0/8,fd00::/8"),
                ("SWITCHBOARD_URL", "http://not.a.setting"),
                ("SWITCHBOARD_API_KEY", "sbk_not_a_setting"),
                ("SWITCHBOARD_TEST_PG_URL", "x"),
                ("OTHER", "x"),
            ],
            "[database]\nurl = \"sqlite:a.db\"\npool_size = 3\n[server]\nallowed_origins = [\"https://a.example\"]",
        )
        .unwrap();
        assert_eq!(config.database.url, "sqlite:a.db");
        assert_eq!(config.database.pool_size, 7);
        assert_eq!(config.roles, [Role::Api, Role::Worker]);
        assert_eq!(config.instance.name, "1");
        assert_eq!(config.scheduler.lease, Span::from_secs(2));
        assert_eq!(config.server.allowed_origins, ["https://a.example"]);
        assert_eq!(config.server.trusted_proxies.len(), 2);
    }

    #[test]
    fn errors_name_the_source_and_the_key() {
        let error = |variables: &[(&str, &str)], file: &str| format!("{:#}", from(variables, file).unwrap_err());
        assert!(error(&[("SWITCHBOARD_DATABASE__URI", "x")], "").starts_with("SWITCHBOARD_DATABASE__URI: "));
        assert!(error(&[], "colour = 1").contains("unknown field `colour`"));
        assert!(error(&[("SWITCHBOARD_ROLES", "api,boss")], "").contains("unknown role \"boss\""));
        assert!(error(&[("SWITCHBOARD_DATABASE__POOL_SIZE", "many")], "").contains("database.pool_size: \"many\""));
        assert_eq!(
            error(&[], "[database]\npool_size = -1"),
            "file: database.pool_size: invalid value: integer `-1`, expected u32"
        );
        assert!(error(&[], "[scheduler]\nlease = 3").starts_with("file: scheduler.lease: "));
    }

    #[test]
    fn odd_settings_are_refused_by_name() {
        for (file, key) in [
            ("roles = []", "roles"),
            ("pools = []", "pools"),
            ("bootstrap_key = \"a-long-text-without-prefix\"", "bootstrap_key"),
            ("data_dir = \"\"", "data_dir"),
            ("instance.name = \"\"", "instance.name"),
            ("instance.name = \"two\\nlines\"", "instance.name"),
            ("database.url = \"mysql://x\"", "database.url"),
            ("database.url = \"sqlite:\"", "database.url"),
            ("database.direct_url = \"postgres://x\"", "database.direct_url"),
            ("database.pool_size = 1001", "database.pool_size"),
            ("server.bind = \"everywhere\"", "server.bind"),
            ("server.metrics_bind = \"0.0.0.0:8080\"", "server.metrics_bind"),
            ("server.allowed_origins = [\"*\"]", "server.allowed_origins"),
            ("server.allowed_origins = [\"https://a.example/\"]", "server.allowed_origins"),
            ("server.allowed_origins = [\"https://a.example/path\"]", "server.allowed_origins"),
            ("server.allowed_origins = [\"https://A.example\"]", "server.allowed_origins"),
            ("server.allowed_origins = [\"https://a.example:443\"]", "server.allowed_origins"),
            ("server.allowed_origins = [\"a.example\"]", "server.allowed_origins"),
            ("server.allowed_origins = [\"null\"]", "server.allowed_origins"),
            ("server.public_url = \"app.example\"", "server.public_url"),
            ("server.public_url = \"ftp://app.example\"", "server.public_url"),
            ("server.public_url = \"https://app.example/?a\"", "server.public_url"),
            ("server.request_timeout = \"0s\"", "server.request_timeout"),
            ("server.header_timeout = \"2h\"", "server.header_timeout"),
            ("server.idle_timeout = \"0s\"", "server.idle_timeout"),
            ("server.max_connections = 0", "server.max_connections"),
            ("server.trusted_proxies = [\"0.0.0.0/0\"]", "server.trusted_proxies"),
            ("server.trusted_proxies = [\"::/0\"]", "server.trusted_proxies"),
            ("server.trusted_proxies = [\"10.0.0.1\"]", "server.trusted_proxies"),
            ("scheduler.lease = \"1ms\"", "scheduler.lease"),
            ("scheduler.lease = \"900years\"", "scheduler.lease"),
            ("scheduler.permits = 0", "scheduler.permits"),
            ("scheduler.misfire_grace = \"900years\"", "scheduler.misfire_grace"),
            ("scheduler.history = \"900years\"", "scheduler.history"),
            ("outbound.allow = [\"*.internal\"]", "outbound.allow"),
            ("outbound.allow = [\"http://a.example\"]", "outbound.allow"),
            ("outbound.timeout = \"0s\"", "outbound.timeout"),
            ("scheduler.test_clock = \"yesterday\"", "scheduler.test_clock"),
            ("replicas = \"multi\"\nscheduler.test_clock = \"now\"", "scheduler.test_clock"),
            ("audit.history = \"1h\"", "audit.history"),
            ("drain.delay = \"2days\"", "drain.delay"),
            ("drain.timeout = \"900years\"", "drain.timeout"),
            ("telemetry.log = \"a=b=c\"", "telemetry.log"),
            ("telemetry.log = \"\"", "telemetry.log"),
            ("telemetry.format = \"xml\"", "telemetry.format"),
            ("auth.issuer = \"\"", "auth.issuer"),
            ("auth.access_ttl = \"0s\"", "auth.access_ttl"),
            ("auth.idle_ttl = \"60days\"", "auth.idle_ttl"),
            ("auth.external.jwks = \"jwks.json\"", "auth.external.issuer"),
            ("auth.external = { issuer = \"i\", audience = \"a\", jwks = \"file://x\" }", "auth.external.jwks"),
            ("auth.signing_keys_file = \"/does/not/exist\"", "auth.signing_keys_file"),
            ("limits.requests = \"often\"", "limits.requests"),
        ] {
            let error = format!("{:#}", from(&[], file).unwrap_err());
            assert!(error.contains(&format!("{key}: ")), "{file}: {error}");
        }
    }

    #[test]
    fn keys_have_their_form_and_are_never_repeated() {
        let (long, short) = (URL_SAFE_NO_PAD.encode([7; 32]), URL_SAFE_NO_PAD.encode([7; 31]));
        let signing = |keys: &str| from(&[("SWITCHBOARD_AUTH__SIGNING_KEYS", keys)], "");
        let config = signing(&format!("b:ed25519:{long}, a:hs256:{long}")).unwrap();
        assert_eq!(config.auth.signing_keys.len(), 2);
        assert!(!format!("{config:?}").contains(&long));
        for keys in [
            format!("a:hs256:{short}"),
            format!("a:none:{long}"),
            format!("a:{long}"),
            format!(":hs256:{long}"),
            format!("a:hs256:{long},a:hs256:{long}"),
        ] {
            let error = format!("{:#}", signing(&keys).unwrap_err());
            assert!(
                error.starts_with("auth.signing_keys: ")
                    && error.contains("signing key")
                    && !error.contains(&short[..20]),
                "{error}"
            );
        }
        assert!(from(&[("SWITCHBOARD_SECRETS__KEYS", &format!("k1:{long}"))], "").is_ok());
        assert!(from(&[("SWITCHBOARD_SECRETS__KEYS", &format!("k1:{short}"))], "").is_err());
        let number = format!("{:#}", from(&[], "bootstrap_key = 4711").unwrap_err());
        assert_eq!(number, "file: bootstrap_key: must be a text");
    }

    #[test]
    fn keys_are_read_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, format!("# newest first\n\nk2:{0}\nk1:{0}\n", URL_SAFE_NO_PAD.encode([7; 32]))).unwrap();
        let file = ("SWITCHBOARD_SECRETS__KEYS_FILE", path.to_str().unwrap());
        assert_eq!(from(&[file], "").unwrap().secrets.keys.len(), 2);
        let both = from(&[file, ("SWITCHBOARD_SECRETS__KEYS", "x")], "").unwrap_err();
        assert!(both.to_string().starts_with("secrets.keys: "), "{both}");
    }
}
