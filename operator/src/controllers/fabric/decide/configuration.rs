//! What a fabric's agents are told, and how far each is with it.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt as _;
use weft_crds::{
    CongestionControl, Encryption, FabricNodeStatus, Link, PathPolicy, RdmaFabric, RootAccess,
};
use weft_proto::{
    Message as _,
    operator::v1::{Nics, NodeConfig, Objects, Ports, Root, Transport, root::MinFree},
};

use crate::controllers::{
    condition::{self, Verdict},
    kinds::Cache,
};

/// Jobs wait so long for an agent, as a destination, that does not take a configuration over: longer than
/// a roll-out of agents takes, by which a node gets the volume of a new root.
const PATIENCE: SignedDuration = SignedDuration::from_mins(30);
/// … and so long for one that says that it will as soon as no job runs there. It is given no new one
/// meanwhile.
const PATIENCE_WITH_BUSY: SignedDuration = SignedDuration::from_hours(1);
/// An agent's finding: its release cannot work with the fabric's configuration.
const CONFIG_REFUSED: &str = "ConfigRefused";
/// An agent's finding: it takes the configuration over when its jobs are over.
const RESTART_PENDING: &str = "RestartPending";
/// The condition of a node that says since when its agent works with another configuration.
const CONFIGURED: &str = "Configured";
/// Its reason, once it has done so for too long.
const NOT_TAKEN_OVER: &str = "NotTakenOver";

/// What the agents of a fabric are told.
pub(crate) fn config(fabric: &RdmaFabric, ticket_key: &str) -> NodeConfig {
    let spec = &fabric.spec;
    let most = u32::from(spec.ports.count) * u32::from(spec.ports.count);
    let mut config = NodeConfig {
        hash: String::new(),
        fabric: fabric.name_any(),
        ticket_key: ticket_key.to_owned(),
        roots: spec.roots.iter().map(root).collect(),
        transport: Some(Transport {
            paths: u32::from(spec.transport.paths).min(most),
            policy: match spec.transport.policy {
                PathPolicy::Reps => "reps",
                PathPolicy::TwoChoices => "two-choices",
                PathPolicy::BestRtt => "best-rtt",
                PathPolicy::Hopper => "hopper",
                PathPolicy::Oblivious => "oblivious",
                PathPolicy::RoundRobin => "round-robin",
                PathPolicy::Single => "single",
            }
            .to_owned(),
            chunk_bytes: spec.transport.chunk_bytes,
            rto_min_micros: spec.transport.rto_min_micros,
            link: match spec.transport.link {
                Link::Auto => "auto",
                Link::Udp => "udp",
            }
            .to_owned(),
            congestion: congestion(&spec.transport, spec.topology.link_mbps),
            cap_mbps: spec.transport.cap_mbps.unwrap_or(0),
            dscp: spec.transport.dscp.into(),
            encryption: match spec.transport.encryption {
                Encryption::Off => "off",
                Encryption::Required => "required",
            }
            .to_owned(),
        }),
        ports: Some(Ports {
            first: u32::from(spec.ports.first),
            count: u32::from(spec.ports.count),
        }),
        nics: Some(Nics {
            include: spec.nics.include.clone(),
            exclude: spec.nics.exclude.clone(),
        }),
        objects: Some(Objects {
            allow_insecure: spec.objects.allow_insecure,
        }),
    };
    config.hash = blake3::hash(&config.encode_to_vec()).to_hex()[..16].to_owned();
    config
}

fn root(root: &weft_crds::Root) -> Root {
    let min_free = &root.min_free;
    Root {
        name: root.name.clone(),
        writable: root.access == RootAccess::ReadWrite,
        min_free: Some(match min_free.strip_suffix('%') {
            // The rules let no other text through.
            Some(percent) => MinFree::Percent(percent.parse().unwrap_or(100)),
            None => MinFree::Bytes(bytes(min_free)),
        }),
        bytes_per_namespace: root.bytes_per_namespace.as_deref().map(bytes),
    }
}

/// A quantity of bytes, which the rules have checked; the largest there is where it is larger.
fn bytes(quantity: &str) -> u64 {
    let end = quantity.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = quantity.split_at(end.unwrap_or(quantity.len()));
    let (base, kilo) = match unit.strip_suffix('i') {
        Some(unit) => (unit, 1024_u64),
        None => (unit, 1000),
    };
    let power = ["", "k", "M", "G", "T", "P"]
        .iter()
        .position(|known| known.eq_ignore_ascii_case(base))
        .unwrap_or_default();
    let number: u64 = number.parse().unwrap_or_default();
    (0..power).fold(number, |bytes, _| bytes.saturating_mul(kilo))
}

