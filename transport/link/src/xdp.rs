//! AF_XDP: the datagrams of the link `udp`, past the kernel's UDP stack.
//!
//! An [`XdpLink`] is a [`UdpLink`] with a shorter way beside it, for what has a next hop on its interface and for what arrives
//! there whole. Everything else goes by the sockets, as it would without AF_XDP.

mod napi;
mod netlink;
mod packet;
mod program;
mod socket;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::SockProtocol;
use weft_core::received::Received;
use weft_core::units::{Nanos, PathId, Time};
use weft_core::wire::CHUNK_PACKETS_MAX;
use xdp::nic::{NicIndex, Queues};

use crate::address::LinkAddress;
use crate::datagram::{header_bytes, source};
use crate::error::{LinkError, XdpProblem};
use crate::link::{Capabilities, Counters, Destination, Handler, Link, PathChange, Sent};
use crate::ports::{PortPair, PortRange};
use crate::udp::{SocketBuffers, UdpConfig, UdpLink, UdpPeer, traffic_class};
use napi::Napi;
use netlink::Netlink;
use packet::{ETHERNET_BYTES, Headers, Mac, headers_bytes, parse};
use program::{ATTACH, Program};
use socket::{PACKET_BYTES_MAX, Queue, RECEIVE_FRAMES};

/// Bytes of the largest IP packet that a frame holds.
const MTU_MAX: usize = PACKET_BYTES_MAX - ETHERNET_BYTES;

/// The token of the first queue. The sockets' tokens are smaller.
const FIRST_TOKEN: usize = 1 << 20;

/// Each queue of an interface receives into so many frames at least.
const FRAMES_PER_QUEUE_MIN: u32 = 512;

/// More queues than this are not opened: the memory for their frames would be more than 256 MiB.
const QUEUES_MAX: u32 = 128;

/// How long a next hop is used before the kernel is asked again.
const HOP_VALID: Nanos = Nanos::from_secs(1);

/// How long after the kernel did not know a next hop it is asked again.
const HOP_RETRY: Nanos = Nanos::from_millis(1);

/// A device does not say when it has sent: it is looked at again after this.
const RETRY_AFTER: Nanos = Nanos::from_micros(50);

/// A device that sends nothing for this long does not work: the sockets say why, and it is tried again after as long.
const BLOCKED_MAX: Nanos = Nanos::from_millis(10);

/// The kernel gives a queue back a moment after the socket before has closed: it is tried for so many milliseconds.
const BUSY_TRIES: u32 = 100;

/// The AF_XDP sockets of an interface beside the UDP sockets of a port range. Owned by one worker.
pub struct XdpLink {
    udp: UdpLink,
    /// What makes it worth while to poll the queues, where the kernel has it.
    napi: Option<Napi>,
    /// Before the queues, so that no packet is handed to one that has gone.
    _program: Program,
    queues: Vec<Queue>,
    netlink: Netlink,
    interface: Interface,
    hops: HashMap<IpAddr, Hop>,
    class: u8,
    now: Time,
    /// A queue may hold something received.
    is_readable: bool,
    blocked: Option<Blocked>,
}

#[derive(Debug)]
struct Interface {
    name: String,
    index: u32,
    mac: Mac,
    /// Of the longest IP packet that is sent.
    packet_bytes: usize,
}

/// What the kernel has said about the way to a peer.
#[derive(Debug, Clone, Copy)]
struct Hop {
    mac: Option<Mac>,
    ask_at: Time,
}

/// The device has not sent what was put.
#[derive(Debug, Clone, Copy)]
struct Blocked {
    since: Time,
    retry_at: Time,
}

impl XdpLink {
    /// Changes the differentiated services code point of everything sent from now on, 0 to 63.
    ///
    /// # Errors
    /// [`LinkError::System`].
    pub fn set_dscp(&mut self, dscp: u8) -> Result<(), LinkError> {
        self.class = traffic_class(dscp);
        self.udp.set_dscp(dscp)
    }

