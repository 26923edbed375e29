//! Holds one PostgreSQL server in Docker: prints its URL and removes the container when standard input closes.
//!
//! `switchboard-testkit-postgres` starts this program where the machine has no server binaries but a Docker engine.
//! The package stands apart from all others, since its container library is large: it is no default member, and
//! `cargo xtask` leaves it out unless Docker answers. Only machines with Docker, such as the hosted workflow, run it.

use std::error::Error;
use std::io::Read;

use testcontainers::core::wait::LogWaitStrategy;
use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::SyncRunner;
use testcontainers::{GenericImage, ImageExt};

const PORT: u16 = 5432;

/// For tests that judge behaviour: nothing has to survive a crash of the machine.
const SETTINGS: [&str; 6] = [
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "autovacuum=off",
    "max_connections=400",
    "timezone=UTC",
];

fn main() -> Result<(), Box<dyn Error>> {
    let settings = SETTINGS.iter().flat_map(|setting| ["-c", setting]);
    // The image starts the server once to set it up, and once to stay.
    let ready = LogWaitStrategy::stderr("database system is ready to accept connections").with_times(2);
    let image = GenericImage::new("postgres", "17-alpine")
        .with_exposed_port(PORT.tcp())
        .with_wait_for(WaitFor::log(ready))
        .with_env_var("POSTGRES_HOST_AUTH_METHOD", "trust")
        .with_cmd(std::iter::once("postgres").chain(settings));
    let container = image.start()?;
    let (host, port) = (container.get_host()?, container.get_host_port_ipv4(PORT)?);
    println!("postgres://postgres@{host}:{port}/postgres");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
