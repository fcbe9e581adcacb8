//! What the page shows of nodes and links: read from the agents' metrics and the switches' counters, once a second.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use weft_metrics::table;
use weft_page::{Fabric, Finding, HeatScale, Link, Node, NodeState, Pair};

use super::Rate;
use crate::stage::{Ground, http_get, node_name};

const READ_INTERVAL: Duration = Duration::from_secs(1);
/// For an agent's answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What an agent says of itself.
#[derive(Debug, Default, PartialEq)]
struct Metrics {
    sent: u64,
    received: u64,
    /// By the peer's address.
    peers: BTreeMap<String, Peer>,
}

#[derive(Debug, Default, PartialEq)]
struct Peer {
    sent: u64,
    paths_down: u32,
    largest_rtt: Option<Duration>,
}

/// The rates of what is counted, each by a name of its own.
#[derive(Default)]
struct Rates<K>(BTreeMap<K, Rate>);

impl<K: Ord> Rates<K> {
    fn note(&mut self, of: K, now: Instant, bytes: u64) -> u64 {
        let rate = self.0.entry(of).or_default();
        rate.note(now, bytes);
        rate.per_second()
    }
}

/// Fills in nodes, pairs and links once a second. Never returns.
pub(super) async fn watch(ground: Ground, shown: watch::Sender<Fabric>) {
    let nodes = shown.borrow().nodes().count();
    let names: BTreeMap<String, String> = (0..nodes)
        .flat_map(|i| {
            let first = ground.addresses(i).data;
            let all = std::iter::once(&first).chain(ground.other_nics(i));
            let named = all.map(|address| (address.to_string(), node_name(i)));
            named.collect::<Vec<_>>()
        })
        .collect();
    let (mut sent, mut received) = (Rates::default(), Rates::default());
    let (mut between, mut over) = (Rates::default(), Rates::default());
    let mut every = interval(READ_INTERVAL);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let answers = ask_all(&ground, nodes).await;
        let now = Instant::now();
        let mut nodes = BTreeMap::new();
        let mut pairs: BTreeMap<(String, String), Pair> = BTreeMap::new();
        for (i, answer) in answers {
            let name = node_name(i);
            let mut node = Node {
                name: name.clone(),
                ..Node::default()
            };
            match answer {
                Ok(metrics) => {
                    node.state = NodeState::Ready;
                    node.sends = Some(sent.note(i, now, metrics.sent));
                    node.receives = Some(received.note(i, now, metrics.received));
                    node.paths_down = metrics.peers.values().map(|peer| peer.paths_down).sum();
                    node.largest_rtt = metrics
                        .peers
                        .values()
                        .filter_map(|peer| peer.largest_rtt)
                        .max();
                    for (address, peer) in metrics.peers {
                        // Several addresses of one node are one peer.
                        let rate = between.note((i, address.clone()), now, peer.sent);
                        let to = names.get(&address).unwrap_or(&address).clone();
                        let pair = pairs.entry((name.clone(), to.clone())).or_default();
                        (pair.from, pair.to) = (name.clone(), to);
                        pair.bytes_per_second += rate;
                        pair.paths_down += peer.paths_down;
                        pair.largest_rtt = pair.largest_rtt.max(peer.largest_rtt);
                    }
                }
                Err(error) => node.findings.push(Finding {
                    problem: format!("its agent does not answer: {error}"),
                    fix: "see whether it was killed, by --kill-node or by somebody".to_owned(),
                }),
            }
            nodes.insert(name, node);
        }
        let links = links(&ground, now, &mut over);
        shown.send_modify(|fabric| {
            fabric.at = SystemTime::now();
            for shown in fabric.leaves.iter_mut().flat_map(|leaf| &mut leaf.nodes) {
                if let Some(node) = nodes.remove(&shown.name) {
                    *shown = node;
                }
            }
            fabric.pairs = pairs.into_values().collect();
            (fabric.heat_scale, fabric.links) = links;
        });
    }
}