    /// The buffers that the kernel granted to the UDP sockets.
    pub fn granted_buffers(&self) -> SocketBuffers {
        self.udp.granted_buffers()
    }

    fn here(&self) -> (IpAddr, PortRange) {
        let config = self.udp.config();
        (config.nics.first(), config.ports)
    }

    /// Whether what is to be sent would wait. A device that does not work keeps nothing from leaving by the sockets.
    fn is_blocked(&self) -> bool {
        self.blocked
            .is_some_and(|blocked| self.now - blocked.since < BLOCKED_MAX)
    }

    /// How many packets can be put. None while the device does not work: they go by the sockets.
    fn room(&self) -> usize {
        match self.blocked.is_some() && !self.is_blocked() {
            true => 0,
            false => self.queues[0].room(),
        }
    }

    /// The Ethernet address that packets to `peer` go to. None: they go by the sockets.
    fn next_hop(&mut self, peer: IpAddr) -> Option<Mac> {
        let here = self.udp.config().nics.first();
        let unknown = Hop {
            mac: None,
            ask_at: Time::ZERO,
        };
        let hop = self.hops.entry(peer).or_insert(unknown);
        if self.now < hop.ask_at {
            return hop.mac;
        }
        let was_known = hop.mac.is_some();
        // The sockets say that a packet is too long, where the MTU has been lowered.
        let device = self.netlink.device(self.interface.index);
        let fits = device.is_some_and(|device| device.mtu as usize >= self.interface.packet_bytes);
        hop.mac = match fits {
            true => self.netlink.next_hop(self.interface.index, here, peer),
            false => None,
        };
        let valid = if hop.mac.is_some() {
            HOP_VALID
        } else {
            HOP_RETRY
        };
        hop.ask_at = self.now + valid;
        // Now and then a packet by the sockets: the kernel confirms a neighbour that it sees used.
        hop.mac.filter(|_| !was_known)
    }

    /// Puts packets into the first queue's ring.
    fn put(
        &mut self,
        (mac, pair, peer): (Mac, PortPair, &UdpPeer),
        packets: u32,
        mut seal: impl FnMut(u32, &mut [u8]) -> usize,
    ) {
        let (here, ports) = self.here();
        let headers = Headers {
            from: (
                self.interface.mac,
                SocketAddr::new(here, ports.port(pair.local)),
            ),
            to: (mac, peer.port(pair.remote)),
            class: self.class,
        };
        let room = headers_bytes(here);
        let sent = self.queues[0].put(packets, |index, frame| {
            let bytes = room + seal(index, &mut frame[room..]);
            headers.write(&mut frame[..bytes]);
            bytes
        });
        let counters = self.udp.counters_mut();
        counters.sent_packets += u64::from(packets);
        counters.sent_bytes += (sent - packets as usize * room) as u64;
    }

    /// Has the kernel send what was put.
    fn transmit(&mut self) {
        let (calls, sent) = self.queues[0].transmit();
        let counters = self.udp.counters_mut();
        counters.send_calls += calls;
        let is_done = match sent {
            Ok(is_done) => is_done && self.queues[0].room() >= CHUNK_PACKETS_MAX,
            Err(_) => {
                counters.unreachable += 1;
                // The kernel knows no way over this interface now, and says so when it is asked.
                self.hops.clear();
                false
            }
        };
        if is_done {
            self.blocked = None;
            return;
        }
        counters.blocked += 1;
        let since = self.blocked.map_or(self.now, |blocked| blocked.since);
        let retry_at = self.now
            + if self.now - since < BLOCKED_MAX {
                RETRY_AFTER
            } else {
                BLOCKED_MAX
            };
        self.blocked = Some(Blocked { since, retry_at });
    }
}

impl Link for XdpLink {
    type Config = UdpConfig;
    type Peer = UdpPeer;

