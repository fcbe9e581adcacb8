//! What a fabric shall look like, and what it cannot look like.

use crate::quantity;

/// The shape and the faults of a fabric. Named after the flags of `weft play`.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Nodes, spread over the leaves in turn.
    pub nodes: usize,
    /// NICs of each node, all on its leaf.
    pub nics: usize,
    /// Leaf switches.
    pub leaves: usize,
    /// Spine switches: each is one way between any two leaves.
    pub spines: usize,
    /// Bits per second of each of a spine's ports.
    pub rate: Option<u64>,
    /// Bits per second between a node and its leaf, in each direction.
    pub node_rate: Option<u64>,
    /// Fraction of packets that every spine loses.
    pub loss: f64,
    /// Fraction of UDP packets of which every spine alters one byte.
    pub corrupt: f64,
    /// Largest IP packet on the data network, in bytes.
    pub mtu: u32,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            nodes: 4,
            nics: 1,
            leaves: 2,
            spines: 4,
            rate: None,
            node_rate: None,
            loss: 0.0,
            corrupt: 0.0,
            mtu: 9000,
        }
    }
}

/// Node addresses end in 10…249, management addresses in 1…240.
pub const MAX_NODES: usize = 240;
/// More than a machine has.
pub const MAX_NICS: usize = 8;
/// A leaf's link addresses are 2·leaf and 2·leaf + 1 in the last byte.
pub const MAX_LEAVES: usize = 64;
/// More ways than that and a process per spine takes longer than the transfer.
pub const MAX_SPINES: usize = 64;
/// Below it the token bucket's 256 KiB would be the larger part of a short transfer.
pub const MIN_RATE: u64 = 1_000_000;
/// What no software path reaches; a larger number is a mistaken unit.
pub const MAX_RATE: u64 = 400_000_000_000;
/// The least that IPv6 asks of a link, and room for a header and a payload worth sending.
pub const MIN_MTU: u32 = 1280;
/// The most that a veth takes.
pub const MAX_MTU: u32 = 65_535;

/// A fabric that cannot be built. The text names the flag and what to give instead.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// A count outside its range.
    #[error("--{flag} {given}: give a number from {least} to {most}")]
    Count {
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: u64,
        /// Smallest allowed.
        least: u64,
        /// Largest allowed.
        most: u64,
    },
    /// A leaf would have no node.
    #[error(
        "--leaves {leaves}: there are only {nodes} nodes; give --leaves {nodes} or more --nodes"
    )]
    EmptyLeaf {
        /// Leaves asked for.
        leaves: usize,
        /// Nodes to spread over them.
        nodes: usize,
    },
    /// A rate outside its range.
    #[error("--{flag} {}: give a rate from 1mbit to 400gbit", quantity::rate(*given))]
    Rate {
        /// The flag.
        flag: &'static str,
        /// Bits per second.
        given: u64,
    },
    /// A fraction outside 0…1.
    #[error("--{flag} {percent}%: give a share from 0% to 100%")]
    Share {
        /// The flag.
        flag: &'static str,
        /// Its value in percent.
        percent: f64,
    },
    /// Something about the spines, where no packet crosses one.
    #[error(
        "--{flag} acts on the spines, and with --leaves 1 no packet crosses one: use --leaves 2"
    )]
    NoSpineCrossed {
        /// The flag.
        flag: &'static str,
    },
}

impl SpecError {
    /// A stable word for the cause.
    pub fn reason(&self) -> &'static str {
        "InvalidFabric"
    }
}

impl Spec {
    /// Says what is wrong with it, if anything is.
    pub fn validate(&self) -> Result<(), SpecError> {
        let count = |flag, given: u64, least, most| {
            let fits = (least..=most).contains(&given);
            if fits {
                Ok(())
            } else {
                Err(SpecError::Count {
                    flag,
                    given,
                    least,
                    most,
                })
            }
        };
        count("nodes", self.nodes as u64, 1, MAX_NODES as u64)?;
        count("nics", self.nics as u64, 1, MAX_NICS as u64)?;
        let nodes_max = MAX_NODES / self.nics;
        count("nodes", self.nodes as u64, 1, nodes_max as u64)?;
        count("leaves", self.leaves as u64, 1, MAX_LEAVES as u64)?;
        count("spines", self.spines as u64, 1, MAX_SPINES as u64)?;
        count("mtu", self.mtu.into(), MIN_MTU.into(), MAX_MTU.into())?;
        if self.leaves > self.nodes {
            return Err(SpecError::EmptyLeaf {
                leaves: self.leaves,
                nodes: self.nodes,
            });
        }
        for (flag, rate) in [("rate", self.rate), ("node-rate", self.node_rate)] {
            match rate {
                Some(given) if !(MIN_RATE..=MAX_RATE).contains(&given) => {
                    return Err(SpecError::Rate { flag, given });
                }
                _ => {}
            }
        }
        check_share("loss", self.loss)?;
        check_share("corrupt", self.corrupt)?;
        if self.leaves == 1 {
            let on_spines = [
                ("rate", self.rate.is_some()),
                ("loss", self.loss > 0.0),
                ("corrupt", self.corrupt > 0.0),
            ];
            if let Some((flag, _)) = on_spines.into_iter().find(|(_, given)| *given) {
                return Err(SpecError::NoSpineCrossed { flag });
            }
        }
        Ok(())
    }
}

/// A share of packets is a number from 0 to 1.
pub(crate) fn check_share(flag: &'static str, share: f64) -> Result<(), SpecError> {
    if (0.0..=1.0).contains(&share) {
        Ok(())
    } else {
        Err(SpecError::Share {
            flag,
            percent: share * 100.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_fabric_is_refused_with_the_flag_and_the_remedy() {
        let ok = Spec::default;
        for (spec, text) in [
            (
                Spec { nodes: 0, ..ok() },
                "--nodes 0: give a number from 1 to 240",
            ),
            (
                Spec { spines: 65, ..ok() },
                "--spines 65: give a number from 1 to 64",
            ),
            (
                Spec {
                    nodes: 2,
                    leaves: 3,
                    ..ok()
                },
                "--leaves 3: there are only 2 nodes; give --leaves 2 or more --nodes",
            ),
            (
                Spec {
                    rate: Some(1000),
                    ..ok()
                },
                "--rate 1 kbit/s: give a rate from 1mbit to 400gbit",
            ),
            (
                Spec { loss: 1.5, ..ok() },
                "--loss 150%: give a share from 0% to 100%",
            ),
            (
                Spec {
                    corrupt: f64::NAN,
                    ..ok()
                },
                "--corrupt NaN%: give a share from 0% to 100%",
            ),
            (
                Spec { mtu: 100, ..ok() },
                "--mtu 100: give a number from 1280 to 65535",
            ),
            (
                Spec {
                    leaves: 1,
                    loss: 0.1,
                    ..ok()
                },
                "--loss acts on the spines, and with --leaves 1 no packet crosses one: use --leaves 2",
            ),
        ] {
            assert_eq!(spec.validate().unwrap_err().to_string(), text);
        }
        assert_eq!(ok().validate(), Ok(()));
    }
}
