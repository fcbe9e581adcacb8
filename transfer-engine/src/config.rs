//! The settings of a TransferEngine, and how its NICs start by them.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use socket2::SockRef;
use weft_engine::{
    DomainId, Encryption, Engine, EngineConfig, EngineError, LinkKind, Nanos, NicAddresses,
    PortRange, Secret,
};

use crate::error::TransferError;
use crate::link_choice::LinkChoice;

/// All memory and all connections of an engine are in one protection domain: only keys open memory.
pub(crate) const DOMAIN: DomainId = DomainId(1);

/// More paths bring little (STELLAR, section 7).
const PATHS_MAX: u16 = 128;

/// Who moves the bytes of an engine, and ends its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Progress {
    /// Worker threads, as many as [`TransferEngineConfig::workers`] says.
    #[default]
    Threads,
    /// The program, by [`crate::TransferEngine::poll`]: no thread is woken between a packet and the program. Nothing moves
    /// while it does not call, connecting included. `workers` must be 1.
    Inline,
}

/// The settings of a TransferEngine. The defaults work on a laptop.
#[derive(Debug, Clone)]
pub struct TransferEngineConfig {
    /// The addresses of 1 to 16 NICs, all IPv4 or all IPv6. Every operation is spread over all of them, and over those of the
    /// peer; a NIC that is slower or down gets less or nothing. Default: 127.0.0.1.
    pub nics: Vec<IpAddr>,
    /// Which link is used to reach peers. Default: shared memory in a node, else the fastest.
    pub link: LinkChoice,
    /// UDP ports, at least as many for each worker as there are NICs, which share them; both ends must agree. Default: 16, which
    /// make 256 pairs for 128 paths.
    pub port_count: u16,
    /// Where the engine looks for free ports. Each NIC also listens on TCP ports: set-up on the one with the number of the
    /// first UDP port, and the link tcp on the next ones, one for each worker.
    /// Default: 20000 to 32767, below those that the system gives to any program.
    pub ports: RangeInclusive<u16>,
    /// Worker threads, a divisor of `port_count`; both ends must agree. Each has a share of the ports of all NICs.
    /// Default: 1.
    pub workers: u16,
    /// Who moves bytes. Default: threads of the engine.
    pub progress: Progress,
    /// The CPUs of the worker threads, one after the other, and again from the beginning. A worker's memory is allocated at its CPU. Default: none, the system chooses.
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
            nics: vec![Ipv4Addr::LOCALHOST.into()],
            link: LinkChoice::Auto,
            port_count: 16,
            ports: 20_000..=32_767,
            workers: 1,
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

/// The engine of a link.
#[derive(Debug)]
pub(crate) struct LinkEngine {
    pub(crate) engine: Engine,
    pub(crate) link: LinkKind,
}

impl TransferEngineConfig {
    pub(crate) fn nics(&self) -> Result<NicAddresses, TransferError> {
        NicAddresses::named(&self.nics).map_err(TransferError::Nics)
    }

    /// Starts the engines of all links on free ports, and a listener for set-up at each NIC, which may have a device.
    pub(crate) fn start_engines(
        &self,
        devices: &[Option<String>],
    ) -> Result<(Vec<LinkEngine>, Vec<TcpListener>), TransferError> {
        let nics = self.nics()?;
        if self.watch_interval.is_zero() {
            return Err(TransferError::Invalid {
                field: "watch_interval",
                problem: "is 0: a thread would look without end",
            });
        }
        TransferError::check_at_least_one("workers", self.workers.into())?;
        if self.progress == Progress::Inline && self.workers != 1 {
            return Err(TransferError::Invalid {
                field: "workers",
                problem: "must be 1 where the program polls",
            });
        }
        if self.link == LinkChoice::Only(LinkKind::Xdp) && self.workers != 1 {
            return Err(TransferError::Invalid {
                field: "workers",
                problem: "must be 1 over the link xdp: a queue of the NIC has one socket",
            });
        }
        if !self.port_count.is_multiple_of(self.workers) {
            return Err(TransferError::UnevenWorkers {
                workers: self.workers,
                port_count: self.port_count,
            });
        }
        let bad_ports = match (self.ports.start(), self.ports.end()) {
            (0, _) => Some("begin with 0, which is no port: begin with 1024 or more"),
            (first, last) if first > last => Some("end before they begin: put the lower one first"),
            _ => None,
        };
        if let Some(problem) = bad_ports {
            let field = "ports";
            return Err(TransferError::Invalid { field, problem });
        }
        let node_key = Secret(random()?);
        // Set-up has the first TCP port.
        let count = self.port_count.max(self.workers.saturating_add(1));
        for first in self.ports.clone().step_by(count.into()) {
            let last = first.checked_add(count - 1);
            if !last.is_some_and(|last| self.ports.contains(&last)) {
                break;
            }
            // Engines of this machine do not meet: who has these TCP ports may open the others.
            let listen = |(nic, device): (&IpAddr, &Option<String>)| {
                let endpoint = SocketAddr::new(*nic, first);
                let bind = || {
                    let listener = TcpListener::bind(endpoint)?;
                    if let Some(device) = device {
                        SockRef::from(&listener).bind_device(Some(device.as_bytes()))?;
                    }
                    Ok(listener)
                };
                bind().map_err(|source: Error| (endpoint, source))
            };
            let listeners = nics.iter().zip(devices).map(listen);
            let listeners = match listeners.collect::<Result<_, _>>() {
                Ok(listeners) => listeners,
                Err((_, error)) if error.kind() == ErrorKind::AddrInUse => continue,
                Err((endpoint, source)) => {
                    return Err(TransferError::Listen { endpoint, source });
                }
            };
            let start = |link| {
                let engine = Engine::start(self.engine(link, nics, first, &node_key))?;
                Ok(LinkEngine { engine, link })
            };
            let links = self.link.kinds().into_iter();
            match links.map(start).collect::<Result<_, EngineError>>() {
                Ok(engines) => return Ok((engines, listeners)),
                Err(error) if error.reason() == "PortTaken" => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(TransferError::Invalid {
            field: "ports",
            problem: "has too few free ports in a row: widen the range, or lower port_count",
        })
    }

    /// The settings of a link's engine.
    fn engine(
        &self,
        link: LinkKind,
        nics: NicAddresses,
        first: u16,
        node_key: &Secret,
    ) -> EngineConfig {
        let workers = self.workers;
        let ports = match link {
            LinkKind::Udp | LinkKind::Xdp => PortRange {
                first,
                count: self.port_count,
            },
            // Names of shared memory, which are no ports, are of the same numbers.
            LinkKind::Tcp | LinkKind::Shm => PortRange {
                first: first + 1,
                count: workers,
            },
        };
        let defaults = EngineConfig::over(link, nics, ports, node_key.clone());
        // Those of one worker, at both ends.
        let ports_of_worker = self.port_count / workers.max(1);
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
            cpus: self.cpus.clone(),
            paths: match link {
                LinkKind::Udp | LinkKind::Xdp => {
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
