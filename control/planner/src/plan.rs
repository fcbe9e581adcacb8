//! The plan, and how it is made from a request and a topology.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::estimate::{Cost, LinkLoad, cost, walk};
use crate::names;
use crate::request::{PAYLOAD_SHARE_MIN, RECEIVERS_MAX, Request};
use crate::strategy::Strategy;
use crate::topology::{Node, Topology};

/// Who sends to whom, and what that costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The strategy in force; never [`Strategy::Auto`].
    pub strategy: Strategy,
    /// Why this one: its estimate beside those of the others.
    pub why: String,
    /// Bytes delivered to every destination.
    pub bytes: u64,
    /// A relay forwards after this many bytes.
    pub block_bytes: u64,
    /// One assignment per node, the source first, a sender always before its receivers.
    pub assignments: Vec<Assignment>,
    /// Every link that carries something, the slowest first.
    pub links: Vec<LinkLoad>,
    /// The link that takes longest: the first of `links`.
    pub bottleneck: LinkLoad,
    /// Time until the last destination has the last byte, seconds.
    pub estimate_seconds: f64,
    /// What the other strategies would take, the fastest first.
    pub alternatives: Vec<Alternative>,
}

/// What a plan assigns to one node: from which node it receives, and to which nodes it sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// Name of the node.
    pub node: String,
    /// Who sends to it; `None` for the source.
    pub receives_from: Option<String>,
    /// To whom it sends, in the order in which every block goes out.
    pub sends_to: Vec<String>,
    /// Hops from the source; 0 for the source itself.
    pub depth: u32,
}

/// A strategy that was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    /// The strategy; never [`Strategy::Auto`].
    pub strategy: Strategy,
    /// What it would take, seconds.
    pub estimate_seconds: f64,
}

/// Estimates within this share of the lowest count as equal to it, and fewer hops decide.
const TIE: f64 = 1e-9;

/// A tree over the ordered nodes, and what it costs.
struct Candidate {
    strategy: Strategy,
    sends_to: Vec<Vec<usize>>,
    cost: Cost,
}

impl Candidate {
    fn bottleneck(&self) -> &LinkLoad {
        self.cost
            .links
            .first()
            .expect("a tree has an edge, and an edge loads two links")
    }
}

/// Plans a transfer.
///
/// The plan depends on names, leaves and rates, and not on the order in which nodes, uplinks or
/// destinations are listed. With [`Strategy::Auto`] a strategy is passed over that would need a path where
/// there is none, or a node that sends to more than [`RECEIVERS_MAX`].
pub fn plan(request: &Request, topology: &Topology) -> Result<Plan, PlanError> {
    topology.validate()?;
    let ordered = order_nodes(request, topology)?;

    let mut candidates = Vec::new();
    let mut refused = None;
    for (strategy, tree) in Strategy::TREES {
        let sends_to = tree(ordered.len());
        let costed = check_receivers(strategy, &sends_to)
            .and_then(|()| cost(request, topology, &ordered, &sends_to));
        match costed {
            Ok(cost) => candidates.push(Candidate {
                strategy,
                sends_to,
                cost,
            }),
            Err(error) if strategy == request.strategy => return Err(error),
            Err(error) => refused = Some(error),
        }
    }

    let lowest = candidates
        .iter()
        .map(|c| c.cost.seconds)
        .fold(f64::INFINITY, f64::min);
    let chosen = candidates
        .iter()
        .position(|candidate| match request.strategy {
            // `Strategy::TREES`, and so this list, has the fewest hops first.
            Strategy::Auto => candidate.cost.seconds <= lowest * (1.0 + TIE),
            asked => candidate.strategy == asked,
        });
    match (chosen, refused) {
        (Some(index), _) => {
            let chosen = candidates.remove(index);
            candidates.sort_by(|a, b| a.cost.seconds.total_cmp(&b.cost.seconds));
            Ok(build(request, &ordered, chosen, &candidates))
        }
        (None, Some(error)) => Err(error),
        (None, None) => unreachable!("a strategy is a candidate or was refused"),
    }
}

fn check_receivers(strategy: Strategy, sends_to: &[Vec<usize>]) -> Result<(), PlanError> {
    match sends_to.iter().map(Vec::len).max() {
        Some(receivers) if receivers > RECEIVERS_MAX => Err(PlanError::TooManyReceivers {
            strategy,
            receivers,
        }),
        _ => Ok(()),
    }
}

