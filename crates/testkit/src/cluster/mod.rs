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

use crate::database::TestDatabase;
use crate::eventually::wait_until;
use crate::must::Must as _;
use crate::proxy::FaultProxy;
pub use builder::ClusterBuilder;
use nix::sys::signal::Signal;
use replica::{Blueprint, Replica};

/// Where the replicas keep what they know.
#[derive(Debug)]
enum Storage {
    Postgres(TestDatabase),
    Sqlite,
}

/// Running replicas, numbered from 0. Dropping the cluster kills them and removes the database; in a test that panics
/// the ends of their logs are printed and the whole logs are kept.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: nobody uses the database when it is removed.
    replicas: Vec<Replica>,
    proxies: BTreeMap<usize, FaultProxy>,
    storage: Storage,
    blueprint: Blueprint,
    folder: Option<TempDir>,
}

impl Cluster {
    /// Describes a cluster of `size` replicas that boot together; awaiting the description boots them.
    pub const fn start(size: usize) -> ClusterBuilder {
        ClusterBuilder::new(size)
    }

    async fn boot(
        blueprint: Blueprint,
        storage: Storage,
        proxies: BTreeMap<usize, FaultProxy>,
        folder: TempDir,
        envs: Vec<Vec<(String, String)>>,
    ) -> Self {
        let mut cluster = Self { replicas: Vec::new(), proxies, storage, blueprint, folder: Some(folder) };
        for env in envs {
            cluster.spawn(env);
        }
        for replica in &mut cluster.replicas {
            replica.ready(&cluster.blueprint).await;
        }
        cluster
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
        match &self.storage {
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
        match &mut self.storage {
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
        &self.proxies[&index]
    }

    /// Returns everything that a replica has written since its first boot.
    #[must_use]
    pub fn logs(&self, index: usize) -> String {
        self.replicas[index].log().text()
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
        self.replicas[index].ready(&self.blueprint).await;
        index
    }

    /// Boots a replica again on its address, after killing it if it still runs, and waits until it is ready. Variables
    /// that it alone had are gone, so that a fail point does not strike twice.
    ///
    /// # Panics
    /// Panics when it does not become ready.
    pub async fn restart(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        replica.end();
        replica.spawn(&self.blueprint, &[]);
        replica.ready(&self.blueprint).await;
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

    /// Opens a resuming socket of a user over all replicas; it may join and publish everywhere.
    ///
    /// # Panics
    /// Panics when that is refused.
    #[must_use]
    pub fn resuming_socket(&self, user: &str) -> ResumingSocket {
        let request = request(user, everywhere());
        let tickets = move |replica: Client| {
            let request = request.clone();
            async move { replica.mint_ticket(&request).await }
        };
        let tickets: std::sync::Arc<dyn TicketSource> = std::sync::Arc::new(tickets);
        self.client(0).resume(ResumeOptions { base_urls: self.base_urls(), tickets }).must("opening a resuming socket")
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
            if let Some(folder) = self.folder.take() {
                eprintln!("--- the whole logs are in {}", folder.keep().display());
            }
        }
    }
}

/// Grants that let a socket join and publish everywhere.
fn everywhere() -> Grants {
    Grants { join: vec![RoomPattern::new("*")], publish: vec![RoomPattern::new("*")] }
}

fn request(user: &str, grants: Grants) -> TicketRequest {
    let user_id: UserId = user.parse().must("reading a user id");
    TicketRequest { user_id: Some(user_id), origin: None, grants }
}

async fn ticket(client: &Client, request: &TicketRequest) -> SecretText {
    client.mint_ticket(request).await.must("minting a ticket")
}

/// Returns the address of the database file in a folder of a cluster on SQLite.
fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("switchboard.db").display())
}
