//! What this node's data path reaches, and what the node gives the agent: tried, not looked up.
//!
//! A probe is a packet of a connection that nobody knows, as long as is to be tried, with DF set. The
//! peer's engine answers it with a Reset from the port that it came to, so an answer says that this
//! port is reached, and by packets of this size. An engine gives 64 such answers at once and one in a
//! millisecond from then on; what is not answered is asked again, twice.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, timeout_at};
use weft_core::units::{ConnectionId, PathId};
use weft_core::wire::{Probe, Reset, Seal};
use weft_link::ProbeSocket;
use weft_proto::agent::v1 as proto;

use crate::convert::given;
use crate::fault::Fault;
use crate::transfer::dial::draw_secret;

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
/// For the answers of a round: far above any round trip within a data centre.
const PATIENCE: Duration = Duration::from_millis(250);
/// Packets sent before the next breath: at most 9 MB/s of jumbo frames a millisecond.
const BURST: usize = 32;
const BREATH: Duration = Duration::from_millis(1);

/// A packet to be answered: which size to which port of which peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    reach: usize,
    to: SocketAddrV4,
    packet_bytes: u32,
}

/// What is to be tried.
#[derive(Debug)]
struct Trial {
    reaches: Vec<proto::Reach>,
    /// What has not been answered yet, by the connection that it names.
    open: BTreeMap<u32, Asked>,
}

impl Trial {
    /// `first` begins a run of connection ids that nobody has given out.
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
        let mut trial = Self {
            reaches: Vec::new(),
            open: BTreeMap::new(),
        };
        let mut id = first;
        for peer in peers {
            let address: Ipv4Addr = peer.address.parse().map_err(|_| {
                Fault::bad(
                    "peers.address",
                    format!("{}: is no IPv4 address", peer.address),
                )
            })?;
            let ports = ports(given(peer.ports, "peers.ports")?)?;
            for &packet_bytes in sizes {
                for port in ports.clone() {
                    let asked = Asked {
                        reach: trial.reaches.len(),
                        to: SocketAddrV4::new(address, port),
                        packet_bytes,
                    };
                    trial.open.insert(id, asked);
                    id = id.wrapping_add(1);
                }
                trial.reaches.push(proto::Reach {
                    node: peer.node.clone(),
                    packet_bytes,
                    ..proto::Reach::default()
                });
            }
        }
        Ok(trial)
    }

    /// Takes an answer in; true when it is one.
    fn answered(&mut self, packet: &[u8], from: SocketAddr) -> bool {
        let Ok(reset) = Reset::parse(packet) else {
            return false;
        };
        let id = reset.connection.0;
        let is_asked = |asked: &Asked| SocketAddr::V4(asked.to) == from;
        self.open.get(&id).is_some_and(is_asked) && self.open.remove(&id).is_some()
    }

    /// The kernel did not send it, and will not send its like.
    fn unsent(&mut self, reach: usize, error: &io::Error) {
        self.open.retain(|_, asked| asked.reach != reach);
        self.reaches[reach].error = error.to_string();
    }

    fn done(mut self) -> Vec<proto::Reach> {
        for asked in self.open.values() {
            let silent = &mut self.reaches[asked.reach].silent_ports;
            silent.push(u32::from(asked.to.port()));
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

/// Tries what is asked from an address of this node.
pub(crate) async fn diagnose(
    request: &proto::DiagnoseRequest,
    address: Ipv4Addr,
    memory_budget: u64,
) -> Result<proto::DiagnoseResponse, Fault> {
    let secret = draw_secret()?;
    let drawn = [secret.0[0], secret.0[1], secret.0[2], secret.0[3]];
    let mut trial = Trial::of(request, u32::from_le_bytes(drawn))?;
    let unusable = |problem: String| Fault::Engine { problem };
    let socket = ProbeSocket::open(address.into()).map_err(|error| unusable(error.to_string()))?;
    let offers = socket.offers();
    let socket = UdpSocket::from_std(socket.into_socket());
    let socket = socket.map_err(|error| unusable(error.to_string()))?;
    let seal = Seal::new(&secret);
    for _ in 0..ROUNDS {
        if trial.open.is_empty() {
            break;
        }
        round(&mut trial, &socket, &seal).await;
    }
    let clock = SystemTime::now().duration_since(UNIX_EPOCH);
    let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    Ok(proto::DiagnoseResponse {
        reaches: trial.done(),
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

/// Sends everything that is open once, and takes in what comes back.
async fn round(trial: &mut Trial, socket: &UdpSocket, seal: &Seal) {
    let mut packet = vec![0; PACKET_BYTES_MAX as usize];
    let sent: Vec<(u32, Asked)> = trial.open.iter().map(|(id, asked)| (*id, *asked)).collect();
    for (count, (id, asked)) in sent.into_iter().enumerate() {
        if count % BURST == BURST - 1 {
            sleep(BREATH).await;
        }
        hear(trial, socket);
        if !trial.open.contains_key(&id) {
            continue;
        }
        let bytes = (asked.packet_bytes - HEADERS_BYTES) as usize;
        let probe = Probe { sent_at: 0 };
        probe.emit(
            bytes,
            &mut packet,
            seal,
            PathId(0),
            ConnectionId(id),
            u64::from(id),
        );
        if let Err(error) = socket.send_to(&packet[..bytes], asked.to).await {
            trial.unsent(asked.reach, &error);
        }
    }
    let until = Instant::now() + PATIENCE;
    let mut answer = [0; 64];
    while !trial.open.is_empty() {
        match timeout_at(until, socket.recv_from(&mut answer)).await {
            Ok(Ok((bytes, from))) => {
                trial.answered(&answer[..bytes], from);
            }
            // What an ICMP message says of one port says nothing of the others.
            Ok(Err(_)) => {}
            Err(_) => return,
        }
    }
}

/// What has arrived by now.
fn hear(trial: &mut Trial, socket: &UdpSocket) {
    let mut answer = [0; 64];
    while let Ok((bytes, from)) = socket.try_recv_from(&mut answer) {
        trial.answered(&answer[..bytes], from);
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
