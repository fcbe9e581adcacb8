//! The virtual devices of pods, asked of the agents of their nodes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};
use weft_crds::{PodDevice, PodDeviceList, SilentNode, live_api_version};
use weft_proto::agent::v1::{self as agent, ListPodDevicesRequest, ListPodDevicesResponse};
use weft_transfer::{AgentEndpoint, ConnectionPool};

/// Agents that are asked at once: all nodes with devices are.
const CONCURRENCY_MAX: usize = 64;
/// For all agents together: less than the 60 s after which an API server gives an answer up.
const WITHIN: Duration = Duration::from_secs(45);
/// Of one node: many times what a node can have, so that an agent cannot fill the operator's memory.
const DEVICES_MAX: usize = 65_536;
/// Of all nodes in one answer, which takes some 70 MB while it is made.
const ANSWER_DEVICES_MAX: usize = 65_536;

/// The devices of the pods of a namespace, or of all pods where it is empty.
pub(super) async fn list(
    namespace: &str,
    nodes: Vec<(String, AgentEndpoint)>,
    pool: &ConnectionPool,
    leader_epoch: u64,
) -> PodDeviceList {
    let deadline = Instant::now() + WITHIN;
    let room = &AtomicUsize::new(ANSWER_DEVICES_MAX);
    let calls = nodes.into_iter().map(|(fabric, endpoint)| async move {
        let pool = pool.of_fabric(&fabric);
        let asked = of_node(namespace, &endpoint, &pool, leader_epoch, room);
        let late = || {
            format!(
                "its agent has not answered within {} s; try again",
                WITHIN.as_secs()
            )
        };
        let answer = timeout_at(deadline, asked).await;
        (endpoint.node, answer.unwrap_or_else(|_| Err(late())))
    });
    let mut calls = stream::iter(calls).buffer_unordered(CONCURRENCY_MAX);
    let mut list = PodDeviceList {
        api_version: live_api_version(),
        kind: PodDeviceList::KIND.to_owned(),
        metadata: Default::default(),
        items: Vec::new(),
        silent_nodes: Vec::new(),
    };
    while let Some((node, answer)) = calls.next().await {
        match answer {
            Ok(devices) => {
                let devices = devices.into_iter();
                list.items
                    .extend(devices.map(|device| shown(&node, device)));
            }
            Err(message) => list.silent_nodes.push(SilentNode { node, message }),
        }
    }
    list.items.sort_by(|one, other| key(one).cmp(&key(other)));
    let silent = &mut list.silent_nodes;
    silent.sort_by(|one, other| one.node.cmp(&other.node));
    list
}

fn key(device: &PodDevice) -> [&str; 4] {
    let PodDevice {
        namespace,
        pod,
        node,
        device,
        ..
    } = device;
    [namespace, pod, node, device]
}

async fn of_node(
    namespace: &str,
    endpoint: &AgentEndpoint,
    pool: &ConnectionPool,
    leader_epoch: u64,
    room: &AtomicUsize,
) -> Result<Vec<agent::PodDevice>, String> {
    let mut pages = Pages::new(room);
    loop {
        let request = ListPodDevicesRequest {
            leader_epoch,
            namespace: namespace.to_owned(),
            after: pages.after.clone(),
        };
        let answer = weft_transfer::list_pod_devices(request, pool, endpoint).await;
        let answer = answer.map_err(|failure| failure.message)?;
        if !pages.take(answer, namespace)? {
            return Ok(pages.devices);
        }
    }
}

/// What an agent has answered so far. It may say what it likes: it ends all the same.
#[derive(Debug)]
struct Pages<'a> {
    /// Those that who asks may see.
    devices: Vec<agent::PodDevice>,
    /// The last one that the agent has listed.
    after: String,
    /// How many it has listed.
    listed: usize,
    /// How many more devices, of whichever node, the answer takes.
    room: &'a AtomicUsize,
}

impl<'a> Pages<'a> {
    fn new(room: &'a AtomicUsize) -> Self {
        Self {
            devices: Vec::new(),
            after: String::new(),
            listed: 0,
            room,
        }
    }

    /// Takes the next page. Whether there are more.
    fn take(&mut self, page: ListPodDevicesResponse, namespace: &str) -> Result<bool, String> {
        self.listed = self.listed.saturating_add(page.devices.len());
        if self.listed > DEVICES_MAX {
            return Err(format!(
                "its agent lists more than {DEVICES_MAX} devices: see the log of its weft-agent"
            ));
        }
        if page.has_more {
            let last = page.devices.last().map(|device| &device.device);
            let last = last.filter(|last| **last > self.after);
            let last = last.ok_or(
                "its agent lists the same devices again and again: see the log of its weft-agent",
            )?;
            self.after.clone_from(last);
        }
        // Who asks may not see others, whatever an agent says.
        let devices_of =
            |device: &agent::PodDevice| namespace.is_empty() || device.namespace == namespace;
        let devices: Vec<_> = page.devices.into_iter().filter(devices_of).collect();
        let (relaxed, count) = (Ordering::Relaxed, devices.len());
        let left = |room: usize| room.checked_sub(count);
        if self.room.fetch_update(relaxed, relaxed, left).is_err() {
            // Another node may have fewer.
            self.room.fetch_add(self.devices.len(), relaxed);
            return Err(format!(
                "one answer has room for {ANSWER_DEVICES_MAX} devices: ask for one namespace at a time"
            ));
        }
        self.devices.extend(devices);
        Ok(page.has_more)
    }
}

