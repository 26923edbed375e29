//! What no configuration may say, found before anything is started. Each error names the setting and says what to do.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use anyhow::{Context as _, bail, ensure};
use switchboard_http::{KeyRing, Sealer};
use switchboard_model::api_key::API_KEY_PREFIX;
use switchboard_model::instance::Role;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use tracing_subscriber::EnvFilter;
use url::Url;

use super::{Auth, Config, Database, Replicas, Server};

const SECOND: Span = Span::from_secs(1);
const MINUTE: Span = Span::from_secs(60);
const HOUR: Span = Span::from_secs(3600);
const DAY: Span = Span::from_secs(24 * 3600);
const TEN_YEARS: Span = Span::from_secs(3653 * 24 * 3600);

/// The longest text that names an issuer or an audience.
const MOST_NAME_BYTES: usize = 500;

/// Checks every setting, and settings against each other.
pub(super) fn validate(config: &Config) -> anyhow::Result<()> {
    ensure!(!config.roles.is_empty(), "roles: name at least one of api, scheduler, worker");
    if config.roles.contains(&Role::Worker) {
        ensure!(!config.pools.is_empty(), "pools: a worker serves at least one pool, such as default");
    }
    let is_key = |key: &SecretText| key.expose().starts_with(API_KEY_PREFIX) && key.expose().len() >= 24;
    if config.bootstrap_key.as_ref().is_some_and(|key| !is_key(key)) {
        bail!("bootstrap_key: must start with {API_KEY_PREFIX} and have at least 24 characters");
    }
    ensure!(!config.data_dir.as_os_str().is_empty(), "data_dir: must not be empty; use . for the current folder");
    ensure!(
        is_instance_name(&config.instance.name),
        "instance.name: must be 1 to 100 letters, digits, dots, dashes and underscores, and start with a letter or digit"
    );
    database(&config.database)?;
    server(&config.server)?;
    auth(&config.auth)?;
    Sealer::from_texts(&config.secrets.keys).context("secrets.keys")?;
    let scheduler = &config.scheduler;
    within("scheduler.lease", scheduler.lease, Span::from_millis(500)..=HOUR)?;
    ensure!((1..=10_000).contains(&scheduler.permits), "scheduler.permits: must be between 1 and 10000");
    within("scheduler.misfire_grace", scheduler.misfire_grace, Span::default()..=DAY)?;
    within("scheduler.history", scheduler.history, Span::default()..=TEN_YEARS)?;
    within("secrets.token_timeout", config.secrets.token_timeout, Span::from_millis(100)..=Span::from_secs(15))?;
    within("outbound.timeout", config.outbound.timeout, Span::from_millis(100)..=HOUR)?;
    ensure!(
        scheduler.test_clock.is_none() || config.replicas == Replicas::Single,
        "scheduler.test_clock: needs replicas = \"single\", because each replica would have a clock of its own; leave it \
         out"
    );
    within("limits.patience", config.limits.patience, Span::from_millis(10)..=MINUTE)?;
    ensure!(
        (1..=100_000).contains(&config.limits.sockets_per_user),
        "limits.sockets_per_user: must be between 1 and 100000"
    );
    within("audit.history", config.audit.history, DAY..=TEN_YEARS)?;
    within("drain.delay", config.drain.delay, Span::default()..=HOUR)?;
    within("drain.timeout", config.drain.timeout, Span::default()..=DAY)?;
    let log = &config.telemetry.log;
    ensure!(!log.trim().is_empty(), "telemetry.log: must not be empty; use off to log nothing");
    EnvFilter::try_new(log).with_context(|| format!("telemetry.log: {log:?} is no filter such as info"))?;
    Ok(())
}

fn within(key: &str, span: Span, range: RangeInclusive<Span>) -> anyhow::Result<()> {
    let (least, most) = (range.start(), range.end());
    ensure!(range.contains(&span), "{key}: must be between {least} and {most}, and is {span}");
    Ok(())
}

