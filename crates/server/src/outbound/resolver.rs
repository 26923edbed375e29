//! Names to addresses: those that requests may go to, and no others.
//!
//! What is connected to is what was checked here: the client asks once for each connection, and uses the answer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::policy::Policy;

/// Finds the addresses of a name.
#[async_trait]
pub(super) trait Lookup: Send + Sync {
    /// Returns all addresses of a name.
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// Asks the resolver of the operating system.
pub(super) struct SystemLookup;

#[async_trait]
impl Lookup for SystemLookup {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|found| found.ip()).collect())
    }
}

/// Leaves out the addresses that requests may not go to.
pub(super) struct GuardedResolver {
    pub(super) policy: Arc<Policy>,
    pub(super) lookup: Arc<dyn Lookup>,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (policy, lookup) = (Arc::clone(&self.policy), Arc::clone(&self.lookup));
        Box::pin(async move {
            let found = lookup.addresses(name.as_str()).await?;
            let allowed: Vec<_> = found.into_iter().filter(|address| policy.allows(*address)).collect();
            if allowed.is_empty() {
                return Err(io::Error::from(io::ErrorKind::AddrNotAvailable).into());
            }
            // The port is that of the URL.
            let addresses: Addrs = Box::new(allowed.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
