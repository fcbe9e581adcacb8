//! What agents count, made into the rates of nodes, of pairs of nodes and of leaves. Who reads the agents notes their
//! pages here.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use weft_metrics::{Samples, table};

use crate::{Fabric, HeatScale, Link, Node, Pair};

/// 10 Tbit/s, the fastest link that a fabric can have. A node that counts more reports nonsense.
const BYTES_PER_SECOND_MAX: f64 = 1.25e12;
/// Pairs that are kept: those with paths down first, then the busiest.
const PAIRS_MAX: usize = 100;

/// The last two pages of each node.
#[derive(Debug, Default)]
pub struct Traffic(BTreeMap<String, Readings>);

#[derive(Debug)]
struct Readings {
    before: Option<Reading>,
    now: Reading,
}

/// What a page says.
#[derive(Debug)]
struct Reading {
    at: Instant,
    sent: Option<f64>,
    received: Option<f64>,
    /// By the peer's address.
    peers: BTreeMap<String, Peer>,
}

#[derive(Debug, Default)]
struct Peer {
    sent: Option<f64>,
    paths_down: u32,
    largest_rtt: Option<Duration>,
}

/// Rates at one moment.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    nodes: BTreeMap<String, Node>,
    pairs: Vec<Pair>,
    /// Bytes per second to each leaf from others.
    leaves: BTreeMap<String, u64>,
}

impl Traffic {
    /// Notes a page of a node that was read at this time.
    pub fn note(&mut self, node: &str, page: &Samples, at: Instant) {
        let mut peers: BTreeMap<String, Peer> = BTreeMap::new();
        for ([peer], bytes) in page.series(&table::PEER_ACKNOWLEDGED_BYTES) {
            peers.entry(peer.to_owned()).or_default().sent = Some(bytes);
        }
        for ([peer], paths) in page.series(&table::PEER_PATHS_DOWN) {
            peers.entry(peer.to_owned()).or_default().paths_down = paths as u32;
        }
        for ([peer, of], seconds) in page.series(&table::PEER_RTT) {
            if of == "max" {
                let rtt = Duration::try_from_secs_f64(seconds).ok();
                peers.entry(peer.to_owned()).or_default().largest_rtt = rtt;
            }
        }
        let now = Reading {
            at,
            sent: page.value(&table::ACKNOWLEDGED_BYTES),
            received: page.value(&table::PLACED_BYTES),
            peers,
        };
        let before = self.0.remove(node).map(|readings| readings.now);
        self.0.insert(node.to_owned(), Readings { before, now });
    }

    /// Forgets the nodes whose last page is older.
    pub fn forget_before(&mut self, at: Instant) {
        self.0.retain(|_, readings| readings.now.at >= at);
    }

    /// How many nodes have a page.
    pub fn nodes(&self) -> usize {
        self.0.len()
    }

    /// The rates between the last two pages. `names` has the nodes of data addresses; a peer without one keeps its
    /// address.
    pub fn figures(&self, fabric: &Fabric, names: &BTreeMap<String, String>) -> Figures {
        let leaf_of: BTreeMap<&str, &str> = fabric
            .nodes()
            .map(|(leaf, node)| (&*node.name, &*leaf.name))
            .collect();
        let mut figures = Figures::default();
        for (name, readings) in &self.0 {
            let Readings { before, now } = readings;
            let before = before.as_ref();
            let rate = |earlier: Option<f64>, later| {
                let seconds = now.at.saturating_duration_since(before?.at).as_secs_f64();
                rate(earlier?, later?, seconds)
            };
            let peers = now.peers.values();
            let down = peers.clone().map(|peer| peer.paths_down);
            figures.nodes.insert(
                name.clone(),
                Node {
                    sends: rate(before.and_then(|before| before.sent), now.sent),
                    receives: rate(before.and_then(|before| before.received), now.received),
                    paths_down: Some(down.fold(0, u32::saturating_add)),
                    largest_rtt: peers.filter_map(|peer| peer.largest_rtt).max(),
                    ..Node::default()
                },
            );
            let mut pairs: BTreeMap<&str, Pair> = BTreeMap::new();
            for (address, peer) in &now.peers {
                let earlier = before.and_then(|before| before.peers.get(address)?.sent);
                let Some(bytes) = rate(earlier, peer.sent) else {
                    continue;
                };
                let to = names.get(address).unwrap_or(address);
                // Several addresses of one node are one peer.
                let pair = pairs.entry(to).or_insert_with(|| Pair {
                    from: name.clone(),
                    to: to.clone(),
                    ..Pair::default()
                });
                pair.bytes_per_second = pair.bytes_per_second.saturating_add(bytes);
                pair.paths_down = pair.paths_down.saturating_add(peer.paths_down);
                pair.largest_rtt = pair.largest_rtt.max(peer.largest_rtt);
                if let (Some(from), Some(to)) = (leaf_of.get(&**name), leaf_of.get(&**to)) {
                    let of_leaf = figures.leaves.entry((*to).to_owned()).or_default();
                    *of_leaf = of_leaf.saturating_add(if from == to { 0 } else { bytes });
                }
            }
            figures.pairs.extend(pairs.into_values());
            figures.keep_worst_pairs(2 * PAIRS_MAX);
        }
        figures.keep_worst_pairs(PAIRS_MAX);
        figures
    }
}