/// A name becomes part of ids, of headers and of label values.
fn is_instance_name(name: &str) -> bool {
    (1..=100).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The URLs may hold a password, so they are not repeated.
fn database(database: &Database) -> anyhow::Result<()> {
    let is_postgres = |url: &str| url.starts_with("postgres://") || url.starts_with("postgresql://");
    match database.url.strip_prefix("sqlite:") {
        Some(path) => ensure!(
            !path.trim_start_matches("//").is_empty(),
            "database.url: name a file after sqlite:, such as sqlite:./switchboard.db"
        ),
        None => ensure!(is_postgres(&database.url), "database.url: must start with sqlite: or postgres://"),
    }
    if let Some(direct) = &database.direct_url {
        ensure!(is_postgres(&database.url), "database.direct_url: goes with a PostgreSQL database only; leave it out");
        ensure!(is_postgres(direct), "database.direct_url: must start with postgres://");
    }
    ensure!((2..=1000).contains(&database.pool_size), "database.pool_size: must be between 2 and 1000");
    Ok(())
}

fn server(server: &Server) -> anyhow::Result<()> {
    for origin in &server.allowed_origins {
        check_origin(origin)?;
    }
    if let Some(text) = &server.public_url {
        let url = http_url("server.public_url", text)?;
        let is_bare = url.query().is_none() && url.fragment().is_none();
        ensure!(is_bare, "server.public_url: {text:?} must have no query and no fragment");
        let is_anonymous = url.username().is_empty() && url.password().is_none();
        ensure!(is_anonymous, "server.public_url: must have no user name and no password");
    }
    if let Some(metrics) = server.metrics_bind {
        ensure!(
            !clash(server.bind, metrics),
            "server.metrics_bind: {metrics} is taken by server.bind ({}); choose another port",
            server.bind
        );
    }
    for (key, timeout) in [
        ("server.request_timeout", server.request_timeout),
        ("server.header_timeout", server.header_timeout),
        ("server.idle_timeout", server.idle_timeout),
    ] {
        within(key, timeout, Span::from_millis(100)..=HOUR)?;
    }
    ensure!((1..=1_000_000).contains(&server.max_connections), "server.max_connections: must be between 1 and 1000000");
    for network in &server.trusted_proxies {
        ensure!(
            network.prefix_len() > 0,
            "server.trusted_proxies: {network} would trust everybody; name the networks of your proxies"
        );
    }
    Ok(())
}

/// Browsers send an origin in one exact form, and it is compared byte by byte.
fn check_origin(text: &str) -> anyhow::Result<()> {
    const KEY: &str = "server.allowed_origins";
    ensure!(!text.contains('*'), "{KEY}: {text:?} is a pattern; name each origin, such as https://app.example");
    let advice = || format!("{KEY}: {text:?} is no origin such as https://app.example");
    let url = Url::parse(text).with_context(advice)?;
    let exact = match url.scheme() {
        "http" | "https" => url.origin().ascii_serialization(),
        // The origins of applications with a web view; they are not the web's, and have no default port.
        scheme => format!(
            "{scheme}://{}{}",
            url.host_str().with_context(advice)?,
            url.port().map_or(String::new(), |port| format!(":{port}"))
        ),
    };
    ensure!(exact == text, "{KEY}: {text:?} is no origin as browsers send it; write {exact}");
    Ok(())
}

fn http_url(key: &str, text: &str) -> anyhow::Result<Url> {
    let advice = || format!("{key}: {text:?} is no URL that starts with http:// or https://");
    let url = Url::parse(text).with_context(advice)?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() { Ok(url) } else { bail!(advice()) }
}

/// Tells whether two listeners cannot both have their addresses.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let is_same_host = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && is_same_host
}

fn auth(auth: &Auth) -> anyhow::Result<()> {
    if !auth.signing_keys.is_empty() {
        let keys: Vec<&str> = auth.signing_keys.iter().map(SecretText::expose).collect();
        KeyRing::parse(&keys).context("auth.signing_keys")?;
    }
    check_name("auth.issuer", &auth.issuer)?;
    check_name("auth.audience", &auth.audience)?;
    within("auth.access_ttl", auth.access_ttl, Span::from_secs(10)..=DAY)?;
    within("auth.session_ttl", auth.session_ttl, SECOND..=TEN_YEARS)?;
    within("auth.idle_ttl", auth.idle_ttl, SECOND..=TEN_YEARS)?;
    ensure!(auth.idle_ttl <= auth.session_ttl, "auth.idle_ttl: must not be longer than auth.session_ttl");
    let Some(external) = &auth.external else { return Ok(()) };
    check_name("auth.external.issuer", &external.issuer)?;
    check_name("auth.external.audience", &external.audience)?;
    ensure!(external.issuer != auth.issuer, "auth.external.issuer: must differ from auth.issuer");
    ensure!(!external.jwks.is_empty(), "auth.external.jwks: name a file or a URL");
    if external.jwks.contains("://") {
        http_url("auth.external.jwks", &external.jwks)?;
    }
    Ok(())
}

fn check_name(key: &str, text: &str) -> anyhow::Result<()> {
    let is_fine = (1..=MOST_NAME_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
    ensure!(is_fine, "{key}: must be 1 to {MOST_NAME_BYTES} characters, none of them a control character");
    Ok(())
}
