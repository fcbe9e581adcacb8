//! Whether the node's data interface can carry packets: the one that has the engine's address.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// An address of an interface.
struct Address {
    interface: String,
    address: IpAddr,
    flags: InterfaceFlags,
}

/// Why devices reach no other node; none while the link is up, and where the kernel does not say.
pub(crate) fn problem(of: IpAddr) -> Option<String> {
    // Of a test, or of devices that reach each other on one node only.
    if of.is_loopback() {
        return None;
    }
    let entries = getifaddrs().ok()?;
    let addresses = entries.filter_map(|entry| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let address = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
        Some(Address {
            interface: entry.interface_name,
            address,
            flags: entry.flags,
        })
    });
    problem_among(addresses, of)
}

fn problem_among(addresses: impl IntoIterator<Item = Address>, of: IpAddr) -> Option<String> {
    let mut addresses = addresses.into_iter();
    let Some(found) = addresses.find(|one| one.address == of) else {
        return Some(format!(
            "no interface of the node has the address {of} any more"
        ));
    };
    let interface = found.interface;
    if !found.flags.contains(InterfaceFlags::IFF_UP) {
        return Some(format!("{interface} ({of}) is not up"));
    }
    if !found.flags.contains(InterfaceFlags::IFF_RUNNING) {
        return Some(format!("{interface} ({of}) has no carrier"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_up_with_its_address_and_carrier() {
        let (up, running) = (InterfaceFlags::IFF_UP, InterfaceFlags::IFF_RUNNING);
        let of = |last: u8| IpAddr::from([10, 0, 0, last]);
        let among = |flags| {
            let eth = |name: &str, last, flags| Address {
                interface: name.to_owned(),
                address: of(last),
                flags,
            };
            let addresses = [eth("eth0", 1, up | running), eth("eth1", 2, flags)];
            problem_among(addresses, of(2))
        };
        assert_eq!(among(up | running), None);
        let problem = among(up).unwrap_or_default();
        assert_eq!(problem, "eth1 (10.0.0.2) has no carrier");
        assert!(among(running).is_some_and(|it| it.contains("not up")));
        let problem = problem_among([], of(2)).unwrap_or_default();
        assert!(problem.contains("no interface of the node has the address 10.0.0.2"));
    }
}
