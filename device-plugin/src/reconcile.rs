//! What is to be done about devices, by what engine, kubelet and the container runtime's files say: a pure function of these
//! and of the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weft_proto::engine::v1::{DeviceFault, DeviceHealth, RefusedAttempts};

use crate::claims::{self, Lost};
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
    /// Devices of claims that stand still, by id, with the pods that have them.
    pub(crate) stalled_of_claims: BTreeMap<String, Option<Pod>>,
    /// Why they reach no other node.
    pub(crate) link_problem: Option<String>,
    /// What it has refused.
    pub(crate) refused: Option<RefusedAttempts>,
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
    /// How many devices of claims have one. None where it cannot be read.
    pub(crate) of_claims: Option<u32>,
    /// Devices of claims that an engine has lost, with the pods that have them.
    pub(crate) lost_of_claims: Lost,
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
    /// None where the kubelet has not said.
    pub(crate) pod: Option<Pod>,
}

/// The pod of this name, NAMESPACE/NAME.
pub(crate) fn pod_named(name: &str) -> Option<Pod> {
    let (namespace, name) = name.split_once('/')?;
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Some(Pod { namespace, name })
}

/// Devices of claims that an engine had lost, as the device plugin said last.
pub(crate) fn lost_in(said: &DeviceHealth) -> Lost {
    let devices = said.devices.iter().filter(|device| {
        device.reason == Fault::DeviceLost.reason() && device.device.starts_with(claims::ID_PREFIX)
    });
    let lost = devices.filter_map(|device| Some((device.device.clone(), pod_named(&device.pod)?)));
    lost.collect()
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
    pub(crate) fn to_proto(&self, in_use: InUse) -> DeviceHealth {
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
            in_use: in_use.by_resource.saturating_add(in_use.by_claims),
            by_claims: in_use.by_claims,
            // Said beside it.
            refused: None,
            made: Vec::new(),
        }
    }
}

/// How many devices pods have, as the kubelet and the files of claims said last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct InUse {
    pub(crate) by_resource: u32,
    pub(crate) by_claims: u32,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Decision {
    /// To destroy, with their files.
    pub(crate) destroy: Vec<String>,
    /// To write files for, each with the container's index of it.
    pub(crate) describe: Vec<(String, usize)>,
    pub(crate) health: Health,
    pub(crate) in_use: InUse,
}

/// What is remembered from one time to the next.
#[derive(Debug, Default)]
pub(crate) struct Reconciler {
    unused_since: BTreeMap<String, Duration>,
    silent_since: Option<Duration>,
    link_down_since: Option<Duration>,
    /// Devices that containers have and the engine had.
    in_use: BTreeSet<String>,
    counts: InUse,
    /// How devices were when the engine answered last.
    last: Health,
    /// What it had refused then.
    pub(crate) refused: Option<RefusedAttempts>,
}

impl Reconciler {
    /// Goes on from what the device plugin said last before it was restarted.
    pub(crate) fn resume(said: &DeviceHealth) -> Self {
        let known = said.devices.iter().filter_map(|device| {
            let fault = match device.reason.as_str() {
                "DeviceLost" => Fault::DeviceLost,
                "DeviceStalled" => Fault::DeviceStalled,
                _ => return None,
            };
            let pod = pod_named(&device.pod);
            Some((device.device.clone(), Unhealthy { fault, pod }))
        });
        let unhealthy: BTreeMap<String, Unhealthy> = known.collect();
        let lost = unhealthy.iter().filter(|(id, device)| {
            // Those of claims are found otherwise.
            device.fault == Fault::DeviceLost && !id.starts_with(claims::ID_PREFIX)
        });
        // One of an earlier release names the lost ones only.
        let made = lost.map(|(id, _)| id).chain(&said.made);
        Self {
            in_use: made.cloned().collect(),
            counts: InUse {
                by_resource: said.in_use.saturating_sub(said.by_claims),
                by_claims: said.by_claims,
            },
            last: Health {
                problem: None,
                unhealthy,
            },
            refused: said.refused,
            ..Self::default()
        }
    }

    /// What the node's agent is told of a decision, and the next device plugin goes on from.
    pub(crate) fn said(&self, decision: &Decision) -> DeviceHealth {
        DeviceHealth {
            refused: self.refused,
            made: self.in_use.iter().cloned().collect(),
            ..decision.health.to_proto(decision.in_use)
        }
    }