    fn open(config: UdpConfig) -> Result<Self, LinkError> {
        let address = config.nics.first();
        let mtu = usize::from(config.datagram_bytes) + usize::from(header_bytes(address));
        let interface = Interface::of(address, mtu)?;
        let name = interface.name.clone();
        let failed = |problem: XdpProblem| LinkError::Xdp {
            interface: name.clone(),
            problem,
        };
        if config.nics.len() > 1 {
            return Err(failed(XdpProblem::SeveralNics));
        }
        if mtu > MTU_MAX {
            return Err(failed(XdpProblem::MtuTooBig { mtu, most: MTU_MAX }));
        }
        let (class, ports) = (traffic_class(config.dscp), config.ports);
        let udp = UdpLink::open(config)?;
        let netlink = Netlink::open(SockProtocol::NetlinkRoute);
        let mut netlink = netlink.map_err(|source| {
            let call = "socket AF_NETLINK";
            failed(XdpProblem::System { call, source })
        })?;
        let device = netlink.device(interface.index);
        let device = device.ok_or(LinkError::AddressNotHere { address })?;
        if (device.mtu as usize) < mtu {
            let least = device.mtu;
            return Err(failed(XdpProblem::MtuTooSmall { mtu, least }));
        }
        let count = queues_of(interface.index);
        if count > QUEUES_MAX {
            let most = QUEUES_MAX;
            return Err(failed(XdpProblem::TooManyQueues { count, most }));
        }
        let frames = (RECEIVE_FRAMES / count.next_power_of_two()).max(FRAMES_PER_QUEUE_MIN);
        let refused = |(call, source)| failed(of_call(call, source));
        let program = Program::attach(interface.index, (interface.mac, address, ports), count);
        let program = program.map_err(refused)?;
        let open = |queue| {
            let opened = open_queue(interface.index, queue, frames)?;
            program.add(queue, opened.socket())?;
            Ok(opened)
        };
        let queues = (0..count).map(open).collect::<Result<Vec<_>, _>>();
        let queues = queues.map_err(refused)?;
        // A veth forgets these settings with the program, also when this process is killed. A NIC would keep them.
        let napi = device.is_veth.then(|| Napi::set(interface.index)).flatten();
        let polls = napi.is_some() && queues.iter().all(|queue| queue.prefer_polling().is_ok());
        Ok(Self {
            udp,
            napi: napi.filter(|_| polls),
            _program: program,
            queues,
            netlink,
            interface,
            hops: HashMap::new(),
            class,
            now: Time::ZERO,
            is_readable: true,
            blocked: None,
        })
    }

    fn address(&self) -> LinkAddress {
        self.udp.address()
    }

    fn capabilities(&self) -> Capabilities {
        self.udp.capabilities()
    }

    fn counters(&self) -> &Counters {
        self.udp.counters()
    }

    fn peer(&self, address: &LinkAddress) -> Result<UdpPeer, LinkError> {
        self.udp.peer(address)
    }

    fn register(&mut self, registry: &Registry) -> io::Result<()> {
        for (index, queue) in self.queues.iter().enumerate() {
            let token = Token(FIRST_TOKEN + index);
            registry.register(&mut SourceFd(&queue.raw_fd()), token, Interest::READABLE)?;
        }
        self.udp.register(registry)
    }

    fn handle_event(&mut self, event: &Event) {
        let Token(token) = event.token();
        if token < FIRST_TOKEN {
            self.udp.handle_event(event);
        } else {
            self.is_readable = true;
        }
    }

    fn is_readable(&self) -> bool {
        self.is_readable || self.udp.is_readable()
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.udp.prepare_to_sleep()
    }

