//! How the node's devices are, as its device plugin says: for the reports to the operator, and for metrics.
//!
//! The device plugin decides, which knows the kubelet's pods and the engine's devices; so the kubelet, the operator and
//! Prometheus are told the same. It writes a file every two seconds, which is read here. This module adds only that the
//! device plugin itself is away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use weft_proto::Message as _;
use weft_proto::engine::v1::{DeviceFault, DeviceHealth};
use weft_proto::operator::v1::DeviceReport;

/// How often the file is read.
const READ_INTERVAL: Duration = Duration::from_secs(2);
/// A device plugin may say nothing for so long, as when its pod is replaced. For so long it waits for an engine, too.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Devices that a message names.
const NAMED_MAX: usize = 5;

/// How the devices of the node are.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeDevices {
    /// How many pods can have.
    pub(crate) total: u32,
    pub(crate) health: DeviceHealth,
}

impl NodeDevices {
    /// By what the file says, if it is there, and for how long the device plugin has been silent.
    fn new(total: u32, found: Option<DeviceHealth>, silent_for: Duration) -> Self {
        let mut health = found.unwrap_or_default();
        if silent_for >= SILENCE_MAX {
            let message = format!(
                "the node's device plugin has said nothing for {} s: see kubectl get pods -A -l \
                 app.kubernetes.io/name=weft-device-plugin -o wide",
                SILENCE_MAX.as_secs()
            );
            health.node = Some(DeviceFault {
                reason: "DevicePluginAway".to_owned(),
                message,
                ..DeviceFault::default()
            });
        }
        Self { total, health }
    }

    /// How many devices no pod can use, by reason.
    pub(crate) fn unhealthy(&self) -> BTreeMap<&str, u32> {
        let mut by_reason = BTreeMap::new();
        match &self.health.node {
            Some(fault) => {
                by_reason.insert(fault.reason.as_str(), self.total);
            }
            None => {
                for fault in &self.health.devices {
                    *by_reason.entry(fault.reason.as_str()).or_default() += 1;
                }
            }
        }
        by_reason
    }

    /// For the operator.
    pub(crate) fn report(&self) -> DeviceReport {
        let by_reason = self.unhealthy();
        // Of those with as many, the first by name.
        let reasons = by_reason.iter().rev();
        let reason = reasons.max_by_key(|(_, count)| **count);
        DeviceReport {
            total: self.total,
            in_use: self.health.in_use,
            by_claims: self.health.by_claims,
            unhealthy: by_reason.values().sum(),
            reason: reason.map_or(String::new(), |(reason, _)| (*reason).to_owned()),
            message: self.message(),
        }
    }

    fn message(&self) -> String {
        if let Some(fault) = &self.health.node {
            return format!("pods of this node can have no device: {}", fault.message);
        }
        let devices = &self.health.devices;
        let named = devices.iter().take(NAMED_MAX);
        let mut parts: Vec<String> = named.map(told).collect();
        match devices.len().saturating_sub(NAMED_MAX) {
            0 => {}
            more => parts.push(format!("{more} more devices")),
        }
        parts.join("; ")
    }

    /// Differs in more than how many devices pods have.
    fn is_news_after(&self, before: &Self) -> bool {
        let faults = |of: &Self| (of.health.node.clone(), of.health.devices.clone());
        self.total != before.total || faults(self) != faults(before)
    }
}

fn told(fault: &DeviceFault) -> String {
    let DeviceFault {
        device,
        pod,
        message,
        ..
    } = fault;
    match pod.as_str() {
        "" => format!("{device}: {message}"),
        pod => format!("{device} of pod {pod}: {message}"),
    }
}

/// Reads what the device plugin writes.
#[derive(Debug)]
pub(crate) struct HealthWatcher {
    file: PathBuf,
    total: u32,
    started: Instant,
    states: watch::Sender<NodeDevices>,
}

impl HealthWatcher {
    /// Of the device plugin beside the engine at this socket, which gives pods so many devices. `states` is told.
    pub(crate) fn new(socket: &Path, total: u32, states: watch::Sender<NodeDevices>) -> Self {
        Self {
            file: weft_proto::engine::health_file(socket),
            total,
            started: Instant::now(),
            states,
        }
    }

    /// Reads the file. Receivers wake for a fault, and not for a pod that comes or goes.
    pub(crate) async fn read(&self) {
        let found = match self.find().await {
            Ok((health, silent_for)) => NodeDevices::new(self.total, Some(health), silent_for),
            // It is not there yet, or it is being replaced by one of another release.
            Err(_) => NodeDevices::new(self.total, None, self.started.elapsed()),
        };
        self.states.send_if_modified(|states| {
            let is_news = found.is_news_after(states);
            *states = found;
            is_news
        });
    }