    /// Decides at `now`: time since any start.
    pub(crate) fn decide(&mut self, found: &Found, now: Duration) -> Decision {
        if let Ok(allocations) = &found.allocations {
            self.counts.by_resource = u32::try_from(allocations.len()).unwrap_or(u32::MAX);
        }
        let by_claims = &mut self.counts.by_claims;
        *by_claims = found.of_claims.unwrap_or(*by_claims);
        let mut decision = Decision {
            health: self.health(found, now),
            in_use: self.counts,
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
                if now.saturating_sub(since) < SILENCE_MAX {
                    // What was wrong is not mended by an engine that is replaced.
                    return self.last.clone();
                }
                return Health {
                    problem: Some(Fault::EngineAway(problem.clone())),
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
        let stalled_of_claims = engine.stalled_of_claims.iter().map(|(id, pod)| {
            let (fault, pod) = (Fault::DeviceStalled, pod.clone());
            (id.clone(), Unhealthy { fault, pod })
        });
        let lost_of_claims = found.lost_of_claims.iter().map(|(id, pod)| {
            let (fault, pod) = (Fault::DeviceLost, Some(pod.clone()));
            (id.clone(), Unhealthy { fault, pod })
        });
        let of_claims = stalled_of_claims.chain(lost_of_claims);
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
        let pod = |id: &String| match &found.allocations {
            Ok(allocations) => Some(allocations.get(id)?.pod.clone()),
            Err(_) => self.last.unhealthy.get(id)?.pod.clone(),
        };
        let unhealthy = stalled.chain(lost).map(|(id, fault)| {
            let pod = pod(id);
            (id.clone(), Unhealthy { fault, pod })
        });
        self.last = Health {
            problem: link_problem.cloned().map(Fault::LinkDown),
            unhealthy: unhealthy.chain(of_claims).collect(),
        };
        self.last.clone()
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
                ..OfEngine::default()
            }),
            allocations: Ok(pods.iter().map(allocation).collect()),
            of_claims: Some(0),
            lost_of_claims: Lost::new(),
        }
    }

    fn silent(found: Found) -> Found {
        Found {
            engine: Err("it does not answer".to_owned()),
            ..found
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
        let silent = silent(found(&[], &[]));
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
        let away = silent(found(&[], &[]));
        assert_eq!(told(&away, 2).node, None);
        let node = told(&away, 62).node.unwrap_or_default();
        assert_eq!((&*node.reason, &*node.device), ("EngineAway", ""));
    }

    #[test]
    fn what_is_wrong_stays_wrong_while_an_engine_is_replaced() {
        let mut reconciler = Reconciler::default();
        let stalled = EngineDevice {
            is_stalled: true,
            ..IDLE
        };
        let pods = ["a", "b"];
        reconciler.decide(&found(&[("a", stalled), ("b", IDLE)], &pods), at(0));
        let mut down = found(&[("a", stalled)], &pods);
        if let Ok(engine) = &mut down.engine {
            engine.link_problem = Some("eth0 has no carrier".to_owned());
        }
        reconciler.decide(&down, at(1));
        let before = reconciler.decide(&down, at(11)).health;
        assert_eq!(before.unhealthy.len(), 2);
        assert!(matches!(before.problem, Some(Fault::LinkDown(_))));
        let away = silent(found(&[], &pods));
        assert_eq!(reconciler.decide(&away, at(12)).health, before);
        assert_eq!(reconciler.decide(&away, at(71)).health, before);
        let late = reconciler.decide(&away, at(72)).health;
        assert!(matches!(late.problem, Some(Fault::EngineAway(_))));
        let well = found(&[("a", IDLE), ("b", IDLE)], &pods);
        assert_eq!(reconciler.decide(&well, at(73)).health, Health::default());
    }

    #[test]
    fn a_device_plugin_that_is_restarted_goes_on_from_what_it_said_last() {
        let mut reconciler = Reconciler::default();
        let all = Found {
            of_claims: Some(3),
            ..found(&[("a", IDLE), ("b", IDLE)], &["a", "b"])
        };
        reconciler.decide(&all, at(0));
        let lost = Found {
            of_claims: Some(3),
            ..found(&[("b", IDLE)], &["a", "b"])
        };
        let told = |reconciler: &mut Reconciler, found: &Found| {
            let decision = reconciler.decide(found, at(1));
            reconciler.said(&decision)
        };
        let said = told(&mut reconciler, &lost);
        assert_eq!((said.devices.len(), said.in_use), (1, 5));
        let unheard = Found {
            allocations: Err("it has not heard of this node's pods yet".to_owned()),
            ..lost.clone()
        };
        for found in [&unheard, &silent(unheard.clone()), &lost] {
            let mut reconciler = Reconciler::resume(&said);
            assert_eq!(told(&mut reconciler, found), said);
        }
        // Its pod has gone meanwhile.
        let mut reconciler = Reconciler::resume(&said);
        let gone = told(&mut reconciler, &found(&[("b", IDLE)], &["b"]));
        assert_eq!((gone.devices.len(), gone.in_use), (0, 1));
    }

    #[test]
    fn a_device_that_is_lost_while_no_device_plugin_runs_is_told_from_one_that_was_never_made() {
        let mut reconciler = Reconciler::default();
        let before = found(&[("a", IDLE), ("b", IDLE)], &["a", "b", "c"]);
        let decision = reconciler.decide(&before, at(0));
        let said = reconciler.said(&decision);
        assert!(said.devices.is_empty());
        // Engine and device plugin have been killed, and the container that is to have `c` has not started yet.
        let mut reconciler = Reconciler::resume(&said);
        let decision = reconciler.decide(&found(&[], &["a", "b", "c"]), at(0));
        let said = reconciler.said(&decision);
        let lost = said.devices.iter().map(|it| (&*it.device, &*it.reason));
        let lost: Vec<(&str, &str)> = lost.collect();
        assert_eq!(lost, [("a", "DeviceLost"), ("b", "DeviceLost")]);
        // They stay lost for the next one, until they are made again.
        let mut reconciler = Reconciler::resume(&said);
        let health = reconciler.decide(&found(&[("a", IDLE)], &["a", "b", "c"]), at(0));
        assert!(health.health.unhealthy.keys().eq(["b"]));
    }

    #[test]
    fn devices_of_claims_are_counted_as_before_while_their_files_cannot_be_read() {
        let mut reconciler = Reconciler::default();
        let mut in_use = |of_claims| {
            let found = Found {
                of_claims,
                ..found(&[("a", IDLE)], &["a"])
            };
            let InUse {
                by_resource,
                by_claims,
            } = reconciler.decide(&found, at(0)).in_use;
            (by_resource, by_claims)
        };
        let counts = [in_use(Some(3)), in_use(None), in_use(Some(0))];
        assert_eq!(counts, [(1, 3), (1, 3), (1, 0)]);
    }

    #[test]
    fn a_device_of_a_claim_that_stands_still_is_unhealthy_and_never_destroyed() {
        let mut reconciler = Reconciler::default();
        let pod = pod_named("team-a/pod");
        assert!(pod.is_some());
        let mut found = found(&[], &[]);
        if let Ok(engine) = &mut found.engine {
            let stalled = ("dra-a-0".to_owned(), pod.clone());
            engine.stalled_of_claims = BTreeMap::from([stalled]);
        }
        for seconds in [0, 1000] {
            let decision = reconciler.decide(&found, at(seconds));
            let fault = Fault::DeviceStalled;
            let unhealthy = Unhealthy {
                fault,
                pod: pod.clone(),
            };
            assert_eq!(decision.health.unhealthy.get("dra-a-0"), Some(&unhealthy));
            assert!(decision.destroy.is_empty());
        }
    }

    #[test]
    fn a_device_of_a_claim_that_an_engine_has_lost_is_unhealthy() {
        let pod = pod_named("team-a/pod").unwrap();
        let lost = Found {
            lost_of_claims: [("dra-a-0".to_owned(), pod)].into(),
            ..found(&[], &[])
        };
        let mut reconciler = Reconciler::default();
        let decision = reconciler.decide(&lost, at(0));
        let said = decision.health.to_proto(decision.in_use);
        let [device] = said.devices.as_slice() else {
            panic!("{said:?}")
        };
        assert_eq!(
            [&*device.device, &*device.reason, &*device.pod],
            ["dra-a-0", "DeviceLost", "team-a/pod"]
        );
        // Of another device plugin, the driver of claims goes on with it.
        assert_eq!(lost_in(&said), lost.lost_of_claims);
        let mut reconciler = Reconciler::resume(&said);
        let unheard = Found {
            allocations: Err("it has not heard of this node's pods yet".to_owned()),
            ..found(&[], &[])
        };
        assert!(reconciler.decide(&unheard, at(0)).health.is_good("dra-a-0"));
    }
}
