//! A cluster of real server processes on one fresh database.

mod builder;
mod log;
mod replica;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitStatus;

use rand::seq::IteratorRandom as _;
use switchboard_client::{Client, ResumeOptions, ResumingSocket, Socket, SocketOptions, TicketSource};
use switchboard_model::identity::UserId;
use switchboard_model::secret_text::SecretText;
use switchboard_model::ticket::{Grants, RoomPattern};
use switchboard_model::wire::rest::TicketRequest;
use tempfile::TempDir;

use crate::database::{Pooler, TestDatabase};
use crate::eventually::wait_until;
use crate::must::Must as _;
use crate::proxy::FaultProxy;
pub use builder::ClusterBuilder;
use nix::sys::signal::Signal;
use replica::{Blueprint, Replica};

/// The variable that says where the database is.
const DATABASE_URL: &str = "SWITCHBOARD_DATABASE__URL";

/// Where the replicas keep what they know.
#[derive(Debug)]
enum Storage {
    Postgres(TestDatabase),
    Sqlite,
}

/// What the replicas stand on and between. Dropped in this order: nobody uses the database when it is removed.
#[derive(Debug)]
struct Ground {
    /// Between replicas and their database.
    proxies: BTreeMap<usize, FaultProxy>,
    /// Whether they are there for restarted replicas, too.
    has_lasting_proxies: bool,
    /// Between clients and each replica, if they are wanted.
    fronts: Option<Vec<FaultProxy>>,
    _pooler: Option<Pooler>,
    storage: Storage,
    folder: Option<TempDir>,
}

/// Running replicas, numbered from 0. Dropping the cluster kills them and removes the database; in a test that panics
/// the ends of their logs are printed and the whole logs are kept.
#[derive(Debug)]
pub struct Cluster {
    // Before the ground that they stand on.
    replicas: Vec<Replica>,
    ground: Ground,
    blueprint: Blueprint,
}

impl Ground {
    /// Returns the variables that a replica keeps through its restarts.
    fn lasting_env(&self, index: usize) -> Vec<(String, String)> {
        let proxy = self.proxies.get(&index).filter(|_| self.has_lasting_proxies);
        proxy.map(|proxy| (DATABASE_URL.to_owned(), proxy.url().to_owned())).into_iter().collect()
    }
}

impl Cluster {
    /// Describes a cluster of `size` replicas that boot together; awaiting the description boots them.
    pub const fn start(size: usize) -> ClusterBuilder {
        ClusterBuilder::new(size)
    }

    async fn boot(blueprint: Blueprint, ground: Ground, envs: Vec<Vec<(String, String)>>) -> Self {
        let mut cluster = Self { replicas: Vec::new(), ground, blueprint };
        for env in envs {
            cluster.spawn(env);
        }
        for index in 0..cluster.size() {
            cluster.became_ready(index).await;
        }
        cluster
    }

    /// Waits until a new replica is ready, and puts a proxy before it if there are such.
    async fn became_ready(&mut self, index: usize) {
        self.replicas[index].ready(&self.blueprint).await;
        if let Some(fronts) = &mut self.ground.fronts {
            fronts.push(FaultProxy::before(self.replicas[index].client().base_url()).await);
        }
    }

    /// Returns how many replicas there are, including those that have ended.
    #[must_use]
    pub fn size(&self) -> usize {
        self.replicas.len()
    }

    /// Returns a client of one replica, with a key that may do everything.
    ///
    /// # Panics
    /// Panics when there is no such replica.
    #[must_use]
    pub fn client(&self, index: usize) -> &Client {
        self.replicas[index].client()
    }

    /// Returns a client of some replica that runs.
    ///
    /// # Panics
    /// Panics when none does.
    #[must_use]
    pub fn any(&self) -> &Client {
        let running = self.replicas.iter().filter(|replica| replica.is_serving());
        running.choose(&mut rand::rng()).map_or_else(|| panic!("no replica runs"), Replica::client)
    }

