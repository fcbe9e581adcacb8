use insta::assert_snapshot;
use serde_json::json;
use weft_crds::{NodeFacts, Reach as Reached, live_api_version};

use super::*;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn node(name: &str, mtu: u32) -> FabricNode {
    serde_json::from_value(json!({
        "apiVersion": "weft.dev/v1alpha1", "kind": "FabricNode", "metadata": {"name": name},
        "spec": {"fabric": "default"},
        "status": {
            "mtu": mtu, "version": "0.1.0", "certificateExpires": "2027-01-15T20:00:00Z",
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "AgentReady",
                "message": "the agent reports and can work", "lastTransitionTime": "2027-01-15T00:00:00Z",
            }],
        },
    }))
    .unwrap()
}

fn fabric(name: &str, conditions: &[serde_json::Value]) -> RdmaFabric {
    serde_json::from_value(json!({
        "apiVersion": "weft.dev/v1alpha1", "kind": "RdmaFabric", "metadata": {"name": name},
        "spec": {"nodeSelector": {}, "roots": []},
        "status": {"conditions": conditions},
    }))
    .unwrap()
}

fn reached(node: &str, packet_bytes: u32) -> Reached {
    Reached {
        node: node.to_owned(),
        packet_bytes,
        ports: 16,
        silent_ports: Vec::new(),
        link: String::new(),
        error: String::new(),
    }
}

fn well(node: &str, peer: &str) -> Examined {
    let diagnosis = Diagnosis {
        api_version: live_api_version(),
        kind: Diagnosis::KIND.to_owned(),
        node: node.to_owned(),
        operator_version: "0.1.0".to_owned(),
        clock_ahead_ms: 3,
        facts: NodeFacts {
            kernel: "6.18.5".to_owned(),
            gso: true,
            gro: true,
            receive_buffer_wanted: 8 << 20,
            receive_buffer_granted: 8 << 20,
            send_buffer_wanted: 1 << 20,
            send_buffer_granted: 1 << 20,
            memory_limit: 0,
            memory_budget: 256 << 20,
        },
        reaches: vec![reached(peer, 1500), reached(peer, 9000)],
    };
    Examined {
        node: node.to_owned(),
        diagnosis: Some(diagnosis),
        error: None,
    }
}

fn report(fabrics: &[RdmaFabric], nodes: &[FabricNode], examined: Vec<Examined>) -> String {
    let findings = find(fabrics, nodes, &examined, now());
    let report = Report { examined, findings };
    let view = View {
        report: &report,
        is_wide: false,
    };
    view.to_string()
}

#[test]
fn where_nothing_is_wrong_what_was_measured_stands_alone() {
    let nodes = [node("n1", 9000), node("n2", 9000)];
    assert_snapshot!(report(
        &[fabric("default", &[])],
        &nodes,
        vec![well("n1", "n2"), well("n2", "n1")]
    ));
}

#[test]
fn a_wide_table_has_what_the_agents_memory_is_made_of_besides() {
    let mut one = well("n1", "n2");
    let facts = &mut one.diagnosis.as_mut().unwrap().facts;
    facts.send_buffer_granted = 4_000_000;
    facts.memory_budget = 256_000_000;
    facts.memory_limit = 0;
    let report = Report {
        examined: vec![one],
        findings: Vec::new(),
    };
    let view = View {
        report: &report,
        is_wide: true,
    };
    let shown = view.to_string();
    let mut lines = shown.lines();
    let head = lines.next().unwrap();
    assert!(
        head.ends_with("clock  send buffer  agent buffers  memory limit"),
        "{shown}"
    );
    let line: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert!(line.ends_with(&["4", "MB", "256", "MB", "none"]), "{shown}");
}

#[test]
fn every_finding_has_its_fix() {
    let mut nodes = [
        node("n1", 9000),
        node("n2", 9000),
        node("n3", 1500),
        node("n4", 9000),
    ];
    let status = |node: &mut FabricNode| node.status.take().unwrap();
    let mut ending = status(&mut nodes[1]);
    ending.certificate_expires = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        Timestamp::from_second(1_800_000_600).unwrap(),
    ));
    ending.version = "0.0.9".to_owned();
    ending.findings = vec![weft_crds::Finding {
        reason: "RootMissing".to_owned(),
        message: "root models: make the directory".to_owned(),
    }];
    let said = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
               "lastTransitionTime": "2027-01-15T00:00:00Z"})
    };
    nodes[1].status = Some(ending);
    let fabrics = [
        fabric(
            "default",
            &[
                said(
                    "Ready",
                    "False",
                    "NodesNotReady",
                    "1 of 4 nodes is not ready",
                ),
                said(
                    "Conflicting",
                    "False",
                    "NoConflict",
                    "no other fabric selects its nodes",
                ),
                said(
                    "AgentsApplied",
                    "False",
                    "WriteRefused",
                    "DaemonSet weft-agent-default cannot be written: correct the values below agent",
                ),
            ],
        ),
        fabric(
            "younger",
            &[
                said(
                    "Conflicting",
                    "True",
                    "NodesTaken",
                    "n1 is in fabric default",
                ),
                said(
                    "Ready",
                    "False",
                    "NoNodes",
                    "label the nodes, or correct it",
                ),
            ],
        ),
    ];
    nodes[3].status = None;

    let mut first = well("n1", "n2");
    let told = first.diagnosis.as_mut().unwrap();
    told.clock_ahead_ms = -600_000;
    told.facts.gso = false;
    told.facts.receive_buffer_granted = 425_984;
    told.facts.memory_limit = 128 << 20;
    // Jumbo frames do not arrive at n2, three ports of n3 are closed, and n5 is not reached at all.
    told.reaches[1].silent_ports = (7500..7516).collect();
    told.reaches.push(Reached {
        silent_ports: vec![7500, 7501, 7510],
        ..reached("n3", 1500)
    });
    // The larger ones fail at the same ports: that is said once.
    told.reaches.push(Reached {
        silent_ports: vec![7500, 7501, 7510],
        ..reached("n3", 9000)
    });
    told.reaches.push(Reached {
        silent_ports: (7500..7516).collect(),
        ..reached("n5", 1500)
    });
    told.reaches.push(Reached {
        error: "Network is unreachable (os error 101)".to_owned(),
        ..reached("n6", 1500)
    });
    for packet_bytes in [1500, 9000] {
        told.reaches.push(Reached {
            silent_ports: vec![7500],
            link: "tcp".to_owned(),
            ..reached("n7", packet_bytes)
        });
    }
    let lost = Examined {
        node: "n2".to_owned(),
        diagnosis: None,
        error: Some("node n2 at 10.0.0.2:7400 does not answer".to_owned()),
    };
    assert_snapshot!(report(&fabrics, &nodes, vec![first, lost]));
}

#[test]
fn a_cluster_without_nodes_is_not_well() {
    let found = find(&[], &[], &[], now());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].problem, "no node is in a fabric");
}
