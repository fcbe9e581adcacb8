//! `kubectl weft devices`: the virtual RDMA devices of pods, what they have sent and received, and whether they can be used.

use std::{fmt, io::Write};

use weft_cli::columns::columns;
use weft_crds::{PodDevice, PodDeviceList};
use weft_fabric::quantity;

use crate::{
    cluster::{Cluster, CommandError, Reach},
    output::{Format, say, text},
};

/// What `kubectl weft devices` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Of the pods of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// How it is printed.
    #[command(flatten)]
    pub format: Format,
    /// Which cluster to ask, and with which user.
    #[command(flatten)]
    pub reach: Reach,
}

/// Lists the devices of pods; whether every node has said which there are.
///
/// # Errors
/// What the cluster refused.
pub async fn run(
    args: &Args,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, CommandError> {
    let cluster = Cluster::reach(&args.reach).await?;
    let path = cluster.live_resource(PodDevice::RESOURCE, args.all_namespaces);
    let list: PodDeviceList = cluster.live(&path).await?;
    let is_whole = list.silent_nodes.is_empty();
    if args.format.write(&list, out)? {
        return Ok(is_whole);
    }
    if list.items.is_empty() {
        let nothing = match args.all_namespaces {
            true => "no pod has a device".to_owned(),
            false => format!(
                "no pod of namespace {} has a device; --all-namespaces shows those of all",
                cluster.namespace()
            ),
        };
        say(nothing, err)?;
    } else {
        let table = Table {
            devices: &list.items,
            has_namespaces: args.all_namespaces,
            is_wide: args.format.is_wide(),
        };
        text(table, out)?;
    }
    for silent in &list.silent_nodes {
        let line = format!(
            "the devices of node {} are not shown: {}",
            silent.node, silent.message
        );
        say(line, err)?;
    }
    Ok(is_whole)
}

/// Which way the memory of its regions goes.
fn memory(device: &PodDevice) -> String {
    let windows = device.windows;
    let others = device.regions.saturating_sub(windows);
    format!("{windows} Window, {others} MemFd")
}

/// Devices, a line each.
struct Table<'a> {
    devices: &'a [PodDevice],
    has_namespaces: bool,
    is_wide: bool,
}

impl Table<'_> {
    fn row(&self, device: &PodDevice) -> Vec<String> {
        let unsaid = || "-".to_owned();
        let share = device.share.map_or_else(unsaid, |share| share.to_string());
        // Without a limit of its own it has its share of the node's link.
        let rate = device.cap_bps.map_or_else(unsaid, quantity::rate);
        let refused = device.refused_packets + device.refused_offers + device.refused_calls;
        let health = device.reason.as_deref().unwrap_or("Healthy");
        let mut row = vec![
            device.pod.clone(),
            device.node.clone(),
            device.device.clone(),
            share,
            rate,
            quantity::bytes(device.bytes_sent),
            quantity::bytes(device.bytes_received),
            refused.to_string(),
            health.to_owned(),
        ];
        if self.has_namespaces {
            row.insert(0, device.namespace.clone());
        }
        if self.is_wide {
            let operations = device.operations_per_second;
            let operations = operations.map_or("-".to_owned(), |count| count.to_string());
            row.extend([
                device.open.to_string(),
                operations,
                device.refused_packets.to_string(),
                device.refused_offers.to_string(),
                device.refused_calls.to_string(),
                memory(device),
                quantity::bytes(device.window_bytes),
                quantity::bytes(device.mem_fd_bytes),
                device.message.clone().unwrap_or_default(),
            ]);
        }
        row
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut head = vec![
            "pod", "node", "device", "share", "rate", "sent", "received", "refused", "health",
        ];
        if self.has_namespaces {
            head.insert(0, "namespace");
        }
        if self.is_wide {
            head.extend([
                "open",
                "operations/s",
                "refused packets",
                "refused offers",
                "refused calls",
                "regions",
                "by Window",
                "by MemFd",
                "message",
            ]);
        }
        let rows: Vec<_> = self.devices.iter().map(|device| self.row(device)).collect();
        columns(f, &head, &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> PodDevice {
        PodDevice {
            namespace: "team-a".to_owned(),
            pod: "trainer-0".to_owned(),
            node: "n1".to_owned(),
            device: "vdev-00003".to_owned(),
            share: Some(100),
            bytes_sent: 91_000_000,
            bytes_received: 12,
            refused_packets: 2,
            refused_offers: 5,
            refused_calls: 1,
            ..PodDevice::default()
        }
    }

    fn words(device: PodDevice, has_namespaces: bool, is_wide: bool) -> Vec<String> {
        let table = Table {
            devices: &[device],
            has_namespaces,
            is_wide,
        };
        let shown = table.to_string();
        let line = shown.lines().last().unwrap();
        line.split("  ")
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn a_line_has_the_pod_and_what_its_device_has_sent_and_was_refused() {
        let sent = quantity::bytes(91_000_000);
        let received = quantity::bytes(12);
        let line = [
            "trainer-0",
            "n1",
            "vdev-00003",
            "100",
            "-",
            &sent,
            &received,
            "8",
            "Healthy",
        ];
        assert_eq!(words(device(), false, false), line);
        assert_eq!(words(device(), true, false)[0], "team-a");
    }

    #[test]
    fn a_device_that_its_pod_cannot_use_shows_the_reason_and_a_wide_line_the_message() {
        let device = PodDevice {
            cap_bps: Some(400_000_000),
            operations_per_second: Some(20_000),
            open: 1,
            reason: Some("DeviceStalled".to_owned()),
            message: Some("end the program".to_owned()),
            regions: 3,
            windows: 1,
            window_bytes: 4096,
            mem_fd_bytes: 91_000_000,
            ..device()
        };
        let line = words(device.clone(), false, false);
        assert_eq!(line[4], quantity::rate(400_000_000));
        assert_eq!(line[8], "DeviceStalled");
        let line = words(device, false, true);
        assert_eq!(line[9..14], ["1", "20000", "2", "5", "1"]);
        let bytes = [4096, 91_000_000].map(quantity::bytes);
        let memory = ["1 Window, 2 MemFd", &bytes[0], &bytes[1]];
        assert_eq!(line[14..17], memory);
        assert_eq!(line[17..], ["end the program"]);
    }
}
