//! Diagnose: probes which ports of other nodes this node's data path reaches, and reads what the node offers.
//!
//! A probe is a packet of an unknown connection, of the size that is tried, with DF set. The peer's engine
//! answers with a Reset from the port that the probe came to. So an answer shows that packets of this size reach
//! this port. An engine gives 64 answers at once and then one in a millisecond; a probe without an answer is
//! sent again, twice.
//!
//! Over TCP a probe is a connection to the port at which the peer's engine listens, the first of its range.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::{TcpSocket, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use weft_core::units::{ConnectionId, PathId};
use weft_core::wire::{Probe, Reset, Seal};
use weft_link::{LinkKind, ProbeSocket};
use weft_proto::agent::v1 as proto;

use crate::convert::required;
use crate::fault::Fault;
use crate::links::draw_secret;

const PEERS_MAX: usize = 64;
const SIZES_MAX: usize = 4;
/// Of a range that the data path can have.
const PORTS_MAX: u32 = 16;
/// IPv4 and UDP headers.
const HEADERS_BYTES: u32 = 28;
const PACKET_BYTES_MIN: u32 = HEADERS_BYTES + Probe::BYTES as u32;
const PACKET_BYTES_MAX: u32 = 65_535;
/// Packets to a port until it counts as silent.
const ROUNDS: u32 = 3;
/// The wait for the answers of a round: far longer than a round trip within a data centre.
const ROUND_TIMEOUT: Duration = Duration::from_millis(250);
/// The wait for a TCP connection: the kernel sends a lost SYN again after 1 s.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(2_500);
/// Packets between two pauses.
const BURST: usize = 32;
const PAUSE: Duration = Duration::from_millis(1);

/// A probe: which size to which port of which peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SentProbe {
    reach: usize,
    to: SocketAddrV4,
    packet_bytes: u32,
}

/// The probes of one call, and what they have shown.
#[derive(Debug, Default)]
struct Probes {
    reaches: Vec<proto::Reach>,
    /// The probes without an answer, by the connection that they name.
    open: BTreeMap<u32, SentProbe>,
}

impl Probes {
    /// `first` begins a run of unused connection ids.
    fn of(request: &proto::DiagnoseRequest, first: u32) -> Result<Self, Fault> {
        let (peers, sizes) = (&request.peers, &request.packet_bytes);
        if peers.len() > PEERS_MAX {
            return Err(Fault::bad("peers", format!("are more than {PEERS_MAX}")));
        }
        if sizes.len() > SIZES_MAX {
            let text = format!("are more than {SIZES_MAX}");
            return Err(Fault::bad("packet_bytes", text));
        }
        let fits = |size: &u32| (PACKET_BYTES_MIN..=PACKET_BYTES_MAX).contains(size);
        if let Some(size) = sizes.iter().find(|size| !fits(size)) {
            let text = format!("{size}: must be {PACKET_BYTES_MIN} to {PACKET_BYTES_MAX}");
            return Err(Fault::bad("packet_bytes", text));
        }
        let mut probes = Self::default();
        let mut id = first;
        for peer in peers {
            let address = |text: &String| {
                let problem = || Fault::bad("peers.address", format!("{text}: is no IPv4 address"));
                text.parse::<Ipv4Addr>().map_err(|_| problem())
            };
            let nics = std::iter::once(&peer.address).chain(&peer.other_addresses);
            let nics = nics.map(address).collect::<Result<Vec<_>, _>>()?;
            let ports = ports(required(peer.ports, "peers.ports")?)?;
            for &packet_bytes in sizes {
                for (port, nic) in ports.clone().zip(nics.iter().cycle()) {
                    let probe = SentProbe {
                        reach: probes.reaches.len(),
                        to: SocketAddrV4::new(*nic, port),
                        packet_bytes,
                    };
                    probes.open.insert(id, probe);
                    id = id.wrapping_add(1);
                }
                probes.reaches.push(proto::Reach {
                    node: peer.node.clone(),
                    packet_bytes,
                    ..proto::Reach::default()
                });
            }
        }
        Ok(probes)
    }

