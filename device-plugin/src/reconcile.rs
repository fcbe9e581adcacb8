//! What is to be done about devices, by what engine, kubelet and the container runtime's files say: a pure function of these
//! and of the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::pods::Allocation;

/// A device that no pod has for so long is destroyed. Right after a start a kubelet lists no pods.
const UNUSED_MAX: Duration = Duration::from_secs(30);
/// An engine may be silent for so long, as when its pod is replaced, before pods are refused devices: a container that starts
/// meanwhile is tried again by the kubelet, and a pod that is refused is not.
const SILENCE_MAX: Duration = Duration::from_secs(60);

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
    pub(crate) engine: Result<BTreeMap<String, EngineDevice>, String>,
    /// Those of containers, or why the kubelet's list says nothing.
    pub(crate) allocations: Result<BTreeMap<String, Allocation>, String>,
    /// Those with a file for the container runtime.
    pub(crate) described: BTreeSet<String>,
}

/// How the devices of a node are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Health {
    /// Why pods can have none.
    pub(crate) problem: Option<String>,
    /// Devices that their pods cannot use, each with the reason.
    pub(crate) unhealthy: BTreeMap<String, &'static str>,
}

impl Health {
    /// Whether a pod can have this device.
    pub(crate) fn is_good(&self, id: &str) -> bool {
        self.problem.is_none() && !self.unhealthy.contains_key(id)
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
}

/// What is remembered from one time to the next.
#[derive(Debug, Default)]
pub(crate) struct Reconciler {
    unused_since: BTreeMap<String, Duration>,
    silent_since: Option<Duration>,
    /// Devices that containers have and the engine had.
    in_use: BTreeSet<String>,
}

impl Reconciler {
    /// Decides at `now`: time since any start.
    pub(crate) fn decide(&mut self, found: &Found, now: Duration) -> Decision {
        let mut decision = Decision {
            health: self.health(found, now),
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
        let of_engine = found.engine.as_ref().unwrap_or(&none);
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
                    problem: is_late.then(|| problem.clone()),
                    ..Health::default()
                };
            }
        };
        self.silent_since = None;
        if let Ok(allocations) = &found.allocations {
            self.in_use.retain(|id| allocations.contains_key(id));
            let used = allocations.keys().filter(|id| engine.contains_key(*id));
            self.in_use.extend(used.cloned());
        }
        let stalled = engine.iter().filter(|(_, device)| device.is_stalled);
        let stalled = stalled.map(|(id, _)| (id.clone(), "its pod's memory holds up a copy"));
        let lost = self.in_use.iter().filter(|id| !engine.contains_key(*id));
        let lost = lost.map(|id| {
            let reason = "the engine ended without handing it over: restart the container";
            (id.clone(), reason)
        });
        Health {
            problem: None,
            unhealthy: stalled.chain(lost).collect(),
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
            engine: Ok(engine),
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
}
