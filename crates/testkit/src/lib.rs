//! What tests stand on: fresh PostgreSQL databases, clusters of real processes, one way to wait, and ledgers.
//!
//! For tests only, so whatever goes wrong here panics with its cause. It knows the server as a binary, its client and
//! its database, and none of the crates that make up the server.

mod balancer;
mod bus_load;
mod chaos;
mod clock;
mod cluster;
mod database;
mod eventually;
mod lease_load;
pub mod ledger;
mod must;
pub mod proxy;
pub mod raw_socket;
mod restarts;
mod rolling;
mod work;

pub use bus_load::{BusLoad, BusReport};
pub use chaos::{Chaos, ChaosReport};
pub use cluster::{Cluster, ClusterBuilder};
pub use database::{OpenTransaction, Pooler, TestDatabase};
pub use eventually::{Attempt, Eventually, wait_until};
pub use lease_load::{LeaseLoad, LeaseReport};
pub use nix::sys::signal::Signal;
pub use restarts::{RestartReport, Restarts};
pub use rolling::{Rolling, RollingReport};
