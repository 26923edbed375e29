//! PgBouncer in transaction mode before a PostgreSQL server: each transaction may get another session.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::environment::variable;
use crate::error::{AtPath, PostgresError};
use crate::package::install_package;
use crate::process::Watched;
use crate::server::{create_folder, free_port, read_log};

/// Where distributions put the program beside the folders of `PATH`.
const FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"];

/// How long it may take to listen; many times what is usual.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long to pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// A running PgBouncer. Dropping it ends it; the same happens when this process is killed.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _alive: Watched,
}

impl PgBouncer {
    /// Starts one on a free port of 127.0.0.1. It leads to all databases of one server, which `target` describes as
    /// libpq does, such as `host=127.0.0.1 port=5432 user=postgres`; whom its clients say they are does not matter.
    /// Startup parameters that it does not know it refuses, as by default.
    ///
    /// # Errors
    /// [`PostgresError::Program`] carries its log, or says how to get it.
    pub fn start(target: &str) -> Result<Self, PostgresError> {
        let program = find_or_install()?;
        let account = Account::for_server()?;
        let folder = create_folder(account)?;
        let port = free_port()?;
        let path = folder.join("pgbouncer.ini");
        fs::write(&path, settings(target, port)).at(&path)?;
        let mut command = account.command(Path::new("/bin/sh"), &folder);
        command.args(["-c", include_str!("pgbouncer.sh"), "pgbouncer"]).args([&program, &folder]).stderr(Stdio::null());
        let alive = Watched::spawn(command)?;
        let give_up = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() >= give_up {
                return Err(PostgresError::program("pgbouncer", read_log(&folder)));
            }
            sleep(PAUSE);
        }
        Ok(Self { port, _alive: alive })
    }

    /// Returns the port on which it listens.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

fn settings(target: &str, port: u16) -> String {
    format!(
        "[databases]\n* = {target}\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = any\npool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 20\n"
    )
}

fn find_or_install() -> Result<PathBuf, PostgresError> {
    if let Some(found) = find() {
        return Ok(found);
    }
    install_package("pgbouncer")?;
    find().ok_or_else(|| PostgresError::program("pgbouncer", "the package pgbouncer has no such program"))
}

fn find() -> Option<PathBuf> {
    let path = variable("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).collect::<Vec<_>>();
    let folders = on_path.into_iter().chain(FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file())
}