impl Figures {
    fn keep_worst_pairs(&mut self, most: usize) {
        if self.pairs.len() > most {
            let rank = |pair: &Pair| (pair.paths_down, pair.bytes_per_second);
            self.pairs.sort_by_key(|pair| std::cmp::Reverse(rank(pair)));
            self.pairs.truncate(PAIRS_MAX);
        }
    }

    /// Writes them into a fabric. Links are a leaf's from all spines together, since no switch is asked.
    pub fn write(&self, fabric: &mut Fabric) {
        let nodes = fabric.leaves.iter_mut().flat_map(|leaf| &mut leaf.nodes);
        for node in nodes {
            if let Some(known) = self.nodes.get(&node.name) {
                (node.sends, node.receives) = (known.sends, known.receives);
                (node.paths_down, node.largest_rtt) = (known.paths_down, known.largest_rtt);
            }
        }
        fabric.pairs.clone_from(&self.pairs);
        if fabric.leaves.len() < 2 {
            return;
        }
        let busiest = self.leaves.values().copied().max().unwrap_or(0).max(1);
        let link = |(leaf, bytes): (usize, u64)| Link {
            leaf,
            spine: None,
            heat: bytes as f64 / busiest as f64,
            bytes_per_second: bytes,
        };
        let known = fabric.leaves.iter().enumerate();
        let known = known.filter_map(|(i, leaf)| Some((i, *self.leaves.get(&leaf.name)?)));
        fabric.links = known.map(link).collect();
        fabric.heat_scale = HeatScale::Busiest;
    }
}

/// Bytes per second; none where a counter has begun again, or counts what no link carries.
fn rate(before: f64, now: f64, seconds: f64) -> Option<u64> {
    let rate = (now - before) / seconds;
    (0.0..=BYTES_PER_SECOND_MAX)
        .contains(&rate)
        .then_some(rate as u64)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::Leaf;

    /// Two leaves with a node each, 10.0.0.0 and 10.0.0.1.
    fn fabric() -> (Fabric, BTreeMap<String, String>) {
        let mut fabric = Fabric::new("lab", SystemTime::UNIX_EPOCH);
        let leaf = |i: usize| Leaf {
            name: format!("leaf{i}"),
            nodes: vec![Node {
                name: format!("n{i}"),
                ..Node::default()
            }],
        };
        fabric.leaves = (0..2).map(leaf).collect();
        let names = (0..2).map(|i| (format!("10.0.0.{i}"), format!("n{i}")));
        (fabric, names.collect())
    }

    /// A second in which n0's counters grow like this.
    fn after(before: &str, now: &str) -> Fabric {
        let (mut fabric, names) = fabric();
        let (mut traffic, start) = (Traffic::default(), Instant::now());
        for (seconds, bytes) in [(0, before), (1, now)] {
            let page = format!(
                "weft_acknowledged_bytes_total {bytes}\nweft_placed_bytes_total 5\n\
                 weft_peer_acknowledged_bytes_total{{peer=\"10.0.0.1\"}} {bytes}\n\
                 weft_peer_paths_down{{peer=\"10.0.0.1\"}} 2\n\
                 weft_peer_rtt_seconds{{peer=\"10.0.0.1\",of_paths=\"max\"}} {bytes}\n# EOF\n"
            );
            let page = Samples::parse(&page).unwrap();
            traffic.note("n0", &page, start + Duration::from_secs(seconds));
        }
        traffic.figures(&fabric, &names).write(&mut fabric);
        fabric
    }

    #[test]
    fn what_a_node_sends_heats_the_leaf_of_the_other_node() {
        let fabric = after("1", "3");
        let (_, n0) = fabric.nodes().next().unwrap();
        assert_eq!((n0.sends, n0.receives), (Some(2), Some(0)));
        assert_eq!(n0.paths_down, Some(2));
        assert_eq!(n0.largest_rtt, Some(Duration::from_secs(3)));
        let [pair] = &fabric.pairs[..] else {
            panic!("{:?}", fabric.pairs)
        };
        assert_eq!((&*pair.from, &*pair.to), ("n0", "n1"));
        assert_eq!((pair.bytes_per_second, pair.paths_down), (2, 2));
        let [link] = &fabric.links[..] else {
            panic!("{:?}", fabric.links)
        };
        assert_eq!((link.leaf, link.spine, link.heat), (1, None, 1.0));
        // Of a node that was not read nothing is known.
        let (_, n1) = fabric.nodes().nth(1).unwrap();
        assert_eq!((n1.sends, n1.paths_down), (None, None));
    }

    #[test]
    fn figures_that_cannot_be_are_unknown() {
        for (before, now) in [
            ("0", "NaN"),
            ("0", "1e300"),
            ("0", "+Inf"),
            ("9", "1"),
            ("-1e300", "0"),
        ] {
            let fabric = after(before, now);
            let (_, n0) = fabric.nodes().next().unwrap();
            assert_eq!(n0.sends, None, "{before} {now}");
            assert!(fabric.pairs.is_empty() && fabric.links.is_empty());
        }
    }

    #[test]
    fn a_node_that_does_not_answer_any_more_has_no_figures() {
        let (mut traffic, start) = (Traffic::default(), Instant::now());
        traffic.note("n0", &Samples::default(), start);
        traffic.forget_before(start);
        assert_eq!(traffic.nodes(), 1);
        traffic.forget_before(start + Duration::from_secs(1));
        assert_eq!(traffic.nodes(), 0);
    }
}
