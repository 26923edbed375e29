//! The server itself: where it comes from, its settings, and the faults that a test may inflict on it.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::account::Account;
use crate::binaries::find_binaries;
use crate::environment::{URL_VARIABLE, variable};
use crate::error::{AtPath, PostgresError};
use crate::process::Watched;
use crate::{container, package};

/// What a server promises about committed work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing survives a crash of the machine: for tests that judge behaviour only.
    Fast,
    /// Committed work is on disk, and autovacuum runs: for faults, soaks and benchmarks.
    Durable,
}

impl Durability {
    const fn settings(self) -> &'static str {
        match self {
            Self::Fast => "fsync = off\nsynchronous_commit = off\nfull_page_writes = off\nautovacuum = off\n",
            Self::Durable => "fsync = on\nsynchronous_commit = on\nfull_page_writes = on\nautovacuum = on\n",
        }
    }
}

/// A PostgreSQL server for tests. Dropping it stops the server that it started and removes its folder; the same
/// happens when this process is killed.
#[derive(Debug)]
pub struct PostgresServer {
    url: String,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Given,
    Container { _alive: Watched },
    Started { folder: PathBuf, watchdog: Watched },
}

impl PostgresServer {
    /// Returns the server that `SWITCHBOARD_TEST_PG_URL` names, whatever its settings. Otherwise starts one: from
    /// binaries on this machine, else in Docker, else from a package that it installs as root on Debian or Ubuntu.
    ///
    /// # Errors
    /// [`PostgresError::NotFound`] says what to do; other errors tell why the chosen way failed.
    pub fn find_or_start(durability: Durability) -> Result<Self, PostgresError> {
        if let Some(url) = variable(URL_VARIABLE) {
            return Ok(Self { url, origin: Origin::Given });
        }
        if let Some(binaries) = find_binaries() {
            return Self::start(&binaries, durability);
        }
        if container::is_available() {
            let (url, alive) = container::start()?;
            return Ok(Self { url, origin: Origin::Container { _alive: alive } });
        }
        if package::can_install() {
            package::install_package("postgresql")?;
        }
        Self::start(&find_binaries().ok_or(PostgresError::NotFound)?, durability)
    }

    /// Starts a server of its own from `binaries`, on a free port of 127.0.0.1 and in a folder of its own.
    ///
    /// # Errors
    /// [`PostgresError::Program`] carries the server's log.
    pub fn start(binaries: &Path, durability: Durability) -> Result<Self, PostgresError> {
        let account = Account::for_server()?;
        let folder = create_folder(account)?;
        let mut command = account.command(Path::new("/bin/sh"), &folder);
        command.args(["-c", include_str!("watchdog.sh"), "watchdog"]).args([binaries, &folder]).stderr(Stdio::null());
        let mut watchdog = Watched::spawn(command)?;
        if !watchdog.order("create")? {
            return Err(PostgresError::program("initdb", read_log(&folder)));
        }
        // Another process may take the port between the probe and the start: then the next one is tried.
        for _ in 0..5 {
            let port = free_port()?;
            write_settings(&folder, port, durability)?;
            if watchdog.order("start")? {
                let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
                return Ok(Self { url, origin: Origin::Started { folder, watchdog } });
            }
        }
        Err(PostgresError::program("pg_ctl start", read_log(&folder)))
    }

    /// Returns the URL of the database `postgres` for a superuser.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the process id of a running server that was started here.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        let Origin::Started { folder, .. } = &self.origin else { return None };
        let text = fs::read_to_string(folder.join("data/postmaster.pid")).ok()?;
        text.lines().next()?.trim().parse().ok()
    }

    /// Stops all processes of the server where they are, as a machine that hangs.
    ///
    /// # Errors
    /// [`PostgresError::NotStartedHere`] for any other server.
    pub fn pause(&mut self) -> Result<(), PostgresError> {
        self.order("pause")
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// [`PostgresError::NotStartedHere`] for any other server.
    pub fn resume(&mut self) -> Result<(), PostgresError> {
        self.order("resume")
    }

    /// Ends the server without a checkpoint, as a crash does; its data stays.
    ///
    /// # Errors
    /// [`PostgresError::NotStartedHere`] for any other server.
    pub fn stop(&mut self) -> Result<(), PostgresError> {
        self.order("stop")
    }

    /// Crashes the server if it runs, and starts it on the same port and data.
    ///
    /// # Errors
    /// [`PostgresError::NotStartedHere`] for any other server.
    pub fn restart(&mut self) -> Result<(), PostgresError> {
        self.order("stop")?;
        self.order("start")
    }

    fn order(&mut self, order: &str) -> Result<(), PostgresError> {
        let Origin::Started { folder, watchdog } = &mut self.origin else { return Err(PostgresError::NotStartedHere) };
        if watchdog.order(order)? {
            return Ok(());
        }
        Err(PostgresError::program(format!("pg_ctl {order}"), read_log(folder)))
    }
}

/// Creates the folder that holds the data, the socket and the log.
pub(crate) fn create_folder(account: Account) -> Result<PathBuf, PostgresError> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let name = format!("switchboard-pg-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        match fs::create_dir(&folder) {
            Ok(()) => return account.own(&folder).map(|()| folder),
            // The leftover of a process with the same id.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).at(&folder),
        }
    }
}

/// Returns what `initdb` or the server wrote, for error messages.
pub(crate) fn read_log(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}

fn write_settings(folder: &Path, port: u16, durability: Durability) -> Result<(), PostgresError> {
    let socket_folder = folder.display();
    let settings = format!(
        "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{socket_folder}'\n\
         max_connections = 400\ntimezone = 'UTC'\nlog_timezone = 'UTC'\n{}",
        durability.settings()
    );
    let path = folder.join("data/postgresql.conf");
    fs::write(&path, settings).at(&path)
}

/// Returns a port below those that systems give to outgoing connections, so that it is still free after a restart.
pub(crate) fn free_port() -> Result<u16, PostgresError> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap_or_default();
    for _ in 0..COUNT {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = FIRST + offset;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(PostgresError::program("looking for a free port", "none between 20000 and 29999"))
}
