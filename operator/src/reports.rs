//! What agents last said of their nodes, and what they are told.
//!
//! [`Reports`] is written by the control API's server and read by the controllers; the controllers
//! keep the [`FabricAgents`] of every fabric, by which the server decides who belongs to it. Nothing here
//! outlives the process: a new leader hears from every agent within seconds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use weft_proto::operator::v1::{NodeConfig, NodeReport};

/// A node that has said nothing for so long is not ready: it has missed three reports.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// The agents of a fabric: what they are told, and the nodes that they run on.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricAgents {
    /// Their configuration.
    pub config: NodeConfig,
    /// The nodes that belong to it.
    pub nodes: BTreeSet<String>,
}

/// What the agents of every fabric are told, by the name of the fabric.
pub type Fabrics = BTreeMap<String, FabricAgents>;

/// What a node's agent last said.
#[derive(Debug, Clone)]
pub struct NodeState {
    /// Of which fabric it is an agent.
    pub fabric: String,
    /// What it said.
    pub report: NodeReport,
    /// When.
    pub received_at: Instant,
    /// Which stream said it.
    pub(crate) stream: u64,
}

impl NodeState {
    /// A report that arrived at that time.
    pub fn new(fabric: &str, report: NodeReport, received_at: Instant) -> Self {
        Self {
            fabric: fabric.to_owned(),
            report,
            received_at,
            stream: 0,
        }
    }

    /// Whether it has said nothing for so long that it does not count any more.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.received_at) >= SILENCE
    }

    fn says_the_same(&self, other: &Self) -> bool {
        (&self.fabric, &self.report) == (&other.fabric, &other.report)
    }
}

/// The nodes that report a copy of the job with this UID.
pub(crate) fn nodes_with_copy<'a>(
    reports: &'a BTreeMap<String, NodeState>,
    uid: &'a str,
) -> impl Iterator<Item = &'a String> {
    let has_it = move |state: &NodeState| {
        let jobs = state.report.copies.iter().flat_map(|copy| &copy.jobs);
        jobs.into_iter()
            .any(|job| weft_transfer::job_uid(&job.uid) == uid)
    };
    let with_copy = reports.iter().filter(move |(_, state)| has_it(state));
    with_copy.map(|(node, _)| node)
}

/// The last report of every node, by its name.
#[derive(Debug, Clone, Default)]
pub struct Reports {
    nodes: watch::Sender<BTreeMap<String, NodeState>>,
    streams: Arc<AtomicU64>,
}

impl Reports {
    /// What there is, and every change of it.
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<String, NodeState>> {
        self.nodes.subscribe()
    }

    /// The nodes of a fabric that have this address on the data network, each with the address of its agent's control API.
    /// One that is silent may have left its address to another.
    pub(crate) fn at_address(
        &self,
        fabric: &str,
        data_address: &str,
        now: Instant,
    ) -> Vec<(String, String)> {
        let nodes = self.nodes.borrow();
        let is_there = |state: &NodeState| {
            state.fabric == fabric
                && !state.is_silent(now)
                && !state.report.control_address.is_empty()
                && state.report.data_address == data_address
        };
        let there = nodes.iter().filter(|(_, state)| is_there(state));
        there
            .map(|(node, state)| (node.clone(), state.report.control_address.clone()))
            .collect()
    }

    /// A node's agent has opened a stream, which has this number.
    pub(crate) fn open(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Keeps what a node's agent says on a stream, in place of what it said before; false when a later stream
    /// of the node has taken over.
    pub(crate) fn put(&self, node: &str, state: NodeState) -> bool {
        let mut is_newest = false;
        self.nodes.send_if_modified(|nodes| {
            let before = nodes.get(node);
            is_newest = before.is_none_or(|before| before.stream <= state.stream);
            if !is_newest {
                return false;
            }
            // That the node still says the same is kept, and wakes nobody: hundreds say so.
            let differs = before.is_none_or(|before| !before.says_the_same(&state));
            nodes.insert(node.to_owned(), state);
            differs
        });
        is_newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(version: &str) -> NodeReport {
        NodeReport {
            version: version.to_owned(),
            ..NodeReport::default()
        }
    }

    fn told(reports: &Reports) -> String {
        let nodes = reports.subscribe();
        let state = nodes.borrow().get("n1").cloned().unwrap();
        state.report.version
    }

    fn put(reports: &Reports, stream: u64, version: &str, now: Instant) -> bool {
        let state = NodeState {
            stream,
            ..NodeState::new("lab", report(version), now)
        };
        reports.put("n1", state)
    }

    #[test]
    fn a_report_that_says_the_same_is_kept_and_wakes_nobody() {
        let reports = Reports::default();
        let now = Instant::now();
        let stream = reports.open();
        assert!(put(&reports, stream, "1", now));
        let mut told = reports.subscribe();
        told.mark_unchanged();
        let later = now + std::time::Duration::from_secs(10);
        assert!(put(&reports, stream, "1", later));
        assert!(!told.has_changed().unwrap());
        assert_eq!(told.borrow()["n1"].received_at, later);
        assert!(put(&reports, stream, "2", later));
        assert!(told.has_changed().unwrap());
    }

    #[test]
    fn a_node_is_found_by_its_data_address_in_its_own_fabric() {
        let reports = Reports::default();
        let stream = reports.open();
        let now = Instant::now() + SILENCE;
        for (node, fabric, address, received_at) in [
            ("n0", "lab", "10.0.0.1", now - SILENCE),
            ("n1", "lab", "10.0.0.1", now),
            ("n2", "lab", "10.0.0.2", now),
            ("n3", "other", "10.0.0.1", now),
        ] {
            let report = NodeReport {
                data_address: address.to_owned(),
                control_address: format!("{address}:7400"),
                ..NodeReport::default()
            };
            let state = NodeState {
                stream,
                ..NodeState::new(fabric, report, received_at)
            };
            assert!(reports.put(node, state));
        }
        let n1 = ("n1".to_owned(), "10.0.0.1:7400".to_owned());
        assert_eq!(reports.at_address("lab", "10.0.0.1", now), [n1]);
        assert!(reports.at_address("lab", "10.0.0.3", now).is_empty());
        assert!(reports.at_address("lab", "", now).is_empty());
    }

    #[test]
    fn the_late_reports_of_an_old_stream_say_nothing() {
        let reports = Reports::default();
        let now = Instant::now();
        let (old, new) = (reports.open(), reports.open());
        assert!(put(&reports, old, "1", now));
        assert!(put(&reports, new, "2", now));
        assert!(!put(&reports, old, "1", now));
        assert_eq!(told(&reports), "2");
    }
}
