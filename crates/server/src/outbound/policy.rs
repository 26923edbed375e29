//! Where requests may go: to the public internet, and to what the operator allows besides.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

use ipnet::IpNet;
use url::{Host, Url};

use super::addresses::{is_own, is_public};

/// A destination that requests may go to although it is not part of the public internet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Every port of a network.
    Network(IpNet),
    /// A host, whatever its addresses are; every port when none is given.
    Host(Host, Option<u16>),
}

/// Why a text is no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a host, host:port or a network such as 10.1.0.0/16")]
pub(crate) struct DestinationError;

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains('/') {
            let network: IpNet = text.parse().map_err(|_| DestinationError)?;
            return Ok(Self::Network(network));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Network(address.into()));
        }
        // A port follows the last colon, unless that is within the brackets of an IPv6 address.
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                let port: NonZeroU16 = port.parse().map_err(|_| DestinationError)?;
                (host, Some(port.get()))
            }
            _ => (text, None),
        };
        match (Host::parse(host).map_err(|_| DestinationError)?, port) {
            (Host::Domain(name), _) if name.contains('*') => Err(DestinationError),
            (Host::Domain(name), port) => Ok(Self::Host(Host::Domain(without_dot(&name).to_owned()), port)),
            (Host::Ipv4(address), None) => Ok(Self::Network(IpAddr::from(address).into())),
            (Host::Ipv6(address), None) => Ok(Self::Network(IpAddr::from(address).into())),
            (address, port) => Ok(Self::Host(address, port)),
        }
    }
}

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// To wherever its host is.
    Trusted,
    /// To those addresses of its host that are allowed.
    Guarded,
    /// Not at all.
    Refused,
}

/// Decides where requests may go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    allowed: Vec<Destination>,
}

impl Policy {
    /// Allows some destinations beside the public internet.
    pub(crate) const fn new(allowed: Vec<Destination>) -> Self {
        Self { allowed }
    }

    /// Decides how a request to this URL is sent. Addresses are what the URL parser has made of any notation.
    pub(super) fn judge(&self, url: &Url) -> Verdict {
        let port = url.port_or_known_default();
        let Some(host) = url.host() else { return Verdict::Refused };
        let host = match host {
            Host::Domain(name) => Host::Domain(without_dot(name).to_owned()),
            Host::Ipv4(address) => Host::Ipv4(address),
            Host::Ipv6(address) => Host::Ipv6(address),
        };
        let is_this = |destination: &Destination| match destination {
            Destination::Host(allowed, only) => *allowed == host && (only.is_none() || *only == port),
            Destination::Network(_) => false,
        };
        let address = match host {
            _ if self.allowed.iter().any(is_this) => return Verdict::Trusted,
            Host::Domain(_) => return Verdict::Guarded,
            Host::Ipv4(address) => IpAddr::from(address),
            Host::Ipv6(address) => IpAddr::from(address),
        };
        if self.allows(address) { Verdict::Trusted } else { Verdict::Refused }
    }

    /// Tells whether requests may go to an address.
    pub(super) fn allows(&self, address: IpAddr) -> bool {
        let contains = |destination: &Destination| match destination {
            Destination::Network(network) => network.contains(&address) || network.contains(&address.to_canonical()),
            Destination::Host(..) => false,
        };
        self.allowed.iter().any(contains) || is_public(address) && !is_own(address)
    }
}

/// A name with a dot at its end is the same name.
fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allowed: &[&str]) -> Policy {
        Policy::new(allowed.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn judge(policy: &Policy, url: &str) -> Verdict {
        policy.judge(&Url::parse(url).unwrap())
    }

    #[test]
    fn addresses_are_refused_in_every_notation() {
        let policy = Policy::default();
        for host in [
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "017700000001",
            "0x7F.0X0.00.1",
            "%31%32%37.0.0.1",
            "１２７.0.0.1",
            "127。0。0。1",
            "0",
            "0.0.0.0",
            "169.254.169.254",
            "2852039166",
            "0xa9fea9fe",
            "0251.0376.0251.0376",
            "[::1]",
            "[::]",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[::127.0.0.1]",
            "[64:ff9b::169.254.169.254]",
            "[2002:7f00:1::]",
            "[2001:0:7f00:1::]",
            "[fd00:ec2::254]",
            "[fe80::1]",
        ] {
            for url in [format!("http://{host}/"), format!("https://{host}:8443/x"), format!("http://a@{host}")] {
                assert_eq!(judge(&policy, &url), Verdict::Refused, "{url}");
            }
        }
        for literal in ["http://8.8.8.8/", "http://134744072", "https://[2606:4700::1111]:8443/"] {
            assert_eq!(judge(&policy, literal), Verdict::Trusted, "{literal}");
        }
        for name in
            ["http://localhost/", "http://a.example./", "http://metadata.google.internal/", "http://127.0.0.1.nip.io"]
        {
            assert_eq!(judge(&policy, name), Verdict::Guarded, "{name}");
        }
    }

    #[test]
    fn what_the_operator_names_is_allowed_and_nothing_beside() {
        let policy =
            policy(&["Hooks.Internal.", "db.internal:8080", "10.1.0.0/16", "127.1:9000", "[::1]:80", "fd00::/8"]);
        for (url, expected) in [
            ("http://hooks.internal/", Verdict::Trusted),
            ("https://HOOKS.internal.:8443/", Verdict::Trusted),
            ("http://x.hooks.internal/", Verdict::Guarded),
            ("http://db.internal:8080/", Verdict::Trusted),
            ("http://db.internal/", Verdict::Guarded),
            ("http://10.1.2.3/", Verdict::Trusted),
            ("http://167838211:99/", Verdict::Trusted),
            ("http://[::ffff:10.1.2.3]/", Verdict::Trusted),
            ("http://10.2.0.0/", Verdict::Refused),
            ("http://127.0.0.1:9000/", Verdict::Trusted),
            ("http://127.0.0.1:9001/", Verdict::Refused),
            ("http://[::1]/", Verdict::Trusted),
            ("https://[::1]/", Verdict::Refused),
            ("http://[fd00::1]/", Verdict::Trusted),
        ] {
            assert_eq!(judge(&policy, url), expected, "{url}");
        }
        assert!(policy.allows("10.1.0.1".parse().unwrap()) && !policy.allows("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn destinations_are_hosts_ports_and_networks() {
        let host = |name: &str, port| Ok(Destination::Host(Host::Domain(name.to_owned()), port));
        assert_eq!("A.example".parse(), host("a.example", None));
        assert_eq!("a.example:80".parse(), host("a.example", Some(80)));
        assert_eq!("::1".parse(), Ok(Destination::Network("::1/128".parse().unwrap())));
        assert_eq!("[::1]".parse(), "::1".parse::<Destination>());
        for bad in
            ["", "*", "*.a.example", "a.example:0", "a.example:x", "a b", "10.0.0.0/33", "http://a.example", "a:1:2"]
        {
            assert_eq!(bad.parse::<Destination>(), Err(DestinationError), "{bad}");
        }
    }
}
