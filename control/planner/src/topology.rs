//! Where bytes can flow: nodes with one NIC each, their leaf switches, the leaves' uplinks to spines.
//!
//! `nodes.yaml` is this type. In a cluster the operator fills it from `FabricNode`s, in `weft play`
//! the CLI from the fabric that it built.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A two-level fabric. Every link is full duplex and has the same rate both ways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The nodes, in any order.
    pub nodes: Vec<Node>,
    /// The links between leaves and spines, in any order; none where all nodes share one leaf.
    #[serde(default)]
    pub uplinks: Vec<Uplink>,
}

/// A machine with one NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Name, unique in the topology.
    pub name: String,
    /// Address of the node's agent, as `10.0.0.1:7400`; not needed to plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The leaf switch that the NIC is plugged into.
    pub leaf: String,
    /// Line rate of the NIC, bits per second in each direction.
    pub rate_bps: u64,
}

/// A link between a leaf and a spine. Parallel links to one spine are one entry with their sum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uplink {
    /// The leaf's name.
    pub leaf: String,
    /// The spine's name.
    pub spine: String,
    /// Line rate, bits per second in each direction.
    pub rate_bps: u64,
}

/// Why a topology cannot be used. Every text names the field and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// There is no node at all.
    #[error("nodes is empty: list at least the source and one destination")]
    NoNodes,
    /// A name is empty or holds blanks or control characters.
    #[error("{field} is {value:?}: give a name without blanks or control characters")]
    BadName {
        /// Which field, as `nodes[2].leaf`.
        field: String,
        /// Its value.
        value: String,
    },
    /// Two nodes have the same name.
    #[error(
        "nodes[{index}].name {name:?} is also the name of nodes[{first}]: give every node its own"
    )]
    DuplicateNode {
        /// Index of the second node.
        index: usize,
        /// Index of the first node.
        first: usize,
        /// The name that both have.
        name: String,
    },
    /// Two nodes have the same address.
    #[error(
        "nodes[{index}].address {address:?} is also the address of nodes[{first}]: give every node its own"
    )]
    DuplicateAddress {
        /// Index of the second node.
        index: usize,
        /// Index of the first node.
        first: usize,
        /// The address that both have.
        address: String,
    },
    /// One leaf has two entries for the same spine.
    #[error(
        "uplinks[{index}] joins {leaf:?} and {spine:?}, as uplinks[{first}] does: write parallel links as one entry with the sum of their rates"
    )]
    DuplicateUplink {
        /// Index of the second entry.
        index: usize,
        /// Index of the first entry.
        first: usize,
        /// The leaf.
        leaf: String,
        /// The spine.
        spine: String,
    },
    /// A rate is zero.
    #[error("{field} is 0: give the line rate in bits per second, 1000000000 for 1 Gbit/s")]
    ZeroRate {
        /// Which field, as `nodes[2].rate_bps`.
        field: String,
    },
}

impl TopologyError {
    /// A short stable name, for conditions, events and metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoNodes => "TopologyNoNodes",
            Self::BadName { .. } => "TopologyBadName",
            Self::DuplicateNode { .. } => "TopologyDuplicateNode",
            Self::DuplicateAddress { .. } => "TopologyDuplicateAddress",
            Self::DuplicateUplink { .. } => "TopologyDuplicateUplink",
            Self::ZeroRate { .. } => "TopologyZeroRate",
        }
    }
}

impl Topology {
    /// The node of that name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// Checks every field; the first that is wrong is named.
    pub fn validate(&self) -> Result<(), TopologyError> {
        if self.nodes.is_empty() {
            return Err(TopologyError::NoNodes);
        }
        let mut names = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let field = |name: &str| format!("nodes[{index}].{name}");
            check_name(&node.name, || field("name"))?;
            check_name(&node.leaf, || field("leaf"))?;
            check_rate(node.rate_bps, || field("rate_bps"))?;
            if let Some(first) = names.insert(&node.name, index) {
                return Err(TopologyError::DuplicateNode {
                    index,
                    first,
                    name: node.name.clone(),
                });
            }
            if let Some(address) = &node.address {
                check_name(address, || field("address"))?;
                if let Some(first) = addresses.insert(address, index) {
                    return Err(TopologyError::DuplicateAddress {
                        index,
                        first,
                        address: address.clone(),
                    });
                }
            }
        }
        let mut joined = BTreeMap::new();
        for (index, uplink) in self.uplinks.iter().enumerate() {
            let field = |name: &str| format!("uplinks[{index}].{name}");
            check_name(&uplink.leaf, || field("leaf"))?;
            check_name(&uplink.spine, || field("spine"))?;
            check_rate(uplink.rate_bps, || field("rate_bps"))?;
            if let Some(first) = joined.insert((&uplink.leaf, &uplink.spine), index) {
                return Err(TopologyError::DuplicateUplink {
                    index,
                    first,
                    leaf: uplink.leaf.clone(),
                    spine: uplink.spine.clone(),
                });
            }
        }
        Ok(())
    }

    /// Spines that join two leaves, each with the rate of its link to the first and to the second;
    /// in the order of their names.
    pub(crate) fn spines_between(&self, from: &str, to: &str) -> Vec<Spine<'_>> {
        let below = |leaf: &str| -> BTreeMap<&str, u64> {
            let of_leaf = self.uplinks.iter().filter(|uplink| uplink.leaf == leaf);
            of_leaf
                .map(|uplink| (uplink.spine.as_str(), uplink.rate_bps))
                .collect()
        };
        let down = below(to);
        let up = below(from).into_iter();
        up.filter_map(|(name, up_bps)| {
            down.get(name).map(|&down_bps| Spine {
                name,
                up_bps,
                down_bps,
            })
        })
        .collect()
    }
}

/// A way from one leaf to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spine<'a> {
    pub(crate) name: &'a str,
    /// Rate of the link from the sending leaf, bits per second.
    pub(crate) up_bps: u64,
    /// Rate of the link to the receiving leaf, bits per second.
    pub(crate) down_bps: u64,
}

fn check_name(value: &str, field: impl Fn() -> String) -> Result<(), TopologyError> {
    let bad = |c: char| c.is_whitespace() || c.is_control();
    if value.is_empty() || value.contains(bad) {
        return Err(TopologyError::BadName {
            field: field(),
            value: value.to_owned(),
        });
    }
    Ok(())
}

fn check_rate(rate_bps: u64, field: impl Fn() -> String) -> Result<(), TopologyError> {
    if rate_bps == 0 {
        return Err(TopologyError::ZeroRate { field: field() });
    }
    Ok(())
}
