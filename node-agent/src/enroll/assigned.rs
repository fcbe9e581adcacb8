//! Makes the agent's configuration from the operator's assignment and the node's flags and interface.

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer as _};
use weft_core::path::{PolicyKind, UnknownPolicy};
use weft_proto::operator::v1 as proto;

use crate::config::values::{ByteCount, Duration, is_label};
use crate::config::{
    self, Config, ConfigError, Data, DevicePrograms, Listen, Operator, Ports, Programs, RootEntry,
    TlsFiles, Transport,
};
use crate::devices::programs;
use crate::enroll::interface::{Chosen, Nic};
use crate::enroll::settings::Settings;
use crate::files::{Access, MinFree, RootVolumes};

/// Fields of the file that have other names in an RdmaFabric.
const FIELDS: [(&str, &str); 3] = [
    ("data.otherAddresses", "nics.include"),
    ("data.ports", "ports"),
    ("transport.chunk", "transport.chunkBytes"),
];

/// The configuration, or which field of the assignment is wrong.
pub(crate) fn config(
    settings: &Settings,
    tls: &TlsFiles,
    assigned: &proto::NodeConfig,
    nics: &Chosen,
) -> Result<Config, ConfigError> {
    let missing = |field| move || wrong(field, "is missing".to_owned());
    let engine = assigned.engine.as_ref().ok_or_else(missing("engine"))?;
    let agent = assigned.agent.as_ref().ok_or_else(missing("agent"))?;
    if agent.fabric != settings.fabric.as_str() {
        let problem = format!(
            "is `{}`, and this node was started for `{}`",
            agent.fabric, settings.fabric
        );
        return Err(wrong("fabric", problem));
    }
    let given = engine.ports.ok_or_else(missing("ports"))?;
    let ports = Ports {
        first: small("ports.first", given.first)?,
        count: small("ports.count", given.count)?,
    };
    let config = Config {
        node: settings.node.clone(),
        fabric: settings.fabric.clone(),
        control: Listen {
            listen: settings.control_listen(),
        },
        data: Data {
            address: nics.first.address,
            other_addresses: nics.others.iter().map(|nic| nic.address).collect(),
            ports,
            mtu: nics.mtu(),
        },
        metrics: Listen {
            listen: settings.metrics_listen(),
        },
        operator: Operator {
            ticket_key: parse("ticket_key", &agent.ticket_key)?,
        },
        tls: tls.clone(),
        roots: roots(settings, &agent.roots),
        transport: transport(engine.transport.as_ref(), agent.egress.unwrap_or_default())?,
        limits: config::Limits::default(),
        objects: config::Objects {
            allow_insecure: agent.objects.unwrap_or_default().allow_insecure,
            ..settings.objects.clone()
        },
        devices: devices(settings, engine.devices.as_ref(), &nics.first)?,
        volumes: settings.volumes.clone(),
        config_source: config::ConfigSource::Operator,
    };
    config::check(&config).map_err(|error| {
        let renamed = FIELDS.iter().find_map(|(file, fabric)| {
            Some(format!("{fabric}{}", error.field.strip_prefix(file)?))
        });
        wrong(&renamed.unwrap_or(error.field), error.message)
    })?;
    Ok(config)
}

/// None where the node has no programs of devices, or the fabric has no devices and has had none.
fn devices(
    settings: &Settings,
    given: Option<&proto::Devices>,
    nic: &Nic,
) -> Result<Option<config::Devices>, ConfigError> {
    let Some(socket) = &settings.engine_socket else {
        return Ok(None);
    };
    let programs = match given {
        Some(given) => Programs::Configured(device_programs(given, nic)?),
        None if programs::are_there(socket) => Programs::Disabled,
        None => return Ok(None),
    };
    Ok(Some(config::Devices {
        socket: socket.clone(),
        peers: Vec::new(),
        programs,
    }))
}

fn device_programs(given: &proto::Devices, nic: &Nic) -> Result<DevicePrograms, ConfigError> {
    for (index, name) in given.namespaces.iter().enumerate() {
        if !is_label(name) {
            let field = format!("devices.namespaces[{index}]");
            let problem = format!("{name:?} is not a namespace: 1 to 63 of [a-z0-9-]");
            return Err(wrong(&field, problem));
        }
    }
    Ok(DevicePrograms {
        first_port: small("devices.firstPort", given.first_port)?,
        open: small("devices.open", given.open)?,
        link_mbps: nic.mbps,
        numa_node: nic.affinity.numa_node,
        per_node: given.per_node,
        cap_mbps: given.cap_mbps,
        operations_per_second: given.operations_per_second,
        cross_namespace: given.cross_namespace,
        namespaces: given.namespaces.clone(),
        share: given.share,
    })
}