    async fn find(&self) -> std::io::Result<(DeviceHealth, Duration)> {
        let text = tokio::fs::read(&self.file).await?;
        let written = tokio::fs::metadata(&self.file).await?.modified()?;
        let age = SystemTime::now().duration_since(written);
        Ok((DeviceHealth::decode(&*text)?, age.unwrap_or_default()))
    }

    /// Reads it for ever.
    pub(crate) async fn run(self) {
        let mut ticks = tokio::time::interval(READ_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.read().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(device: &str, reason: &str, pod: &str) -> DeviceFault {
        DeviceFault {
            reason: reason.to_owned(),
            message: "do something".to_owned(),
            device: device.to_owned(),
            pod: pod.to_owned(),
        }
    }

    fn devices(faults: Vec<DeviceFault>) -> DeviceHealth {
        DeviceHealth {
            devices: faults,
            in_use: 3,
            ..DeviceHealth::default()
        }
    }

    fn report(found: DeviceHealth) -> DeviceReport {
        NodeDevices::new(256, Some(found), Duration::ZERO).report()
    }

    #[test]
    fn a_report_counts_devices_and_names_those_that_pods_cannot_use() {
        let well = DeviceReport {
            total: 256,
            in_use: 3,
            ..DeviceReport::default()
        };
        assert_eq!(report(devices(Vec::new())), well);
        let faults = vec![
            fault("vdev-00001", "DeviceLost", "team-a/b"),
            fault("vdev-00003", "DeviceStalled", "team-a/a"),
            fault("vdev-00004", "DeviceStalled", ""),
        ];
        let report = report(devices(faults));
        assert_eq!((report.unhealthy, &*report.reason), (3, "DeviceStalled"));
        assert_eq!(
            report.message,
            "vdev-00001 of pod team-a/b: do something; vdev-00003 of pod team-a/a: do something; \
             vdev-00004: do something"
        );
    }

    #[test]
    fn a_message_names_a_few_devices_and_counts_the_others() {
        let faults = (0..9).map(|i| fault(&format!("vdev-{i:05}"), "DeviceLost", ""));
        let message = report(devices(faults.collect())).message;
        assert!(message.ends_with("vdev-00004: do something; 4 more devices"));
    }

    #[test]
    fn a_fault_of_the_node_makes_all_devices_unhealthy() {
        let health = DeviceHealth {
            node: Some(fault("", "EngineAway", "")),
            ..devices(vec![fault("vdev-00001", "DeviceLost", "team-a/b")])
        };
        let report = report(health);
        assert_eq!((report.unhealthy, &*report.reason), (256, "EngineAway"));
        assert!(report.message.contains("no device: do something"));
    }

    #[test]
    fn a_device_plugin_is_silent_for_a_minute_before_the_operator_is_told() {
        let after = |seconds| {
            let silent_for = Duration::from_secs(seconds);
            let found = NodeDevices::new(8, Some(devices(Vec::new())), silent_for);
            found.report()
        };
        assert_eq!(after(59).reason, "");
        let away = after(60);
        assert_eq!(
            (away.unhealthy, away.in_use, &*away.reason),
            (8, 3, "DevicePluginAway")
        );
        let never = NodeDevices::new(8, None, SILENCE_MAX).report();
        assert_eq!((never.in_use, &*never.reason), (0, "DevicePluginAway"));
    }

    #[tokio::test]
    async fn a_fault_wakes_who_watches_and_a_pod_that_comes_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("engine.sock");
        let states = watch::Sender::default();
        let mut seen = states.subscribe();
        let watcher = HealthWatcher::new(&socket, 8, states);
        let mut is_woken = async |health: DeviceHealth| {
            let file = weft_proto::engine::health_file(&socket);
            std::fs::write(file, health.encode_to_vec()).unwrap();
            watcher.read().await;
            let is_woken = seen.has_changed().unwrap();
            let states = seen.borrow_and_update().clone();
            assert_eq!((states.total, states.health), (8, health));
            is_woken
        };
        assert!(is_woken(devices(Vec::new())).await);
        let more = DeviceHealth {
            in_use: 4,
            ..DeviceHealth::default()
        };
        assert!(!is_woken(more).await);
        let lost = || vec![fault("vdev-00001", "DeviceLost", "team-a/b")];
        assert!(is_woken(devices(lost())).await);
        assert!(!is_woken(devices(lost())).await);
        assert!(is_woken(devices(Vec::new())).await);
    }
}
