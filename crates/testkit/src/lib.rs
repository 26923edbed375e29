//! What tests stand on: fresh PostgreSQL databases, clusters of real processes, one way to wait, and ledgers.
//!
//! For tests only, so whatever goes wrong here panics with its cause. It knows the server as a binary, its client and
//! its database, and none of the crates that make up the server.

mod bus_load;
mod clock;
mod cluster;
mod database;
mod eventually;
mod lease_load;
pub mod ledger;
mod must;
pub mod proxy;
pub mod raw_socket;

pub use bus_load::{BusLoad, BusReport};
pub use cluster::{Cluster, ClusterBuilder};
pub use database::{OpenTransaction, TestDatabase};
pub use eventually::{Attempt, Eventually, wait_until};
pub use lease_load::{LeaseLoad, LeaseReport};
pub use nix::sys::signal::Signal;