    fn receive(&mut self, handler: &mut impl Handler) -> usize {
        let mut runs = 0;
        if self.is_readable {
            let (here, ports) = self.here();
            let mac = self.interface.mac;
            let counters = self.udp.counters_mut();
            let mut received = 0;
            for queue in &mut self.queues {
                if self.napi.is_some() {
                    queue.poll();
                }
                received += queue.receive(|packet| {
                    let datagram = parse(packet, mac, here);
                    let Some(datagram) = datagram.filter(|it| ports.holds(it.port)) else {
                        counters.malformed += 1;
                        return;
                    };
                    let bytes = &mut packet[datagram.payload];
                    counters.received_runs += 1;
                    counters.received_packets += 1;
                    counters.received_bytes += bytes.len() as u64;
                    counters.received_ce += u64::from(datagram.ce);
                    runs += 1;
                    handler.handle(Received::Packets {
                        from: source(datagram.from, datagram.port - ports.first),
                        ce: datagram.ce,
                        // Nobody divides by 0.
                        segment: bytes.len().max(1),
                        bytes,
                    });
                });
            }
            // The poller reports what comes from now on, or what the next turn takes.
            self.is_readable = received > 0;
        }
        if self.udp.is_readable() {
            runs += self.udp.receive(handler);
        }
        runs
    }

    fn can_send(&self) -> bool {
        self.udp.can_send() && !self.is_blocked()
    }

    fn send_chunk(
        &mut self,
        now: Time,
        peer: &UdpPeer,
        path: PathId,
        packets: u32,
        seal: impl FnMut(u32, &mut [u8]) -> usize,
    ) -> Sent {
        self.now = now;
        let has_room = self.room() >= packets as usize;
        if !has_room || self.udp.reaches_in_process(peer) {
            return self.udp.send_chunk(now, peer, path, packets, seal);
        }
        let here = self.udp.config().ports.count;
        let pair = PortPair::of_path(path.0, here, peer.ports().count);
        let Some(mac) = self.next_hop(peer.port(pair.remote).ip()) else {
            return self.udp.send_chunk(now, peer, path, packets, seal);
        };
        self.put((mac, pair, peer), packets, seal);
        if self.queues[0].room() >= CHUNK_PACKETS_MAX {
            return Sent::Whole;
        }
        self.transmit();
        match self.is_blocked() {
            true => Sent::Kept,
            false => Sent::Whole,
        }
    }

    fn send_gathered(&mut self) {
        if self.queues[0].has_untold() {
            self.transmit();
        }
    }

    fn send_control(&mut self, to: Destination<'_, UdpPeer>, packet: &[u8]) {
        let here = self.udp.config().ports.count;
        let way = match to {
            Destination::Path(peer, path) => {
                let pair = PortPair::of_path(path.0, here, peer.ports().count);
                Some((peer, pair))
            }
            Destination::Reverse(peer, path) => {
                let pair = PortPair::mirror_of_path(path.0, here, peer.ports().count);
                Some((peer, pair))
            }
            // Rare, and the sender may be anybody: no next hop is kept for it.
            Destination::Source(_) => None,
        };
        let way = way.filter(|(peer, _)| !self.udp.reaches_in_process(peer));
        let way = way.filter(|_| self.room() > 0);
        let way = way.and_then(|(peer, pair)| {
            let mac = self.next_hop(peer.port(pair.remote).ip())?;
            Some((mac, pair, peer))
        });
        match way {
            Some(way) => self.put(way, 1, |_, room| {
                room[..packet.len()].copy_from_slice(packet);
                packet.len()
            }),
            None => self.udp.send_control(to, packet),
        }
    }

    fn flush(&mut self, now: Time) -> bool {
        self.now = now;
        let is_due = self.blocked.is_some_and(|blocked| blocked.retry_at <= now);
        if is_due {
            self.transmit();
        }
        if self.napi.is_some() && !self.is_readable {
            self.queues.iter().for_each(Queue::poll);
        }
        is_due | self.udp.flush(now)
    }

    fn flush_at(&self) -> Option<Time> {
        let retry_at = self.blocked.map(|blocked| blocked.retry_at);
        [retry_at, self.udp.flush_at()].into_iter().flatten().min()
    }

    fn poll_path(&mut self) -> Option<PathChange> {
        self.udp.poll_path()
    }
}

