//! An attacker on the data network: it has seen packets, and sends them again, altered and cut.

use std::{
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    ops::RangeInclusive,
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto,
        setsockopt, socket, sockopt::ReceiveTimeout,
    },
    time::{TimeVal, TimeValLike},
};
use weft_core::wire::{HEADER_BYTES, Kind, peek};

use crate::stage::Stage;

/// Packets that are listened for: all fit into the burst of a rate-limited link.
const PACKETS: usize = 8;
/// Some 2,800 packets a second arrive.
const HEARD_WITHIN: Duration = Duration::from_secs(10);
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;
const TTL: u8 = 64;
/// The source whose packets are repeated, and the node that repeats them.
const SENDER: usize = 0;
const ATTACKER: usize = 2;

/// What was sent, by the reason for which it must be dropped.
pub(crate) struct Attack(BTreeMap<&'static str, u64>);

/// An IPv4 packet as it was heard.
struct Heard {
    ports: [u8; 4],
    datagram: Vec<u8>,
}

impl Attack {
    /// Listens at the victim, and sends from the attacker's node under the sender's address.
    pub(crate) fn carry_out(stage: &Stage, victim: usize) -> Self {
        let (address, ports) = (stage.address(victim), stage.ports(victim));
        let ear = stage.fabric.in_node(victim, ear).unwrap().unwrap();
        let heard: Vec<Heard> = (0..PACKETS)
            .map(|_| listen(&ear, address, &ports))
            .collect();
        let mouth = stage.fabric.in_node(ATTACKER, mouth).unwrap().unwrap();
        let from = stage.address(SENDER);
        let mut sent = BTreeMap::new();
        for Heard { ports, datagram } in &heard {
            let mut send = |reason, change: &dyn Fn(&mut Vec<u8>)| {
                let mut datagram = datagram.clone();
                change(&mut datagram);
                say(&mouth, (from, address), ports, &datagram);
                *sent.entry(reason).or_default() += 1;
            };
            send("Duplicate", &|_| {});
            // The path, the offset to write at, the seal itself.
            send("Seal", &|packet| packet[1] ^= 1);
            send("Seal", &|packet| packet[HEADER_BYTES - 6] ^= 1);
            send("Seal", &|packet| {
                *packet.iter_mut().nth_back(15).unwrap() ^= 1;
            });
            send("Truncated", &|packet| packet.truncate(HEADER_BYTES));
            send("Truncated", &|packet| packet.truncate(3));
            // A trailer that is somewhere else cannot fit.
            send("Seal", &|packet| packet.truncate(packet.len() - 1));
            send("Version", &|packet| packet[0] ^= 0x0f);
            send("UnknownConnection", &|packet| packet[7] ^= 0x80);
        }
        Self(sent)
    }

    /// Packets by reason.
    pub(crate) fn expected(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(reason, count)| (*reason, *count))
    }
}

/// Hears every IPv4 packet of a node.
fn ear() -> io::Result<OwnedFd> {
    let (flags, all) = (SockFlag::SOCK_CLOEXEC, SockProtocol::EthIp);
    let ear = socket(AddressFamily::Packet, SockType::Datagram, flags, all)?;
    let seconds = i64::try_from(HEARD_WITHIN.as_secs()).unwrap();
    setsockopt(&ear, ReceiveTimeout, &TimeVal::seconds(seconds))?;
    Ok(ear)
}

/// Sends IPv4 packets with a header of our own.
fn mouth() -> io::Result<OwnedFd> {
    let (flags, raw) = (SockFlag::SOCK_CLOEXEC, SockProtocol::Raw);
    Ok(socket(AddressFamily::Inet, SockType::Raw, flags, raw)?)
}

/// The next data packet to this address.
fn listen(ear: &OwnedFd, to: Ipv4Addr, at: &RangeInclusive<u16>) -> Heard {
    let mut packet = vec![0; 1 << 16];
    loop {
        let bytes = recv(ear.as_raw_fd(), &mut packet, MsgFlags::empty()).unwrap();
        let is_ours = bytes > IPV4_BYTES + UDP_BYTES
            && packet[0] == 0x45
            && packet[9] == UDP
            && packet[16..20] == to.octets();
        if !is_ours {
            continue;
        }
        let (port, datagram) = (&packet[22..24], &packet[IPV4_BYTES + UDP_BYTES..bytes]);
        let port = u16::from_be_bytes([port[0], port[1]]);
        let is_data = matches!(peek(datagram), Ok(peek) if peek.kind == Kind::Data);
        if at.contains(&port) && is_data {
            let mut ports = [0; 4];
            ports.copy_from_slice(&packet[IPV4_BYTES..IPV4_BYTES + 4]);
            return Heard {
                ports,
                datagram: datagram.to_vec(),
            };
        }
    }
}

/// Sends a datagram that seems to come from somebody else.
fn say(mouth: &OwnedFd, (from, to): (Ipv4Addr, Ipv4Addr), ports: &[u8; 4], datagram: &[u8]) {
    let udp = UDP_BYTES + datagram.len();
    let short = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0];
    packet.extend(short(IPV4_BYTES + udp));
    // Identification, fragments and, filled in by the kernel, the header's checksum.
    packet.extend([0, 0, 0, 0, TTL, UDP, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(ports);
    packet.extend(short(udp));
    // No checksum.
    packet.extend([0, 0]);
    packet.extend(datagram);
    let address = SockaddrIn::from(std::net::SocketAddrV4::new(to, 0));
    let sent = sendto(mouth.as_raw_fd(), &packet, &address, MsgFlags::empty()).unwrap();
    assert_eq!(sent, packet.len());
}
