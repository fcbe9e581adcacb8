//! The devices of pods, as the operator asks for them, and for metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, timeout};
use tonic::transport::Channel;
use weft_proto::Message as _;
use weft_proto::agent::v1::{ListPodDevicesRequest, ListPodDevicesResponse, PodDevice};
use weft_proto::engine::v1::engine_client::EngineClient;
use weft_proto::engine::v1::{Device, DeviceFault, DeviceHealth, ListDevicesRequest};

/// How often the engine is asked for metrics. It counts each second.
const LIST_INTERVAL: Duration = Duration::from_secs(2);
/// Of the devices in one answer: some 1,500 of them. The operator takes answers of 256 KiB.
const LISTED_BYTES_MAX: usize = 192 << 10;

/// Asks the engine for its devices, for ever. While it does not answer, no device is known.
pub(crate) async fn follow(mut engine: EngineClient<Channel>, listed: watch::Sender<Vec<Device>>) {
    let mut ticks = tokio::time::interval(LIST_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let asked = timeout(LIST_INTERVAL, engine.list_devices(ListDevicesRequest {}));
        let answer = asked.await.ok().and_then(Result::ok);
        listed.send_replace(answer.map_or(Vec::new(), |answer| answer.into_inner().devices));
    }
}

/// Those that are asked for: what the engine has, and what it has lost under its pod.
pub(crate) fn of_pods(
    listed: Vec<Device>,
    health: &DeviceHealth,
    request: &ListPodDevicesRequest,
) -> ListPodDevicesResponse {
    let mut faults: BTreeMap<&str, &DeviceFault> = BTreeMap::new();
    faults.extend(health.devices.iter().map(|fault| (&*fault.device, fault)));
    let mut devices: BTreeMap<String, PodDevice> = BTreeMap::new();
    for device in listed {
        // What is wrong with the node is wrong with each device.
        let fault = faults.remove(&*device.name).or(health.node.as_ref());
        // The engine has those of nobody, too.
        let Some(mut of_pod) = pod_device(&device.name, &device.owner, fault) else {
            continue;
        };
        of_pod.cap_bps = device.cap_bps;
        of_pod.ops_per_s = device.ops_per_s;
        of_pod.share = device.share;
        of_pod.contexts = device.contexts;
        of_pod.bytes_sent = device.bytes_sent;
        of_pod.bytes_received = device.bytes_received;
        of_pod.refused = device.refused;
        of_pod.refused_offers = device.refused_offers;
        of_pod.refused_calls = device.refused_calls;
        of_pod.regions = device.regions;
        of_pod.windows = device.windows;
        of_pod.window_bytes = device.window_bytes;
        of_pod.mem_fd_bytes = device.mem_fd_bytes;
        devices.insert(device.name, of_pod);
    }
    for (device, fault) in faults {
        let lost = pod_device(device, &fault.pod, Some(fault));
        devices.extend(lost.map(|lost| (device.to_owned(), lost)));
    }
    let ListPodDevicesRequest {
        namespace, after, ..
    } = request;
    let mut response = ListPodDevicesResponse::default();
    let mut bytes = 0;
    for device in devices.into_values() {
        let is_wanted = namespace.is_empty() || device.namespace == *namespace;
        if !is_wanted || device.device <= *after {
            continue;
        }
        bytes += device.encoded_len();
        if bytes > LISTED_BYTES_MAX {
            response.has_more = true;
            break;
        }
        response.devices.push(device);
    }
    response
}

/// A device of this pod, NAMESPACE/NAME.
fn pod_device(device: &str, pod: &str, fault: Option<&DeviceFault>) -> Option<PodDevice> {
    let (namespace, pod) = pod.split_once('/')?;
    let fault = fault.cloned().unwrap_or_default();
    Some(PodDevice {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        device: device.to_owned(),
        reason: fault.reason,
        message: fault.message,
        ..PodDevice::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(namespace: &str, after: &str) -> ListPodDevicesRequest {
        ListPodDevicesRequest {
            leader_epoch: 1,
            namespace: namespace.to_owned(),
            after: after.to_owned(),
        }
    }

    fn device(name: &str, owner: &str) -> Device {
        Device {
            name: name.to_owned(),
            owner: owner.to_owned(),
            bytes_sent: 7,
            refused_offers: 2,
            windows: 1,
            mem_fd_bytes: 9,
            ..Device::default()
        }
    }

    fn fault(device: &str, reason: &str, pod: &str) -> DeviceFault {
        DeviceFault {
            reason: reason.to_owned(),
            message: "do something".to_owned(),
            device: device.to_owned(),
            pod: pod.to_owned(),
        }
    }

    #[test]
    fn a_namespace_gets_its_devices_with_their_faults_and_those_that_the_engine_has_lost() {
        let listed = || {
            vec![
                device("weft0", ""),
                device("vdev-00002", "team-a/trainer-0"),
                device("vdev-00003", "team-b/other"),
            ]
        };
        let health = DeviceHealth {
            devices: vec![
                fault("vdev-00002", "DeviceStalled", "team-a/trainer-0"),
                fault("vdev-00001", "DeviceLost", "team-a/trainer-1"),
            ],
            ..DeviceHealth::default()
        };
        let of = |namespace| of_pods(listed(), &health, &request(namespace, ""));
        let names = |found: &ListPodDevicesResponse| -> Vec<String> {
            let devices = found.devices.iter();
            devices.map(|device| device.device.clone()).collect()
        };
        let found = of("team-a");
        assert_eq!(names(&found), ["vdev-00001", "vdev-00002"]);
        let [lost, stalled] = &found.devices[..] else {
            unreachable!("there are two");
        };
        assert_eq!((&*lost.pod, &*lost.reason), ("trainer-1", "DeviceLost"));
        assert_eq!(
            (&*stalled.namespace, &*stalled.pod, &*stalled.reason),
            ("team-a", "trainer-0", "DeviceStalled")
        );
        assert_eq!((stalled.bytes_sent, stalled.refused_offers), (7, 2));
        assert_eq!((stalled.windows, stalled.mem_fd_bytes), (1, 9));
        assert_eq!(names(&of("team-b")), ["vdev-00003"]);
        assert_eq!(of("team-b").devices[0].reason, "");
        assert_eq!(names(&of("")).len(), 3);
        let health = DeviceHealth {
            node: Some(fault("", "LinkDown", "")),
            ..health
        };
        let found = of_pods(listed(), &health, &request("team-b", ""));
        assert_eq!(found.devices[0].reason, "LinkDown");
        assert_eq!(found.devices[0].pod, "other");
    }

    #[test]
    fn who_asks_for_what_comes_after_the_last_device_gets_all_of_many() {
        const COUNT: usize = 5000;
        let owner = format!("team-a/{}", "p".repeat(253));
        let listed: Vec<Device> = (0..COUNT)
            .map(|i| device(&format!("vdev-{i:05}"), &owner))
            .collect();
        let mut names: Vec<String> = Vec::new();
        loop {
            let after = names.last().map_or("", String::as_str);
            let asked = request("team-a", after);
            let found = of_pods(listed.clone(), &DeviceHealth::default(), &asked);
            assert!(found.encoded_len() < 256 << 10);
            names.extend(found.devices.into_iter().map(|device| device.device));
            if !found.has_more {
                break;
            }
        }
        assert_eq!(names.len(), COUNT);
        assert!(names.is_sorted());
    }
}
