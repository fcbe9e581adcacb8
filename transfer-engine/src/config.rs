//! The settings of a TransferEngine, and how its NICs start by them.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use weft_engine::{
    DomainId, Encryption, Engine, EngineConfig, EngineError, LinkKind, Nanos, PortRange, Secret,
};

use crate::error::TransferError;
use crate::link_choice::LinkChoice;

/// All memory and all connections of an engine are in one protection domain: only keys open memory.
pub(crate) const DOMAIN: DomainId = DomainId(1);

/// Most NICs of an engine: their ends fit one message of set-up.
pub(crate) const NICS_MAX: usize = 128;

/// More paths bring little (STELLAR, section 7).
const PATHS_MAX: u16 = 128;

/// A NIC to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicConfig {
    /// An IPv4 or IPv6 address of the NIC.
    pub address: IpAddr,
    /// Its speed in bits per second, at least 1: NICs get work in this proportion.
    pub speed_bps: u64,
}

/// Who moves the bytes of an engine, and ends its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Progress {
    /// Worker threads, as many for each NIC as [`TransferEngineConfig::workers_per_nic`] says.
    #[default]
    Threads,
    /// The program, by [`crate::TransferEngine::poll`]: no thread is woken between a packet and the program. Nothing moves
    /// while it does not call, connecting included. `workers_per_nic` must be 1.
    Inline,
}

/// The settings of a TransferEngine. The defaults work on a laptop.
#[derive(Debug, Clone)]
pub struct TransferEngineConfig {
    /// 1 to 128 NICs. Default: 127.0.0.1.
    pub nics: Vec<NicConfig>,
    /// Which link is used to reach peers. Default: shared memory in a node, else the fastest.
    pub link: LinkChoice,
    /// UDP ports of each NIC; both ends must agree. Default: 16, which make 256 pairs for 128 paths.
    pub ports_per_nic: u16,
    /// Where the engine looks for free ports. Each NIC also listens on TCP ports: set-up on the one with the number of its
    /// first UDP port, and the link tcp on the next ones, one for each worker.
    /// Default: 20000 to 32767, below those that the system gives to any program.
    pub ports: RangeInclusive<u16>,
    /// Worker threads of each NIC, a divisor of `ports_per_nic`; both ends must agree. Default: 1.
    pub workers_per_nic: u16,
    /// Who moves bytes. Default: threads of the engine.
    pub progress: Progress,
    /// The CPUs of the worker threads, one after the other: first those of the first NIC's workers, then the next NIC's, and
    /// again from the beginning. A worker's memory is allocated at its CPU. Default: none, the system chooses.
    pub cpus: Vec<u16>,
    /// Bytes of the largest IP packet; both ends must agree. Default: 1500.
    pub mtu: u16,
    /// Whether data is encrypted; both ends must agree. Set-up always is. Default: off.
    pub encryption: Encryption,
    /// A connection with bytes under way that receives nothing for this time fails. Default: 10 s.
    pub stall_timeout: Duration,
    /// How long connecting to a peer may take. Default: 5 s.
    pub connect_timeout: Duration,
    /// How long a stopped operation waits for the peer to confirm the stop. Default: 1 s.
    pub cancel_timeout: Duration,
    /// How often the words of watchers are read, more than 0. Default: 50 µs.
    pub watch_interval: Duration,
}

impl Default for TransferEngineConfig {
    fn default() -> Self {
        Self {
            nics: vec![NicConfig {
                address: Ipv4Addr::LOCALHOST.into(),
                speed_bps: 10_000_000_000,
            }],
            link: LinkChoice::Auto,
            ports_per_nic: 16,
            ports: 20_000..=32_767,
            workers_per_nic: 1,
            progress: Progress::Threads,
            cpus: Vec::new(),
            mtu: 1500,
            encryption: Encryption::Off,
            stall_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            cancel_timeout: Duration::from_secs(1),
            watch_interval: Duration::from_micros(50),
        }
    }
}

/// A NIC in use by a link.
#[derive(Debug)]
pub(crate) struct LinkEngine {
    pub(crate) engine: Engine,
    pub(crate) link: LinkKind,
    pub(crate) speed_bps: u64,
}