impl Interface {
    /// The one that has an address.
    fn of(address: IpAddr, packet_bytes: usize) -> Result<Self, LinkError> {
        let not_here = || LinkError::AddressNotHere { address };
        let entries: Vec<_> = getifaddrs().map_err(|_| not_here())?.collect();
        let name = entries.iter().find_map(|entry| {
            let of_entry = entry.address.as_ref()?;
            let v4 = of_entry.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
            let v6 = of_entry.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip()));
            // An address may have a label: eth0:1 is on eth0.
            let name = entry.interface_name.split(':').next()?;
            (v4.or(v6) == Some(address)).then(|| name.to_owned())
        });
        let name = name.ok_or_else(not_here)?;
        let of_name = entries.iter().filter(|entry| entry.interface_name == name);
        let mac = of_name
            .filter_map(|entry| entry.address.as_ref()?.as_link_addr()?.addr())
            .next();
        let index = if_nametoindex(name.as_str()).map_err(|_| not_here())?;
        let mac = mac.ok_or_else(|| LinkError::Xdp {
            interface: name.clone(),
            problem: XdpProblem::NoDriver,
        })?;
        Ok(Self {
            name,
            index,
            mac,
            packet_bytes,
        })
    }
}

/// How many queues an interface receives by. A NIC whose queues also send says 0 to the first question.
fn queues_of(interface: u32) -> u32 {
    let nic = NicIndex::new(interface);
    let count = |counts: io::Result<Queues>| counts.map_or(0, |counts| counts.rx_count());
    match count(nic.queue_counts()) {
        0 => count(nic.queues_from_fs()).max(1),
        count => count,
    }
}

/// A queue, once the kernel has it back from a link that has just closed.
fn open_queue(interface: u32, queue: u32, frames: u32) -> Result<Queue, (&'static str, io::Error)> {
    let mut tries = 0;
    loop {
        match Queue::open(interface, queue, frames, queue == 0) {
            Err((_, error))
                if error.kind() == io::ErrorKind::ResourceBusy && tries < BUSY_TRIES =>
            {
                tries += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// What it means that the kernel refuses a call.
fn of_call(call: &'static str, source: io::Error) -> XdpProblem {
    let is_attach = call == ATTACH;
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => XdpProblem::NotPermitted { call, source },
        Some(libc::EOPNOTSUPP) if is_attach => XdpProblem::NoDriver,
        Some(libc::ERANGE) if is_attach => XdpProblem::InterfaceMtu,
        Some(libc::EBUSY | libc::EEXIST) if is_attach => XdpProblem::ProgramThere,
        Some(libc::EBUSY) => XdpProblem::QueueTaken,
        Some(libc::ENOBUFS) => XdpProblem::LockedMemory,
        Some(libc::EAFNOSUPPORT | libc::ENOSYS) => XdpProblem::NoKernelSupport,
        _ => XdpProblem::System { call, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_says_what_to_do() {
        for (call, errno, says) in [
            ("socket AF_XDP", libc::EPERM, "CAP_NET_RAW"),
            (ATTACH, libc::EOPNOTSUPP, "use the link udp"),
            (ATTACH, libc::ERANGE, "lower the MTU"),
            (ATTACH, libc::EBUSY, "another XDP program"),
            ("bind AF_XDP", libc::EBUSY, "queue"),
            ("setsockopt AF_XDP", libc::ENOBUFS, "ulimit -l"),
            ("socket AF_XDP", libc::EAFNOSUPPORT, "no AF_XDP"),
            ("bpf PROG_LOAD", libc::EINVAL, "bpf PROG_LOAD"),
        ] {
            let problem = of_call(call, io::Error::from_raw_os_error(errno));
            let interface = "eth7".to_owned();
            let error = LinkError::Xdp { interface, problem };
            let text = error.to_string();
            assert!(text.contains(says) && text.contains("eth7"), "{text}");
            assert_eq!(error.reason(), "XdpUnavailable");
        }
    }
}
