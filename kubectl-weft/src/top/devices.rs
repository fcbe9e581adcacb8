//! Virtual devices of pods.

use std::{cmp::Ordering, collections::BTreeMap};

use serde::Serialize;
use tokio::time::{Instant, sleep_until};
use weft_crds::{PodDevice, PodDeviceList};

use super::{
    TopError,
    readings::{APART, node_names},
    table::{Cell, Column, Row, busiest},
};
use crate::cluster::Cluster;

/// What a device moves.
#[derive(Clone, Debug, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeviceRow {
    node: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pod: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    received_bytes_per_second: Option<f64>,
    /// How often programs have it open.
    #[serde(skip_serializing_if = "Option::is_none")]
    open: Option<u64>,
    /// Healthy, or the reason for which it is not.
    #[serde(skip_serializing_if = "String::is_empty")]
    health: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

impl Row for DeviceRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            name: "node",
            cell: |row| Cell::name(&row.node),
        },
        Column {
            name: "namespace",
            cell: |row| named(&row.namespace),
        },
        Column {
            name: "pod",
            cell: |row| named(&row.pod),
        },
        Column {
            name: "device",
            cell: |row| named(&row.device),
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
            name: "open",
            cell: |row| Cell::count(row.open),
        },
        Column {
            name: "health",
            cell: |row| named(&row.health),
        },
    ];
    const NONE: &'static str =
        "no pod has a device here; --all-namespaces shows those of all namespaces";

    /// The busiest first.
    fn order(&self, other: &Self) -> Ordering {
        let rates = |row: &Self| [row.sent_bytes_per_second, row.received_bytes_per_second];
        busiest(rates(self), rates(other)).then_with(|| self.names().cmp(&other.names()))
    }

    fn message(&self) -> &str {
        &self.message
    }
}

/// A node that does not answer has no device to name.
fn named(text: &str) -> Cell {
    Cell::name(if text.is_empty() { "-" } else { text })
}

impl DeviceRow {
    fn names(&self) -> [&str; 4] {
        [&self.node, &self.namespace, &self.pod, &self.device]
    }
}

/// Node, namespace, pod and device.
type Key = [String; 4];

fn key(device: &PodDevice) -> Key {
    let PodDevice {
        node,
        namespace,
        pod,
        device,
        ..
    } = device;
    [node, namespace, pod, device].map(Clone::clone)
}

/// Bytes sent and received.
type Counts = BTreeMap<Key, [u64; 2]>;

fn counts(list: &PodDeviceList) -> Counts {
    let devices = list.items.iter();
    let counts = devices.map(|one| (key(one), [one.bytes_sent, one.bytes_received]));
    counts.collect()
}

/// The devices of a list, compared with one of so many seconds before, and the nodes that did not answer.
fn rows(before: &Counts, now: PodDeviceList, seconds: f64) -> Vec<DeviceRow> {
    let devices = now.items.into_iter().map(|device| {
        let before = before.get(&key(&device));
        // A device that another container has counts from 0.
        let rate = |now: u64, at: usize| {
            let growth = now.checked_sub(before?[at])?;
            (seconds > 0.0).then(|| growth as f64 / seconds)
        };
        DeviceRow {
            sent_bytes_per_second: rate(device.bytes_sent, 0),
            received_bytes_per_second: rate(device.bytes_received, 1),
            open: Some(device.open.into()),
            health: device.reason.unwrap_or_else(|| "Healthy".to_owned()),
            node: device.node,
            namespace: device.namespace,
            pod: device.pod,
            device: device.device,
            message: String::new(),
        }
    });
    let silent = now.silent_nodes.into_iter().map(|silent| DeviceRow {
        node: silent.node,
        message: silent.message,
        ..DeviceRow::default()
    });
    devices.chain(silent).collect()
}

/// Where rows come from.
pub(super) struct Source {
    node: Option<String>,
    all_namespaces: bool,
    last: Option<(Counts, Instant)>,
}

impl Source {
    /// Of all nodes, or of this one.
    pub(super) fn new(node: Option<String>, all_namespaces: bool) -> Self {
        Self {
            node,
            all_namespaces,
            last: None,
        }
    }

    pub(super) async fn look(&mut self, cluster: &Cluster) -> Result<Vec<DeviceRow>, TopError> {
        let path = cluster.live_resource(PodDevice::RESOURCE, self.all_namespaces);
        let (before, then) = match self.last.take() {
            Some(last) => last,
            None => {
                let list: PodDeviceList = cluster.live(&path).await?;
                let at = Instant::now();
                sleep_until(at + APART).await;
                (counts(&list), at)
            }
        };
        let list: PodDeviceList = cluster.live(&path).await?;
        let now = Instant::now();
        self.last = Some((counts(&list), now));
        let mut rows = rows(&before, list, now.duration_since(then).as_secs_f64());
        if let Some(node) = &self.node {
            rows.retain(|row| row.node == *node);
            // Who may not list nodes is not told that there is none.
            if rows.is_empty()
                && let Ok(nodes) = node_names(cluster).await
                && !nodes.contains(node)
            {
                return Err(TopError::Node(node.clone()));
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use weft_crds::SilentNode;

    use super::*;
    use crate::top::table::{self, tests::words};

    fn list(counts: &[(&str, u64)]) -> PodDeviceList {
        let device = |(name, sent): &(&str, u64)| PodDevice {
            namespace: "team-a".to_owned(),
            pod: "trainer-0".to_owned(),
            node: "n1".to_owned(),
            device: (*name).to_owned(),
            bytes_sent: *sent,
            ..PodDevice::default()
        };
        PodDeviceList {
            api_version: weft_crds::live_api_version(),
            kind: PodDeviceList::KIND.to_owned(),
            metadata: Default::default(),
            items: counts.iter().map(device).collect(),
            silent_nodes: vec![SilentNode {
                node: "n2".to_owned(),
                message: "it does not answer".to_owned(),
            }],
        }
    }

    #[test]
    fn the_busiest_device_is_first_and_a_node_without_an_answer_has_a_row() {
        let before = counts(&list(&[("vdev-1", 0), ("vdev-2", 0), ("vdev-3", 9)]));
        let now = list(&[("vdev-1", 2_000_000), ("vdev-2", 8_000_000), ("vdev-3", 1)]);
        let mut rows = rows(&before, now, 2.0);
        table::sort(&mut rows, None);
        let shown = words(&rows);
        let expected = [
            "n1",
            "team-a",
            "trainer-0",
            "vdev-2",
            "4 MB/s",
            "0 B/s",
            "0",
            "Healthy",
        ];
        assert_eq!(shown[1], expected);
        assert_eq!(shown[2][3], "vdev-1");
        // It has begun again.
        assert_eq!(shown[3][3..5], ["vdev-3", "-"]);
        assert_eq!(shown[4][8], "it does not answer");
    }
}