    /// Takes a packet; true when it is an answer.
    fn answered(&mut self, packet: &[u8], from: SocketAddr) -> bool {
        let Ok(reset) = Reset::parse(packet) else {
            return false;
        };
        let id = reset.connection.0;
        let is_answer = |probe: &SentProbe| SocketAddr::V4(probe.to) == from;
        self.open.get(&id).is_some_and(is_answer) && self.open.remove(&id).is_some()
    }

    /// The kernel refused to send a probe, and refuses others of this size, too.
    fn unsent(&mut self, reach: usize, error: &io::Error) {
        self.open.retain(|_, probe| probe.reach != reach);
        self.reaches[reach].error = error.to_string();
    }

    fn done(mut self) -> Vec<proto::Reach> {
        for probe in self.open.values() {
            let silent = &mut self.reaches[probe.reach].silent_ports;
            silent.push(u32::from(probe.to.port()));
        }
        for reach in &mut self.reaches {
            reach.silent_ports.sort_unstable();
        }
        self.reaches
    }
}

fn ports(ports: proto::Ports) -> Result<std::ops::RangeInclusive<u16>, Fault> {
    let last = ports.first.saturating_add(ports.count).saturating_sub(1);
    let known = (1..=PORTS_MAX).contains(&ports.count) && ports.first > 0;
    let first = u16::try_from(ports.first).ok().filter(|_| known);
    match first.zip(u16::try_from(last).ok()) {
        Some((first, last)) => Ok(first..=last),
        None => {
            let text = format!(
                "{} from {}: is no range of 1 to 16 ports",
                ports.count, ports.first
            );
            Err(Fault::bad("peers.ports", text))
        }
    }
}

/// Sends the probes of a request from an address of this node, over each link that it has.
pub(crate) async fn diagnose(
    request: &proto::DiagnoseRequest,
    address: Ipv4Addr,
    links: &[LinkKind],
    memory_budget: u64,
) -> Result<proto::DiagnoseResponse, Fault> {
    let secret = draw_secret()?;
    let drawn = [secret.0[0], secret.0[1], secret.0[2], secret.0[3]];
    let socket =
        ProbeSocket::open(address.into()).map_err(|error| Fault::engine(error.to_string()))?;
    let offers = socket.offers();
    let socket = UdpSocket::from_std(socket.into_socket());
    let socket = socket.map_err(|error| Fault::engine(error.to_string()))?;
    let mut reaches = Vec::new();
    for link in links {
        let mut probes = Probes::of(request, u32::from_le_bytes(drawn))?;
        match link {
            LinkKind::Udp | LinkKind::Xdp => {
                let seal = Seal::new(&secret);
                for _ in 0..ROUNDS {
                    if probes.open.is_empty() {
                        break;
                    }
                    round(&mut probes, &socket, &seal).await;
                }
            }
            LinkKind::Tcp => connect_all(&mut probes, address).await,
            LinkKind::Shm => {
                let text = "transport.link is shm: it reaches no other node; set it to udp or tcp";
                return Err(Fault::engine(text.to_owned()));
            }
        }
        for mut reach in probes.done() {
            reach.link = link.name().to_owned();
            reaches.push(reach);
        }
    }
    let clock = SystemTime::now().duration_since(UNIX_EPOCH);
    let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    Ok(proto::DiagnoseResponse {
        reaches,
        facts: Some(proto::NodeFacts {
            kernel: kernel(),
            gso: offers.gso,
            gro: offers.gro,
            receive_buffer_wanted: wide(offers.wanted.receive),
            receive_buffer_granted: wide(offers.granted.receive),
            send_buffer_wanted: wide(offers.wanted.send),
            send_buffer_granted: wide(offers.granted.send),
            memory_limit: memory_limit(),
            memory_budget,
            clock_unix_ms: u64::try_from(clock.unwrap_or_default().as_millis()).unwrap_or(0),
        }),
    })
}

