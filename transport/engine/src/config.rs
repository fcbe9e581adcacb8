//! What an engine is started with, checked before anything is opened.

use std::sync::Arc;

use weft_core::congestion::CongestionKind;
use weft_core::connection::Settings;
use weft_core::path::PolicyKind;
use weft_core::recovery::WINDOW_MAX;
use weft_core::units::Nanos;
use weft_core::wire::{CHUNK_PACKETS_MAX, Integrity, OVERHEAD_BYTES, Secret, VERSION};
use weft_link::{
    AnyConfig, LinkAddress, LinkKind, LocalSwitch, NICS_MAX, NicAddresses, PortRange, ShmConfig,
    ShmLink, SocketBuffers, TcpConfig, UdpConfig,
};

use crate::error::EngineError;
use crate::identity::{WORKERS_MAX, link_token};

/// The smallest MTU: IPv6's, and enough for every control packet.
const MTU_MIN: u16 = 1280;

/// Most bytes of one UDP send, all its datagrams together: 65,535 less IP and UDP headers.
const SEND_BYTES_MAX: usize = 65_507;

/// Payload of a packet over TCP, bytes: two of them are a chunk of 64 KiB, and a payload that is a multiple of a page lies
/// in as few of them as it can.
const TCP_PAYLOAD: u16 = 32 << 10;

/// The same over shared memory.
const SHM_PAYLOAD: u16 = ShmLink::PAYLOAD_BYTES as u16;

/// Who runs the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// So many threads. Each has an equal part of the ports and the protection domains whose number
    /// leaves its index when divided by the number of threads.
    Threads(usize),
    /// The caller, by [`crate::Engine::poll`].
    Inline,
}

/// Whether what an engine sends is encrypted. Both ends must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encryption {
    /// Headers are authenticated, payload is checked for damage where a link may damage it, nothing is hidden.
    #[default]
    Off,
    /// Every connection is encrypted; one that cannot be is refused.
    Required,
}

/// Everything that an engine must be told.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Where the engine is reached: the NICs that it sends over, and their ports.
    pub address: LinkAddress,
    /// Whether an engine over UDP sends and receives by AF_XDP, past the kernel's UDP stack: peers see no difference. It has
    /// one NIC and one worker, and an MTU of 3826 at most, or what the interface's driver allows.
    pub xdp: bool,
    /// Bytes of the largest IP packet, 1280 or more; both ends must agree. Over TCP it is the kernel's affair, and only says by
    /// how many headers the egress cap counts. Over shared memory it means nothing.
    pub mtu: u16,
    /// Paths used between this engine's NICs and those of another, 1 to 256; both ends must agree.
    pub paths: u16,
    /// Who chooses among them.
    pub policy: PolicyKind,
    /// Who sets the window. Over TCP the kernel's congestion control does, and this window has its full size; over shared
    /// memory nobody does.
    pub congestion: CongestionKind,
    /// Floor of the retransmission timeout. Over TCP and shared memory it is two seconds at least.
    pub rto_min: Nanos,
    /// Most bytes of one chunk on the wire, headers included; both ends must agree. Cut to whole
    /// packets (one at least), to 64 of them and to what one UDP send carries. Over TCP and shared memory headers are not counted.
    pub chunk_bytes: u32,
    /// Most chunks in flight in one direction of a connection; both ends must agree.
    pub window_chunks: u16,
    /// Whether connections are encrypted; both ends must agree.
    pub encryption: Encryption,
    /// A connection with something in flight that hears nothing for this long fails.
    pub stall_timeout: Nanos,
    /// Who runs the workers.
    pub progress: Progress,
    /// The CPUs of the workers' threads: the `i`-th runs on the `i`-th of these, modulo their number, and its memory is
    /// allocated there. Empty: the system chooses.
    pub cpus: Vec<u16>,
    /// Over how many workers each connection is split, at most: the end with fewer decides. Each part has `paths`
    /// paths between the ports of its two workers, and a window and congestion state of its own. A message goes
    /// whole over one part; messages on different parts have no order.
    pub split: u16,
    /// How what is sent is marked and limited; the only setting that [`Engine::set_egress`](crate::Engine::set_egress)
    /// changes later.
    pub egress: Egress,
    /// Engines of this process that are reached through memory and not through the network: those that were started with
    /// the same switch, in the same network namespace. Over UDP only.
    pub local_switch: Option<Arc<LocalSwitch>>,
    /// How long a worker polls before it blocks when there is nothing to do. Longer saves the
    /// wake-up (some 10 µs) in an exchange of small messages, and costs the core it polls on.
    pub spin: Nanos,
    /// Secret of the node, the same after each restart: peers believe a Reset by it.
    pub node_key: Secret,
    /// Of the path policies' draws. Drawn anew from the system when absent: nodes that draw alike would send over the
    /// same paths at the same time.
    pub seed: Option<u64>,
}

