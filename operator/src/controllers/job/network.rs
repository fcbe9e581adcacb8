//! The network between a job's nodes, by what the fabric says and what agents report.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use weft_crds::RdmaFabric;
use weft_planner::{Node, Topology, Uplink};

use crate::controllers::kinds::Cache;
use weft_transfer::AgentEndpoint;

/// A node's link where nothing says how fast it is: 10 Gbit/s. Only estimates depend on it.
const LINK_BPS: u64 = 10_000_000_000;
/// The leaf of a node that has no label for it.
const LEAF: &str = "leaf";
/// The assumed spine above all leaves. Its capacity never limits a plan.
const SPINE: &str = "spine";
/// Of an IP packet: 20 IPv4, 8 UDP, 48 Weft header, 16 Weft trailer.
const NOT_PAYLOAD: u32 = 92;
/// Of an Ethernet frame: 8 preamble, 14 header, 4 checksum, 12 gap.
const FRAMING: u32 = 38;

/// How the agents of these nodes are reached, as far as they have said.
pub(crate) fn endpoints(cache: &Cache, fabric: &str, names: &BTreeSet<&str>) -> Vec<AgentEndpoint> {
    let endpoint = |name: &&str| {
        let node = cache
            .fabric_nodes
            .named(name)
            .filter(|node| node.spec.fabric == fabric)?;
        let address = node.status.as_ref()?.control_address.clone();
        (!address.is_empty()).then(|| AgentEndpoint {
            node: (*name).to_owned(),
            address,
        })
    };
    names.iter().filter_map(endpoint).collect()
}

/// What a plan is made from: the nodes' links, and what is known of the switches between them.
pub(crate) fn topology(cache: &Cache, fabric: &RdmaFabric, names: &BTreeSet<&str>) -> Topology {
    let known = &fabric.spec.topology;
    let cap_bps = fabric
        .spec
        .transport
        .cap_mbps
        .map(|mbps| u64::from(mbps) * 1_000_000);
    let node = |name: &&str| {
        let leaf = known.leaf_label.as_ref().and_then(|label| {
            cache
                .nodes
                .named(name)?
                .labels()
                .get(label)
                .filter(|leaf| !leaf.is_empty())
        });
        let reported = cache
            .fabric_nodes
            .named(name)
            .and_then(|node| node.status.as_ref());
        let mbps = known
            .link_mbps
            .or(reported.map(|status| status.link_mbps))
            .unwrap_or(0);
        let link_bps = match mbps {
            0 => LINK_BPS,
            mbps => u64::from(mbps) * 1_000_000,
        };
        Node {
            name: (*name).to_owned(),
            address: None,
            leaf: leaf.map_or(LEAF, String::as_str).to_owned(),
            // No node sends more, whatever its link.
            rate_bps: cap_bps.map_or(link_bps, |cap| cap.min(link_bps)),
        }
    };
    let nodes: Vec<Node> = names.iter().map(node).collect();
    let mut leaves: BTreeMap<&str, u64> = BTreeMap::new();
    for node in &nodes {
        *leaves.entry(&node.leaf).or_default() += node.rate_bps;
    }
    let uplink = |(leaf, rate): (&&str, &u64)| Uplink {
        leaf: (*leaf).to_owned(),
        spine: SPINE.to_owned(),
        rate_bps: *rate,
    };
    let uplinks = if leaves.len() > 1 {
        leaves.iter().map(uplink).collect()
    } else {
        Vec::new()
    };
    Topology { uplinks, nodes }
}

/// The part of the line rate that is payload, by the smallest MTU among the nodes.
pub(crate) fn payload_share(cache: &Cache, names: &BTreeSet<&str>) -> f64 {
    let mtus = names.iter().filter_map(|name| {
        let status = cache.fabric_nodes.named(name)?.status.as_ref()?;
        (status.mtu > NOT_PAYLOAD).then_some(status.mtu)
    });
    mtus.min().map_or(weft_planner::PAYLOAD_SHARE, |mtu| {
        f64::from(mtu - NOT_PAYLOAD) / f64::from(mtu + FRAMING)
    })
}