/// Sends each probe without an answer once, and takes the answers.
async fn round(probes: &mut Probes, socket: &UdpSocket, seal: &Seal) {
    let mut packet = vec![0; PACKET_BYTES_MAX as usize];
    let sent: Vec<(u32, SentProbe)> = probes
        .open
        .iter()
        .map(|(id, probe)| (*id, *probe))
        .collect();
    for (count, (id, to_send)) in sent.into_iter().enumerate() {
        if count % BURST == BURST - 1 {
            sleep(PAUSE).await;
        }
        take_arrived(probes, socket);
        if !probes.open.contains_key(&id) {
            continue;
        }
        let bytes = (to_send.packet_bytes - HEADERS_BYTES) as usize;
        let probe = Probe { sent_at: 0 };
        probe.emit(
            bytes,
            &mut packet,
            seal,
            PathId(0),
            ConnectionId(id),
            u64::from(id),
        );
        if let Err(error) = socket.send_to(&packet[..bytes], to_send.to).await {
            probes.unsent(to_send.reach, &error);
        }
    }
    let until = Instant::now() + ROUND_TIMEOUT;
    let mut answer = [0; 64];
    while !probes.open.is_empty() {
        match timeout_at(until, socket.recv_from(&mut answer)).await {
            Ok(Ok((bytes, from))) => {
                probes.answered(&answer[..bytes], from);
            }
            // An ICMP message is about one port only.
            Ok(Err(_)) => {}
            Err(_) => return,
        }
    }
}

/// Connects to the first port of each peer, to all peers at once. The probes of its other ports are none: nothing listens there.
async fn connect_all(probes: &mut Probes, address: Ipv4Addr) {
    let mut ports = BTreeMap::<Ipv4Addr, u16>::new();
    for probe in probes.open.values() {
        let first = ports.entry(*probe.to.ip()).or_insert(probe.to.port());
        *first = (*first).min(probe.to.port());
    }
    let mut calls = JoinSet::new();
    for (ip, port) in ports {
        let to = SocketAddrV4::new(ip, port);
        calls.spawn(async move {
            let call = connect(address, to);
            (to, timeout(CONNECT_TIMEOUT, call).await.is_ok_and(|it| it))
        });
    }
    let mut silent = BTreeSet::new();
    while let Some(called) = calls.join_next().await {
        match called {
            Ok((_, true)) => {}
            Ok((to, false)) => {
                silent.insert(to);
            }
            Err(ended) => std::panic::resume_unwind(ended.into_panic()),
        }
    }
    probes.open.retain(|_, probe| silent.contains(&probe.to));
}

/// Whether a connection from an address of this node is made.
async fn connect(from: Ipv4Addr, to: SocketAddrV4) -> bool {
    let Ok(socket) = TcpSocket::new_v4() else {
        return false;
    };
    socket.bind(SocketAddrV4::new(from, 0).into()).is_ok()
        && socket.connect(to.into()).await.is_ok()
}

/// Takes the answers that have arrived by now.
fn take_arrived(probes: &mut Probes, socket: &UdpSocket) {
    let mut answer = [0; 64];
    while let Ok((bytes, from)) = socket.try_recv_from(&mut answer) {
        probes.answered(&answer[..bytes], from);
    }
}

/// The release, as uname gives it; "" where /proc is not there.
fn kernel() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease");
    text.unwrap_or_default().trim().to_owned()
}

/// Of the control group that the agent sees as the root of its own; 0 without one.
fn memory_limit() -> u64 {
    let files = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok());
    let limit = text.and_then(|text| text.trim().parse::<u64>().ok());
    // Version 1 says "none" by the largest multiple of a page.
    limit.filter(|limit| *limit < 1 << 62).unwrap_or(0)
}

#[cfg(test)]
mod tests;
