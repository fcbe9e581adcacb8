//! Nodes.

use std::cmp::Ordering;

use serde::Serialize;
use weft_crds::NodeMetrics;
use weft_metrics::{Samples, table};

use super::{
    TopError,
    readings::{Change, Readings, compare, node_names, share},
    table::{Cell, Column, Row, busiest},
};
use crate::cluster::Cluster;

/// The states in which an attempt is over, as agents export them.
const OVER: [&str; 2] = ["Verified", "Failed"];

/// What a node does. What its agent does not export is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRow {
    node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    received_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u64>,
    /// Of the chunks that were sent between the two readings.
    #[serde(skip_serializing_if = "Option::is_none")]
    resent_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paths_down: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_rtt_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    devices_in_use: Option<u64>,
    /// Attempts that are not over.
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

impl Row for NodeRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            name: "node",
            cell: |row| Cell::name(&row.node),
        },
        Column {
            name: "sent",
            cell: |row| Cell::rate(row.sent_bytes_per_second),
        },
        Column {
            name: "received",
            cell: |row| Cell::rate(row.received_bytes_per_second),
        },
        Column {
            name: "connections",
            cell: |row| Cell::count(row.connections),
        },
        Column {
            name: "resent",
            cell: |row| Cell::share(row.resent_share),
        },
        Column {
            name: "paths down",
            cell: |row| Cell::count(row.paths_down),
        },
        Column {
            name: "largest RTT",
            cell: |row| Cell::seconds(row.largest_rtt_seconds),
        },
        Column {
            name: "devices",
            cell: |row| Cell::count(row.devices_in_use),
        },
        Column {
            name: "jobs",
            cell: |row| Cell::count(row.jobs),
        },
    ];
    const NONE: &'static str = "no node is in a fabric; see: kubectl get rdmafabrics";

    /// The busiest first.
    fn order(&self, other: &Self) -> Ordering {
        let rates = |row: &Self| [row.sent_bytes_per_second, row.received_bytes_per_second];
        busiest(rates(self), rates(other)).then_with(|| self.node.cmp(&other.node))
    }

    fn message(&self) -> &str {
        &self.message
    }
}

/// What the pages say of a node.
fn row(node: &str, change: Change<'_>) -> NodeRow {
    let now = change.now();
    let growth = |metric| {
        let value = |page: &Samples| page.value(metric);
        change.growth(change.before().and_then(value), value(now))
    };
    let round_trips = now.series(&table::PEER_RTT);
    let largest = round_trips.filter_map(|([_, of], value)| (of == "max").then_some(value));
    // The page has all its metrics, with series or without.
    let is_whole = now.value(&table::CONNECTIONS).is_some();
    let down = now.series(&table::PEER_PATHS_DOWN).map(|(_, value)| value);
    let states = now.series(&table::JOB_STATE);
    let open = states.filter(|([_, _, state], value)| *value > 0.0 && !OVER.contains(state));
    let count = |value: f64| value as u64;
    NodeRow {
        node: node.to_owned(),
        sent_bytes_per_second: change.rate(growth(&table::ACKNOWLEDGED_BYTES)),
        received_bytes_per_second: change.rate(growth(&table::PLACED_BYTES)),
        connections: now.value(&table::CONNECTIONS).map(count),
        resent_share: share(growth(&table::CHUNKS_RESENT), growth(&table::CHUNKS_SENT)),
        paths_down: is_whole.then(|| count(down.sum())),
        largest_rtt_seconds: largest.reduce(f64::max),
        devices_in_use: now.value(&table::DEVICES_IN_USE).map(count),
        jobs: is_whole.then(|| open.count() as u64),
        message: String::new(),
    }
}

/// Where rows come from.
pub(super) struct Source {
    node: Option<String>,
    readings: Readings,
}

impl Source {
    /// Of all nodes, or of this one.
    pub(super) fn new(node: Option<String>) -> Self {
        Self {
            node,
            readings: Readings::default(),
        }
    }

    pub(super) async fn look(&mut self, cluster: &Cluster) -> Result<Vec<NodeRow>, TopError> {
        let mut nodes = node_names(cluster).await?;
        if let Some(node) = &self.node {
            nodes.retain(|name| name == node);
            if nodes.is_empty() {
                return Err(TopError::Node(node.clone()));
            }
        }
        let read = self
            .readings
            .next(cluster, &nodes, NodeMetrics::Agent)
            .await?;
        let rows = read.into_iter().map(|(node, pair)| match pair {
            Ok(pair) => compare(&pair, |change| row(&node, change)),
            Err(error) => NodeRow {
                node,
                message: error.to_string(),
                ..NodeRow::default()
            },
        });
        Ok(rows.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::table::{self, tests::words};

    fn page(sent_bytes: u64, chunks: u64, resent: u64) -> Samples {
        let text = format!(
            "weft_acknowledged_bytes_total {sent_bytes}\nweft_placed_bytes_total 0\n\
             weft_chunks_sent_total {chunks}\nweft_chunks_resent_total {resent}\nweft_connections 2\n\
             weft_peer_paths_down{{peer=\"10.0.0.2\"}} 3\nweft_peer_paths_down{{peer=\"10.0.0.3\"}} 1\n\
             weft_peer_rtt_seconds{{peer=\"10.0.0.2\",of_paths=\"max\"}} 0.002\n\
             weft_peer_rtt_seconds{{peer=\"10.0.0.3\",of_paths=\"max\"}} 0.001\n\
             weft_peer_rtt_seconds{{peer=\"10.0.0.3\",of_paths=\"min\"}} 0.5\n\
             weft_job_state{{job_namespace=\"a\",job_name=\"b\",state=\"Transferring\"}} 1\n\
             weft_job_state{{job_namespace=\"a\",job_name=\"c\",state=\"Verified\"}} 1\n# EOF\n"
        );
        Samples::parse(&text).unwrap()
    }

    #[test]
    fn a_row_says_what_has_happened_between_two_readings() {
        let (before, now) = (page(1_000_000, 100, 10), page(9_000_000, 300, 12));
        let row = row("n1", Change::new(Some(&before), &now, 2.0));
        assert_eq!(row.sent_bytes_per_second, Some(4_000_000.0));
        let shown = words(&[row]);
        let expected = [
            "n1", "4 MB/s", "0 B/s", "2", "1.00%", "4", "2.00 ms", "-", "1",
        ];
        assert_eq!(shown[1], expected);
    }

    #[test]
    fn an_agent_that_was_restarted_has_no_rate_until_the_next_reading() {
        let (before, now) = (page(9, 9, 9), page(1, 1, 1));
        let row = row("n1", Change::new(Some(&before), &now, 1.0));
        assert_eq!((row.sent_bytes_per_second, row.resent_share), (None, None));
        assert_eq!(row.connections, Some(2));
    }

    #[test]
    fn the_busiest_node_is_first_and_one_without_an_answer_last() {
        let node = |name: &str, rates: [Option<f64>; 2]| NodeRow {
            node: name.to_owned(),
            sent_bytes_per_second: rates[0],
            received_bytes_per_second: rates[1],
            ..NodeRow::default()
        };
        let mut rows = [
            node("a", [None, None]),
            node("b", [Some(1.0), Some(1.0)]),
            node("c", [Some(0.0), Some(9.0)]),
        ];
        table::sort(&mut rows, None);
        assert_eq!(rows.map(|row| row.node), ["c", "b", "a"]);
    }
}
