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
use weft_metrics::Samples;
use weft_page::{Fabric, Finding, HeatScale, Link, Node, NodeState, Traffic};

use super::Rate;
use crate::stage::{Ground, http_get, node_name};

const READ_INTERVAL: Duration = Duration::from_secs(1);
/// For an agent's answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

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
    let (mut traffic, mut over) = (Traffic::default(), Rates::default());
    let mut every = interval(READ_INTERVAL);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let begun = Instant::now();
        let answers = ask_all(&ground, nodes).await;
        let now = Instant::now();
        let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
        for (i, answer) in answers {
            let name = node_name(i);
            let node = nodes.entry(name.clone()).or_default();
            node.name.clone_from(&name);
            match answer {
                Ok(page) => {
                    node.state = NodeState::Ready;
                    traffic.note(&name, &page, now);
                }
                Err(error) => node.findings.push(Finding {
                    problem: format!("its agent does not answer: {error}"),
                    fix: "see whether it was killed, by --kill-node or by somebody".to_owned(),
                }),
            }
        }
        traffic.forget_before(begun);
        let figures = traffic.figures(&shown.borrow(), &names);
        let links = links(&ground, now, &mut over);
        shown.send_modify(|fabric| {
            fabric.at = SystemTime::now();
            for shown in fabric.leaves.iter_mut().flat_map(|leaf| &mut leaf.nodes) {
                if let Some(node) = nodes.remove(&shown.name) {
                    *shown = node;
                }
            }
            figures.write(fabric);
            // The switches count themselves here.
            (fabric.heat_scale, fabric.links) = links;
        });
    }
}

async fn ask_all(ground: &Ground, nodes: usize) -> Vec<(usize, io::Result<Samples>)> {
    let mut asked = JoinSet::new();
    for i in 0..nodes {
        let address = ground.addresses(i).metrics;
        asked.spawn(async move { (i, ask(address).await) });
    }
    asked.join_all().await
}

async fn ask(address: SocketAddr) -> io::Result<Samples> {
    let answer = timeout(ANSWER_WITHIN, http_get(address, "/metrics"));
    let answer = answer.await.map_err(|_| io::ErrorKind::TimedOut)??;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => {
            Samples::parse(body).map_err(io::Error::other)
        }
        _ => Err(io::Error::other("it takes no jobs yet")),
    }
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