fn roots(settings: &Settings, given: &[proto::Root]) -> Vec<RootEntry> {
    let access = |writable| {
        if writable {
            Access::ReadWrite
        } else {
            Access::ReadOnly
        }
    };
    given
        .iter()
        .map(|root| RootEntry {
            name: root.name.clone(),
            path: settings.roots_dir.join(&root.name),
            access: access(root.writable),
            min_free: match root.min_free {
                Some(proto::root::MinFree::Bytes(bytes)) => MinFree::Bytes(bytes),
                Some(proto::root::MinFree::Percent(part)) => {
                    MinFree::Percent(u8::try_from(part).unwrap_or(100))
                }
                None => MinFree::default(),
            },
            bytes_per_namespace: root.bytes_per_namespace.map(ByteCount),
            volumes: volumes(settings, root),
        })
        .collect()
}

/// Nothing from an operator that does not say where the root is on the node.
fn volumes(settings: &Settings, root: &proto::Root) -> Option<RootVolumes> {
    let directory = settings.volumes.as_ref()?;
    (!root.host_path.is_empty()).then(|| RootVolumes {
        host_path: root.host_path.clone().into(),
        in_use: directory.join(weft_proto::volumes::IN_USE),
    })
}

fn transport(
    given: Option<&proto::Transport>,
    egress: proto::Egress,
) -> Result<Transport, ConfigError> {
    let dscp = u8::try_from(egress.dscp)
        .map_err(|_| wrong("transport.dscp", format!("is {}: 0 to 63", egress.dscp)))?;
    let sent = Transport {
        dscp,
        cap_mbps: (egress.cap_mbps > 0).then_some(egress.cap_mbps),
        ..Transport::default()
    };
    let Some(given) = given else {
        return Ok(sent);
    };
    let policy: PolicyKind = given
        .policy
        .parse()
        .map_err(|problem: UnknownPolicy| wrong("transport.policy", problem.to_string()))?;
    if given.rto_min_micros == 0 {
        return Err(wrong(
            "transport.rtoMinMicros",
            "must be 1 or more".to_owned(),
        ));
    }
    Ok(Transport {
        congestion: parse("transport.congestion", &given.congestion)?,
        paths: Some(small("transport.paths", given.paths)?),
        policy,
        rto_min: Duration::from_micros(given.rto_min_micros.into()),
        chunk: ByteCount(given.chunk_bytes.into()),
        link: parse("transport.link", &given.link)?,
        encryption: parse("transport.encryption", &given.encryption)?,
        ..sent
    })
}

/// A value that the configuration file spells with the same text.
fn parse<T: DeserializeOwned>(field: &str, text: &str) -> Result<T, ConfigError> {
    let text: StrDeserializer<'_, serde::de::value::Error> = text.into_deserializer();
    T::deserialize(text).map_err(|problem| wrong(field, problem.to_string()))
}

fn small(field: &str, value: u32) -> Result<u16, ConfigError> {
    u16::try_from(value).map_err(|_| wrong(field, format!("is {value}: at most 65535 can be")))
}

