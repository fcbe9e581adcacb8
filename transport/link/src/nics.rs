//! The NICs of a link's end.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::ifaddrs::getifaddrs;
use serde::{Deserialize, Serialize};
use socket2::SockRef;

/// Most NICs that a link is spread over: with 16 ports, a port on each.
pub const NICS_MAX: usize = 16;

/// The IP addresses of 1 to [`NICS_MAX`] NICs, all IPv4 or all IPv6. The first one names the machine.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "Vec<IpAddr>", into = "Vec<IpAddr>")]
pub struct NicAddresses {
    count: u8,
    addresses: [IpAddr; NICS_MAX],
}

/// Addresses that are not those of the NICs of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadNics {
    /// None, or too many.
    #[error("{0} NICs: give a link 1 to 16")]
    Count(usize),
    /// One has an IPv4 address and another one an IPv6 address.
    #[error(
        "{0} and {1} are of two IP versions: give all NICs IPv4 addresses or all IPv6 addresses"
    )]
    IpVersions(IpAddr, IpAddr),
    /// Two have one address.
    #[error("{0} is there twice: name each NIC once")]
    Twice(IpAddr),
    /// It is for all NICs, or for many machines.
    #[error("{0} is the address of no NIC: name one that `ip address` shows")]
    NoNic(IpAddr),
}

impl NicAddresses {
    /// The NICs that have these addresses.
    ///
    /// # Errors
    /// [`BadNics`].
    pub fn new(addresses: &[IpAddr]) -> Result<Self, BadNics> {
        let Some((&first, others)) = addresses.split_first() else {
            return Err(BadNics::Count(0));
        };
        let mut nics = Self::from(first);
        for &address in others {
            if nics.len() == NICS_MAX {
                return Err(BadNics::Count(addresses.len()));
            }
            if first.is_ipv4() != address.is_ipv4() {
                return Err(BadNics::IpVersions(first, address));
            }
            if nics.contains(&address) {
                return Err(BadNics::Twice(address));
            }
            nics.addresses[nics.len()] = address;
            nics.count += 1;
        }
        Ok(nics)
    }

    /// Those that a user has named: no address that stands for all NICs, or for many machines.
    ///
    /// # Errors
    /// [`BadNics`].
    pub fn named(addresses: &[IpAddr]) -> Result<Self, BadNics> {
        let is_of_no_nic = |it: &&IpAddr| {
            it.is_unspecified() || it.is_multicast() || **it == IpAddr::V4(Ipv4Addr::BROADCAST)
        };
        match addresses.iter().find(is_of_no_nic) {
            Some(&address) => Err(BadNics::NoNic(address)),
            None => Self::new(addresses),
        }
    }

    /// The first one.
    pub fn first(&self) -> IpAddr {
        self.addresses[0]
    }

    /// The address of the NIC that has the port or the connection with this index: they are dealt out in turns.
    pub fn of(&self, index: usize) -> IpAddr {
        self.addresses[index % self.len()]
    }

    /// The device of each that its sockets have to be bound to: the kernel would choose by the destination alone, and all
    /// NICs of one network would send over the first. None where one device has all addresses, as loopback has, or where the
    /// system does not tell.
    pub fn devices(&self) -> Vec<Option<String>> {
        let none = vec![None; self.len()];
        if self.len() == 1 {
            return none;
        }
        let Ok(entries) = getifaddrs() else {
            return none;
        };
        let mut devices = none.clone();
        for entry in entries {
            let address = entry.address.as_ref();
            let v4 = address.and_then(|it| it.as_sockaddr_in().map(|it| IpAddr::V4(it.ip())));
            let v6 = address.and_then(|it| it.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())));
            let nic = self.iter().position(|nic| v4.or(v6) == Some(*nic));
            if let Some(nic) = nic {
                // An address may have a label: eth0:1 is on eth0.
                let name = entry.interface_name.split(':').next();
                devices[nic] = name.map(str::to_owned);
            }
        }
        match devices.iter().all(|device| *device == devices[0]) {
            true => none,
            false => devices,
        }
    }
}

/// Has a socket send and receive over a device alone.
pub(crate) fn bind_device(socket: &SockRef<'_>, device: Option<&str>) -> io::Result<()> {
    match device {
        Some(device) => socket.bind_device(Some(device.as_bytes())),
        None => Ok(()),
    }
}

impl From<IpAddr> for NicAddresses {
    fn from(address: IpAddr) -> Self {
        let mut addresses = [IpAddr::V4(Ipv4Addr::UNSPECIFIED); NICS_MAX];
        addresses[0] = address;
        let count = 1;
        Self { count, addresses }
    }
}

impl From<Ipv4Addr> for NicAddresses {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::from(address).into()
    }
}

impl From<Ipv6Addr> for NicAddresses {
    fn from(address: Ipv6Addr) -> Self {
        IpAddr::from(address).into()
    }
}

impl TryFrom<Vec<IpAddr>> for NicAddresses {
    type Error = BadNics;

    fn try_from(addresses: Vec<IpAddr>) -> Result<Self, BadNics> {
        Self::new(&addresses)
    }
}

impl From<NicAddresses> for Vec<IpAddr> {
    fn from(nics: NicAddresses) -> Self {
        nics.to_vec()
    }
}

impl std::ops::Deref for NicAddresses {
    type Target = [IpAddr];

    fn deref(&self) -> &[IpAddr] {
        &self.addresses[..self.count.into()]
    }
}

impl PartialEq for NicAddresses {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for NicAddresses {}

impl Hash for NicAddresses {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self[..].hash(state);
    }
}

impl fmt::Debug for NicAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

/// The addresses with commas between them.
impl fmt::Display for NicAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn nics_are_named_in_order_and_bad_ones_by_their_addresses() {
        let both = NicAddresses::new(&[ip("10.0.0.1"), ip("10.0.1.1")]).unwrap();
        assert_eq!((both.first(), both.of(3)), (ip("10.0.0.1"), ip("10.0.1.1")));
        assert_eq!(both.to_string(), "10.0.0.1,10.0.1.1");
        assert_ne!(both, both.first().into());
        assert_eq!(NicAddresses::try_from(Vec::from(both)), Ok(both));
        let many: Vec<IpAddr> = (0..17).map(|nic| ip(&format!("10.0.0.{nic}"))).collect();
        assert_eq!(NicAddresses::new(&many), Err(BadNics::Count(17)));
        assert_eq!(NicAddresses::new(&[]), Err(BadNics::Count(0)));
        for wrong in ["10.0.0.1", "fd00::1"] {
            let error = NicAddresses::new(&[both[0], ip(wrong)]).unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
        for wrong in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1"] {
            let named = NicAddresses::named(&[ip(wrong)]);
            assert_eq!(named, Err(BadNics::NoNic(ip(wrong))));
        }
    }
}
