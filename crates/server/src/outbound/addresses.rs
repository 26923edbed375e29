//! Which addresses are part of the public internet. Everything else is somebody's own network, ours included.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use ipnet::{Ipv4Net, Ipv6Net};

/// The blocks of the IANA IPv4 Special-Purpose Address Registry (RFC 6890) that are not globally reachable, multicast
/// (RFC 5771), and the one metadata service with an address beside them.
const REFUSED_V4: [Ipv4Net; 16] = [
    v4([0, 0, 0, 0], 8),        // this network, RFC 791
    v4([10, 0, 0, 0], 8),       // private, RFC 1918
    v4([100, 64, 0, 0], 10),    // behind carrier-grade NAT, RFC 6598
    v4([127, 0, 0, 0], 8),      // loopback, RFC 1122
    v4([168, 63, 129, 16], 32), // the host of a virtual machine on Azure
    v4([169, 254, 0, 0], 16),   // link-local and metadata services, RFC 3927
    v4([172, 16, 0, 0], 12),    // private, RFC 1918
    v4([192, 0, 0, 0], 24),     // protocol assignments, RFC 6890
    v4([192, 0, 2, 0], 24),     // documentation, RFC 5737
    v4([192, 88, 99, 0], 24),   // relays of 6to4, RFC 7526
    v4([192, 168, 0, 0], 16),   // private, RFC 1918
    v4([198, 18, 0, 0], 15),    // benchmarks, RFC 2544
    v4([198, 51, 100, 0], 24),  // documentation, RFC 5737
    v4([203, 0, 113, 0], 24),   // documentation, RFC 5737
    v4([224, 0, 0, 0], 4),      // multicast, RFC 5771
    v4([240, 0, 0, 0], 4),      // reserved, RFC 1112, and broadcast, RFC 919
];

/// What is assigned as global unicast (IANA IPv6 Address Space). Outside of it are loopback, the unspecified address,
/// addresses that hold one of IPv4 (mapped, translated by NAT64), unique local, link-local and multicast addresses.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0], 3);

/// The parts of [`GLOBAL_V6`] that lead elsewhere (IANA IPv6 Special-Purpose Address Registry).
const REFUSED_V6: [Ipv6Net; 4] = [
    v6([0x2001, 0, 0], 23),     // protocol assignments, RFC 2928: Teredo, benchmarks, ORCHID
    v6([0x2001, 0xdb8, 0], 32), // documentation, RFC 3849
    v6([0x2002, 0, 0], 16),     // 6to4, which holds an address of IPv4, RFC 3056
    v6([0x3fff, 0, 0], 20),     // documentation, RFC 9637
];

const fn v4([a, b, c, d]: [u8; 4], length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6([a, b, c]: [u16; 3], length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), length)
}

/// Tells whether an address is one of the public internet.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !REFUSED_V4.iter().any(|block| block.contains(&address)),
        IpAddr::V6(address) => GLOBAL_V6.contains(&address) && !REFUSED_V6.iter().any(|block| block.contains(&address)),
    }
}

/// Tells whether an address is one of this machine: only to those can a socket be bound.
pub(super) fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().unwrap())
    }

    #[test]
    fn addresses_of_the_internet_are_public() {
        for address in ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0"] {
            assert!(public(address), "{address}");
        }
        for address in ["192.0.1.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "168.63.129.17", "11.0.0.0"] {
            assert!(public(address), "{address}");
        }
        for address in ["2606:4700::1111", "2a00:1450::1", "2001:200::1", "2003::1", "3ffe::1", "2001:4860:4860::8888"]
        {
            assert!(public(address), "{address}");
        }
    }

    #[test]
    fn each_special_block_is_refused_at_both_ends() {
        for (class, first, last) in [
            ("this network", "0.0.0.0", "0.255.255.255"),
            ("private", "10.0.0.0", "10.255.255.255"),
            ("private", "172.16.0.0", "172.31.255.255"),
            ("private", "192.168.0.0", "192.168.255.255"),
            ("carrier-grade NAT", "100.64.0.0", "100.127.255.255"),
            ("loopback", "127.0.0.0", "127.255.255.255"),
            ("link-local", "169.254.0.0", "169.254.255.255"),
            ("metadata", "169.254.169.254", "168.63.129.16"),
            ("metadata", "100.100.100.200", "192.0.0.192"),
            ("protocol assignments", "192.0.0.0", "192.0.0.255"),
            ("documentation", "192.0.2.0", "192.0.2.255"),
            ("documentation", "198.51.100.0", "198.51.100.255"),
            ("documentation", "203.0.113.0", "203.0.113.255"),
            ("6to4 relays", "192.88.99.0", "192.88.99.255"),
            ("benchmarks", "198.18.0.0", "198.19.255.255"),
            ("multicast", "224.0.0.0", "239.255.255.255"),
            ("reserved and broadcast", "240.0.0.0", "255.255.255.255"),
            ("unspecified and loopback", "::", "::1"),
            ("IPv4-compatible", "::7f00:1", "::8.8.8.8"),
            ("IPv4-mapped", "::ffff:127.0.0.1", "::ffff:8.8.8.8"),
            ("IPv4-translated", "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8"),
            ("NAT64", "64:ff9b::7f00:1", "64:ff9b::8.8.8.8"),
            ("NAT64 of a local network", "64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff"),
            ("discard", "100::", "100::ffff:ffff:ffff:ffff"),
            ("Teredo", "2001::", "2001:0:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("ORCHID and benchmarks", "2001:20::", "2001:2::"),
            ("documentation", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("documentation", "3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("6to4", "2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("segment routing", "5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("unique local", "fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("metadata", "fd00:ec2::254", "fd20:ce::254"),
            ("link-local", "fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("site-local", "fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("multicast", "ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            assert!(!public(first) && !public(last), "{class}: {first} to {last}");
        }
    }

    #[test]
    fn addresses_of_this_machine_are_known() {
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_own(Ipv4Addr::new(192, 0, 2, 1).into()));
    }
}
