//! The description of a cluster, from which it is booted.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::path::PathBuf;
use std::pin::Pin;

use switchboard_client::{Client, ClientOptions};
use switchboard_model::api_key::API_KEY_PREFIX;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;

use super::replica::Blueprint;
use super::{Cluster, Storage, sqlite_url};
use crate::clock;
use crate::database::TestDatabase;
use crate::must::Must as _;
use crate::proxy::FaultProxy;

/// The variable that says where the database is.
const DATABASE_URL: &str = "SWITCHBOARD_DATABASE__URL";

/// The variable that says where the database is for migrations and the connection that listens.
const DIRECT_URL: &str = "SWITCHBOARD_DATABASE__DIRECT_URL";

/// Which database a cluster gets.
#[derive(Clone, Copy, Debug)]
enum Backend {
    Postgres,
    DurablePostgres,
    OwnPostgres,
    Sqlite,
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

    /// Leads the listening connection of one replica alone through a proxy of its own, until it is restarted.
    pub fn listens_through_proxy(mut self, index: usize) -> Self {
        self.proxied.insert(index, DIRECT_URL);
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
        let (storage, url, replicas) = match self.backend {
            Backend::Sqlite => {
                assert_eq!(self.size, 1, "an SQLite file serves one process");
                (Storage::Sqlite, sqlite_url(folder.path()), "single")
            }
            Backend::Postgres => on(TestDatabase::empty().await),
            Backend::DurablePostgres => on(TestDatabase::empty_durable().await),
            Backend::OwnPostgres => on(TestDatabase::empty_on_own_server().await),
        };
        let proxies = self.start_proxies(&url).await;
        let key = SecretText::generate(API_KEY_PREFIX).must("making a key");
        let mut env = vec![
            (DATABASE_URL.to_owned(), url),
            ("SWITCHBOARD_REPLICAS".to_owned(), replicas.to_owned()),
            ("SWITCHBOARD_BOOTSTRAP_KEY".to_owned(), key.expose().to_owned()),
            ("SWITCHBOARD_AUTH__SIGNING_KEYS".to_owned(), random_key("test:hs256:")),
            ("SWITCHBOARD_SECRETS__KEYS".to_owned(), random_key("test:")),
        ];
        env.append(&mut self.env);
        // The address is replaced by that of each replica.
        let options = ClientOptions { base_url: "http://127.0.0.1".to_owned(), credential: Some(key.clone()) };
        let client = Client::new(options).must("making a client");
        let own_env = (0..self.size).map(|index| self.own_env_of(index)).collect();
        let blueprint = Blueprint { binary, env, key, client, folder: folder.path().to_owned() };
        Cluster::boot(blueprint, storage, proxies, folder, own_env).await
    }

    async fn start_proxies(&mut self, url: &str) -> BTreeMap<usize, FaultProxy> {
        let mut proxies = BTreeMap::new();
        for (index, variable) in std::mem::take(&mut self.proxied) {
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

fn on(database: TestDatabase) -> (Storage, String, &'static str) {
    let url = database.url().to_owned();
    (Storage::Postgres(database), url, "multi")
}

impl IntoFuture for ClusterBuilder {
    type Output = Cluster;
    type IntoFuture = Pin<Box<dyn Future<Output = Cluster>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.boot())
    }
}
