//! What a tree puts on every link, and how long it takes.
//!
//! With `B` bytes in blocks of `S`, a link that carries `x` bytes takes
//! `T = x × 8 ÷ (rate × payload share)`. The slowest link's `T` is the time in which all blocks
//! pass. The pipeline fill is added, `fill`: the time until the last node has the first block, less the part that
//! `T` already includes:
//!
//! ```text
//! estimate = max T + max(0, fill − max T × S ÷ B)
//! ```
//!
//! For one rate `r` this is the known result (Cepheus §II-B): a chain of `n` nodes takes
//! `B/r + (n − 1)·S/r + n·hop`, direct `n·B/r + hop`, and binomial `⌈log2(n + 1)⌉·B/r` plus its hops.
//!
//! Between two leaves the load divides evenly over the spines that join them. That is what spraying
//! without regard to load does; a path policy that avoids slow spines does better where the rates of
//! the uplinks differ.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::names;
use crate::request::Request;
use crate::topology::{Node, Spine, Topology};

/// How fast a receiver checks a block before it forwards it: 8 GB/s, BLAKE3 on one core over cold
/// memory (`docs/decisions/0004-blake3-or-xxh3.md`). It delays the first block by `S ÷ 8 GB/s` per
/// hop; it is not taken for a limit of the rate, as the hash has a thread of its own.
pub const CHECK_BYTES_PER_SECOND: f64 = 8.0e9;

/// One direction of one link. The order only serves to keep equal things together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Link<'a> {
    NodeToLeaf { node: &'a str, leaf: &'a str },
    LeafToSpine { leaf: &'a str, spine: &'a str },
    SpineToLeaf { spine: &'a str, leaf: &'a str },
    LeafToNode { leaf: &'a str, node: &'a str },
}

impl Link<'_> {
    /// How many links bytes from another leaf have crossed before this one.
    fn links_before(&self) -> u8 {
        match self {
            Self::NodeToLeaf { .. } => 0,
            Self::LeafToSpine { .. } => 1,
            Self::SpineToLeaf { .. } => 2,
            Self::LeafToNode { .. } => 3,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::NodeToLeaf { node, leaf } => format!("{node}->{leaf}"),
            Self::LeafToSpine { leaf, spine } => format!("{leaf}->{spine}"),
            Self::SpineToLeaf { spine, leaf } => format!("{spine}->{leaf}"),
            Self::LeafToNode { leaf, node } => format!("{leaf}->{node}"),
        }
    }
}

#[derive(Default)]
struct Load {
    bytes: u64,
    rate_bps: u64,
}

/// What a plan puts on one direction of one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkLoad {
    /// From where to where, as `leaf0->spine1`.
    pub name: String,
    /// Payload bytes.
    pub bytes: u64,
    /// Line rate, bits per second.
    pub rate_bps: u64,
    /// `bytes × 8 ÷ (rate_bps × payload_share)`.
    pub seconds: f64,
}

/// The cost of a tree.
pub(crate) struct Cost {
    /// Every link that is used, the slowest first.
    pub(crate) links: Vec<LinkLoad>,
    /// Time until the last node has the last byte, seconds.
    pub(crate) seconds: f64,
}