fn shown(node: &str, device: agent::PodDevice) -> PodDevice {
    let text = |text: String| (!text.is_empty()).then_some(text);
    PodDevice {
        namespace: device.namespace,
        pod: device.pod,
        node: node.to_owned(),
        device: device.device,
        cap_bps: (device.cap_bps > 0).then_some(device.cap_bps),
        operations_per_second: (device.ops_per_s > 0).then_some(device.ops_per_s),
        share: (device.share > 0).then_some(device.share),
        open: device.contexts,
        bytes_sent: device.bytes_sent,
        bytes_received: device.bytes_received,
        refused_packets: device.refused,
        refused_offers: device.refused_offers,
        refused_calls: device.refused_calls,
        regions: device.regions,
        windows: device.windows,
        window_bytes: device.window_bytes,
        mem_fd_bytes: device.mem_fd_bytes,
        reason: text(device.reason),
        message: text(device.message),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weft_identity::authority::Authority;

    use super::*;

    #[tokio::test]
    async fn a_node_whose_agent_does_not_answer_is_named() {
        let pool = ConnectionPool::new(Arc::new(Authority::new("weft").unwrap()));
        let node = |name: &str| {
            let endpoint = AgentEndpoint {
                node: name.to_owned(),
                // Nobody listens there.
                address: "127.0.0.1:1".to_owned(),
            };
            ("default".to_owned(), endpoint)
        };
        let list = list("team-a", vec![node("n2"), node("n1")], &pool, 1).await;
        assert!(list.items.is_empty());
        let silent = list.silent_nodes.iter().map(|silent| &*silent.node);
        assert_eq!(silent.collect::<Vec<_>>(), ["n1", "n2"]);
        assert!(list.silent_nodes[0].message.contains("127.0.0.1:1"));
    }

    fn page(devices: impl IntoIterator<Item = (u32, &'static str)>) -> ListPodDevicesResponse {
        let device = |(id, namespace): (u32, &str)| agent::PodDevice {
            device: format!("vdev-{id:06}"),
            namespace: namespace.to_owned(),
            ..agent::PodDevice::default()
        };
        ListPodDevicesResponse {
            devices: devices.into_iter().map(device).collect(),
            has_more: true,
        }
    }

    #[test]
    fn the_next_page_begins_after_a_device_that_who_asks_may_not_see() {
        let room = AtomicUsize::new(ANSWER_DEVICES_MAX);
        let mut pages = Pages::new(&room);
        let first = page([(1, "team-a"), (2, "team-b")]);
        assert_eq!(pages.take(first, "team-a"), Ok(true));
        assert_eq!((pages.devices.len(), &*pages.after), (1, "vdev-000002"));
        let last = ListPodDevicesResponse {
            has_more: false,
            ..page([(3, "team-a")])
        };
        assert_eq!(pages.take(last, "team-a"), Ok(false));
        assert_eq!(pages.devices.len(), 2);
    }

    #[test]
    fn an_agent_that_says_the_same_page_again_or_an_empty_one_with_more_is_given_up() {
        let room = AtomicUsize::new(ANSWER_DEVICES_MAX);
        let mut pages = Pages::new(&room);
        assert_eq!(pages.take(page([(1, "team-b")]), "team-a"), Ok(true));
        for again in [page([(1, "team-b")]), page([(0, "team-b")]), page([])] {
            let failed = pages.take(again, "team-a");
            assert!(failed.is_err_and(|problem| problem.contains("again and again")));
        }
    }

    #[test]
    fn an_agent_that_lists_more_devices_than_a_node_can_have_is_given_up() {
        let room = AtomicUsize::new(ANSWER_DEVICES_MAX);
        let mut pages = Pages::new(&room);
        let most = DEVICES_MAX as u32;
        let all = (0..most).map(|id| (id, "team-b"));
        assert_eq!(pages.take(page(all), "team-a"), Ok(true));
        let failed = pages.take(page([(most, "team-b")]), "team-a");
        assert!(failed.is_err_and(|problem| problem.contains("65536")));
    }

    #[test]
    fn an_answer_takes_so_many_devices_and_a_node_whose_devices_have_no_room_leaves_it_to_others() {
        let room = AtomicUsize::new(3);
        let (mut many, mut few) = (Pages::new(&room), Pages::new(&room));
        let first = page([(1, "team-a"), (2, "team-a")]);
        assert_eq!(many.take(first, ""), Ok(true));
        let failed = many.take(page([(3, "team-a"), (4, "team-a")]), "");
        assert!(failed.is_err_and(|problem| problem.contains("one namespace at a time")));
        // Those that who asks may not see take none.
        let three = (0..3).map(|id| (id, "team-a"));
        let all = page(three.chain([(3, "team-b")]));
        assert_eq!(few.take(all, "team-a"), Ok(true));
        assert_eq!(room.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_has_no_limit_and_no_fault_is_absent() {
        let device = agent::PodDevice {
            pod: "trainer-0".to_owned(),
            ops_per_s: 20_000,
            reason: "DeviceLost".to_owned(),
            ..agent::PodDevice::default()
        };
        let device = shown("n1", device);
        assert_eq!((&*device.node, &*device.pod), ("n1", "trainer-0"));
        assert_eq!((device.cap_bps, device.message), (None, None));
        assert_eq!(device.operations_per_second, Some(20_000));
        assert_eq!(device.reason.as_deref(), Some("DeviceLost"));
    }
}
