//! The last resort: root on Debian or Ubuntu installs the distribution's server package.

use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;

use crate::error::PostgresError;

/// Tells whether this machine lets us install packages.
pub(crate) fn can_install() -> bool {
    geteuid().is_root() && Path::new("/usr/bin/apt-get").is_file()
}

/// Installs the server package.
///
/// # Errors
/// [`PostgresError::Program`] carries what `apt-get` said.
pub(crate) fn install() -> Result<(), PostgresError> {
    eprintln!("no PostgreSQL on this machine: installing the package postgresql");
    apt_get(&["update", "-q"])?;
    apt_get(&["install", "-q", "-y", "--no-install-recommends", "postgresql"])
}

fn apt_get(arguments: &[&str]) -> Result<(), PostgresError> {
    let name = format!("apt-get {}", arguments[0]);
    let output = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .map_err(|error| PostgresError::program(&name, error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(PostgresError::program(name, String::from_utf8_lossy(&output.stderr)))
}
