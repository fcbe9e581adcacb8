//! What is to be done about devices, by what engine, kubelet and the container runtime's files say: a pure function of these
//! and of the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weft_proto::engine::v1::{DeviceFault, DeviceHealth};

use crate::pods::{Allocation, Pod};

/// A device that no pod has for so long is destroyed. Right after a start a kubelet lists no pods.
const UNUSED_MAX: Duration = Duration::from_secs(30);
/// An engine may be silent for so long, as when its pod is replaced, before pods are refused devices: a container that starts
/// meanwhile is tried again by the kubelet, and a pod that is refused is not.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A link may be down for so long, as when a switch port comes up again, before pods are refused devices.
const LINK_DOWN_MAX: Duration = Duration::from_secs(10);

/// What the engine says.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfEngine {
    /// By id.
    pub(crate) devices: BTreeMap<String, EngineDevice>,
    /// Why they reach no other node.
    pub(crate) link_problem: Option<String>,
}

/// A device of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineDevice {
    pub(crate) is_open: bool,
    /// It stands still: the memory of its pod holds up a copy.
    pub(crate) is_stalled: bool,
}

/// What was found, by the ids of devices.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The engine's, or why it does not answer.
    pub(crate) engine: Result<OfEngine, String>,
    /// Those of containers, or why the kubelet's list says nothing.
    pub(crate) allocations: Result<BTreeMap<String, Allocation>, String>,
    /// Those with a file for the container runtime.
    pub(crate) described: BTreeSet<String>,
}

/// Why a pod cannot use a device, or cannot have one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// It is the cause of all devices of the node.
    #[error("{0}: see the log of the node's weft-engine")]
    EngineAway(String),
    /// Likewise.
    #[error("the node's data link is down: {0}: see ip link on the node, and the switch")]
    LinkDown(String),
    #[error("its pod's memory holds up a copy: end the program that has it open")]
    DeviceStalled,
    #[error("the engine ended without handing it over: restart the container")]
    DeviceLost,
}

impl Fault {
    /// Stable: the same in logs, conditions, Events and metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::EngineAway(_) => "EngineAway",
            Self::LinkDown(_) => "LinkDown",
            Self::DeviceStalled => "DeviceStalled",
            Self::DeviceLost => "DeviceLost",
        }
    }
}

/// A device that its pod cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unhealthy {
    pub(crate) fault: Fault,
    /// None where the kubelet does not say.
    pub(crate) pod: Option<Pod>,
}

/// How the devices of a node are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Health {
    /// Why pods can have none.
    pub(crate) problem: Option<Fault>,
    /// Devices that their pods cannot use, by id.
    pub(crate) unhealthy: BTreeMap<String, Unhealthy>,
}

impl Health {
    /// Whether a pod can have this device.
    pub(crate) fn is_good(&self, id: &str) -> bool {
        self.problem.is_none() && !self.unhealthy.contains_key(id)
    }

