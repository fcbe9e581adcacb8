//! The end of a node's devices, where its fabric has none any more: pods keep those that they have, and the programs of devices
//! lose their flags when no pod has one.
//!
//! The device plugin then serves nobody, and an engine that is started anew waits.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use crate::devices::health::{NodeDevices, SILENCE_MAX};
use crate::devices::programs;

/// For so long no pod has a device: longer than a device plugin is believed that has ended, and a pod that was given one just
/// before is known by then.
const UNUSED_MIN: Duration = SILENCE_MAX.saturating_add(Duration::from_secs(5));
/// How often that is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Removes the flags of the programs beside the engine at this socket, when no pod has a device.
pub(crate) async fn end(socket: PathBuf, devices: watch::Receiver<NodeDevices>) {
    let mut unused = Unused::default();
    let mut ticks = tokio::time::interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if !unused.is_over(&devices.borrow(), Instant::now()) {
            continue;
        }
        match programs::remove(&socket) {
            Ok(()) => {
                tracing::info!("the fabric has no devices any more, and no pod of this node has");
                return;
            }
            Err((path, error)) => {
                let path = path.display();
                tracing::warn!("{path}: {error}: weft-device-plugin goes on; it is tried again");
                unused = Unused::default();
            }
        }
    }
}

/// Since when no pod has had a device.
#[derive(Debug, Default)]
struct Unused(Option<Instant>);

impl Unused {
    fn is_over(&mut self, devices: &NodeDevices, now: Instant) -> bool {
        if !devices.are_unused() {
            self.0 = None;
            return false;
        }
        let since = *self.0.get_or_insert(now);
        now.duration_since(since) >= UNUSED_MIN
    }
}

#[cfg(test)]
mod tests {
    use weft_proto::engine::v1::{DeviceFault, DeviceHealth};

    use super::*;

    fn devices(in_use: u32, reason: &str) -> NodeDevices {
        let fault = |reason: &str| DeviceFault {
            reason: reason.to_owned(),
            ..DeviceFault::default()
        };
        NodeDevices {
            total: 0,
            health: DeviceHealth {
                node: Some(reason).filter(|reason| !reason.is_empty()).map(fault),
                in_use,
                ..DeviceHealth::default()
            },
        }
    }

    #[test]
    fn devices_end_when_a_device_plugin_that_runs_has_counted_none_for_a_while() {
        let begun = Instant::now();
        let mut unused = Unused::default();
        let mut is_over = |found: NodeDevices, seconds: u64| {
            let now = begun + Duration::from_secs(seconds);
            unused.is_over(&found, now)
        };
        assert!(!is_over(devices(0, ""), 0));
        assert!(!is_over(devices(0, ""), 64));
        // A pod has got one after all.
        assert!(!is_over(devices(1, ""), 65));
        assert!(!is_over(devices(0, ""), 100));
        // Nobody counts.
        assert!(!is_over(devices(0, "DevicePluginAway"), 165));
        assert!(!is_over(devices(0, "EngineAway"), 200));
        assert!(is_over(devices(0, "EngineAway"), 265));
    }
}
