//! What a fabric's agents are told.

use kube::ResourceExt as _;
use weft_crds::{CongestionControl, Encryption, Link, PathPolicy, RdmaFabric, RootAccess};
use weft_proto::{
    Message as _,
    operator::v1::{
        AgentConfig, Devices, Egress, EngineConfig, Nics, NodeConfig, Objects, Ports, Root,
        Transport, root::MinFree,
    },
};

/// What the agents of a fabric are told.
pub(crate) fn config(fabric: &RdmaFabric, ticket_key: &str) -> NodeConfig {
    NodeConfig {
        engine: Some(engine(fabric)),
        agent: Some(agent(fabric, ticket_key)),
        pod_configuration: pod_configuration(fabric),
    }
}

/// Names what a pod is made for: the engine's configuration and the volumes of the roots. The rest comes into
/// force in a running agent.
pub(crate) fn pod_configuration(fabric: &RdmaFabric) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&engine(fabric).encode_to_vec());
    for root in &fabric.spec.roots {
        let is_writable = root.access == RootAccess::ReadWrite;
        let mount = [
            root.name.as_str(),
            root.host_path.as_str(),
            if is_writable { "rw" } else { "ro" },
        ];
        // No name and no path has a NUL.
        hasher.update(mount.join("\0").as_bytes()).update(b"\0");
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

fn engine(fabric: &RdmaFabric) -> EngineConfig {
    let spec = &fabric.spec;
    let most = u32::from(spec.ports.count) * u32::from(spec.ports.count);
    EngineConfig {
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
                Link::Tcp => "tcp",
            }
            .to_owned(),
            congestion: congestion(&spec.transport, spec.topology.link_mbps),
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
        devices: spec.devices.as_ref().map(|devices| Devices {
            first_port: u32::from(devices.first_port),
            open: u32::from(devices.open),
            per_node: devices.per_node,
            cap_mbps: devices.cap_mbps.unwrap_or(0),
            operations_per_second: devices.operations_per_second.unwrap_or(0),
            cross_namespace: devices.cross_namespace,
            namespaces: devices.namespaces.clone(),
            share: devices.share,
        }),
    }
}

fn agent(fabric: &RdmaFabric, ticket_key: &str) -> AgentConfig {
    let spec = &fabric.spec;
    AgentConfig {
        fabric: fabric.name_any(),
        ticket_key: ticket_key.to_owned(),
        roots: spec.roots.iter().map(root).collect(),
        objects: Some(Objects {
            allow_insecure: spec.objects.allow_insecure,
        }),
        egress: Some(Egress {
            cap_mbps: spec.transport.cap_mbps.unwrap_or(0),
            dscp: spec.transport.dscp.into(),
        }),
    }
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
        host_path: root.host_path.clone(),
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
