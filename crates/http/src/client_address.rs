//! The address of the client behind a request, as far as it can be believed.
//!
//! Addresses are personal data: they decide limits and never reach a log.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::App;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of a client, IPv4 in its own form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientAddress(IpAddr);

impl ClientAddress {
    /// Finds the address: that of the peer, or what trusted proxies say instead.
    ///
    /// Each proxy appends whom it heard, so the list is read from its end for as long as whoever wrote the entry is
    /// trusted. What comes before is the client's own word and worth nothing. An entry that is no address ends it.
    pub(crate) fn find(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> Self {
        let is_trusted = |address: &IpAddr| trusted.iter().any(|range| range.contains(address));
        let lines = headers.get_all(FORWARDED_FOR).iter().map(|line| line.to_str().unwrap_or_default());
        // Several lines count as one list.
        let lines: Vec<&str> = lines.collect();
        let mut hops = lines.into_iter().rev().flat_map(|line| line.rsplit(','));
        let mut address = peer.to_canonical();
        while is_trusted(&address) {
            match hops.next().and_then(parse) {
                Some(hop) => address = hop,
                None => break,
            }
        }
        Self(address)
    }

    /// Returns what stands for the client where clients are counted: the address, or the /64 of an IPv6 address,
    /// since a single client has that many.
    pub(crate) fn key(self) -> String {
        match self.0 {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => {
                let network = Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX));
                format!("{network}/64")
            }
        }
    }
}

impl FromRequestParts<App> for ClientAddress {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        // Only a router without a listener, in tests, knows no peer.
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(peer)| peer.ip());
        Ok(Self::find(peer, &parts.headers, &app.options.trusted_proxies))
    }
}

/// Reads an entry: an address with or without brackets and port.
fn parse(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
    let address = bare.parse().or_else(|_| entry.parse().map(|address: SocketAddr| address.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(peer: &str, forwarded: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append(FORWARDED_FOR, axum::http::HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        let trusted = ["10.0.0.0/8", "fd00::/8"].map(|range| range.parse().unwrap());
        ClientAddress::find(peer.parse().unwrap(), &headers, &trusted).0.to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let cases: &[(&str, &[&str], &str)] = &[
            ("203.0.113.7", &[], "203.0.113.7"),
            ("203.0.113.7", &["198.51.100.1"], "203.0.113.7"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["6.6.6.6, 198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["6.6.6.6, 198.51.100.1, 10.9.9.9"], "198.51.100.1"),
            ("10.0.0.1", &["6.6.6.6", "198.51.100.1", "10.9.9.9"], "198.51.100.1"),
            ("10.0.0.1", &["6.6.6.6,198.51.100.1", "10.9.9.9"], "198.51.100.1"),
            ("10.0.0.1", &["10.2.2.2, 10.3.3.3"], "10.2.2.2"),
            // With ports, brackets and blanks.
            ("10.0.0.1", &[" 198.51.100.1:4711 "], "198.51.100.1"),
            ("10.0.0.1", &["[2001:db8::1]:443"], "2001:db8::1"),
            ("10.0.0.1", &["[2001:db8::1]"], "2001:db8::1"),
            ("fd00::1", &["2001:db8::1"], "2001:db8::1"),
            // IPv4 in the clothes of IPv6.
            ("::ffff:10.0.0.1", &["::ffff:198.51.100.1"], "198.51.100.1"),
            ("::ffff:203.0.113.7", &[], "203.0.113.7"),
            // What is no address ends the walk at the last good hop.
            ("10.0.0.1", &["198.51.100.1, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1, unknown, 10.9.9.9"], "10.9.9.9"),
            ("10.0.0.1", &["198.51.100.1,"], "10.0.0.1"),
            ("10.0.0.1", &[""], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1\u{e9}"], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.999"], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1:99999"], "10.0.0.1"),
            ("10.0.0.1", &["[198.51.100.1"], "10.0.0.1"),
        ];
        for (peer, forwarded, expected) in cases {
            assert_eq!(find(peer, forwarded), *expected, "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn clients_are_counted_by_address_or_network() {
        let key = |text: &str| ClientAddress(text.parse::<IpAddr>().unwrap().to_canonical()).key();
        assert_eq!(key("203.0.113.7"), "203.0.113.7");
        assert_eq!(key("::ffff:203.0.113.7"), "203.0.113.7");
        assert_eq!(key("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff::"));
        assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
    }
}
