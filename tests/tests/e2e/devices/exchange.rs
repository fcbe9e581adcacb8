//! Pods whose programs exchange messages over all their devices until they are told to end.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::{Devices, PORT, TEAM};

/// `exchange listen CONNECTIONS`, `exchange connect ADDRESS`: each compares every byte.
const SOURCE: &str = include_str!("../../../verbs/exchange.c");
/// The program, and the ConfigMap that it is in.
const EXCHANGE: &str = "exchange";

/// Programs that are at it.
pub(super) struct Exchange<'a> {
    devices: &'a Devices,
    /// The one that listens comes first.
    pods: Vec<String>,
}

impl<'a> Exchange<'a> {
    /// From every device of the other pods to the first one. Returns when all connections have carried messages.
    pub(super) fn begin(
        devices: &'a Devices,
        listener: Value,
        others: Vec<Value>,
        connections: u64,
    ) -> Self {
        let cluster = &devices.cluster;
        cluster.apply(&program(devices));
        let start = |pod: Value, words: [&str; 2]| {
            let pod = with_program(pod, words);
            cluster.apply(&pod);
            pod["metadata"]["name"].as_str().unwrap().to_owned()
        };
        let first = start(listener, ["listen", &connections.to_string()]);
        devices.wait_for(TEAM, &first);
        cluster.wait_until("the program listens", || {
            devices.listens((TEAM, &first), PORT).then_some(())
        });
        let address = devices.address(TEAM, &first);
        let others = others.into_iter();
        let others: Vec<String> = others
            .map(|pod| start(pod, ["connect", &address]))
            .collect();
        for name in &others {
            devices.wait_for(TEAM, name);
        }
        cluster.wait_until("all connections carry messages", || {
            let said = cluster.kubectl(&["logs", &first, "--namespace", TEAM]);
            let text = format!("{connections} connections exchange messages");
            said.contains(&text).then_some(())
        });
        let pods = [vec![first], others].concat();
        Self { devices, pods }
    }

    /// All must run still and be the same, and end well.
    pub(super) fn end(self) {
        let devices = self.devices;
        let cluster = &devices.cluster;
        for name in &self.pods {
            let path = "-o=jsonpath={.status.phase}";
            let phase = cluster.kubectl(&["get", "pod", name, "--namespace", TEAM, path]);
            if phase != "Running" {
                let said = cluster.kubectl(&["logs", name, "--namespace", TEAM]);
                cluster.fail(&format!("{name} is {phase}: {said}"));
            }
        }
        devices.run((TEAM, &self.pods[0]), &["kill", "1"]);
        for name in &self.pods {
            let pod = format!("pod/{name}");
            let ended = "--for=jsonpath={.status.phase}=Succeeded";
            let ended = ["wait", ended, &pod, "--timeout=30s", "--namespace", TEAM];
            let ended = cluster.inner.kubectl(&ended);
            let said = cluster.kubectl(&["logs", name, "--namespace", TEAM]);
            if let Err(error) = ended {
                cluster.fail(&format!("{error}: {said}"));
            }
            println!("  {name}: {}", said.lines().last().unwrap_or_default());
            devices.delete(TEAM, name);
        }
    }
}

/// A ConfigMap with the program.
fn program(devices: &Devices) -> Value {
    let scratch = devices.cluster.scratch.path();
    let [source, program] = ["exchange.c", EXCHANGE].map(|name| scratch.join(name));
    fs::write(&source, SOURCE).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).args([&program, &source]);
    let built = compiler.arg("-libverbs").output().unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let from = format!("--from-file={}", program.display());
    let made = ["create", "configmap", EXCHANGE, "--namespace", TEAM, &from];
    devices
        .cluster
        .json(&[&made[..], &["--dry-run=client"]].concat())
}

/// A program that fails is not started again.
fn with_program(mut pod: Value, words: [&str; 2]) -> Value {
    let spec = &mut pod["spec"];
    spec["restartPolicy"] = json!("Never");
    spec["volumes"] = json!([{
        "name": "program",
        "configMap": {"name": EXCHANGE, "defaultMode": 0o555},
    }]);
    let container = &mut spec["containers"][0];
    container["command"] = json!(["/program/exchange", words[0], words[1]]);
    container["volumeMounts"] = json!([{"name": "program", "mountPath": "/program"}]);
    pod
}
