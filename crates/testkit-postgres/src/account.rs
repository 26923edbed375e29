//! Whom the server runs as: itself refuses to run as root.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::unistd::{User, geteuid};

use crate::error::{AtPath, PostgresError};

/// The operating system account of the server; `None` is the caller's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account(Option<(u32, u32)>);

impl Account {
    /// Returns the caller's account, or for root the one named `postgres`, else `nobody`.
    pub(crate) fn for_server() -> Result<Self, PostgresError> {
        if !geteuid().is_root() {
            return Ok(Self(None));
        }
        let user = ["postgres", "nobody"].into_iter().find_map(|name| User::from_name(name).ok().flatten());
        let Some(user) = user else {
            return Err(PostgresError::program("looking for an account", "root needs a user postgres or nobody"));
        };
        Ok(Self(Some((user.uid.as_raw(), user.gid.as_raw()))))
    }

    /// Makes the account the owner of a folder.
    pub(crate) fn own(self, folder: &Path) -> Result<(), PostgresError> {
        self.0.map_or(Ok(()), |(user, group)| chown(folder, Some(user), Some(group)).at(folder))
    }

    /// Returns a command that runs as the account in `folder`, free of the caller's libpq settings.
    pub(crate) fn command(self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).env("LC_ALL", "C");
        for variable in ["PGDATA", "PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGOPTIONS"] {
            command.env_remove(variable);
        }
        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
        command
    }
}