/// How the packets that leave are marked and limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Egress {
    /// Differentiated services code point (RFC 2474), 0 to 63.
    pub dscp: u8,
    /// Most that the engine sends, bits per second of IP packets, over all its connections, which share
    /// it evenly. Each worker has an equal part. No limit when absent.
    pub cap_bps: Option<u64>,
}

/// What an engine has sent by its sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressReport {
    /// Bytes of IP packets, since it was started.
    pub sent_bytes: u64,
    /// [`Egress::cap_bps`] has had something wait since the last report.
    pub was_held_back: bool,
}

impl Egress {
    /// Checks every field; the error names the first that is wrong.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        within("dscp", self.dscp.into(), 0..=63)?;
        if let Some(cap) = self.cap_bps {
            // Less than a full chunk in half a second is no transfer but a stall.
            within("capBps", cap, 1_000_000..=u64::MAX)?;
        }
        Ok(())
    }
}

impl EngineConfig {
    /// The defaults, each explained at its line, over UDP.
    pub fn new(nics: impl Into<NicAddresses>, ports: PortRange, node_key: Secret) -> Self {
        let nics = nics.into();
        Self {
            address: LinkAddress::Udp { nics, ports },
            xdp: false,
            // What every Ethernet carries.
            mtu: 1500,
            // STELLAR, section 7: little is gained above 128 paths.
            paths: 128.min(ports.count.saturating_mul(ports.count).max(1)),
            policy: PolicyKind::default(),
            congestion: CongestionKind::ECN_RTT,
            // A worker that blocks wakes late on a busy machine; a timer served late is re-armed once.
            rto_min: Nanos::from_millis(5),
            // One whole GSO send: the kernel's cost is by send, not by packet.
            chunk_bytes: 65_536,
            // 16 MiB in flight: 100 Gbit/s over 1.3 ms.
            window_chunks: 256,
            encryption: Encryption::Off,
            // Ten times the longest interval between the probes of a dead path.
            stall_timeout: Nanos::from_secs(10),
            progress: Progress::Threads(1),
            cpus: Vec::new(),
            split: 1,
            egress: Egress::default(),
            local_switch: None,
            spin: Nanos::from_micros(20),
            node_key,
            seed: None,
        }
    }

    /// The defaults over a link. Over TCP each worker is connected to at a port of its own: one worker needs one. Over shared
    /// memory the first NIC's address and `ports` only name the engine in its network namespace, and no socket of the network
    /// is opened: an engine over UDP or TCP may have the same.
    pub fn over(
        link: LinkKind,
        nics: impl Into<NicAddresses>,
        ports: PortRange,
        node_key: Secret,
    ) -> Self {
        let nics = nics.into();
        let over_udp = Self::new(nics, ports, node_key);
        let token = link_token(&over_udp.node_key);
        let address = LinkAddress::of(link, nics, ports, token);
        match link {
            LinkKind::Udp => over_udp,
            LinkKind::Xdp => Self {
                xdp: true,
                ..over_udp
            },
            LinkKind::Tcp => Self {
                address,
                // Several connections take several ways through the network, and a core's share of the kernel each. Over
                // several NICs, each has one.
                paths: if nics.len() > 1 { NICS_MAX as u16 } else { 4 },
                ..over_udp
            },
            LinkKind::Shm => Self {
                address,
                // There is one way, and each path has memory of its own.
                paths: 1,
                ..over_udp
            },
        }
    }

    /// What the `index`-th worker's link is opened with.
    pub(crate) fn link(&self, index: usize) -> AnyConfig {
        let part = self.address.part(index as u16, self.workers() as u16);
        let dscp = self.egress.dscp;
        match part {
            LinkAddress::Udp { nics, ports } => {
                let config = UdpConfig {
                    nics,
                    ports,
                    datagram_bytes: self.datagram_bytes(),
                    dscp,
                    buffers: SocketBuffers::default(),
                    local_switch: self.local_switch.clone(),
                };
                match self.xdp {
                    true => AnyConfig::Xdp(config),
                    false => AnyConfig::Udp(config),
                }
            }
            LinkAddress::Tcp { nics, ports, token } => AnyConfig::Tcp(TcpConfig {
                nics,
                ports,
                token,
                paths: self.paths,
                packet_bytes: self.datagram_bytes(),
                dscp,
            }),
            LinkAddress::Shm {
                address,
                ports,
                token,
            } => AnyConfig::Shm(ShmConfig {
                address,
                ports,
                token,
                paths: self.paths,
            }),
        }
    }