fn wrong(field: &str, message: String) -> ConfigError {
    ConfigError {
        line: 0,
        field: field.to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Encryption;
    use crate::enroll::affinity::Affinity;
    use crate::enroll::settings::Timing;
    use crate::files::RootLimits;

    fn settings() -> Settings {
        Settings {
            operator: "127.0.0.1:7410".to_owned(),
            operator_ca: "ca.crt".into(),
            token: "token".into(),
            fabric: "lab".parse().unwrap(),
            node: "n1".parse().unwrap(),
            address: "10.0.0.5".parse().unwrap(),
            state: "state".into(),
            control_port: 7400,
            metrics_port: 7401,
            metrics_auth: false,
            roots_dir: "/weft/roots".into(),
            engine_socket: Some("/run/weft/engine.sock".into()),
            volumes: Some("/run/weft/volumes".into()),
            pod_configuration: String::new(),
            objects: config::Objects::default(),
            timing: Timing::default(),
        }
    }

    fn assigned() -> proto::NodeConfig {
        let root = |name: &str, writable| proto::Root {
            name: name.to_owned(),
            writable,
            ..proto::Root::default()
        };
        let engine = proto::EngineConfig {
            transport: Some(proto::Transport {
                paths: 64,
                policy: "oblivious".to_owned(),
                chunk_bytes: 32 << 10,
                rto_min_micros: 250,
                link: "auto".to_owned(),
                congestion: "ecn-rtt".to_owned(),
                encryption: "required".to_owned(),
            }),
            ports: Some(proto::Ports {
                first: 7500,
                count: 16,
            }),
            nics: None,
            devices: Some(proto::Devices {
                first_port: 16_000,
                open: 256,
                per_node: 1024,
                cap_mbps: 400,
                namespaces: vec!["team-a".to_owned()],
                share: 200,
                ..proto::Devices::default()
            }),
        };
        let agent = proto::AgentConfig {
            fabric: "lab".to_owned(),
            ticket_key: "0a".repeat(32),
            roots: vec![root("models", true), root("data", false)],
            objects: None,
            egress: Some(proto::Egress {
                cap_mbps: 2_500,
                dscp: 46,
            }),
        };
        proto::NodeConfig {
            engine: Some(engine),
            agent: Some(agent),
            pod_configuration: "12".to_owned(),
        }
    }

    fn of(assigned: &proto::NodeConfig) -> Result<Config, ConfigError> {
        let tls = TlsFiles {
            ca: "ca.pem".into(),
            certificate: "node.pem".into(),
            key: "node.key".into(),
        };
        let nic = |number: u8, mtu: u16| Nic {
            interface: format!("rail{number}"),
            address: [192, 168, number, 5].into(),
            mtu,
            mbps: 0,
            affinity: Affinity {
                numa_node: Some(number.into()),
                pcie_root: None,
            },
        };
        let nics = Chosen {
            first: nic(1, 9000),
            others: vec![nic(2, 4200)],
            findings: Vec::new(),
        };
        config(&settings(), &tls, assigned, &nics)
    }

    #[test]
    fn an_assignment_and_a_node_make_a_configuration() {
        let config = of(&assigned()).unwrap();
        assert_eq!(config.control.listen.to_string(), "10.0.0.5:7400");
        assert_eq!(config.metrics.listen.to_string(), "10.0.0.5:7401");
        assert_eq!(config.data.address.to_string(), "192.168.1.5");
        let other = std::net::Ipv4Addr::new(192, 168, 2, 5);
        assert_eq!(config.data.other_addresses, [other]);
        assert_eq!(config.data.mtu, 4200);
        assert_eq!(config.paths(), 64);
        assert_eq!(config.transport.policy, PolicyKind::Oblivious);
        assert_eq!(config.transport.rto_min.nanos(), 250_000);
        let devices = config.devices.unwrap();
        assert_eq!(devices.socket.to_str(), Some("/run/weft/engine.sock"));
        let wanted = DevicePrograms {
            first_port: 16_000,
            open: 256,
            link_mbps: 0,
            numa_node: Some(1),
            per_node: 1024,
            cap_mbps: 400,
            operations_per_second: 0,
            cross_namespace: false,
            namespaces: vec!["team-a".to_owned()],
            share: 200,
        };
        assert_eq!(devices.programs, Programs::Configured(wanted));
        assert_eq!(config.transport.chunk.0, 32 << 10);
        assert_eq!(config.transport.dscp, 46);
        assert_eq!(config.transport.encryption, Encryption::Required);
        assert_eq!(config.transport.cap_mbps.unwrap(), 2_500);
        assert_eq!(config.operator.ticket_key.0, [10; 32]);
        let roots: Vec<_> = config
            .roots
            .iter()
            .map(|root| (root.path.to_str().unwrap(), root.access))
            .collect();
        assert_eq!(
            roots,
            [
                ("/weft/roots/models", Access::ReadWrite),
                ("/weft/roots/data", Access::ReadOnly)
            ]
        );
        let unlimited = config.roots.iter().map(RootEntry::limits);
        assert!(unlimited.eq([RootLimits::default(); 2]));
        let mut limited = assigned();
        limited.agent.as_mut().unwrap().roots[0].min_free = Some(proto::root::MinFree::Percent(10));
        limited.agent.as_mut().unwrap().roots[0].bytes_per_namespace = Some(7);
        limited.agent.as_mut().unwrap().roots[1].min_free = Some(proto::root::MinFree::Bytes(9));
        let limits = of(&limited).unwrap().roots;
        let limits: Vec<_> = limits.iter().map(RootEntry::limits).collect();
        let expected = [
            RootLimits {
                min_free: MinFree::Percent(10),
                bytes_per_namespace: Some(7),
            },
            RootLimits {
                min_free: MinFree::Bytes(9),
                bytes_per_namespace: None,
            },
        ];
        assert_eq!(limits, expected);
        let mut sparse = assigned();
        sparse.engine.as_mut().unwrap().transport = None;
        let sparse = of(&sparse).unwrap();
        assert_eq!(sparse.paths(), 128);
        assert!(!sparse.objects.allow_insecure);
        let mut lax = assigned();
        lax.agent.as_mut().unwrap().objects = Some(proto::Objects {
            allow_insecure: true,
        });
        assert!(of(&lax).unwrap().objects.allow_insecure);
    }

    #[test]
    fn what_is_wrong_with_an_assignment_is_said_by_the_fabrics_own_names() {
        type Change = fn(&mut proto::NodeConfig);
        fn engine(c: &mut proto::NodeConfig) -> &mut proto::EngineConfig {
            c.engine.as_mut().unwrap()
        }
        fn transport(c: &mut proto::NodeConfig) -> &mut proto::Transport {
            engine(c).transport.as_mut().unwrap()
        }
        fn ports(c: &mut proto::NodeConfig) -> &mut proto::Ports {
            engine(c).ports.as_mut().unwrap()
        }
        fn agent(c: &mut proto::NodeConfig) -> &mut proto::AgentConfig {
            c.agent.as_mut().unwrap()
        }
        fn egress(c: &mut proto::NodeConfig) -> &mut proto::Egress {
            agent(c).egress.as_mut().unwrap()
        }
        fn namespaces(c: &mut proto::NodeConfig) -> &mut Vec<String> {
            &mut engine(c).devices.as_mut().unwrap().namespaces
        }
        let table: [(&str, &str, Change); 26] = [
            ("ports.count", "fewer than the 2 NICs", |c| {
                ports(c).count = 1;
            }),
            // The device plugin would read two lines, or two names.
            ("devices.namespaces[1]", "is not a namespace", |c| {
                namespaces(c).push("a\n--share=10000".to_owned());
            }),
            ("devices.namespaces[0]", "is not a namespace", |c| {
                *namespaces(c) = vec!["a,b".to_owned()];
            }),
            ("engine", "missing", |c| c.engine = None),
            ("agent", "missing", |c| c.agent = None),
            ("transport.encryption", "`off` or `required`", |c| {
                transport(c).encryption.clear();
            }),
            ("transport.dscp", "0 to 63", |c| egress(c).dscp = 64),
            ("transport.dscp", "0 to 63", |c| egress(c).dscp = 256),
            ("transport.congestion", "ecn-rtt", |c| {
                transport(c).congestion = "cubic".to_owned();
            }),
            ("fabric", "`other`", |c| {
                agent(c).fabric = "other".to_owned();
            }),
            ("ticket_key", "64 hexadecimal", |c| {
                agent(c).ticket_key.clear();
            }),
            ("ports", "missing", |c| engine(c).ports = None),
            ("ports.first", "1 or more", |c| ports(c).first = 0),
            ("ports.first", "70000", |c| ports(c).first = 70_000),
            ("ports.count", "1 to 16", |c| ports(c).count = 17),
            ("ports", "65535", |c| ports(c).first = 65_530),
            ("transport.paths", "1 to 256", |c| transport(c).paths = 257),
            ("transport.paths", "1 to 256", |c| transport(c).paths = 0),
            ("transport.paths", "99999", |c| transport(c).paths = 99_999),
            ("transport.policy", "two-choices", |c| {
                transport(c).policy = "TwoChoices".to_owned();
            }),
            ("transport.chunkBytes", "512", |c| {
                transport(c).chunk_bytes = 0;
            }),
            ("transport.rtoMinMicros", "1 or more", |c| {
                transport(c).rto_min_micros = 0;
            }),
            ("transport.link", "udp", |c| transport(c).link.clear()),
            ("roots[1].name", "taken", |c| {
                agent(c).roots[1].name = "models".to_owned();
            }),
            ("roots[0].name", "[a-z0-9-]", |c| {
                agent(c).roots[0].name = "../etc".to_owned();
            }),
            ("roots[0].name", "[a-z0-9-]", |c| {
                agent(c).roots[0].name.clear();
            }),
        ];
        for (field, hint, change) in table {
            let mut assigned = assigned();
            change(&mut assigned);
            let error = of(&assigned).unwrap_err();
            assert_eq!(error.field, field, "{error}");
            assert!(error.message.contains(hint), "{error}");
        }
    }
}
