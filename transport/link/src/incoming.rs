//! The connections that other ends send data on, over TCP or shared memory: found by their paths, and limited in number.
//!
//! An end that knows this end's token chooses its own ports and token. It could make a connection for each choice, so the
//! connections from one IP address are limited.

use std::collections::HashMap;

use weft_core::units::Host;

use crate::outgoing::Way;

/// There are as many connections as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// Which connection each path of other ends has. Owned by the link, which closes what is replaced.
#[derive(Debug)]
pub(crate) struct IncomingPaths {
    per_host_max: usize,
    total_max: usize,
    slots: HashMap<Way, usize>,
    /// How many of them come from each IP address.
    per_host: HashMap<Host, usize>,
}

impl IncomingPaths {
    /// None, and so many at most: of one IP address, and together.
    pub(crate) fn new(per_host_max: usize, total_max: usize) -> Self {
        Self {
            per_host_max,
            total_max,
            slots: HashMap::new(),
            per_host: HashMap::new(),
        }
    }

    /// The connection of a path.
    pub(crate) fn get(&self, way: &Way) -> Option<usize> {
        self.slots.get(way).copied()
    }

    /// Gives a path the connection in `slot`. Answers the one that it had before.
    ///
    /// # Errors
    /// [`Full`]: the path had none, and no more are allowed.
    pub(crate) fn insert(&mut self, way: Way, slot: usize) -> Result<Option<usize>, Full> {
        if let Some(before) = self.slots.get_mut(&way) {
            return Ok(Some(std::mem::replace(before, slot)));
        }
        let host = way.0.host();
        let of_host = self.per_host.get(&host).copied().unwrap_or(0);
        if of_host >= self.per_host_max || self.slots.len() >= self.total_max {
            return Err(Full);
        }
        self.per_host.insert(host, of_host + 1);
        self.slots.insert(way, slot);
        Ok(None)
    }

    /// Forgets that a path has the connection in `slot`, if it has that one.
    pub(crate) fn remove(&mut self, way: &Way, slot: usize) {
        if self.get(way) != Some(slot) {
            return;
        }
        self.slots.remove(way);
        let host = way.0.host();
        match self.per_host.get_mut(&host) {
            Some(of_host) if *of_host > 1 => *of_host -= 1,
            _ => {
                self.per_host.remove(&host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use weft_core::units::PathId;

    use super::*;
    use crate::address::{LinkAddress, LinkToken};
    use crate::ports::PortRange;

    const PER_HOST_MAX: usize = 2_048;
    const TOTAL_MAX: usize = 16_384;

    /// A path of an end at 10.0.0.`host` that calls itself by `name`.
    fn way(host: u8, name: usize) -> Way {
        let address = LinkAddress::Tcp {
            nics: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)).into(),
            ports: PortRange {
                first: 1 + (name % 1_000) as u16,
                count: 1,
            },
            token: LinkToken((name / 1_000) as u64),
        };
        (address, PathId(0))
    }

    #[test]
    fn one_host_has_so_many_connections_whatever_it_calls_its_ends() {
        let mut paths = IncomingPaths::new(PER_HOST_MAX, TOTAL_MAX);
        for name in 0..PER_HOST_MAX {
            assert_eq!(paths.insert(way(1, name), name), Ok(None));
        }
        assert_eq!(paths.insert(way(1, PER_HOST_MAX), 9_000), Err(Full));
        assert_eq!(paths.get(&way(1, PER_HOST_MAX)), None);
        // A new connection of a path that has one, and of another host.
        assert_eq!(paths.insert(way(1, 5), 9_001), Ok(Some(5)));
        assert_eq!(paths.insert(way(2, 5), 9_002), Ok(None));
        // The one that was replaced leaves no room, the one that replaced it does.
        paths.remove(&way(1, 5), 5);
        assert_eq!(paths.insert(way(1, PER_HOST_MAX), 9_003), Err(Full));
        paths.remove(&way(1, 5), 9_001);
        assert_eq!(paths.insert(way(1, PER_HOST_MAX), 9_003), Ok(None));
        assert_eq!(paths.get(&way(1, PER_HOST_MAX)), Some(9_003));
    }

    #[test]
    fn all_hosts_together_have_so_many() {
        let mut paths = IncomingPaths::new(PER_HOST_MAX, TOTAL_MAX);
        let hosts = TOTAL_MAX / PER_HOST_MAX;
        for slot in 0..TOTAL_MAX {
            let way = way((slot % hosts) as u8, slot / hosts);
            assert_eq!(paths.insert(way, slot), Ok(None));
        }
        assert_eq!(paths.insert(way(200, 0), TOTAL_MAX), Err(Full));
        for slot in 0..TOTAL_MAX {
            paths.remove(&way((slot % hosts) as u8, slot / hosts), slot);
        }
        assert!(paths.slots.is_empty() && paths.per_host.is_empty());
    }
}
