//! The description of a cluster, from which it is booted.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::path::{Path, PathBuf};
use std::pin::Pin;

use switchboard_client::{Client, ClientOptions};
use switchboard_model::api_key::API_KEY_PREFIX;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;

use super::replica::Blueprint;
use super::{Cluster, DATABASE_URL, Ground, Storage, sqlite_url};
use crate::clock;
use crate::database::{Pooler, TestDatabase};
use crate::must::Must as _;
use crate::proxy::FaultProxy;

/// The variable that says where the database is for migrations and the connection that listens.
const DIRECT_URL: &str = "SWITCHBOARD_DATABASE__DIRECT_URL";

/// The variable that says how many replicas there may be.
const REPLICAS: &str = "SWITCHBOARD_REPLICAS";

/// Which database a cluster gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Postgres,
    DurablePostgres,
    OwnPostgres,
    PooledPostgres(Direct),
    Sqlite,
}

/// Whether replicas behind a pooler know a way past it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direct {
    Known,
    Unknown,
}

/// A cluster to be booted; awaiting it does so. The replicas boot together on an empty database.
#[derive(Debug)]
#[must_use = "a cluster boots when its description is awaited"]
pub struct ClusterBuilder {
    size: usize,
    binary: Option<PathBuf>,
    backend: Backend,
    env: Vec<(String, String)>,
    own_env: Vec<(usize, String, String)>,
    /// Which replicas have a proxy, and which of their variables leads to it.
    proxied: BTreeMap<usize, &'static str>,
    has_lasting_proxies: bool,
    has_fronts: bool,
}

impl ClusterBuilder {
    pub(super) const fn new(size: usize) -> Self {
        Self {
            size,
            binary: None,
            backend: Backend::Postgres,
            env: Vec::new(),
            own_env: Vec::new(),
            proxied: BTreeMap::new(),
            has_lasting_proxies: false,
            has_fronts: false,
        }
    }

    /// Names the server binary: `env!("CARGO_BIN_EXE_switchboard")` in the tests of its package.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Sets a variable for every replica; a later one goes over an earlier one.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a variable for one replica, until it is restarted.
    pub fn env_of(mut self, index: usize, name: &str, value: &str) -> Self {
        self.own_env.push((index, name.to_owned(), value.to_owned()));
        self
    }

    /// Sets how long a leased run is safe without renewal.
    pub fn lease(self, lease: Span) -> Self {
        self.env("SWITCHBOARD_SCHEDULER__LEASE", &lease.to_string())
    }

    /// Makes one replica die at a fail point, such as `after_claim`, once.
    pub fn fail_point(self, index: usize, point: &str) -> Self {
        self.env_of(index, "SWITCHBOARD_TEST_FAIL_POINTS", point)
    }

    /// Leads one replica to its database through a proxy of its own ([`Cluster::proxy`]), until it is restarted.
    pub fn through_proxy(mut self, index: usize) -> Self {
        self.proxied.insert(index, DATABASE_URL);
        self
    }

    /// Leads every replica to its database through a proxy of its own, through all its restarts.
    pub fn through_proxies(mut self) -> Self {
        self.proxied.extend((0..self.size).map(|index| (index, DATABASE_URL)));
        self.has_lasting_proxies = true;
        self
    }

    /// Leads the listening connection of one replica alone through a proxy of its own, until it is restarted.
    pub fn listens_through_proxy(mut self, index: usize) -> Self {
        self.proxied.insert(index, DIRECT_URL);
        self
    }

    /// Puts a proxy before each replica, between it and its clients ([`Cluster::front`], [`Cluster::outside`]).
    pub const fn fronted(mut self) -> Self {
        self.has_fronts = true;
        self
    }

    /// Sets the clock of one replica's host wrong by so many minutes, until it is restarted. Its monotonic clock is
    /// the real one.
    ///
    /// # Panics
    /// Panics when this machine has no `libfaketime` and no way to get it.
    pub fn clock_offset(self, index: usize, minutes: i32) -> Self {
        clock::offset(minutes).into_iter().fold(self, |builder, (name, value)| builder.env_of(index, name, &value))
    }

    /// Runs without NOTIFY: replicas poll the change feed.
    pub fn polling(self) -> Self {
        self.env("SWITCHBOARD_REALTIME__HINTS", "off")
    }

    /// Uses a server that keeps what was committed through a crash.
    pub const fn durable(mut self) -> Self {
        self.backend = Backend::DurablePostgres;
        self
    }

    /// Uses a server of its own, which a test can restart ([`Cluster::database_mut`]).
    pub const fn own_server(mut self) -> Self {
        self.backend = Backend::OwnPostgres;
        self
    }

    /// Puts a transaction pooler before the database, and tells the replicas of no other way. The schema is there, since
    /// they cannot make it.
    pub const fn pooled(mut self) -> Self {
        self.backend = Backend::PooledPostgres(Direct::Unknown);
        self
    }

