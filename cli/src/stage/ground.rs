//! What the agents stand on: a fabric of namespaces, or this machine's loopback.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::Path,
    process::Command,
    sync::Arc,
};

use weft_fabric::{Fabric, quantity};
use weft_planner::{Node, Topology, Uplink};

use super::{StageError, node_name};

/// In a fabric every node has all ports to itself.
const CONTROL_PORT: u16 = 7400;
const METRICS_PORT: u16 = 7401;
/// Node i's data ports begin [`DATA_PORTS_STEP`]·i above this. Each node has a range of its own: the
/// kernel's multipath hash does not tell a pair of ports from its mirror image, so one range for all
/// would make 136 routes of 256 paths (decision 0002).
const FIRST_DATA_PORT: u16 = 7500;
const DATA_PORTS_STEP: u16 = 16;
/// What the planner is told of a link without a rate: about what one veth carries on one core. All
/// such links are equal, and only that matters to the plan.
const UNLIMITED_BPS: u64 = 10_000_000_000;
/// IPv4 and UDP headers, Weft's header and trailer.
const PACKET_OVERHEAD: u32 = 20 + 8 + 64;
/// Ethernet's header, which the token buckets of a fabric count.
const FRAME_OVERHEAD: u32 = 14;
/// Loopback ports are looked for from here on.
const LOOPBACK_PORTS: u16 = 20_000;
const LOOPBACK_PORTS_END: u16 = 32_000;

/// Where an agent is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The control API.
    pub control: SocketAddr,
    /// Metrics, health and readiness.
    pub metrics: SocketAddr,
    /// The address of its first NIC on the data network.
    pub data: Ipv4Addr,
    /// The first of its data ports.
    pub first_port: u16,
}

/// One of the two.
#[derive(Debug, Clone)]
pub enum Ground {
    /// Nodes in namespaces, leaves and spines between them.
    Fabric(Arc<Fabric>),
    /// Nodes that are all this machine; see [`Ground::loopback`].
    Loopback {
        /// One for each node.
        agents: Vec<Addresses>,
        /// Largest IP packet.
        mtu: u32,
    },
}

/// Sockets of an agent for so many paths: a path is a pair of one of its own and one of its peer's.
pub(super) fn port_count(paths: u16) -> u16 {
    let mut side = 1;
    while side * side < paths {
        side += 1;
    }
    side
}

impl Ground {
    /// Nodes on 127.0.0.1, each with free ports of its own.
    pub fn loopback(nodes: usize, mtu: u32) -> Result<Self, StageError> {
        let failed = StageError::NoFreePorts;
        let count = port_count(1);
        // Held until all are chosen, so that no two nodes get the same.
        let mut held = Vec::new();
        let mut next = LOOPBACK_PORTS;
        let mut agents = Vec::new();
        for _ in 0..nodes {
            let (control, metrics) = (listener().map_err(failed)?, listener().map_err(failed)?);
            let first_port = free_range(&mut next, count).map_err(failed)?;
            agents.push(Addresses {
                control: control.local_addr().map_err(failed)?,
                metrics: metrics.local_addr().map_err(failed)?,
                data: Ipv4Addr::LOCALHOST,
                first_port,
            });
            held.extend([control, metrics]);
        }
        Ok(Self::Loopback { agents, mtu })
    }

    /// The fabric, if it is one.
    pub fn fabric(&self) -> Option<&Arc<Fabric>> {
        match self {
            Self::Fabric(fabric) => Some(fabric),
            Self::Loopback { .. } => None,
        }
    }

    /// Where node `i`'s agent is.
    pub fn addresses(&self, i: usize) -> Addresses {
        match self {
            Self::Fabric(fabric) => {
                let node = fabric.node(i);
                let at = |port| SocketAddr::from((node.management_address, port));
                Addresses {
                    control: at(CONTROL_PORT),
                    metrics: at(METRICS_PORT),
                    data: node.data_address,
                    // At most 240 nodes: the ports end below 11,400.
                    first_port: FIRST_DATA_PORT + DATA_PORTS_STEP * i as u16,
                }
            }
            Self::Loopback { agents, .. } => agents[i],
        }
    }

    /// Node `i`'s NICs on the data network but the first.
    pub fn other_nics(&self, i: usize) -> &[Ipv4Addr] {
        match self {
            Self::Fabric(fabric) => fabric.node(i).nics.get(1..).unwrap_or_default(),
            Self::Loopback { .. } => &[],
        }
    }