/// Costs the tree in which `ordered[i]` sends to `ordered[j]` for every `j` in `sends_to[i]`.
///
/// `request` and `topology` are checked already, and so is that `bytes × destinations` fits 64 bits.
pub(crate) fn cost(
    request: &Request,
    topology: &Topology,
    ordered: &[&Node],
    sends_to: &[Vec<usize>],
) -> Result<Cost, PlanError> {
    let block_bytes = request.block_bytes.min(request.bytes);
    let hop_seconds =
        request.hop_latency_ns as f64 / 1e9 + block_bytes as f64 / CHECK_BYTES_PER_SECOND;
    let seconds =
        |bytes: f64, rate_bps: u64| bytes * 8.0 / (rate_bps as f64 * request.payload_share);

    let mut loads: BTreeMap<Link<'_>, Load> = BTreeMap::new();
    let mut add = |link, bytes, rate_bps| {
        let load = loads.entry(link).or_default();
        load.bytes += bytes;
        load.rate_bps = rate_bps;
    };
    let mut between: BTreeMap<(&str, &str), (u64, Vec<Spine<'_>>)> = BTreeMap::new();
    // When each node has the first block; the source has it at once.
    let mut first_block = vec![0.0f64; ordered.len()];

    for at in walk(sends_to) {
        let sender = ordered[at];
        for (copy, &to) in sends_to[at].iter().enumerate() {
            let receiver = ordered[to];
            let (from, onto) = (sender.leaf.as_str(), receiver.leaf.as_str());
            let out = Link::NodeToLeaf {
                node: &sender.name,
                leaf: from,
            };
            let into = Link::LeafToNode {
                node: &receiver.name,
                leaf: onto,
            };
            add(out, request.bytes, sender.rate_bps);
            add(into, request.bytes, receiver.rate_bps);

            let copies = (copy + 1) as f64;
            let mut edge_seconds = seconds(copies * block_bytes as f64, sender.rate_bps)
                .max(seconds(block_bytes as f64, receiver.rate_bps));
            if from != onto {
                let (bytes, spines) = between
                    .entry((from, onto))
                    .or_insert_with(|| (0, topology.spines_between(from, onto)));
                if spines.is_empty() {
                    return Err(PlanError::NoPath {
                        from: from.to_owned(),
                        from_node: sender.name.clone(),
                        to: onto.to_owned(),
                        to_node: receiver.name.clone(),
                    });
                }
                *bytes += request.bytes;
                let share = block_bytes as f64 / spines.len() as f64;
                for spine in spines.iter() {
                    edge_seconds =
                        edge_seconds.max(seconds(share, spine.up_bps.min(spine.down_bps)));
                }
            }
            first_block[to] = first_block[at] + edge_seconds + hop_seconds;
        }
    }

    for ((from, onto), (bytes, spines)) in &between {
        let ways = spines.len() as u64;
        for (index, spine) in (0..).zip(spines) {
            let share = bytes / ways + u64::from(index < bytes % ways);
            add(
                Link::LeafToSpine {
                    leaf: from,
                    spine: spine.name,
                },
                share,
                spine.up_bps,
            );
            add(
                Link::SpineToLeaf {
                    spine: spine.name,
                    leaf: onto,
                },
                share,
                spine.down_bps,
            );
        }
    }

    let mut links: Vec<(u8, LinkLoad)> = loads
        .into_iter()
        .map(|(link, load)| {
            let load = LinkLoad {
                name: link.name(),
                bytes: load.bytes,
                rate_bps: load.rate_bps,
                seconds: seconds(load.bytes as f64, load.rate_bps),
            };
            (link.links_before(), load)
        })
        .collect();
    // Of equally slow links the one nearest to a sender is named first: it holds up the others.
    links.sort_by(|(before_a, a), (before_b, b)| {
        b.seconds
            .total_cmp(&a.seconds)
            .then_with(|| before_a.cmp(before_b))
            .then_with(|| names::compare(&a.name, &b.name))
    });
    let links: Vec<LinkLoad> = links.into_iter().map(|(_, load)| load).collect();

    let slowest = links.first().map_or(0.0, |link| link.seconds);
    let overlapped = if request.bytes == 0 {
        0.0
    } else {
        slowest * (block_bytes as f64 / request.bytes as f64)
    };
    let fill_seconds = first_block.into_iter().fold(0.0, f64::max);
    Ok(Cost {
        links,
        seconds: slowest + (fill_seconds - overlapped).max(0.0),
    })
}

/// The nodes of a tree from the source on, a sender before its receivers.
pub(crate) fn walk(sends_to: &[Vec<usize>]) -> Vec<usize> {
    let mut order = vec![0];
    let mut next = 0;
    while let Some(&at) = order.get(next) {
        order.extend_from_slice(&sends_to[at]);
        next += 1;
    }
    order
}
