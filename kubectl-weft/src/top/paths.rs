//! The paths from a node.

use std::{cmp::Ordering, collections::BTreeMap};

use serde::Serialize;
use weft_crds::NodeMetrics;
use weft_metrics::{Metric, Samples, table};

use super::{
    TopError,
    readings::{Change, Readings, compare, share},
    table::{Cell, Column, Row, descending},
};
use crate::cluster::Cluster;

/// A path, and what has happened on it between the two readings.
#[derive(Clone, Debug, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct PathRow {
    peer: String,
    path: String,
    link: String,
    live: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunks_per_second: Option<f64>,
    /// Of the chunks that were sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_share: Option<f64>,
    /// Packets that were marked Congestion Experienced.
    #[serde(skip_serializing_if = "Option::is_none")]
    ce_packets_per_second: Option<f64>,
}

impl Row for PathRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            name: "peer",
            cell: |row| Cell::name(&row.peer),
        },
        Column {
            name: "path",
            cell: |row| Cell::name(&row.path),
        },
        Column {
            name: "link",
            cell: |row| Cell::name(&row.link),
        },
        Column {
            name: "live",
            cell: |row| Cell::name(if row.live { "yes" } else { "no" }),
        },
        Column {
            name: "RTT",
            cell: |row| Cell::seconds(row.rtt_seconds),
        },
        Column {
            name: "chunks/s",
            cell: |row| Cell::per_second(row.chunks_per_second),
        },
        Column {
            name: "lost",
            cell: |row| Cell::share(row.lost_share),
        },
        Column {
            name: "CE packets/s",
            cell: |row| Cell::per_second(row.ce_packets_per_second),
        },
    ];
    const NONE: &'static str = "the node has no path: it is connected with no other node";

    /// The worst first.
    fn order(&self, other: &Self) -> Ordering {
        let number = |row: &Self| row.path.parse::<u32>().unwrap_or(u32::MAX);
        let by_state = self.live.cmp(&other.live);
        by_state
            .then_with(|| descending(self.lost_share, other.lost_share))
            .then_with(|| descending(self.rtt_seconds, other.rtt_seconds))
            .then_with(|| self.peer.cmp(&other.peer))
            .then_with(|| number(self).cmp(&number(other)))
            .then_with(|| self.link.cmp(&other.link))
    }

    fn message(&self) -> &str {
        ""
    }
}

/// Peer, path and link.
type Key<'a> = [&'a str; 3];

fn by_path<'a>(page: &'a Samples, metric: &'static Metric<3>) -> BTreeMap<Key<'a>, f64> {
    page.series(metric).collect()
}

/// All paths of a page.
fn rows(change: Change<'_>) -> Vec<PathRow> {
    let now = change.now();
    let growth = |metric: &'static Metric<3>| {
        let before = change.before().map(|page| by_path(page, metric));
        let before = before.unwrap_or_default();
        let grown = by_path(now, metric).into_iter().filter_map(|(key, value)| {
            let growth = change.growth(before.get(&key).copied(), Some(value))?;
            Some((key, growth))
        });
        grown.collect::<BTreeMap<_, _>>()
    };
    let sent = growth(&table::PATH_CHUNKS_SENT);
    let lost = growth(&table::PATH_CHUNKS_LOST);
    let marked = growth(&table::PATH_CE_PACKETS);
    let round_trips = by_path(now, &table::PATH_RTT);
    let live = by_path(now, &table::PATH_LIVE).into_iter();
    let row = |(key, live): (Key<'_>, f64)| {
        let [peer, path, link] = key.map(str::to_owned);
        let of = |all: &BTreeMap<Key<'_>, f64>| all.get(&key).copied();
        PathRow {
            peer,
            path,
            link,
            live: live > 0.0,
            rtt_seconds: of(&round_trips),
            chunks_per_second: change.rate(of(&sent)),
            lost_share: share(of(&lost), of(&sent)),
            ce_packets_per_second: change.rate(of(&marked)),
        }
    };
    live.map(row).collect()
}

/// Where rows come from.
pub(super) struct Source {
    node: [String; 1],
    readings: Readings,
}

impl Source {
    /// Of this node.
    pub(super) fn new(node: &str) -> Self {
        Self {
            node: [node.to_owned()],
            readings: Readings::default(),
        }
    }

    pub(super) async fn look(&mut self, cluster: &Cluster) -> Result<Vec<PathRow>, TopError> {
        let page = NodeMetrics::Paths;
        let read = self.readings.next(cluster, &self.node, page).await?;
        let mut all = Vec::new();
        for (_, pair) in read {
            all.extend(compare(&pair?, rows));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::table::{self, tests::words};

    /// Path 0 to 2: chunks sent and lost.
    fn page(counts: [(u32, u32); 3], live: [u8; 3]) -> Samples {
        let mut text = String::new();
        for (path, ((sent, lost), live)) in counts.into_iter().zip(live).enumerate() {
            let labels = format!("{{peer=\"10.0.0.2\",path=\"{path}\",link=\"udp\"}}");
            text += &format!(
                "weft_path_chunks_sent_total{labels} {sent}\nweft_path_chunks_lost_total{labels} {lost}\n\
                 weft_path_ce_packets_total{labels} 5\nweft_path_live{labels} {live}\n"
            );
            if live > 0 {
                text += &format!("weft_path_rtt_seconds{labels} 0.00{}\n", path + 1);
            }
        }
        Samples::parse(&(text + "# EOF\n")).unwrap()
    }

    #[test]
    fn dead_paths_are_first_then_those_that_lose_most() {
        let before = page([(0, 0); 3], [1, 1, 1]);
        let now = page([(100, 1), (100, 5), (100, 0)], [1, 1, 0]);
        let mut rows = rows(Change::new(Some(&before), &now, 2.0));
        table::sort(&mut rows, None);
        let shown = words(&rows);
        let expected = ["10.0.0.2", "2", "udp", "no", "-", "50", "0.00%", "0"];
        assert_eq!(shown[1], expected);
        let expected = ["10.0.0.2", "1", "udp", "yes", "2.00 ms", "50", "5.00%", "0"];
        assert_eq!(shown[2], expected);
        assert_eq!(shown[3][1], "0");
    }

    #[test]
    fn a_path_that_is_new_has_no_rate() {
        let now = page([(100, 1); 3], [1, 1, 1]);
        let empty = Samples::default();
        for before in [None, Some(&empty)] {
            let rows = rows(Change::new(before, &now, 1.0));
            assert_eq!(rows.len(), 3);
            assert!(rows.iter().all(|row| row.chunks_per_second.is_none()));
        }
    }
}
