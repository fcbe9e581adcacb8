//! Two engines in two nodes of a fabric, both in this process: one clock stamps both ends.

use std::net::Ipv4Addr;

use weft_cli::fabric::Fabric;
use weft_engine::rate::{Joined, join};
use weft_engine::{Engine, EngineConfig, PolicyKind, PortRange, Secret};

use super::BenchError;

/// Ports of each end: 16 × 16 pairs.
const PORTS: u16 = 16;
/// The first port of draw 0.
const FIRST_PORT: u16 = 7500;
/// A draw's ports are so far from the next one's.
const PORTS_STEP: u16 = 617;

/// How the engines are started.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Who chooses the paths.
    pub policy: PolicyKind,
    /// How many there are.
    pub paths: u16,
    /// Which ports, and the seed of the policy's draws.
    pub draw: u16,
}

/// Node 0 sends, node 1 receives.
pub struct Ends {
    /// In node 0.
    pub sender: Engine,
    /// In node 1.
    pub receiver: Engine,
}

impl Shape {
    /// The ports of both ends: a fabric has one range for all its nodes.
    pub fn ports(self) -> PortRange {
        PortRange {
            first: FIRST_PORT + self.draw * PORTS_STEP,
            count: PORTS,
        }
    }
}

impl Ends {
    /// Starts both.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn start(fabric: &Fabric, shape: Shape) -> Result<Self, BenchError> {
        let mtu = u16::try_from(fabric.spec().mtu).unwrap_or(u16::MAX);
        let start = |node: usize| -> Result<Engine, BenchError> {
            let address: Ipv4Addr = fabric.node(node).data_address;
            let mut config = EngineConfig::new(address, shape.ports(), Secret([node as u8; 32]));
            config.mtu = mtu;
            config.paths = shape.paths;
            config.policy = shape.policy;
            config.seed = u64::from(shape.draw) + 1;
            Ok(fabric.in_node(node, || Engine::start(config))??)
        };
        Ok(Self {
            sender: start(0)?,
            receiver: start(1)?,
        })
    }

    /// Connects them once more.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn join(&self) -> Result<Joined, BenchError> {
        Ok(join(&self.sender, &self.receiver)?)
    }
}
