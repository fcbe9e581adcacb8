//! What an agent is told.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::ValueEnum;
use weft_fabric::{MAX_RATE, MIN_RATE, quantity};
use weft_identity::authority::IdentityFiles;

use super::{Addresses, Root};

/// How a path is chosen for a chunk; the agents know them by these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PathPolicy {
    /// One path for everything.
    Single,
    /// One after the other.
    RoundRobin,
    /// Any, at random.
    Oblivious,
    /// The faster of two drawn at random.
    TwoChoices,
    /// The fastest.
    BestRtt,
    /// Those whose data came back soon.
    #[default]
    Reps,
    /// One until another is clearly better.
    Hopper,
}

impl fmt::Display for PathPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::RoundRobin => "round-robin",
            Self::Oblivious => "oblivious",
            Self::TwoChoices => "two-choices",
            Self::BestRtt => "best-rtt",
            Self::Reps => "reps",
            Self::Hopper => "hopper",
        })
    }
}

/// What bounds the bytes in flight; the agents know them by these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// Marks and queueing delay.
    #[default]
    EcnRtt,
    /// A target for the round trip.
    Swift,
    /// Credits that receivers grant.
    Eqds {
        /// The rate at which every node receives.
        mbps: u64,
    },
}

impl FromStr for CongestionControl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("eqds:")) {
            ("ecn-rtt", _) => Ok(Self::EcnRtt),
            ("swift", _) => Ok(Self::Swift),
            (_, Some(rate)) => match quantity::parse_rate(rate) {
                Ok(bps) if (MIN_RATE..=MAX_RATE).contains(&bps) => Ok(Self::Eqds {
                    mbps: bps / 1_000_000,
                }),
                Ok(_) => Err("give a rate from 1mbit to 400gbit, as eqds:10gbit".to_owned()),
                Err(error) => Err(error.to_string()),
            },
            _ => Err(
                "must be ecn-rtt, swift or eqds:RATE with the rate at which nodes receive, as eqds:10gbit"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EcnRtt => f.write_str("ecn-rtt"),
            Self::Swift => f.write_str("swift"),
            Self::Eqds { mbps } => write!(f, "eqds:{mbps}mbit"),
        }
    }
}

/// What carries the packets; the agents know it by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Link {
    /// The faster of both between two nodes, or the one that passes.
    Auto,
    /// Kernel UDP.
    Udp,
    /// Kernel TCP.
    Tcp,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        })
    }
}

/// Whether the data path is encrypted; the agents know it by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encryption {
    /// Packets are readable; damage is found.
    Off,
    /// Every packet is encrypted.
    Required,
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Required => "required",
        })
    }
}

/// What jobs may do in a root; agents know it by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// What one agent is told.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Its node.
    pub node: String,
    /// The fabric's name.
    pub fabric: &'static str,
    /// Where it listens.
    pub addresses: Addresses,
    /// NICs on the data network besides the first one.
    pub other_nics: Vec<Ipv4Addr>,
    /// Data ports from the first one on.
    pub ports: u16,
    /// Paths to every other node.
    pub paths: u16,
    /// Largest IP packet.
    pub mtu: u32,
    /// How a chunk's path is chosen.
    pub policy: PathPolicy,
    /// What carries the packets.
    pub link: Link,
    /// Whether the data path is encrypted.
    pub encryption: Encryption,
    /// What bounds the bytes in flight.
    pub congestion: CongestionControl,
    /// What tickets are checked with.
    pub ticket_key: String,
    /// Its keys and certificates.
    pub files: IdentityFiles,
    /// Its one root.
    pub root: Root,
    /// The socket of its engine and the devices of the fabric, where it has a device.
    pub devices: Option<(PathBuf, Vec<DevicePeer>)>,
}

/// A device of the fabric, as agents know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePeer {
    /// Its GID.
    pub gid: Ipv6Addr,
    /// Its node.
    pub node: String,
    /// The control API of that node's agent.
    pub control: SocketAddr,
}

impl AgentConfig {
    /// The configuration file. JSON strings are YAML strings, so that any path can be written.
    pub fn yaml(&self) -> Result<String, serde_json::Error> {
        let quote = |path: &Path| serde_json::to_string(path);
        let devices = match &self.devices {
            None => String::new(),
            Some((socket, peers)) => {
                let peer = |peer: &DevicePeer| {
                    let DevicePeer { gid, node, control } = peer;
                    format!("  - {{gid: \"{gid}\", node: {node}, control: \"{control}\"}}\n")
                };
                let peers: String = peers.iter().map(peer).collect();
                format!("devices:\n  socket: {}\n  peers:\n{peers}", quote(socket)?)
            }
        };
        Ok(format!(
            "node: {node}\n\
             fabric: {fabric}\n\
             control: {{listen: \"{control}\"}}\n\
             metrics: {{listen: \"{metrics}\"}}\n\
             data:\n  address: {data}\n  otherAddresses: {others:?}\n  ports: {{first: {first}, count: {ports}}}\n  mtu: {mtu}\n\
             operator: {{ticketKey: \"{ticket_key}\"}}\n\
             tls:\n  ca: {ca}\n  certificate: {certificate}\n  key: {key}\n\
             roots:\n  - {{name: {root}, path: {directory}, access: {access:?}}}\n\
             transport: {{paths: {paths}, policy: {policy}, congestion: {congestion}, link: {link}, encryption: \"{encryption}\"}}\n\
             {devices}",
            node = self.node,
            fabric = self.fabric,
            control = self.addresses.control,
            metrics = self.addresses.metrics,
            data = self.addresses.data,
            others = self.other_nics,
            first = self.addresses.first_port,
            ports = self.ports,
            mtu = self.mtu,
            ticket_key = self.ticket_key,
            ca = quote(&self.files.ca)?,
            certificate = quote(&self.files.certificate)?,
            key = quote(&self.files.key)?,
            root = self.root.name,
            directory = quote(&self.root.directory)?,
            access = self.root.access,
            paths = self.paths,
            policy = self.policy,
            link = self.link,
            encryption = self.encryption,
            congestion = self.congestion,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_congestion_control_is_told_to_agents_as_it_is_named_here() {
        let told = |text: &str| {
            text.parse()
                .map(|control: CongestionControl| control.to_string())
        };
        assert_eq!(told("swift"), Ok("swift".to_owned()));
        assert_eq!(told("eqds:10gbit"), Ok("eqds:10000mbit".to_owned()));
        for text in [
            "eqds",
            "eqds:",
            "eqds:10",
            "eqds:999kbit",
            "eqds:401gbit",
            "cubic",
        ] {
            assert!(told(text).is_err(), "{text}");
        }
    }
}