    /// As the node's agent reads it.
    pub(crate) fn to_proto(&self, in_use: u32) -> DeviceHealth {
        let fault = |fault: &Fault| DeviceFault {
            reason: fault.reason().to_owned(),
            message: fault.to_string(),
            ..DeviceFault::default()
        };
        let device = |(id, device): (&String, &Unhealthy)| DeviceFault {
            device: id.clone(),
            pod: device.pod.as_ref().map(Pod::to_string).unwrap_or_default(),
            ..fault(&device.fault)
        };
        DeviceHealth {
            node: self.problem.as_ref().map(fault),
            devices: self.unhealthy.iter().map(device).collect(),
            in_use,
        }
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Decision {
    /// To destroy, with their files.
    pub(crate) destroy: Vec<String>,
    /// To write files for, each with the container's index of it.
    pub(crate) describe: Vec<(String, usize)>,
    pub(crate) health: Health,
    /// How many devices pods have, as the kubelet said last.
    pub(crate) in_use: u32,
}

/// What is remembered from one time to the next.
#[derive(Debug, Default)]
pub(crate) struct Reconciler {
    unused_since: BTreeMap<String, Duration>,
    silent_since: Option<Duration>,
    link_down_since: Option<Duration>,
    /// Devices that containers have and the engine had.
    in_use: BTreeSet<String>,
    /// How many devices the kubelet said last that containers have.
    allocated: u32,
}

impl Reconciler {
    /// Decides at `now`: time since any start.
    pub(crate) fn decide(&mut self, found: &Found, now: Duration) -> Decision {
        if let Ok(allocations) = &found.allocations {
            self.allocated = u32::try_from(allocations.len()).unwrap_or(u32::MAX);
        }
        let mut decision = Decision {
            health: self.health(found, now),
            in_use: self.allocated,
            ..Decision::default()
        };
        let Ok(allocations) = &found.allocations else {
            // Nothing is known to be unused.
            self.unused_since.clear();
            return decision;
        };
        for (id, allocation) in allocations {
            // Never over one that is there: that of an init container has its own index.
            if !found.described.contains(id) {
                decision.describe.push((id.clone(), allocation.index));
            }
        }
        let none = BTreeMap::new();
        let of_engine = found.engine.as_ref();
        let of_engine = of_engine.map_or(&none, |engine| &engine.devices);
        let made = of_engine.keys().chain(&found.described);
        let is_open = |id: &String| of_engine.get(id).is_some_and(|device| device.is_open);
        let unused = made.filter(|id| !allocations.contains_key(*id) && !is_open(id));
        let unused: BTreeSet<String> = unused.cloned().collect();
        self.unused_since.retain(|id, _| unused.contains(id));
        for id in unused {
            let since = *self.unused_since.entry(id.clone()).or_insert(now);
            if now.saturating_sub(since) >= UNUSED_MAX {
                decision.destroy.push(id);
            }
        }
        decision
    }

    fn health(&mut self, found: &Found, now: Duration) -> Health {
        let engine = match &found.engine {
            Ok(engine) => engine,
            Err(problem) => {
                let since = *self.silent_since.get_or_insert(now);
                let is_late = now.saturating_sub(since) >= SILENCE_MAX;
                return Health {
                    problem: is_late.then(|| Fault::EngineAway(problem.clone())),
                    ..Health::default()
                };
            }
        };
        self.silent_since = None;
        let link_problem = engine.link_problem.as_ref().filter(|_| {
            let since = *self.link_down_since.get_or_insert(now);
            now.saturating_sub(since) >= LINK_DOWN_MAX
        });
        if engine.link_problem.is_none() {
            self.link_down_since = None;
        }
        let engine = &engine.devices;
        if let Ok(allocations) = &found.allocations {
            self.in_use.retain(|id| allocations.contains_key(id));
            let used = allocations.keys().filter(|id| engine.contains_key(*id));
            self.in_use.extend(used.cloned());
        }
        let stalled = engine.iter().filter(|(_, device)| device.is_stalled);
        let stalled = stalled.map(|(id, _)| (id, Fault::DeviceStalled));
        let lost = self.in_use.iter().filter(|id| !engine.contains_key(*id));
        let lost = lost.map(|id| (id, Fault::DeviceLost));
        let pod = |id: &String| {
            let allocation = found.allocations.as_ref().ok()?.get(id)?;
            Some(allocation.pod.clone())
        };
        let unhealthy = stalled.chain(lost).map(|(id, fault)| {
            let pod = pod(id);
            (id.clone(), Unhealthy { fault, pod })
        });
        Health {
            problem: link_problem.cloned().map(Fault::LinkDown),
            unhealthy: unhealthy.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::Pod;

    const IDLE: EngineDevice = EngineDevice {
        is_open: false,
        is_stalled: false,
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn found(engine: &[(&str, EngineDevice)], pods: &[&str]) -> Found {
        let allocation = |id: &&str| {
            let pod = Pod {
                namespace: "team-a".to_owned(),
                name: "pod".to_owned(),
            };
            ((*id).to_owned(), Allocation { pod, index: 0 })
        };
        let engine = engine
            .iter()
            .map(|(id, device)| ((*id).to_owned(), *device));
        let engine: BTreeMap<String, EngineDevice> = engine.collect();
        Found {
            described: engine.keys().cloned().collect(),
            engine: Ok(OfEngine {
                devices: engine,
                link_problem: None,
            }),
            allocations: Ok(pods.iter().map(allocation).collect()),
        }
    }

    #[test]
    fn a_device_is_destroyed_when_no_pod_has_had_it_for_thirty_seconds() {
        let mut reconciler = Reconciler::default();
        let mut destroyed = |pods: &[&str], seconds| {
            let found = found(&[("a", IDLE), ("b", IDLE)], pods);
            reconciler.decide(&found, at(seconds)).destroy
        };
        assert!(destroyed(&["a"], 0).is_empty());
        assert!(destroyed(&["a"], 29).is_empty());
        // A pod has it after all.
        assert!(destroyed(&["a", "b"], 30).is_empty());
        assert!(destroyed(&["a"], 31).is_empty());
        assert_eq!(destroyed(&["a"], 61), ["b"]);
    }

    #[test]
    fn a_device_that_is_open_or_of_which_the_kubelet_says_nothing_is_never_destroyed() {
        let mut reconciler = Reconciler::default();
        let open = EngineDevice {
            is_open: true,
            ..IDLE
        };
        let open = found(&[("a", open)], &[]);
        let silent = Found {
            allocations: Err("it lists no pod".to_owned()),
            ..found(&[("a", IDLE)], &[])
        };
        for found in [open, silent] {
            for seconds in [0, 1000] {
                assert!(reconciler.decide(&found, at(seconds)).destroy.is_empty());
            }
        }
    }

    #[test]
    fn a_file_that_is_missing_is_written_and_another_left_as_it_is() {
        let mut found = found(&[("a", IDLE), ("b", IDLE)], &["a", "b"]);
        found.described.remove("b");
        let decision = Reconciler::default().decide(&found, at(0));
        assert_eq!(decision.describe, [("b".to_owned(), 0)]);
    }

    #[test]
    fn an_engine_is_silent_for_a_minute_before_pods_are_refused_devices() {
        let mut reconciler = Reconciler::default();
        let silent = Found {
            engine: Err("it does not answer".to_owned()),
            ..found(&[], &[])
        };
        let mut is_good = |found: &Found, seconds| {
            let health = reconciler.decide(found, at(seconds)).health;
            health.is_good("a")
        };
        assert!(is_good(&silent, 0));
        assert!(is_good(&silent, 59));
        assert!(!is_good(&silent, 60));
        assert!(is_good(&found(&[], &[]), 61));
        assert!(is_good(&silent, 62));
    }

    #[test]
    fn a_link_is_down_for_ten_seconds_before_pods_are_refused_devices() {
        let mut reconciler = Reconciler::default();
        let down = Found {
            engine: Ok(OfEngine {
                link_problem: Some("eth0 has no carrier".to_owned()),
                ..OfEngine::default()
            }),
            ..found(&[], &[])
        };
        let mut problem = |found: &Found, seconds| {
            let problem = reconciler.decide(found, at(seconds)).health.problem;
            problem.map(|fault| fault.reason())
        };
        assert_eq!(problem(&down, 0), None);
        assert_eq!(problem(&down, 9), None);
        assert_eq!(problem(&found(&[], &[]), 10), None);
        assert_eq!(problem(&down, 11), None);
        assert_eq!(problem(&down, 21), Some("LinkDown"));
        assert_eq!(problem(&found(&[], &[]), 22), None);
    }

    #[test]
    fn a_device_that_an_engine_has_lost_under_its_pod_is_unhealthy_until_it_is_made_again() {
        let mut reconciler = Reconciler::default();
        let mut is_good = |found: &Found| reconciler.decide(found, at(0)).health.is_good("a");
        // Its container has not started yet.
        assert!(is_good(&found(&[], &["a"])));
        assert!(is_good(&found(&[("a", IDLE)], &["a"])));
        assert!(!is_good(&found(&[], &["a"])));
        assert!(is_good(&found(&[("a", IDLE)], &["a"])));
        assert!(!is_good(&found(&[], &["a"])));
        // Its pod has gone.
        assert!(is_good(&found(&[], &[])));
        let stalled = EngineDevice {
            is_stalled: true,
            ..IDLE
        };
        assert!(!is_good(&found(&[("a", stalled)], &["a"])));
    }

    #[test]
    fn what_is_told_of_an_unhealthy_device_names_the_reason_and_the_pod() {
        let mut reconciler = Reconciler::default();
        let mut told = |found: &Found, seconds| {
            let decision = reconciler.decide(found, at(seconds));
            decision.health.to_proto(decision.in_use)
        };
        let stalled = EngineDevice {
            is_stalled: true,
            ..IDLE
        };
        let all = [("a", stalled), ("b", IDLE), ("c", IDLE)];
        assert_eq!(told(&found(&all, &["a", "b"]), 0).devices.len(), 1);
        let health = told(&found(&all[..1], &["a", "b"]), 1);
        let words = health.devices.iter().map(|fault| {
            let DeviceFault {
                device,
                reason,
                pod,
                ..
            } = fault;
            [device.as_str(), reason, pod]
        });
        let words: Vec<[&str; 3]> = words.collect();
        assert_eq!(
            words,
            [
                ["a", "DeviceStalled", "team-a/pod"],
                ["b", "DeviceLost", "team-a/pod"]
            ]
        );
        assert_eq!((health.node, health.in_use), (None, 2));
        let away = Found {
            engine: Err("it does not answer".to_owned()),
            ..found(&[], &[])
        };
        assert_eq!(told(&away, 2).node, None);
        let node = told(&away, 62).node.unwrap_or_default();
        assert_eq!((&*node.reason, &*node.device), ("EngineAway", ""));
    }
}