    /// Returns the addresses of all replicas, including those that have ended: a restarted one keeps its address.
    #[must_use]
    pub fn base_urls(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.client().base_url().to_owned()).collect()
    }

    /// Returns the key that may do everything.
    #[must_use]
    pub const fn key(&self) -> &SecretText {
        &self.blueprint.key
    }

    /// Returns the database, for statements of the test itself.
    ///
    /// # Panics
    /// Panics for a cluster on SQLite.
    #[must_use]
    pub fn database(&self) -> &TestDatabase {
        match &self.ground.storage {
            Storage::Postgres(database) => database,
            Storage::Sqlite => panic!("this cluster has no PostgreSQL database"),
        }
    }

    /// Returns the database, to restart its server.
    ///
    /// # Panics
    /// Panics for a cluster on SQLite.
    #[must_use]
    pub fn database_mut(&mut self) -> &mut TestDatabase {
        match &mut self.ground.storage {
            Storage::Postgres(database) => database,
            Storage::Sqlite => panic!("this cluster has no PostgreSQL database"),
        }
    }

    /// Returns the proxy between a replica and its database.
    ///
    /// # Panics
    /// Panics when the replica was not booted behind one.
    #[must_use]
    pub fn proxy(&self, index: usize) -> &FaultProxy {
        &self.ground.proxies[&index]
    }

    /// Returns the proxy between clients and a replica.
    ///
    /// # Panics
    /// Panics when the cluster has no such proxies.
    #[must_use]
    pub fn front(&self, index: usize) -> &FaultProxy {
        let fronts = self.ground.fronts.as_ref().unwrap_or_else(|| panic!("there are no proxies before the replicas"));
        &fronts[index]
    }

    /// Returns a client of one replica through the proxy before it, with a key that may do everything.
    ///
    /// # Panics
    /// Panics when the cluster has no such proxies.
    #[must_use]
    pub fn outside(&self, index: usize) -> Client {
        self.client(index).at(self.front(index).url()).must("making a client")
    }

    /// Returns everything that a replica has written since its first boot.
    #[must_use]
    pub fn logs(&self, index: usize) -> String {
        self.replicas[index].log().text()
    }

    /// Returns the name of a replica, with which its identity begins at each boot.
    #[must_use]
    pub fn name(&self, index: usize) -> &str {
        self.replicas[index].name()
    }

    /// Returns the process id of a replica that has not ended.
    #[must_use]
    pub fn process_id(&self, index: usize) -> Option<u32> {
        self.replicas[index].process_id()
    }

    /// Sends a signal to a replica; after SIGKILL it has ended.
    ///
    /// # Panics
    /// Panics when it has ended already.
    pub fn kill(&mut self, index: usize, signal: Signal) {
        self.replicas[index].signal(signal);
    }

    /// Makes a replica stand still, as on a machine that hangs.
    ///
    /// # Panics
    /// Panics when it has ended.
    pub fn pause(&mut self, index: usize) {
        self.replicas[index].signal(Signal::SIGSTOP);
    }

    /// Lets a paused replica go on.
    ///
    /// # Panics
    /// Panics when it has ended.
    pub fn resume(&mut self, index: usize) {
        self.replicas[index].signal(Signal::SIGCONT);
    }

    /// Asks a replica to stop, and waits until it has.
    ///
    /// # Panics
    /// Panics when it does not within two minutes.
    pub async fn stop(&mut self, index: usize) -> ExitStatus {
        self.kill(index, Signal::SIGTERM);
        self.ended(index).await
    }

    /// Waits until a replica ends by itself, as at a fail point.
    ///
    /// # Panics
    /// Panics when it does not within two minutes.
    pub async fn ended(&mut self, index: usize) -> ExitStatus {
        let replica = &mut self.replicas[index];
        wait_until(&format!("the end of replica {}", replica.name()), async || replica.poll_exit()).await
    }

    /// Returns how a replica ended, if it has.
    ///
    /// # Panics
    /// Panics when there is no such replica.
    pub fn has_ended(&mut self, index: usize) -> Option<ExitStatus> {
        self.replicas[index].poll_exit()
    }

    /// Boots another replica, waits until it is ready and returns its number.
    ///
    /// # Panics
    /// Panics when it does not become ready.
    pub async fn add(&mut self) -> usize {
        self.add_with(&[]).await
    }

    /// Boots another replica with variables that only it has, and only until it is restarted.
    ///
    /// # Panics
    /// Panics when it does not become ready.
    pub async fn add_with(&mut self, env: &[(&str, &str)]) -> usize {
        let index = self.spawn(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect());
        self.became_ready(index).await;
        index
    }

    /// Boots a replica again on its address, after killing it if it still runs, and waits until it is ready. Variables
    /// that it alone had are gone, so that a fail point does not strike twice; a lasting proxy stays.
    ///
    /// # Panics
    /// Panics when it does not become ready.
    pub async fn restart(&mut self, index: usize) {
        let env = self.ground.lasting_env(index);
        let replica = &mut self.replicas[index];
        replica.end();
        replica.spawn(&self.blueprint, &env);
        replica.ready(&self.blueprint).await;
    }

    /// Replaces each replica in turn, as a rollout does: asks it to stop, waits until it has, and boots it again on its
    /// address.
    ///
    /// # Panics
    /// Panics when one does not stop in order or does not become ready.
    pub async fn roll(&mut self) {
        for index in 0..self.size() {
            let status = self.stop(index).await;
            assert!(status.success(), "replica {} stopped with {status}", self.replicas[index].name());
            self.restart(index).await;
        }
    }

    /// Lets the runs end that call the function `test.gate`, those that begin from here on too.
    ///
    /// # Panics
    /// Panics when the folder of the replicas cannot be written to.
    pub fn open_gate(&self) {
        std::fs::write(self.blueprint.folder.join("gate"), "").must("opening the gate");
    }

    /// Mints a ticket for a user.
    ///
    /// # Panics
    /// Panics when that is refused.
    pub async fn ticket_for(&self, user: &str, grants: Grants) -> SecretText {
        ticket(self.any(), &request(user, grants)).await
    }

    /// Opens a socket of a user on one replica; it may join and publish everywhere.
    ///
    /// # Panics
    /// Panics when that is refused.
    pub async fn socket(&self, index: usize, user: &str) -> Socket {
        let client = self.client(index);
        let options = SocketOptions::ticket(ticket(client, &request(user, everywhere())).await);
        client.connect(options).await.must("opening a socket")
    }

    /// Opens a resuming socket of a user over all replicas, through the proxies before them if there are such; it may join
    /// and publish everywhere.
    ///
    /// # Panics
    /// Panics when that is refused.
    #[must_use]
    pub fn resuming_socket(&self, user: &str) -> ResumingSocket {
        let base_urls = match &self.ground.fronts {
            Some(fronts) => fronts.iter().map(|front| front.url().to_owned()).collect(),
            None => self.base_urls(),
        };
        resuming(self.client(0), base_urls, user)
    }

    fn spawn(&mut self, env: Vec<(String, String)>) -> usize {
        let index = self.replicas.len();
        let mut replica = Replica::new(index, &self.blueprint.folder);
        replica.spawn(&self.blueprint, &env);
        self.replicas.push(replica);
        index
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.replicas.iter_mut().for_each(Replica::end);
        if std::thread::panicking() {
            for replica in &self.replicas {
                eprintln!("--- the end of the log of replica {}\n{}", replica.name(), replica.log().tail());
            }
            if let Some(folder) = self.ground.folder.take() {
                eprintln!("--- the whole logs are in {}", folder.keep().display());
            }
        }
    }
}

/// Grants that let a socket join and publish everywhere.
pub(crate) fn everywhere() -> Grants {
    Grants { join: vec![RoomPattern::new("*")], publish: vec![RoomPattern::new("*")] }
}

pub(crate) fn request(user: &str, grants: Grants) -> TicketRequest {
    let user_id: UserId = user.parse().must("reading a user id");
    TicketRequest { user_id: Some(user_id), origin: None, grants }
}

/// Opens a resuming socket of a user over replicas; it may join and publish everywhere.
pub(crate) fn resuming(client: &Client, base_urls: Vec<String>, user: &str) -> ResumingSocket {
    let request = request(user, everywhere());
    let tickets = move |replica: Client| {
        let request = request.clone();
        async move { replica.mint_ticket(&request).await }
    };
    let tickets: std::sync::Arc<dyn TicketSource> = std::sync::Arc::new(tickets);
    client.resume(ResumeOptions { base_urls, tickets }).must("opening a resuming socket")
}

async fn ticket(client: &Client, request: &TicketRequest) -> SecretText {
    client.mint_ticket(request).await.must("minting a ticket")
}

/// Returns the address of the database file in a folder of a cluster on SQLite.
fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("switchboard.db").display())
}