    /// Largest IP packet of the data network, bytes.
    pub fn mtu(&self) -> u32 {
        match self {
            Self::Fabric(fabric) => fabric.spec().mtu,
            Self::Loopback { mtu, .. } => *mtu,
        }
    }

    /// Runs a program at node `i`. Unless it `stays` it does not outlive this process.
    pub(super) fn command(&self, i: usize, program: &Path, stays: bool) -> Command {
        match self {
            // It ends with the pid namespace.
            Self::Fabric(fabric) => fabric.command(i, program),
            Self::Loopback { .. } if stays => Command::new(program),
            Self::Loopback { .. } => {
                let mut command = Command::new("setpriv");
                command.args(["--pdeathsig", "KILL", "--"]).arg(program);
                command
            }
        }
    }

    /// As the planner sees it.
    pub fn topology(&self) -> Topology {
        let node = |i: usize, leaf: usize, rate_bps: u64| Node {
            name: node_name(i),
            address: Some(self.addresses(i).control.to_string()),
            leaf: format!("leaf{leaf}"),
            rate_bps,
        };
        match self {
            Self::Fabric(fabric) => {
                let spec = fabric.spec();
                let rate_bps = spec.node_rate.unwrap_or(UNLIMITED_BPS) * spec.nics as u64;
                let uplink = |(leaf, spine)| Uplink {
                    leaf: format!("leaf{leaf}"),
                    spine: format!("spine{spine}"),
                    rate_bps: spec.rate.unwrap_or(UNLIMITED_BPS),
                };
                let pairs = (0..spec.leaves).flat_map(|l| (0..spec.spines).map(move |s| (l, s)));
                Topology {
                    nodes: (0..spec.nodes)
                        .map(|i| node(i, fabric.node(i).leaf, rate_bps))
                        .collect(),
                    uplinks: pairs.map(uplink).collect(),
                }
            }
            Self::Loopback { agents, .. } => Topology {
                nodes: (0..agents.len())
                    .map(|i| node(i, 0, UNLIMITED_BPS))
                    .collect(),
                uplinks: Vec::new(),
            },
        }
    }

    /// What the planner is told that nobody has said.
    pub fn assumed(&self) -> String {
        let spec = self.fabric().map(|fabric| fabric.spec());
        if spec.is_some_and(|spec| spec.rate.is_some() && spec.node_rate.is_some()) {
            return String::new();
        }
        let rate = quantity::rate(UNLIMITED_BPS);
        format!(" (links without a rate are planned as {rate})")
    }

    /// Part of a link's rate that is payload, as a fabric's token buckets count: full packets, whose
    /// payload is rounded down to a multiple of 8.
    pub fn payload_share(&self) -> f64 {
        payload_share(self.mtu())
    }
}

fn payload_share(mtu: u32) -> f64 {
    let payload = mtu.saturating_sub(PACKET_OVERHEAD) & !7;
    f64::from(payload) / f64::from(payload + PACKET_OVERHEAD + FRAME_OVERHEAD)
}

fn listener() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

/// The next `count` UDP ports in a row that nobody has.
fn free_range(next: &mut u16, count: u16) -> io::Result<u16> {
    while *next + count <= LOOPBACK_PORTS_END {
        let first = *next;
        *next += count;
        let free = |port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if (first..first + count).all(free) {
            return Ok(first);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_ports_make_so_many_paths() {
        for (paths, ports) in [(1, 1), (2, 2), (4, 2), (5, 3), (128, 12), (256, 16)] {
            assert_eq!(port_count(paths), ports, "{paths}");
        }
    }

    #[test]
    fn the_payload_share_is_that_of_full_packets() {
        // 8,904 of 9,010 and 1,408 of 1,514.
        assert!((payload_share(9000) - 8904.0 / 9010.0).abs() < 1e-9);
        assert!((payload_share(1500) - 1408.0 / 1514.0).abs() < 1e-9);
    }

    #[test]
    fn nodes_on_loopback_share_no_port() {
        let ground = Ground::loopback(3, 1500).unwrap();
        let all: Vec<Addresses> = (0..3).map(|i| ground.addresses(i)).collect();
        for (i, one) in all.iter().enumerate() {
            for other in &all[..i] {
                assert!(one.control != other.control && one.metrics != other.metrics);
                assert!(one.first_port.abs_diff(other.first_port) >= port_count(1));
            }
        }
    }
}