    /// The CPU of a worker.
    pub(crate) fn cpu(&self, index: usize) -> Option<u16> {
        self.cpus.iter().cycle().nth(index).copied()
    }

    /// The number of workers.
    pub(crate) fn workers(&self) -> usize {
        match self.progress {
            Progress::Threads(workers) => workers,
            Progress::Inline => 1,
        }
    }

    /// Payload bytes of a full packet: what the MTU leaves, down to a multiple of 8.
    fn packet_payload(&self) -> u16 {
        match self.address {
            LinkAddress::Udp { .. } => {}
            LinkAddress::Tcp { .. } => return TCP_PAYLOAD,
            LinkAddress::Shm { .. } => return SHM_PAYLOAD,
        }
        let datagram = usize::from(self.mtu - self.address.header_bytes()).min(SEND_BYTES_MAX);
        (datagram - OVERHEAD_BYTES) as u16 & !7
    }

    /// Bytes of a full datagram.
    pub(crate) fn datagram_bytes(&self) -> u16 {
        self.packet_payload() + OVERHEAD_BYTES as u16
    }

    /// What both ends of a connection must share.
    pub(crate) fn settings(&self) -> Settings {
        let packet = usize::from(self.datagram_bytes());
        let packets = match self.address {
            LinkAddress::Udp { .. } => (self.chunk_bytes as usize).min(SEND_BYTES_MAX) / packet,
            LinkAddress::Tcp { .. } | LinkAddress::Shm { .. } => {
                self.chunk_bytes as usize / usize::from(self.packet_payload())
            }
        };
        Settings {
            paths: self.paths,
            packet_payload: self.packet_payload(),
            chunk_bytes: (packets.clamp(1, CHUNK_PACKETS_MAX) * packet) as u32,
            window_chunks: self.window_chunks,
            wire_version: VERSION,
            integrity: match (self.encryption, self.address) {
                // Memory changes nothing on the way.
                (Encryption::Off, LinkAddress::Shm { .. }) => Integrity::SealedHeader,
                (Encryption::Off, _) => Integrity::Sealed,
                (Encryption::Required, _) => Integrity::Aead,
            },
        }
    }

    /// Checks every field; the error names the first that is wrong.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        self.address.check()?;
        let workers = self.workers();
        let count = usize::from(self.address.parts());
        within("mtu", self.mtu.into(), MTU_MIN.into()..=u16::MAX.into())?;
        self.egress.check()?;
        within(
            "progress.threads",
            workers as u64,
            // Over AF_XDP: a queue of the NIC has one socket.
            1..=count.min(if self.xdp { 1 } else { WORKERS_MAX }) as u64,
        )?;
        if count % workers != 0 {
            return Err(EngineError::UnevenWorkers {
                workers,
                address: Box::new(self.address),
            });
        }
        within("split", self.split.into(), 1..=workers as u64)?;
        let part = self.address.part(0, workers as u16);
        let pairs = part.paths_to(&part).into();
        within("paths", self.paths.into(), 1..=pairs)?;
        within(
            "windowChunks",
            self.window_chunks.into(),
            1..=WINDOW_MAX.into(),
        )?;
        within("chunkBytes", self.chunk_bytes.into(), 1..=65_536)?;
        within("stallTimeout (ns)", self.stall_timeout.get(), 1..=u64::MAX)?;
        within(
            "rtoMin (ns)",
            self.rto_min.get(),
            1..=self.stall_timeout.get(),
        )
    }
}

