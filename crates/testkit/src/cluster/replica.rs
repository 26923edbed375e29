//! One server process: how it is started, told what to do, and ended.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::Context as _;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use switchboard_client::Client;
use switchboard_model::secret_text::SecretText;

use super::log::ReplicaLog;
use crate::eventually::wait_until;
use crate::must::Must as _;

/// Variables with this prefix steer the server; those of the test's own environment are kept from it.
const PREFIX: &str = "SWITCHBOARD_";

/// What all replicas of a cluster have in common.
#[derive(Debug)]
pub(super) struct Blueprint {
    pub(super) binary: PathBuf,
    pub(super) env: Vec<(String, String)>,
    pub(super) key: SecretText,
    /// A client with the key; its address means nothing.
    pub(super) client: Client,
    pub(super) folder: PathBuf,
}

/// What a replica is doing.
#[derive(Debug)]
enum Process {
    Running(Child),
    Paused(Child),
    Ended(Option<ExitStatus>),
}

/// One replica, over all its boots.
#[derive(Debug)]
pub(super) struct Replica {
    name: String,
    process: Process,
    /// Known once it has announced its address.
    client: Option<Client>,
    log: ReplicaLog,
}

impl Replica {
    /// Describes a replica that is not started; its name is a letter as long as letters suffice.
    pub(super) fn new(index: usize, folder: &Path) -> Self {
        let letter = u8::try_from(index).ok().filter(|index| *index < 26).map(|index| char::from(b'a' + index));
        let name = letter.map_or_else(|| format!("r{index}"), |letter| letter.to_string());
        let log = ReplicaLog::new(folder.join(format!("{name}.log")));
        Self { name, process: Process::Ended(None), client: None, log }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) const fn log(&self) -> &ReplicaLog {
        &self.log
    }

    pub(super) fn client(&self) -> &Client {
        self.client.as_ref().unwrap_or_else(|| panic!("replica {} never became ready", self.name))
    }

    /// Tells whether it runs, as far as is known without asking it.
    pub(super) const fn is_serving(&self) -> bool {
        matches!(self.process, Process::Running(_))
    }

    pub(super) fn process_id(&self) -> Option<u32> {
        match &self.process {
            Process::Running(child) | Process::Paused(child) => Some(child.id()),
            Process::Ended(_) => None,
        }
    }

    /// Starts the process, on the address of its previous boot if there was one.
    pub(super) fn spawn(&mut self, blueprint: &Blueprint, own_env: &[(String, String)]) {
        let address = self.client.as_ref().and_then(|client| client.base_url().strip_prefix("http://"));
        let (output, errors) = self.log.open();
        let mut command = Command::new(&blueprint.binary);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with(PREFIX) {
                command.env_remove(name);
            }
        }
        command
            .arg("serve")
            .current_dir(&blueprint.folder)
            .env("SWITCHBOARD_SERVER__BIND", address.unwrap_or("127.0.0.1:0"))
            .env("SWITCHBOARD_INSTANCE__NAME", &self.name)
            .envs(blueprint.env.iter().cloned())
            .envs(own_env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        let child = command.spawn().with_context(|| blueprint.binary.display().to_string()).must("starting a replica");
        self.process = Process::Running(child);
    }

    /// Waits until the process has announced its address and takes traffic.
    pub(super) async fn ready(&mut self, blueprint: &Blueprint) {
        let what = format!("replica {} to be ready", self.name);
        let client = wait_until(&what, async || {
            if let Some(status) = self.poll_exit() {
                panic!("replica {} ended at its boot with {status}:\n{}", self.name, self.log.tail());
            }
            let url = self.log.announced_url().context("no address is announced")?;
            let client = blueprint.client.at(&url)?;
            client.ready().await?;
            anyhow::Ok(client)
        });
        self.client = Some(client.await);
    }

    /// Returns how the process ended, if it has.
    pub(super) fn poll_exit(&mut self) -> Option<ExitStatus> {
        let status = match &mut self.process {
            Process::Running(child) | Process::Paused(child) => child.try_wait().must("looking after a replica")?,
            Process::Ended(status) => return *status,
        };
        self.process = Process::Ended(Some(status));
        Some(status)
    }

    /// Sends a signal; after SIGKILL the process has ended.
    pub(super) fn signal(&mut self, signal: Signal) {
        if let Some(status) = self.poll_exit() {
            panic!("replica {} has ended with {status}", self.name);
        }
        if signal == Signal::SIGKILL {
            return self.end();
        }
        // Until its exit is polled the process id cannot belong to anybody else.
        let id = self.process_id().and_then(|id| i32::try_from(id).ok()).context("it is not started");
        signal::kill(Pid::from_raw(id.must("signalling a replica")), signal).must("signalling a replica");
        self.process = match (std::mem::replace(&mut self.process, Process::Ended(None)), signal) {
            (Process::Running(child), Signal::SIGSTOP) => Process::Paused(child),
            (Process::Paused(child), Signal::SIGCONT) => Process::Running(child),
            (process, _) => process,
        };
    }

    /// Kills the process if it has not ended.
    pub(super) fn end(&mut self) {
        if let Process::Running(child) | Process::Paused(child) = &mut self.process {
            child.kill().must("killing a replica");
            let status = child.wait().must("waiting for a replica");
            self.process = Process::Ended(Some(status));
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.end();
    }
}
