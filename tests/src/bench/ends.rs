//! Two engines in two nodes of a fabric, both in this process: one clock stamps both ends.

use std::net::IpAddr;
use std::time::Duration;

use weft_engine::{
    Encryption, EngineError, LinkError, LinkKind, NicAddresses, PolicyKind, PortRange, Progress,
};
use weft_fabric::Fabric;

use super::BenchError;
use super::host::{End, Host, Setup, connect_many};

/// Ports of each end: 16 × 16 pairs.
const PORTS: u16 = 16;
/// The first port of draw 0.
const FIRST_PORT: u16 = 7500;
/// A draw's ports are so far from the next one's.
const PORTS_STEP: u16 = 617;

/// How the engines are started.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Who chooses the paths; the engine's default when absent.
    pub policy: Option<PolicyKind>,
    /// How many there are.
    pub paths: u16,
    /// Over what.
    pub link: LinkKind,
    /// How many NICs of each node.
    pub nics: usize,
    /// Which ports, and the seed of the policy's draws.
    pub draw: u16,
    /// Who runs the workers.
    pub progress: Progress,
    /// Over how many workers a connection is split.
    pub split: u16,
    /// How long a worker polls before it sleeps; the engine's default when absent.
    pub spin: Option<Duration>,
    /// Whether connections are encrypted.
    pub encryption: Encryption,
}

impl Default for Shape {
    /// 128 paths over UDP and one worker thread an engine, the rest as the engine has it.
    fn default() -> Self {
        Self {
            policy: None,
            paths: 128,
            link: LinkKind::Udp,
            nics: 1,
            draw: 0,
            progress: Progress::Threads(1),
            split: 1,
            spin: None,
            encryption: Encryption::Off,
        }
    }
}

/// Two engines; unless said otherwise node 0 sends and node 1 receives.
pub struct Ends {
    /// In the node that sends.
    pub sender: Host,
    /// In the node that receives.
    pub receiver: Host,
}

impl Shape {
    /// The ports of both ends: a fabric has one range for all its nodes.
    pub fn ports(self) -> PortRange {
        PortRange {
            first: FIRST_PORT + self.draw * PORTS_STEP,
            count: PORTS,
        }
    }

    fn start(self, fabric: &Fabric, node: usize, ports: PortRange) -> Result<Host, BenchError> {
        let nics = fabric.node(node).nics.iter().take(self.nics);
        let nics: Vec<_> = nics.map(|it| (*it).into()).collect();
        let nics = NicAddresses::new(&nics);
        let nics = nics.map_err(|error| EngineError::from(LinkError::from(error)))?;
        let mtu = u16::try_from(fabric.spec().mtu).unwrap_or(u16::MAX);
        self.start_at(fabric, node, (nics, ports, mtu))
    }

    fn start_at(
        self,
        fabric: &Fabric,
        node: usize,
        (nics, ports, mtu): (NicAddresses, PortRange, u16),
    ) -> Result<Host, BenchError> {
        let setup = Setup {
            nics,
            ports,
            mtu,
            paths: self.paths,
            policy: self.policy,
            link: self.link,
            progress: self.progress,
            split: self.split,
            spin: self.spin,
            encryption: self.encryption,
            seed: u64::from(self.draw) + 1,
        };
        fabric.in_node(node, || Host::start(setup))?
    }
}

impl Ends {
    /// Starts both.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn start(fabric: &Fabric, shape: Shape) -> Result<Self, BenchError> {
        Self::between(fabric, shape, 0, 1)
    }

    /// Starts both in these nodes.
    ///
    /// # Errors
    /// [`BenchError`].
    pub(super) fn between(
        fabric: &Fabric,
        shape: Shape,
        sender: usize,
        receiver: usize,
    ) -> Result<Self, BenchError> {
        Ok(Self {
            sender: shape.start(fabric, sender, shape.ports())?,
            receiver: shape.start(fabric, receiver, shape.ports())?,
        })
    }

    /// Starts both in nodes 0 and 1, at these addresses of interfaces that have this MTU.
    ///
    /// # Errors
    /// [`BenchError`].
    pub(super) fn start_at(
        fabric: &Fabric,
        shape: Shape,
        addresses: [IpAddr; 2],
        mtu: u16,
    ) -> Result<Self, BenchError> {
        let start = |node: usize| {
            let nics = addresses[node].into();
            shape.start_at(fabric, node, (nics, shape.ports(), mtu))
        };
        Ok(Self {
            sender: start(0)?,
            receiver: start(1)?,
        })
    }

    /// Starts both in node 0.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn start_in_one_node(fabric: &Fabric, shape: Shape) -> Result<Self, BenchError> {
        let ports = shape.ports();
        let behind = PortRange {
            first: ports.first + ports.count,
            ..ports
        };
        Ok(Self {
            sender: shape.start(fabric, 0, ports)?,
            receiver: shape.start(fabric, 0, behind)?,
        })
    }

    /// Starts both over 127.0.0.1, on ports of this test's own.
    #[cfg(test)]
    pub(crate) fn on_loopback(shape: Shape) -> Self {
        let start = |first: u16| {
            let setup = Setup {
                nics: std::net::Ipv4Addr::LOCALHOST.into(),
                ports: PortRange { first, count: 4 },
                mtu: 9000,
                paths: shape.paths.min(16),
                policy: shape.policy,
                link: shape.link,
                progress: shape.progress,
                split: shape.split,
                spin: shape.spin,
                encryption: shape.encryption,
                seed: 1,
            };
            Host::start(setup).unwrap()
        };
        let first = 24_200 + 8 * shape.draw;
        Self {
            sender: start(first),
            receiver: start(first + 4),
        }
    }

    /// Connects them once more: the sender's end, the receiver's end.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn connect(&self) -> Result<(End, End), BenchError> {
        let mut pairs = connect_many(&self.sender, &self.receiver, 1)?;
        pairs.pop().ok_or(BenchError::Panicked("connecting"))
    }
}
