use weft_crds::NodeDevices;
use weft_proto::operator::v1::DeviceReport;

use super::*;

/// What the agent of n2 reports of eight devices, of which pods have three.
fn report(stage: &mut Stage, unhealthy: u32, reason: &str, message: &str) {
    let state = stage.reports.get_mut("n2").unwrap();
    state.report.devices = Some(DeviceReport {
        total: 8,
        in_use: 3,
        by_claims: 1,
        unhealthy,
        reason: reason.to_owned(),
        message: message.to_owned(),
    });
}

/// The condition of n2 then, and its Events.
fn settled(stage: &mut Stage) -> (Option<String>, Vec<String>) {
    let requests = stage.decide();
    let events = requests.iter().flat_map(|request| &request.events);
    let events = events.map(|one| format!("{} {}: {}", one.warning, one.reason, one.note));
    let events = events.collect();
    stage.settle();
    let node = stage.cache.fabric_nodes.named("n2").unwrap();
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.filter(|condition| condition.type_ == "DevicesHealthy");
    let condition = conditions.next();
    let condition = condition.map(|one| format!("{} {}", one.status, one.reason));
    (condition, events)
}

fn counted(stage: &Stage) -> Option<NodeDevices> {
    let node = stage.cache.fabric_nodes.named("n2").unwrap();
    node.status.as_ref().unwrap().devices
}

fn stage() -> Stage {
    let mut stage = Stage::new();
    for node in ["n1", "n2", "n3"] {
        stage.add_report(node, 0);
    }
    stage.settle();
    stage
}

#[test]
fn a_node_says_how_many_devices_it_has_and_why_pods_cannot_use_them() {
    let mut stage = stage();
    assert_eq!((counted(&stage), settled(&mut stage).0), (None, None));
    let told = |condition: &str, events: &[&str]| {
        let events = events.iter().map(|event| (*event).to_owned());
        (Some(condition.to_owned()), events.collect::<Vec<String>>())
    };
    report(&mut stage, 0, "", "");
    assert_eq!(settled(&mut stage), told("True AllHealthy", &[]));
    let all = NodeDevices {
        total: 8,
        in_use: 3,
        by_claims: 1,
        unhealthy: 0,
    };
    assert_eq!(counted(&stage), Some(all));
    let lost = "vdev-00003 of pod team-a/a: restart the container";
    report(&mut stage, 1, "DeviceLost", lost);
    let event = format!("true DeviceLost: {lost}");
    assert_eq!(settled(&mut stage), told("False DeviceLost", &[&event]));
    assert_eq!(counted(&stage).unwrap().unhealthy, 1);
    // It is said once.
    assert_eq!(settled(&mut stage), told("False DeviceLost", &[]));
    report(&mut stage, 0, "", "");
    let event = "false AllHealthy: pods can use the node's devices";
    assert_eq!(settled(&mut stage), told("True AllHealthy", &[event]));
}

#[test]
fn devices_of_a_node_whose_agent_says_nothing_are_unknown_and_stay_counted() {
    let mut stage = stage();
    report(&mut stage, 0, "", "");
    let silent = Some("Unknown NotReported".to_owned());
    assert_eq!(settled(&mut stage).0, Some("True AllHealthy".to_owned()));
    // It stops.
    let state = stage.reports.get_mut("n2").unwrap();
    let before = state.report.clone();
    state.report.devices = None;
    state.report.ready = false;
    assert_eq!(settled(&mut stage), (silent.clone(), Vec::new()));
    assert_eq!(counted(&stage).map(|devices| devices.in_use), Some(3));
    // The next one cannot serve the programs of devices, which pods have all the same.
    let state = stage.reports.get_mut("n2").unwrap();
    state.report.ready = true;
    state.report.findings = vec![weft_proto::operator::v1::Finding {
        reason: weft_proto::operator::DEVICES_NOT_SERVED.to_owned(),
        ..Default::default()
    }];
    assert_eq!(settled(&mut stage).0, silent);
    assert_eq!(counted(&stage).map(|devices| devices.in_use), Some(3));
    let state = stage.reports.get_mut("n2").unwrap();
    state.report = before;
    assert_eq!(settled(&mut stage).0, Some("True AllHealthy".to_owned()));
    stage.now_instant += SILENCE;
    assert_eq!(settled(&mut stage), (silent, Vec::new()));
    // The fabric has no devices any more.
    stage.add_report("n2", 0);
    assert_eq!(settled(&mut stage).0, None);
    assert_eq!(counted(&stage), None);
}
