//! Wiring: builds every part of a replica from its configuration and hands out what stopping needs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use switchboard_events::{Calls, Feed, FeedObserver, Hub, HubOptions, Operations, Publisher, StateWaits, Streams};
use switchboard_http::{
    Api, AuthOptions, ExternalIssuer, ExternalKeys, HttpOptions, KeyRing, Lifecycle, LimitOptions, Sealer, TokenCache,
    check_keys,
};
use switchboard_model::api_key::NewApiKey;
use switchboard_model::feed::{Tick, TickRequest};
use switchboard_model::ids::{ApiKeyId, InstanceId};
use switchboard_model::instance::NewInstance;
use switchboard_model::page::PageRequest;
use switchboard_model::scope::Scope;
use switchboard_model::secret_text::SecretText;
use switchboard_scheduler::{
    ActionRunner, HistoryAges, Scheduler, SchedulerHandle, SchedulerObserver, SchedulerOptions, SystemRunner,
};
use switchboard_store_api::{News, Stores, WriteContext};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::actions::{EventRunner, HttpRunner, StreamedOutput, system_functions};
use crate::check;
use crate::config::{Config, TestClock};
use crate::database::Database;
use crate::keys::Keys;
use crate::listen::{self, Bounds, Edge};
use crate::membership::Membership;
use crate::outbound::{Outbound, Policy};
use crate::placement::{self, Surface};
use crate::provider::OAuthEndpoint;

/// The phases of a stop, in the order in which they are cancelled.
#[derive(Clone, Default)]
pub(crate) struct StopTokens {
    /// No more runs are taken.
    pub(crate) soft: CancellationToken,
    /// Runs under way are aborted.
    pub(crate) hard: CancellationToken,
    /// No more requests are accepted.
    pub(crate) edge: CancellationToken,
    /// Publishing, the feed and membership end.
    pub(crate) core: CancellationToken,
    /// The stores end.
    pub(crate) stores: CancellationToken,
}

/// The trackers of the phases: what must have ended before the next one.
#[derive(Clone, Default)]
pub(crate) struct Trackers {
    pub(crate) edge: TaskTracker,
    pub(crate) work: TaskTracker,
    pub(crate) core: TaskTracker,
    pub(crate) stores: TaskTracker,
}

/// A replica at work.
pub(crate) struct App {
    pub(crate) address: SocketAddr,
    pub(crate) stores: Stores,
    pub(crate) hub: Arc<Hub>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) scheduler: Arc<SchedulerHandle>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) stop: StopTokens,
    pub(crate) trackers: Trackers,
}

impl App {
    /// Returns the URL of this replica.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Passes ticks and news on to the scheduler, which knows no bus.
struct SchedulerTicks(SchedulerObserver);

impl FeedObserver for SchedulerTicks {
    fn observe(&self, tick: &Tick) {
        self.0.observe(tick);
    }

