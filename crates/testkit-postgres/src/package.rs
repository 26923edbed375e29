//! The last resort: root on Debian or Ubuntu installs a package of the distribution.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use nix::unistd::geteuid;

use crate::error::{AtPath, PostgresError};

/// Tells whether this machine lets us install packages.
pub(crate) fn can_install() -> bool {
    geteuid().is_root() && Path::new("/usr/bin/apt-get").is_file()
}

/// Installs a package of the distribution that a test needs, as root on Debian or Ubuntu.
///
/// # Errors
/// [`PostgresError::Program`] carries what `apt-get` said, or that it cannot be used.
pub fn install_package(name: &str) -> Result<(), PostgresError> {
    if !can_install() {
        return Err(PostgresError::program("apt-get", "only root on Debian or Ubuntu can install packages"));
    }
    // Tests run at the same time, and only one process can install packages.
    let path = std::env::temp_dir().join("switchboard-packages.lock");
    let lock = File::create(&path).at(&path)?;
    lock.lock().at(&path)?;
    eprintln!("installing the package {name}");
    apt_get(&["update", "-q"])?;
    apt_get(&["install", "-q", "-y", "--no-install-recommends", name])
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