async fn ask_all(ground: &Ground, nodes: usize) -> Vec<(usize, io::Result<Metrics>)> {
    let mut asked = JoinSet::new();
    for i in 0..nodes {
        let address = ground.addresses(i).metrics;
        asked.spawn(async move { (i, ask(address).await) });
    }
    asked.join_all().await
}

async fn ask(address: SocketAddr) -> io::Result<Metrics> {
    let answer = timeout(ANSWER_WITHIN, http_get(address, "/metrics"));
    let answer = answer.await.map_err(|_| io::ErrorKind::TimedOut)??;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(read(body)),
        _ => Err(io::Error::other("it takes no jobs yet")),
    }
}

/// Reads the text format of Prometheus, of which it knows what the page needs.
fn read(text: &str) -> Metrics {
    let mut metrics = Metrics::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let Ok(value) = value.parse::<f64>() else {
            continue;
        };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let is = |metric: &str| metric == name;
        if is(table::ACKNOWLEDGED_BYTES.name) {
            metrics.sent = value as u64;
        } else if is(table::PLACED_BYTES.name) {
            metrics.received = value as u64;
        }
        let Some(peer) = label(labels, "peer") else {
            continue;
        };
        let peer = metrics.peers.entry(peer.to_owned()).or_default();
        if is(table::PEER_ACKNOWLEDGED_BYTES.name) {
            peer.sent = value as u64;
        } else if is(table::PEER_PATHS_DOWN.name) {
            peer.paths_down = value as u32;
        } else if is(table::PEER_RTT.name) && label(labels, "of_paths") == Some("max") {
            peer.largest_rtt = Duration::try_from_secs_f64(value).ok();
        }
    }
    metrics
}

/// The value of a label. Those that are asked for are addresses and words: nothing in them is escaped.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut all = labels.trim_end_matches('}').split(',');
    all.find_map(|label| {
        label
            .strip_prefix(name)?
            .strip_prefix("=\"")?
            .strip_suffix('"')
    })
}

/// What the spines send to the leaves.
fn links(
    ground: &Ground,
    now: Instant,
    rates: &mut Rates<(usize, usize)>,
) -> (HeatScale, Vec<Link>) {
    let Some(fabric) = ground.fabric() else {
        return Default::default();
    };
    let bytes = match fabric.link_bytes() {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::debug!(%error, "the traffic of spines is not known");
            return Default::default();
        }
    };
    let mut links = Vec::new();
    for (spine, leaves) in bytes.into_iter().enumerate() {
        for (leaf, bytes) in leaves.into_iter().enumerate() {
            links.push(Link {
                leaf,
                spine: Some(spine),
                heat: 0.0,
                bytes_per_second: rates.note((spine, leaf), now, bytes),
            });
        }
    }
    let busiest = links.iter().map(|link| link.bytes_per_second).max();
    let (scale, most) = match fabric.spec().rate {
        Some(bits) => (HeatScale::LinkRate, bits / 8),
        None => (HeatScale::Busiest, busiest.unwrap_or_default()),
    };
    for link in &mut links {
        // Without any traffic nothing is hot.
        link.heat = (link.bytes_per_second as f64 / most.max(1) as f64).min(1.0);
    }
    (scale, links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_reads_what_agents_export() {
        let text = "# HELP weft_acknowledged_bytes_total x\n\
                    weft_acknowledged_bytes_total 1500\n\
                    weft_placed_bytes_total 20\n\
                    weft_peer_acknowledged_bytes_total{peer=\"10.0.0.1\"} 1500\n\
                    weft_peer_paths_down{peer=\"10.0.0.1\"} 2\n\
                    weft_peer_rtt_seconds{peer=\"10.0.0.1\",of_paths=\"min\"} 0.1\n\
                    weft_peer_rtt_seconds{peer=\"10.0.0.1\",of_paths=\"max\"} 0.25\n\
                    weft_other{path=\"1\"} 1\n";
        let peer = Peer {
            sent: 1500,
            paths_down: 2,
            largest_rtt: Some(Duration::from_millis(250)),
        };
        let expected = Metrics {
            sent: 1500,
            received: 20,
            peers: [("10.0.0.1".to_owned(), peer)].into(),
        };
        assert_eq!(read(text), expected);
    }
}
