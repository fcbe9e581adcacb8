//! Which NICs of the data path are up, as the kernel says now. Metrics and reports ask; the engine finds out by itself, from what
//! comes back over each.

use std::net::Ipv4Addr;
use std::sync::Arc;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// The NICs that an agent was started with, in the engine's order.
#[derive(Debug, Clone)]
pub(crate) struct EngineNics(Arc<[NicState]>);

/// A NIC of the data path at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NicState {
    /// Empty where none had the address when the agent started.
    pub(crate) interface: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) is_up: bool,
}

/// An address of an interface.
struct Address {
    interface: String,
    address: Ipv4Addr,
    flags: InterfaceFlags,
}

impl EngineNics {
    /// Those with these addresses.
    pub(crate) fn new(addresses: &[Ipv4Addr]) -> Self {
        Self(among(&list(), addresses).into())
    }

    /// How they are now.
    pub(crate) fn states(&self) -> Vec<NicState> {
        let addresses: Vec<Ipv4Addr> = self.0.iter().map(|nic| nic.address).collect();
        let now = among(&list(), &addresses);
        let named = self.0.iter().zip(now);
        // One that is gone keeps its name.
        named
            .map(|(nic, now)| NicState {
                is_up: now.is_up,
                ..nic.clone()
            })
            .collect()
    }
}

/// Nothing where the kernel does not say.
fn list() -> Vec<Address> {
    let entries = getifaddrs().into_iter().flatten();
    let v4 = entries.filter_map(|entry| {
        let address = entry.address?.as_sockaddr_in()?.ip();
        // An address may have a label: eth0:1 is on eth0.
        let interface = entry.interface_name.split(':').next().unwrap_or_default();
        Some(Address {
            interface: interface.to_owned(),
            address,
            flags: entry.flags,
        })
    });
    v4.collect()
}

/// A NIC is up when an interface that is up and has a carrier has its address.
fn among(all: &[Address], addresses: &[Ipv4Addr]) -> Vec<NicState> {
    let carries = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    let state = |address: &Ipv4Addr| {
        // Loopback has all of 127.0.0.0/8.
        let is_of = |one: &&Address| {
            let is_loopback = one.flags.contains(InterfaceFlags::IFF_LOOPBACK);
            one.address == *address || (is_loopback && address.is_loopback())
        };
        let found = all.iter().find(is_of);
        NicState {
            interface: found.map_or_else(String::new, |one| one.interface.clone()),
            address: *address,
            is_up: found.is_some_and(|one| one.flags.contains(carries)),
        }
    };
    addresses.iter().map(state).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_is_up_with_its_address_and_a_carrier() {
        let (up, running) = (InterfaceFlags::IFF_UP, InterfaceFlags::IFF_RUNNING);
        let of = |last: u8| Ipv4Addr::new(10, 0, 0, last);
        let rail = |last: u8, flags| Address {
            interface: format!("rail{last}"),
            address: of(last),
            flags,
        };
        let all = [
            rail(0, up | running),
            rail(1, up),
            rail(2, running),
            Address {
                interface: "lo".to_owned(),
                address: Ipv4Addr::LOCALHOST,
                flags: up | running | InterfaceFlags::IFF_LOOPBACK,
            },
        ];
        let addresses = [of(0), of(1), of(2), of(3), Ipv4Addr::new(127, 0, 0, 9)];
        let states = among(&all, &addresses);
        let found: Vec<_> = states
            .iter()
            .map(|nic| (nic.interface.as_str(), nic.is_up))
            .collect();
        let expected = [
            ("rail0", true),
            ("rail1", false),
            ("rail2", false),
            ("", false),
            ("lo", true),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_kernels_loopback_is_up() {
        let address = Ipv4Addr::new(127, 0, 0, 7);
        let nics = EngineNics::new(&[address]);
        let lo = NicState {
            interface: "lo".to_owned(),
            address,
            is_up: true,
        };
        assert_eq!(nics.states(), [lo]);
    }
}