/// How far a node's agent is with the configuration that its fabric asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Configured {
    /// It works with it, or is too old to say with which.
    Present,
    /// It works with another, and takes this one over by itself.
    Behind,
    /// It works with another, and has not taken this one over for so long that destinations are waited
    /// for no longer.
    Late,
    /// It works with another, and says that it cannot work with this one.
    Refused,
}

/// How far a node is with the configuration of that hash.
pub(crate) fn configured(cache: &Cache, node: &str, hash: &str) -> Configured {
    let node = cache.fabric_nodes.named(node);
    let status = node.and_then(|node| node.status.as_ref());
    status.map_or(Configured::Present, |status| how_far(status, hash))
}

fn how_far(status: &FabricNodeStatus, hash: &str) -> Configured {
    if status.configuration.is_empty() || status.configuration == hash {
        return Configured::Present;
    }
    if finds(status, CONFIG_REFUSED) {
        return Configured::Refused;
    }
    let mut conditions = status.conditions.iter();
    let is_late = |one: &Condition| {
        one.type_ == CONFIGURED && one.reason == NOT_TAKEN_OVER && is_about(one, hash)
    };
    if conditions.any(is_late) {
        Configured::Late
    } else {
        Configured::Behind
    }
}

/// It is about waiting for that configuration: its message says so.
fn is_about(condition: &Condition, hash: &str) -> bool {
    condition.message.contains(&format!("({hash})"))
}

/// Puts it among the conditions. Its time is since when the agent is behind with this very configuration.
pub(crate) fn set(status: &mut FabricNodeStatus, verdict: Verdict, hash: &str, now: Timestamp) {
    let is_wait = |reason: &str| ["Pending", NOT_TAKEN_OVER].contains(&reason);
    if is_wait(&verdict.reason) {
        let conditions = &mut status.conditions;
        conditions.retain(|one| one.type_ != CONFIGURED || is_about(one, hash));
    }
    let generation = status.observed_generation;
    condition::set(&mut status.conditions, verdict, generation, now);
}

fn finds(status: &FabricNodeStatus, reason: &str) -> bool {
    status.findings.iter().any(|one| one.reason == reason)
}

/// What is said of a node whose agent works, or once did, with another configuration than that of this
/// hash; of one that never did, nothing. The condition's time is since when it does: it is what jobs wait
/// by, so that a thousand of them wait for a node once.
pub(crate) fn verdict(status: &FabricNodeStatus, hash: &str, now: Timestamp) -> Option<Verdict> {
    let how = how_far(status, hash);
    let known = status.conditions.iter().find(|one| one.type_ == CONFIGURED);
    if known.is_none() && how == Configured::Present {
        return None;
    }
    let (reason, message) = match how {
        Configured::Present => {
            let text = "the agent works with the fabric's configuration";
            ("Current", text.to_owned())
        }
        Configured::Refused => {
            let text = "the agent's release cannot work with the fabric's configuration; see status.findings";
            (CONFIG_REFUSED, text.to_owned())
        }
        Configured::Behind | Configured::Late => {
            // Of another configuration, or of one that it could not work with, it has not been waited for.
            let since = known.filter(|one| one.status == "False" && is_about(one, hash));
            let since = since.map_or(now, |one| one.last_transition_time.0);
            let patience = match finds(status, RESTART_PENDING) {
                true => PATIENCE_WITH_BUSY,
                false => PATIENCE,
            };
            if now.duration_since(since) < patience {
                let text = format!(
                    "the agent works with an earlier configuration of the fabric; jobs to this node wait until \
                     it takes over the present one ({hash})"
                );
                ("Pending", text)
            } else {
                let text = format!(
                    "the agent has not taken over the fabric's configuration ({hash}) for {} min: jobs to this node \
                     do not wait for that any more; see status.findings, and why its pod is not replaced",
                    patience.as_mins()
                );
                (NOT_TAKEN_OVER, text)
            }
        }
    };
    Some(Verdict {
        kind: CONFIGURED,
        holds: how == Configured::Present,
        reason: reason.to_owned(),
        message,
    })
}

/// The congestion control as agents read it.
fn congestion(transport: &weft_crds::Transport, link_mbps: Option<u32>) -> String {
    let name = match transport.congestion {
        CongestionControl::EcnRtt => "ecn-rtt".to_owned(),
        CongestionControl::Swift => "swift".to_owned(),
        // The rules refuse an Eqds without a rate; an agent refuses 0.
        CongestionControl::Eqds => format!("eqds:{}mbit", link_mbps.unwrap_or(0)),
    };
    match transport.target_queueing_micros {
        Some(micros) => format!("{name}:{micros}us"),
        None => name,
    }
}