/// Checks the request and lines the nodes up: the source, the rest of its leaf, then leaf by leaf.
///
/// A chain along this order enters every other leaf once, which is as seldom as it can be.
fn order_nodes<'a>(request: &Request, topology: &'a Topology) -> Result<Vec<&'a Node>, PlanError> {
    if request.block_bytes == 0 {
        return Err(PlanError::ZeroBlock);
    }
    if !(PAYLOAD_SHARE_MIN..=1.0).contains(&request.payload_share) {
        return Err(PlanError::BadPayloadShare {
            value: request.payload_share,
        });
    }
    let find = |field: &dyn Fn() -> String, name: &str| {
        topology.node(name).ok_or_else(|| PlanError::UnknownNode {
            field: field(),
            name: name.to_owned(),
            known: known_nodes(topology),
        })
    };
    let source = find(&|| "source".to_owned(), &request.source)?;
    if request.destinations.is_empty() {
        return Err(PlanError::NoDestinations);
    }
    let mut seen = BTreeSet::new();
    let mut ordered = Vec::with_capacity(request.destinations.len() + 1);
    for (index, name) in request.destinations.iter().enumerate() {
        if *name == request.source {
            return Err(PlanError::SourceIsDestination {
                index,
                name: name.clone(),
            });
        }
        ordered.push(find(&|| format!("destinations[{index}]"), name)?);
        if !seen.insert(name) {
            return Err(PlanError::DuplicateDestination {
                index,
                name: name.clone(),
            });
        }
    }
    if request.bytes.checked_mul(ordered.len() as u64).is_none() {
        return Err(PlanError::TooManyBytes {
            bytes: request.bytes,
            destinations: ordered.len(),
        });
    }
    ordered.sort_by(|a, b| {
        let far = |node: &Node| node.leaf != source.leaf;
        far(a)
            .cmp(&far(b))
            .then_with(|| names::compare(&a.leaf, &b.leaf))
            .then_with(|| names::compare(&a.name, &b.name))
    });
    ordered.insert(0, source);
    Ok(ordered)
}

/// The names there are, the first few where there are many.
fn known_nodes(topology: &Topology) -> String {
    const SHOWN: usize = 8;
    let mut names: Vec<&str> = topology
        .nodes
        .iter()
        .map(|node| node.name.as_str())
        .collect();
    names.sort_by(|a, b| names::compare(a, b));
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let shown = names.join(", ");
    if more == 0 {
        shown
    } else {
        format!("{shown} and {more} more")
    }
}

fn build(request: &Request, ordered: &[&Node], chosen: Candidate, others: &[Candidate]) -> Plan {
    let mut assignments: Vec<Assignment> = ordered
        .iter()
        .zip(&chosen.sends_to)
        .map(|(node, receivers)| Assignment {
            node: node.name.clone(),
            receives_from: None,
            sends_to: receivers
                .iter()
                .map(|&to| ordered[to].name.clone())
                .collect(),
            depth: 0,
        })
        .collect();
    let order = walk(&chosen.sends_to);
    for &at in &order {
        for &to in &chosen.sends_to[at] {
            assignments[to].receives_from = Some(ordered[at].name.clone());
            assignments[to].depth = assignments[at].depth + 1;
        }
    }
    Plan {
        strategy: chosen.strategy,
        why: why(request.strategy, &chosen, others),
        bytes: request.bytes,
        block_bytes: request.block_bytes,
        assignments: order.iter().map(|&at| assignments[at].clone()).collect(),
        bottleneck: chosen.bottleneck().clone(),
        links: chosen.cost.links,
        estimate_seconds: chosen.cost.seconds,
        alternatives: others
            .iter()
            .map(|other| Alternative {
                strategy: other.strategy,
                estimate_seconds: other.cost.seconds,
            })
            .collect(),
    }
}

fn why(asked: Strategy, chosen: &Candidate, others: &[Candidate]) -> String {
    let cost = |candidate: &Candidate| {
        let limit = &candidate.bottleneck().name;
        format!("{} (limited by {limit})", Seconds(candidate.cost.seconds))
    };
    let because = match (asked, others.first()) {
        (Strategy::Auto, None) => "is the only one that has a path",
        (Strategy::Auto, Some(next)) if next.cost.seconds <= chosen.cost.seconds * (1.0 + TIE) => {
            "has the lowest estimate and the fewest hops"
        }
        (Strategy::Auto, Some(_)) => "has the lowest estimate",
        _ => "was asked for",
    };
    let mut text = format!("{} {because}: {}", chosen.strategy, cost(chosen));
    for other in others {
        text += &format!("; {} {}", other.strategy, cost(other));
    }
    text
}

/// A time for people to read: three digits and a unit.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            0.0 => return f.write_str("0 s"),
            s if s >= 0.9995 => (s, "s"),
            s if s >= 0.999_5e-3 => (s * 1e3, "ms"),
            s => (s * 1e6, "µs"),
        };
        let decimals = match value {
            v if v >= 99.95 => 0,
            v if v >= 9.995 => 1,
            _ => 2,
        };
        write!(f, "{value:.decimals$} {unit}")
    }
}