fn within(
    field: &'static str,
    value: u64,
    allowed: std::ops::RangeInclusive<u64>,
) -> Result<(), EngineError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let (least, most) = (*allowed.start(), *allowed.end());
    Err(EngineError::OutOfRange {
        field,
        value,
        least,
        most,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn config() -> EngineConfig {
        let ports = PortRange {
            first: 4000,
            count: 16,
        };
        EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([0; 32]))
    }

    #[test]
    fn a_chunk_is_one_udp_send_at_every_mtu() {
        for mtu in [1280, 1500, 4096, 9000, 16_384, 65_535] {
            let config = EngineConfig { mtu, ..config() };
            config.check().unwrap();
            config.settings().validate().unwrap();
            assert!(config.datagram_bytes() <= mtu - 28);
        }
        assert_eq!(config().settings().packet_payload, 1408);
        assert_eq!(config().settings().chunk_bytes, 44 * 1472);
    }

    #[test]
    fn a_packet_over_ipv6_leaves_room_for_its_longer_header() {
        let ports = config().address.ports();
        let config = EngineConfig::new(Ipv6Addr::LOCALHOST, ports, Secret([0; 32]));
        assert_eq!(config.settings().packet_payload, 1384);
        assert!(config.datagram_bytes() <= 1500 - 48);
    }

    #[test]
    fn a_chunk_over_tcp_is_64_kib_of_payload_in_two_packets_whatever_the_mtu() {
        let ports = PortRange {
            first: 4000,
            count: 1,
        };
        let link = "tcp".parse().unwrap();
        let config = EngineConfig::over(link, Ipv4Addr::LOCALHOST, ports, Secret([0; 32]));
        config.check().unwrap();
        let settings = config.settings();
        settings.validate().unwrap();
        assert_eq!(settings.packet_payload, 32_768);
        assert_eq!(
            (settings.chunk_packets(), settings.chunk_bytes),
            (2, 65_664)
        );
        let error = "tpc".parse::<LinkKind>().unwrap_err();
        assert_eq!(
            (error.reason(), error.to_string()),
            (
                "UnknownLink",
                "link is \"tpc\": it must be udp, tcp, shm or xdp".into()
            )
        );
    }

    #[test]
    fn a_chunk_over_shared_memory_is_64_kib_of_payload_that_no_checksum_protects() {
        let ports = PortRange {
            first: 4000,
            count: 1,
        };
        let over = |encryption| {
            let key = Secret([0; 32]);
            let config = EngineConfig::over(LinkKind::Shm, Ipv4Addr::LOCALHOST, ports, key);
            let config = EngineConfig {
                encryption,
                ..config
            };
            config.check().unwrap();
            let settings = config.settings();
            settings.validate().unwrap();
            settings
        };
        let settings = over(Encryption::Off);
        assert_eq!(settings.packet_payload, 32_768);
        assert_eq!((settings.chunk_packets(), settings.paths), (2, 1));
        assert_eq!(settings.integrity, Integrity::SealedHeader);
        assert_eq!(over(Encryption::Required).integrity, Integrity::Aead);
    }

    #[test]
    fn an_engine_over_af_xdp_has_the_address_of_one_over_udp_and_one_worker() {
        let ports = PortRange {
            first: 4000,
            count: 16,
        };
        let over = |link| EngineConfig::over(link, Ipv4Addr::LOCALHOST, ports, Secret([0; 32]));
        let (udp, xdp) = (over(LinkKind::Udp), over("xdp".parse().unwrap()));
        xdp.check().unwrap();
        assert_eq!((udp.address, udp.settings()), (xdp.address, xdp.settings()));
        assert!(matches!(xdp.link(0), AnyConfig::Xdp(_)));
        let error = EngineConfig {
            progress: Progress::Threads(2),
            ..xdp
        };
        let error = error.check().unwrap_err();
        assert!(error.to_string().starts_with("progress.threads"), "{error}");
    }

    #[test]
    fn a_field_out_of_range_is_named_with_its_range() {
        let table: [(&str, EngineConfig); 9] = [
            (
                "capBps",
                EngineConfig {
                    egress: Egress {
                        cap_bps: Some(999_999),
                        ..Egress::default()
                    },
                    ..config()
                },
            ),
            (
                "mtu",
                EngineConfig {
                    mtu: 1000,
                    ..config()
                },
            ),
            (
                "dscp",
                EngineConfig {
                    egress: Egress {
                        dscp: 64,
                        ..Egress::default()
                    },
                    ..config()
                },
            ),
            (
                "paths",
                EngineConfig {
                    paths: 257,
                    ..config()
                },
            ),
            (
                "progress.threads",
                EngineConfig {
                    progress: Progress::Threads(0),
                    ..config()
                },
            ),
            (
                "progress.threads",
                EngineConfig {
                    progress: Progress::Threads(17),
                    ..config()
                },
            ),
            (
                "split",
                EngineConfig {
                    split: 2,
                    ..config()
                },
            ),
            (
                "chunkBytes",
                EngineConfig {
                    chunk_bytes: 0,
                    ..config()
                },
            ),
            (
                "rtoMin",
                EngineConfig {
                    rto_min: Nanos::from_secs(60),
                    ..config()
                },
            ),
        ];
        for (field, config) in table {
            let error = config.check().unwrap_err();
            assert_eq!(error.reason(), "SettingOutOfRange");
            assert!(error.to_string().starts_with(field), "{error}");
        }
        let error = EngineConfig {
            progress: Progress::Threads(3),
            ..config()
        }
        .check()
        .unwrap_err();
        assert_eq!(error.reason(), "UnevenWorkers");
    }
}