impl TransferEngineConfig {
    /// Starts the engines of all NICs on free ports, and a listener for set-up beside those of each.
    pub(crate) fn start_engines(
        &self,
    ) -> Result<(Vec<LinkEngine>, Vec<TcpListener>), TransferError> {
        if self.nics.is_empty() || self.nics.len() > NICS_MAX {
            return Err(TransferError::Invalid {
                field: "nics",
                problem: "must be 1 to 128 NICs",
            });
        }
        if self.watch_interval.is_zero() {
            return Err(TransferError::Invalid {
                field: "watch_interval",
                problem: "is 0: a thread would look without end",
            });
        }
        if self.progress == Progress::Inline && self.workers_per_nic != 1 {
            return Err(TransferError::Invalid {
                field: "workers_per_nic",
                problem: "must be 1 where the program polls",
            });
        }
        let node_key = Secret(random()?);
        let (mut engines, mut listeners) = (Vec::new(), Vec::new());
        for (index, nic) in self.nics.iter().enumerate() {
            let links = self.link.kinds().into_iter();
            // Memory is one way, however many NICs there are.
            let links = links.filter(|link| index == 0 || *link != LinkKind::Shm);
            let cpus = self.cpus.iter().copied().cycle();
            let workers = usize::from(self.workers_per_nic);
            let cpus: Vec<_> = cpus.skip(index * workers).take(workers).collect();
            let (of_nic, listener) =
                self.start_nic(nic, &links.collect::<Vec<_>>(), &cpus, &node_key)?;
            engines.extend(of_nic);
            listeners.push(listener);
        }
        Ok((engines, listeners))
    }

    fn start_nic(
        &self,
        nic: &NicConfig,
        links: &[LinkKind],
        cpus: &[u16],
        node_key: &Secret,
    ) -> Result<(Vec<LinkEngine>, TcpListener), TransferError> {
        // Set-up has the first TCP port.
        let tcp_ports = self.workers_per_nic.saturating_add(1);
        let count = self.ports_per_nic.max(tcp_ports);
        for first in self.ports.clone().step_by(count.into()) {
            let last = first.checked_add(count - 1);
            if !last.is_some_and(|last| self.ports.contains(&last)) {
                break;
            }
            // Engines of this machine do not meet: who has this TCP port may open the others.
            let listener = match TcpListener::bind(SocketAddr::new(nic.address, first)) {
                Ok(listener) => listener,
                Err(error) if error.kind() == ErrorKind::AddrInUse => continue,
                Err(error) => return Err(TransferError::system("bind")(error)),
            };
            let start = |link| {
                let engine = Engine::start(EngineConfig {
                    cpus: cpus.to_vec(),
                    ..self.engine(link, nic, first, node_key)
                })?;
                let speed_bps = nic.speed_bps.max(1);
                Ok(LinkEngine {
                    engine,
                    link,
                    speed_bps,
                })
            };
            match links
                .iter()
                .copied()
                .map(start)
                .collect::<Result<_, EngineError>>()
            {
                Ok(engines) => return Ok((engines, listener)),
                Err(error) if error.reason() == "PortTaken" => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(TransferError::Invalid {
            field: "ports",
            problem: "has too few free ports in a row: widen the range, or lower ports_per_nic",
        })
    }

    /// The settings of a NIC's engine.
    fn engine(
        &self,
        link: LinkKind,
        nic: &NicConfig,
        first: u16,
        node_key: &Secret,
    ) -> EngineConfig {
        let workers = self.workers_per_nic;
        let ports = match link {
            LinkKind::Udp => PortRange {
                first,
                count: self.ports_per_nic,
            },
            // Names of shared memory, which are no ports, are of the same numbers.
            LinkKind::Tcp | LinkKind::Shm => PortRange {
                first: first + 1,
                count: workers,
            },
        };
        let defaults = EngineConfig::over(link, nic.address, ports, node_key.clone());
        // Those of one worker, at both ends.
        let ports_of_worker = self.ports_per_nic / workers.max(1);
        let nanos = |time: Duration| Nanos::new(time.as_nanos().try_into().unwrap_or(u64::MAX));
        EngineConfig {
            mtu: self.mtu,
            encryption: self.encryption,
            stall_timeout: nanos(self.stall_timeout),
            rto_min: Nanos::from_millis(5).min(nanos(self.stall_timeout)),
            progress: match self.progress {
                Progress::Threads => weft_engine::Progress::Threads(workers.into()),
                Progress::Inline => weft_engine::Progress::Inline,
            },
            split: workers,
            paths: match link {
                LinkKind::Udp => {
                    let pairs = ports_of_worker.saturating_mul(ports_of_worker);
                    pairs.clamp(1, PATHS_MAX)
                }
                LinkKind::Tcp | LinkKind::Shm => defaults.paths,
            },
            ..defaults
        }
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], TransferError> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|error| TransferError::system("getrandom")(Error::other(error.to_string())))?;
    Ok(bytes)
}
