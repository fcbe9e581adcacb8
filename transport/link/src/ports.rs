//! The ports of one NIC, and the arithmetic between paths and port pairs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A range that is no range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "ports.first {first} with ports.count {count} is no usable range: \
     count must be 1 to 256 and first + count at most 65536"
)]
pub struct BadPorts {
    /// The configured first port.
    pub first: u16,
    /// The configured number of ports.
    pub count: u16,
}

/// A range of UDP ports of one NIC: `first`, `first + 1`, … (`count` of them).
///
/// 16 ports at both ends make 256 paths out of one range that a firewall can allow; 1 makes the
/// one path of a network without multipath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortRange {
    /// The lowest port.
    pub first: u16,
    /// How many ports, 1 to 256.
    pub count: u16,
}

impl PortRange {
    /// Most ports of a range: with one port at the other end each is a path, and a path is a byte.
    pub const COUNT_MAX: u16 = 256;

    /// Checks that the range is one.
    pub fn check(self) -> Result<(), BadPorts> {
        let end = u32::from(self.first) + u32::from(self.count);
        if self.first == 0 || self.count == 0 || self.count > Self::COUNT_MAX || end > 65_536 {
            return Err(BadPorts {
                first: self.first,
                count: self.count,
            });
        }
        Ok(())
    }

    /// The port with this index, 0 to `count - 1`.
    pub fn port(self, index: usize) -> u16 {
        debug_assert!(index < usize::from(self.count));
        self.first.wrapping_add(index as u16)
    }

    /// Whether `port` is one of the range.
    pub fn holds(self, port: u16) -> bool {
        port.wrapping_sub(self.first) < self.count
    }

    /// How many paths lead from this range to `peer`: every pair of ports is one.
    pub fn paths_to(self, peer: Self) -> u32 {
        (u32::from(self.count) * u32::from(peer.count)).min(256)
    }

    /// The `index`-th of `of` equal parts of the range; `of` divides `count`.
    pub fn part(self, index: u16, of: u16) -> Self {
        let count = self.count / of;
        Self {
            first: self.first + index * count,
            count,
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = u32::from(self.first) + u32::from(self.count.max(1)) - 1;
        write!(f, "{}-{last}", self.first)
    }
}

/// A pair of ports: indices into the local and the remote range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortPair {
    /// Index into the range of this end.
    pub local: usize,
    /// Index into the range of the other end.
    pub remote: usize,
}

impl PortPair {
    /// The pair that carries what this end sends on `path` of its own, where there are so many ports here and there. The first
    /// paths have ports of equal index, and so NICs of equal index; then those of the next ones.
    pub fn of_path(path: u8, local: u16, remote: u16) -> Self {
        let [path, local_count, remote_count] = [path.into(), local, remote].map(usize::from);
        let local = path % local_count;
        Self {
            local,
            remote: (local + path / local_count) % remote_count,
        }
    }

    /// The pair on which this end answers what arrived on `path` of the other end.
    pub fn mirror_of_path(path: u8, local: u16, remote: u16) -> Self {
        let there = Self::of_path(path, remote, local);
        Self {
            local: there.remote,
            remote: there.local,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortRange = PortRange {
        first: 4000,
        count: 16,
    };
    const B: PortRange = PortRange {
        first: 5000,
        count: 8,
    };

    #[test]
    fn what_one_end_sends_on_a_path_the_other_answers_on_the_same_pair() {
        let mut pairs = std::collections::BTreeSet::new();
        for path in 0..=127u8 {
            let there = PortPair::of_path(path, A.count, B.count);
            let back = PortPair::mirror_of_path(path, B.count, A.count);
            assert_eq!((there.local, there.remote), (back.remote, back.local));
            assert!(there.local < 16 && there.remote < 8);
            pairs.insert((there.local, there.remote));
        }
        assert_eq!(pairs.len(), 128);
    }

    #[test]
    fn sixteen_ports_at_both_ends_are_256_paths() {
        assert_eq!(A.paths_to(A), 256);
        assert_eq!(A.paths_to(B), 128);
    }

    #[test]
    fn a_range_that_leaves_the_port_space_is_refused_by_name() {
        let range = PortRange {
            first: 65_530,
            count: 16,
        };
        let error = range.check().unwrap_err();
        assert_eq!(crate::LinkError::from(error).reason(), "BadPorts");
        assert!(error.to_string().contains("65530"));
        assert!(
            PortRange {
                first: 65_520,
                count: 16
            }
            .check()
            .is_ok()
        );
    }

    #[test]
    fn a_range_is_cut_into_equal_parts() {
        assert_eq!(
            A.part(1, 2),
            PortRange {
                first: 4008,
                count: 8
            }
        );
    }
}