    fn hear(&self, news: &News) {
        self.0.hear(news);
    }
}

/// Opens the database, starts every loop and listens.
pub(crate) async fn start(config: &Config, prometheus: PrometheusHandle) -> anyhow::Result<App> {
    let stop = StopTokens::default();
    let trackers = Trackers::default();
    let instance = InstanceId::boot(&config.instance.name);
    let database = Database::of(config, instance.clone())?;
    let keys = Keys::load(config, &database)?;
    let key_check = keys.check();
    let auth = auth_options(config, keys.signing, &trackers, &stop).await?;
    let stores = database.open(&trackers.stores, stop.stores.clone()).await?;
    let sealer = Arc::new(keys.sealing);
    check_keys(&stores, &sealer).await.map_err(check::of_canaries)?;

    let hub = HubOptions { instance: instance.clone(), sockets_per_user: config.limits.sockets_per_user };
    let hub = Hub::new(&stores, hub, trackers.core.clone(), stop.core.clone());
    let (publisher, lanes) = Publisher::new(Arc::clone(&stores.rooms), Arc::clone(&stores.feed), Arc::clone(&hub));
    let (streams, stream_lanes) = Streams::new(Arc::clone(&stores.streams));
    let calls = Calls::new(Arc::clone(&stores.calls), Arc::clone(&hub));
    start_test_clock(config, &stores).await?;
    let outbound = outbound(config)?;
    let http = HttpRunner {
        outbound: outbound.clone(),
        webhooks: Arc::clone(&stores.webhooks),
        secrets: Arc::clone(&stores.secrets),
        sealer: Arc::clone(&sealer),
    };
    let event = EventRunner(publisher.clone());
    let runners: Vec<Arc<dyn ActionRunner>> = vec![Arc::new(event), Arc::new(http)];
    let scheduler = scheduler(config, &stores, &sealer, instance.clone(), runners);
    let output = StreamedOutput { streams: Arc::clone(&streams), instance: instance.clone() };
    let scheduler = scheduler.with_output(Arc::new(output));
    let replay = scheduler.replay();
    let membership = NewInstance {
        id: instance.clone(),
        name: config.instance.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        schema_version: database.schema_version(),
        roles: config.roles.clone(),
        pools: config.pools.clone(),
        pool_size: config.database.pool_size,
        key_check: key_check.to_text(),
    };
    let membership = Arc::new(Membership::register(stores.clone(), Arc::clone(&hub), membership).await?);
    let state_waits = StateWaits::default();
    if let Err(refusal) = check::after_joining(config, &key_check, &stores).await {
        membership.leave().await;
        return Err(refusal);
    }
    let observers: Vec<Arc<dyn FeedObserver>> = vec![
        Arc::clone(&hub) as Arc<dyn FeedObserver>,
        Arc::clone(&calls) as Arc<dyn FeedObserver>,
        Arc::clone(&streams) as Arc<dyn FeedObserver>,
        Arc::new(state_waits.clone()),
        Arc::new(SchedulerTicks(scheduler.observer())),
        Arc::clone(&membership) as Arc<dyn FeedObserver>,
    ];
    let feed = Feed::new(Arc::clone(&stores.feed), TickRequest { pools: scheduler.pools().to_vec() }, observers);
    let feed_status = feed.status();
    let pull = scheduler.pull_queue();

    // Upkeep goes by real time; replayed, it would run every few minutes of schedule time.
    if replay.is_none() {
        switchboard_scheduler::install_system_tasks(&stores).await?;
    }
    install_bootstrap_key(config, &stores).await?;

    trackers.core.spawn(feed.run(stop.core.clone()));
    trackers.core.spawn(lanes.run(stop.core.clone()));
    trackers.core.spawn(stream_lanes.run(stop.core.clone()));
    trackers.core.spawn({
        let (calls, stop) = (Arc::clone(&calls), stop.core.clone());
        async move { calls.run(stop).await }
    });
    trackers.core.spawn({
        let (membership, stop) = (Arc::clone(&membership), stop.core.clone());
        async move { membership.run(stop).await }
    });
    let scheduler = Arc::new(scheduler.start(&trackers.work, stop.soft.clone(), stop.hard.clone()));
    trackers.core.spawn(metrics_upkeep(prometheus.clone(), Arc::clone(&scheduler), stop.core.clone()));

    let lifecycle = Lifecycle::default();
    let provider = Arc::new(OAuthEndpoint(outbound));
    let patience = config.secrets.token_timeout.to_std();
    let tokens = TokenCache::new(&stores, Arc::clone(&sealer), provider, patience, trackers.edge.clone());
    let api = Api {
        stores: stores.clone(),
        hub: Arc::clone(&hub),
        publisher: publisher.clone(),
        streams,
        pull,
        operations: Operations::new(Arc::clone(&hub), publisher, &stores),
        calls: calls.waits().clone(),
        state_waits,
        tokens,
        replay,
        feed: feed_status,
        prometheus,
        lifecycle: lifecycle.clone(),
        options: HttpOptions {
            allowed_origins: config.server.allowed_origins.clone(),
            public_url: config.server.public_url.clone(),
            trusted_proxies: config.server.trusted_proxies.clone(),
            instance,
            request_timeout: config.server.request_timeout.to_std(),
            limits: LimitOptions {
                requests: config.limits.requests,
                login_account: config.limits.login_account,
                login_address: config.limits.login_address,
                login_global: config.limits.login_global,
                patience: config.limits.patience.to_std(),
                state: config.limits.state(),
            },
            auth,
            sealer,
        },
        tracker: trackers.edge.clone(),
    };
    let address = listen(config, api, &trackers, &stop).await?;
    let started = started(Arc::clone(&hub), lifecycle.clone());
    trackers.core.spawn(stop.core.clone().run_until_cancelled_owned(started));
    Ok(App { address, stores, hub, lifecycle, scheduler, membership, stop, trackers })
}

/// Counts as started once the change feed was read, since until then nothing here knows what time it is.
async fn started(hub: Arc<Hub>, lifecycle: Lifecycle) {
    while hub.now().is_none() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    lifecycle.set_ready();
}

/// Decides how people sign in; the keys of another issuer are kept fresh from now on.
async fn auth_options(
    config: &Config,
    keys: KeyRing,
    trackers: &Trackers,
    stop: &StopTokens,
) -> anyhow::Result<AuthOptions> {
    let settings = &config.auth;
    let external = match &settings.external {
        None => None,
        Some(other) => {
            let jwks = other.jwks.parse().context("auth.external.jwks")?;
            let issuer = ExternalIssuer::new(other.issuer.clone(), other.audience.clone(), jwks);
            let keys = ExternalKeys::start(issuer, &trackers.core, stop.core.clone()).await;
            Some(keys.context("auth.external.jwks")?)
        }
    };
    Ok(AuthOptions {
        issuer: settings.issuer.clone(),
        audience: settings.audience.clone(),
        access_ttl: settings.access_ttl,
        session_ttl: settings.session_ttl,
        idle_ttl: settings.idle_ttl,
        registration: settings.registration,
        external,
        ..AuthOptions::new(Arc::new(keys))
    })
}

/// Makes the client of requests that users describe.
fn outbound(config: &Config) -> anyhow::Result<Outbound> {
    let settings = &config.outbound;
    Outbound::new(Policy::new(settings.allow.clone()), settings.timeout.to_std()).context("outbound requests")
}

fn scheduler(
    config: &Config,
    stores: &Stores,
    sealer: &Arc<Sealer>,
    instance: InstanceId,
    mut runners: Vec<Arc<dyn ActionRunner>>,
) -> Scheduler {
    let options = SchedulerOptions {
        instance,
        roles: config.roles.clone(),
        pools: config.pools.clone(),
        permits: config.scheduler.permits,
        lease: config.scheduler.lease,
        misfire_grace: config.scheduler.misfire_grace,
        history: HistoryAges { runs: config.scheduler.history, audit: config.audit.history },
    };
    runners.push(Arc::new(SystemRunner::new(system_functions(stores, sealer, options.history))));
    Scheduler::new(stores, options, runners)
}

/// Lets a test clock start, if there is one.
async fn start_test_clock(config: &Config, stores: &Stores) -> anyhow::Result<()> {
    if config.scheduler.test_clock == Some(TestClock::Now) {
        stores.schedule_clock.advance_to(stores.feed.tick(None, &TickRequest::default()).await?.now);
    }
    if let Some(start) = stores.schedule_clock.set_time() {
        tracing::warn!(%start, "schedules follow a test clock: nothing becomes due before the clock is moved");
    }
    Ok(())
}

/// Serves the whole surface, or probes and metrics alone on a replica without the role `api`.
async fn listen(config: &Config, api: Api, trackers: &Trackers, stop: &StopTokens) -> anyhow::Result<SocketAddr> {
    let probes = switchboard_http::metrics_router(api.clone());
    let edge = Edge {
        bounds: Bounds {
            max_connections: config.server.max_connections,
            header_timeout: config.server.header_timeout.to_std(),
            idle_timeout: config.server.idle_timeout.to_std(),
        },
        lifecycle: api.lifecycle.clone(),
        tracker: trackers.edge.clone(),
        stop: stop.edge.clone(),
    };
    let placement = placement::place(&config.roles, &config.pools);
    for each in placement.loops {
        tracing::debug!(name = each.name(), exclusivity = ?each.exclusivity(), "a loop runs here");
    }
    let main = match placement.surface {
        Surface::Everything => switchboard_http::router(api),
        Surface::Probes => probes.clone(),
    };
    let address = listen::listen(config.server.bind, main, edge.clone()).await?;
    if let Some(bind) = config.server.metrics_bind {
        listen::listen(bind, probes, edge).await?;
    }
    Ok(address)
}

/// Stores the configured first key; every replica of a fleet may do so.
async fn install_bootstrap_key(config: &Config, stores: &Stores) -> anyhow::Result<()> {
    if let Some(key) = &config.bootstrap_key {
        store_key(stores, "bootstrap", key, vec![Scope::Admin], None).await?;
    } else if stores.api_keys.list(&PageRequest { after: None, limit: 1 }).await?.items.is_empty() {
        tracing::info!("no API key exists yet; make one with: switchboard api-key create --name admin --scope admin");
    }
    Ok(())
}

/// Stores an API key by its hash.
async fn store_key(
    stores: &Stores,
    name: &str,
    key: &SecretText,
    scopes: Vec<Scope>,
    ttl: Option<switchboard_model::span::Span>,
) -> anyhow::Result<switchboard_model::api_key::ApiKey> {
    let new = NewApiKey { id: ApiKeyId::new(), name: name.to_owned(), hash: key.hash(), scopes, ttl };
    let written = stores.api_keys.create(&WriteContext::system("cli"), &new).await?;
    written.now().context("the key was made by an earlier request")
}

/// Folds histogram samples and refreshes the ages of the loops regularly, whether anybody scrapes or not.
async fn metrics_upkeep(prometheus: PrometheusHandle, scheduler: Arc<SchedulerHandle>, stop: CancellationToken) {
    let period = std::time::Duration::from_secs(5);
    while stop.run_until_cancelled(tokio::time::sleep(period)).await.is_some() {
        let _ = scheduler.loops();
        prometheus.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use switchboard_store_sqlite::SqliteOptions;

    use super::*;

    #[tokio::test]
    async fn a_replica_has_started_once_it_knows_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let options = SqliteOptions::new(folder.path().join("switchboard.db"));
        let stores = switchboard_store_sqlite::open(&options, &tracker, stop.clone()).await.unwrap();
        let options = HubOptions { instance: InstanceId::boot("test"), sockets_per_user: 1 };
        let hub = Hub::new(&stores, options, tracker.clone(), stop.clone());
        let lifecycle = Lifecycle::new();
        let mut starting = Box::pin(started(Arc::clone(&hub), lifecycle.clone()));
        assert_eq!((starting.as_mut().now_or_never(), lifecycle.is_started()), (None, false));
        let tick = stores.feed.tick(None, &TickRequest::default()).await.unwrap();
        assert_eq!((starting.as_mut().now_or_never(), lifecycle.is_started()), (None, false), "nobody has read it yet");
        hub.observe(&tick);
        starting.await;
        assert!(lifecycle.is_started());
        stop.cancel();
        tracker.close();
        tracker.wait().await;
    }
}
