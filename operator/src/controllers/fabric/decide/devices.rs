//! The virtual devices of a node, as its agent reports them: counts, the condition `DevicesHealthy`, and its Events.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use weft_crds::{FabricNodeStatus, NodeDevices};
use weft_proto::operator::{DEVICES_NOT_SERVED, v1::NodeReport};

use crate::{
    controllers::{
        condition::{self, ConditionUpdate, truncate},
        fabric::view::View,
        request::Event,
    },
    reports::NodeState,
};

const DEVICES_HEALTHY: &str = "DevicesHealthy";
/// Why it is True.
const ALL_HEALTHY: &str = "AllHealthy";

/// For the status. An agent that starts or stops does not say, nor does one that cannot serve the programs of devices, and pods
/// have their devices all the same.
pub(super) fn counted(report: &NodeReport, before: Option<NodeDevices>) -> Option<NodeDevices> {
    match &report.devices {
        Some(devices) => Some(NodeDevices {
            total: devices.total,
            in_use: devices.in_use,
            by_claims: devices.by_claims,
            unhealthy: devices.unhealthy,
        }),
        None if report.ready && !is_prevented(report) => None,
        None => before,
    }
}

fn is_prevented(report: &NodeReport) -> bool {
    let mut findings = report.findings.iter();
    findings.any(|finding| finding.reason == DEVICES_NOT_SERVED)
}

/// Says in the status whether pods can use the devices.
pub(super) fn set_condition(
    status: &mut FabricNodeStatus,
    state: Option<&NodeState>,
    generation: i64,
    view: &View<'_>,
) {
    if status.devices.is_none() {
        let conditions = &mut status.conditions;
        conditions.retain(|condition| condition.type_ != DEVICES_HEALTHY);
        return;
    }
    let heard = state.filter(|state| !state.is_silent(view.now_instant));
    let devices = heard.and_then(|state| state.report.devices.as_ref());
    let update = match devices {
        None => {
            let text = "the node's agent does not report them: see the condition Ready";
            ConditionUpdate::unknown(DEVICES_HEALTHY, "NotReported", text)
        }
        Some(devices) if devices.reason.is_empty() => {
            let text = "pods can use the node's devices";
            ConditionUpdate::new(DEVICES_HEALTHY, true, ALL_HEALTHY, text)
        }
        Some(devices) => {
            let text = truncate(&devices.message);
            ConditionUpdate::new(DEVICES_HEALTHY, false, &devices.reason, &text)
        }
    };
    condition::set(&mut status.conditions, update, generation, view.now);
}

/// Says it where devices have become unhealthy, others than before, and where all are healthy again.
pub(super) fn event(old: Option<&FabricNodeStatus>, new: &FabricNodeStatus) -> Option<Event> {
    let of = |status: &FabricNodeStatus| {
        let mut conditions = status.conditions.iter();
        let found = conditions.find(|condition| condition.type_ == DEVICES_HEALTHY);
        found.cloned()
    };
    let (old, new) = (old.and_then(of), of(new)?);
    let said = |warning, condition: Condition| Event {
        warning,
        reason: condition.reason,
        note: condition.message,
    };
    let was = |status: &str| old.as_ref().is_some_and(|old| old.status == status);
    match new.status.as_str() {
        "False" => {
            let is_known =
                |old: &Condition| (&old.status, &old.message) == (&new.status, &new.message);
            let is_known = old.as_ref().is_some_and(is_known);
            (!is_known).then(|| said(true, new))
        }
        "True" if was("False") => Some(said(false, new)),
        _ => None,
    }
}