    /// Puts a transaction pooler before the database, and tells the replicas of the way past it, too.
    pub const fn pooled_with_direct_url(mut self) -> Self {
        self.backend = Backend::PooledPostgres(Direct::Known);
        self
    }

    /// Runs one process on an SQLite file.
    pub const fn sqlite(mut self) -> Self {
        self.backend = Backend::Sqlite;
        self
    }

    async fn boot(mut self) -> Cluster {
        let Some(binary) = self.binary.take() else {
            panic!("name the server binary: Cluster::start(…).binary(env!(\"CARGO_BIN_EXE_switchboard\"))");
        };
        let folder = tempfile::Builder::new().prefix("switchboard-cluster-").tempdir().must("making a folder");
        let database = match self.backend {
            Backend::Sqlite => None,
            Backend::Postgres | Backend::PooledPostgres(Direct::Known) => Some(TestDatabase::empty().await),
            Backend::DurablePostgres => Some(TestDatabase::empty_durable().await),
            Backend::OwnPostgres => Some(TestDatabase::empty_on_own_server().await),
            Backend::PooledPostgres(Direct::Unknown) => Some(TestDatabase::create().await),
        };
        let pooler = match (&database, self.backend) {
            (Some(database), Backend::PooledPostgres(_)) => Some(Pooler::before(database).await),
            _ => None,
        };
        let proxies = self.start_proxies(database.as_ref(), pooler.as_ref()).await;
        let key = SecretText::generate(API_KEY_PREFIX).must("making a key");
        let mut env = self.env_of_storage(folder.path(), database.as_ref(), pooler.as_ref());
        env.extend([
            ("SWITCHBOARD_BOOTSTRAP_KEY".to_owned(), key.expose().to_owned()),
            ("SWITCHBOARD_AUTH__SIGNING_KEYS".to_owned(), random_key("test:hs256:")),
            ("SWITCHBOARD_SECRETS__KEYS".to_owned(), random_key("test:")),
        ]);
        env.append(&mut self.env);
        // The address is replaced by that of each replica.
        let options = ClientOptions { base_url: "http://127.0.0.1".to_owned(), credential: Some(key.clone()) };
        let client = Client::new(options).must("making a client");
        let own_env = (0..self.size).map(|index| self.own_env_of(index)).collect();
        let blueprint = Blueprint { binary, env, key, client, folder: folder.path().to_owned() };
        let fronts = self.has_fronts.then(Vec::new);
        let storage = database.map_or(Storage::Sqlite, Storage::Postgres);
        let has_lasting_proxies = self.has_lasting_proxies;
        let ground = Ground { proxies, has_lasting_proxies, fronts, _pooler: pooler, storage, folder: Some(folder) };
        Cluster::boot(blueprint, ground, own_env).await
    }

    /// Returns the variables that lead to the database.
    fn env_of_storage(
        &self,
        folder: &Path,
        database: Option<&TestDatabase>,
        pooler: Option<&Pooler>,
    ) -> Vec<(String, String)> {
        let Some(database) = database else {
            assert_eq!(self.size, 1, "an SQLite file serves one process");
            return owned(&[(DATABASE_URL, &sqlite_url(folder)), (REPLICAS, "single")]);
        };
        let mut env = owned(&[(DATABASE_URL, pooler.map_or(database.url(), Pooler::url)), (REPLICAS, "multi")]);
        if pooler.is_some() {
            env.extend(owned(&[("SWITCHBOARD_DATABASE__POOLED", "true")]));
        }
        if self.backend == Backend::PooledPostgres(Direct::Known) {
            env.extend(owned(&[(DIRECT_URL, database.url())]));
        }
        env
    }

    async fn start_proxies(
        &mut self,
        database: Option<&TestDatabase>,
        pooler: Option<&Pooler>,
    ) -> BTreeMap<usize, FaultProxy> {
        let mut proxies = BTreeMap::new();
        for (index, variable) in std::mem::take(&mut self.proxied) {
            let Some(database) = database else { panic!("no connection leads to an SQLite file") };
            let url = match pooler {
                Some(pooler) if variable == DATABASE_URL => pooler.url(),
                _ => database.url(),
            };
            let proxy = FaultProxy::start(url).await;
            self.own_env.push((index, variable.to_owned(), proxy.url().to_owned()));
            proxies.insert(index, proxy);
        }
        proxies
    }

    fn own_env_of(&self, index: usize) -> Vec<(String, String)> {
        let own = self.own_env.iter().filter(|(of, _, _)| *of == index);
        own.map(|(_, name, value)| (name.clone(), value.clone())).collect()
    }
}

/// Makes a key of 32 random bytes in base64url, as the server takes its secret keys.
fn random_key(prefix: &str) -> String {
    SecretText::generate(prefix).must("making a key").expose().to_owned()
}

fn owned(env: &[(&str, &str)]) -> Vec<(String, String)> {
    env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

impl IntoFuture for ClusterBuilder {
    type Output = Cluster;
    type IntoFuture = Pin<Box<dyn Future<Output = Cluster>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.boot())
    }
}
