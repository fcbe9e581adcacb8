//! UDP: a socket for each port of a range, GSO out, batched system calls with GRO in.

mod receive;
mod socket;

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockaddrIn, sendmsg};
use std::os::fd::AsRawFd;

use crate::error::{LinkError, Refusal, Unsent};
use crate::frame::Frame;
use crate::ports::{PortPair, PortRange};
use receive::ReceiveBuffers;
pub use receive::{Batch, ReceivedRun};
pub use socket::SocketBuffers;
pub(crate) use socket::grant_buffers;
use socket::{Port, bind_port};

/// What a UDP link is opened with.
#[derive(Debug, Clone)]
pub struct UdpConfig {
    /// The NIC's address.
    pub address: Ipv4Addr,
    /// The ports to hold.
    pub ports: PortRange,
    /// Bytes of a full datagram (UDP payload): header, a full packet's payload, trailer.
    pub datagram_bytes: u16,
    /// Differentiated services code point of everything sent, 0 to 63.
    pub dscp: u8,
    /// Bytes that each socket's buffers should hold.
    pub buffers: SocketBuffers,
}

/// What a link has done since it was opened; every field only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams handed to the kernel.
    pub sent_packets: u64,
    /// Bytes of them, without IP and UDP headers.
    pub sent_bytes: u64,
    /// System calls that handed datagrams over.
    pub send_calls: u64,
    /// Sends that met a full send buffer; kept by the caller and offered again.
    pub blocked: u64,
    /// Sends for which the kernel had no memory (ENOBUFS, ENOMEM); offered again.
    pub no_buffers: u64,
    /// Datagrams larger than the device's MTU (EMSGSIZE); lost.
    pub too_big: u64,
    /// Sends that a local firewall forbade (EPERM); lost.
    pub not_permitted: u64,
    /// Sends without a route or with the device down; lost.
    pub unreachable: u64,
    /// Sends that reported an earlier datagram's closed port (ECONNREFUSED); lost.
    pub port_closed: u64,
    /// Sends refused for another reason; lost.
    pub refused: u64,
    /// Ports whose device refused GSO and that send single packets since.
    pub gso_refused: u64,
    /// Runs (what GRO made of datagrams) received.
    pub received_runs: u64,
    /// Datagrams received.
    pub received_packets: u64,
    /// Bytes of them, without IP and UDP headers.
    pub received_bytes: u64,
    /// Datagrams that arrived with Congestion Experienced set.
    pub received_ce: u64,
    /// Receive calls that failed with something else than "nothing there".
    pub receive_errors: u64,
}

impl Counters {
    /// Adds another link's counters to these.
    pub fn add(&mut self, other: &Self) {
        self.sent_packets += other.sent_packets;
        self.sent_bytes += other.sent_bytes;
        self.send_calls += other.send_calls;
        self.blocked += other.blocked;
        self.no_buffers += other.no_buffers;
        self.too_big += other.too_big;
        self.not_permitted += other.not_permitted;
        self.unreachable += other.unreachable;
        self.port_closed += other.port_closed;
        self.refused += other.refused;
        self.gso_refused += other.gso_refused;
        self.received_runs += other.received_runs;
        self.received_packets += other.received_packets;
        self.received_bytes += other.received_bytes;
        self.received_ce += other.received_ce;
        self.receive_errors += other.receive_errors;
    }
}

/// The sockets of one port range of one NIC. Owned by one worker; nothing in it is shared.
pub struct UdpLink {
    config: UdpConfig,
    ports: Vec<Port>,
    receive: ReceiveBuffers,
    counters: Counters,
}

impl UdpLink {
    /// Binds every port of the range.
    pub fn bind(config: UdpConfig) -> Result<Self, LinkError> {
        config.ports.check()?;
        let ports = (0..usize::from(config.ports.count))
            .map(|index| bind_port(&config, config.ports.port(index)))
            .collect::<Result<Vec<_>, _>>()?;
        let gso_refused = ports.iter().filter(|port| !port.gso).count() as u64;
        Ok(Self {
            config,
            ports,
            receive: ReceiveBuffers::default(),
            counters: Counters {
                gso_refused,
                ..Counters::default()
            },
        })
    }

    /// What the link was opened with.
    pub fn config(&self) -> &UdpConfig {
        &self.config
    }

    /// What the link has done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The buffers that the kernel granted: the smallest of all ports. Without CAP_NET_ADMIN it
    /// grants at most `net.core.rmem_max` and `wmem_max`.
    pub fn granted_buffers(&self) -> SocketBuffers {
        let smallest = |of: fn(&SocketBuffers) -> usize| {
            self.ports
                .iter()
                .map(|port| of(&port.buffers))
                .min()
                .unwrap_or(0)
        };
        SocketBuffers {
            receive: smallest(|b| b.receive),
            send: smallest(|b| b.send),
        }
    }

    /// Registers every port for readability; port `i` has token `first + i`. Edge-triggered: after
    /// an event a port has to be received from until it answers [`Batch::Drained`].
    pub fn register(&self, registry: &Registry, first: Token) -> io::Result<()> {
        for (index, port) in self.ports.iter().enumerate() {
            registry.register(
                &mut SourceFd(&port.socket.as_raw_fd()),
                Token(first.0 + index),
                Interest::READABLE,
            )?;
        }
        Ok(())
    }

    /// Asks for (or no longer for) an event when port `index` can send again.
    pub fn watch_writable(
        &self,
        registry: &Registry,
        first: Token,
        index: usize,
        watch: bool,
    ) -> io::Result<()> {
        let interest = if watch {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        registry.reregister(
            &mut SourceFd(&self.ports[index].socket.as_raw_fd()),
            Token(first.0 + index),
            interest,
        )
    }

    /// Sends the packets `from..` of `frame` over `pair` to the
    /// NIC at `peer` with the range `ports`: one system call where the device does GSO.
    pub fn send(
        &mut self,
        pair: PortPair,
        peer: Ipv4Addr,
        ports: PortRange,
        frame: &Frame,
        from: usize,
    ) -> Result<(), Unsent> {
        let to = SockaddrIn::from(SocketAddrV4::new(peer, ports.port(pair.remote)));
        let packets = frame.packets();
        let mut next = from;
        while next < packets {
            let port = &mut self.ports[pair.local];
            let end = if port.gso { packets } else { next + 1 };
            let bytes = frame.wire(next..end);
            match send_bytes(&port.socket, bytes, &to) {
                Ok(()) => {
                    self.counters.count_sent(end - next, bytes.len());
                    next = end;
                }
                // A device without GSO says so only now (EIO or EINVAL). EMSGSIZE with more than
                // one packet may be GSO's too: the single packet will tell.
                Err(Errno::EIO | Errno::EINVAL | Errno::EMSGSIZE) if end - next > 1 => {
                    self.stop_gso(pair.local);
                }
                Err(errno) => {
                    if let unsent @ (Unsent::Blocked { .. } | Unsent::NoBuffers { .. }) =
                        self.counters.count_unsent(errno, next)
                    {
                        return Err(unsent);
                    }
                    // The rest of the chunk would meet the same refusal.
                    return Err(Unsent::Dropped(refusal(errno)));
                }
            }
        }
        Ok(())
    }

    /// Sends one finished datagram over `pair`.
    pub fn send_datagram(
        &mut self,
        pair: PortPair,
        peer: Ipv4Addr,
        ports: PortRange,
        datagram: &[u8],
    ) -> Result<(), Unsent> {
        let to = SockaddrIn::from(SocketAddrV4::new(peer, ports.port(pair.remote)));
        match send_bytes(&self.ports[pair.local].socket, datagram, &to) {
            Ok(()) => {
                self.counters.count_sent(1, datagram.len());
                Ok(())
            }
            Err(errno) => Err(self.counters.count_unsent(errno, 0)),
        }
    }

    /// Receives one batch on port `index` and hands each run to `sink`.
    pub fn receive(&mut self, index: usize, sink: impl FnMut(ReceivedRun<'_>)) -> Batch {
        self.receive
            .batch(&self.ports[index], index, &mut self.counters, sink)
    }

    /// The socket of port `index`.
    pub(crate) fn socket(&self, index: usize) -> &UdpSocket {
        &self.ports[index].socket
    }

    fn stop_gso(&mut self, index: usize) {
        self.ports[index].stop_gso();
        self.counters.gso_refused += 1;
    }
}

impl Counters {
    fn count_sent(&mut self, packets: usize, bytes: usize) {
        self.send_calls += 1;
        self.sent_packets += packets as u64;
        self.sent_bytes += bytes as u64;
    }

    fn count_unsent(&mut self, errno: Errno, next: usize) -> Unsent {
        match errno {
            Errno::EAGAIN => {
                self.blocked += 1;
                return Unsent::Blocked { next };
            }
            Errno::ENOBUFS | Errno::ENOMEM => {
                self.no_buffers += 1;
                return Unsent::NoBuffers { next };
            }
            _ => {}
        }
        let refusal = refusal(errno);
        *match refusal {
            Refusal::TooBig => &mut self.too_big,
            Refusal::NotPermitted => &mut self.not_permitted,
            Refusal::Unreachable => &mut self.unreachable,
            Refusal::PortClosed => &mut self.port_closed,
            Refusal::Other(_) => &mut self.refused,
        } += 1;
        Unsent::Dropped(refusal)
    }
}

fn refusal(errno: Errno) -> Refusal {
    match errno {
        Errno::EMSGSIZE => Refusal::TooBig,
        Errno::EPERM | Errno::EACCES => Refusal::NotPermitted,
        Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENETDOWN => Refusal::Unreachable,
        Errno::ECONNREFUSED => Refusal::PortClosed,
        other => Refusal::Other(other as i32),
    }
}

fn send_bytes(socket: &UdpSocket, bytes: &[u8], to: &SockaddrIn) -> Result<(), Errno> {
    loop {
        // No control message: the segment size is a socket option, so nothing is allocated.
        match sendmsg(
            socket.as_raw_fd(),
            &[IoSlice::new(bytes)],
            &[],
            MsgFlags::MSG_DONTWAIT,
            Some(to),
        ) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_answers_is_kept_or_lost_and_counted_by_its_kind() {
        let mut counters = Counters::default();
        let mut of = |errno| counters.count_unsent(errno, 7);
        assert_eq!(of(Errno::EAGAIN), Unsent::Blocked { next: 7 });
        assert_eq!(of(Errno::ENOBUFS), Unsent::NoBuffers { next: 7 });
        assert_eq!(of(Errno::ENOMEM), Unsent::NoBuffers { next: 7 });
        for (errno, refusal) in [
            (Errno::EMSGSIZE, Refusal::TooBig),
            (Errno::EPERM, Refusal::NotPermitted),
            (Errno::EACCES, Refusal::NotPermitted),
            (Errno::ENETUNREACH, Refusal::Unreachable),
            (Errno::EHOSTUNREACH, Refusal::Unreachable),
            (Errno::ENETDOWN, Refusal::Unreachable),
            (Errno::ECONNREFUSED, Refusal::PortClosed),
            (Errno::EIO, Refusal::Other(Errno::EIO as i32)),
        ] {
            assert_eq!(of(errno), Unsent::Dropped(refusal), "{errno}");
        }
        let expected = Counters {
            blocked: 1,
            no_buffers: 2,
            too_big: 1,
            not_permitted: 2,
            unreachable: 3,
            port_closed: 1,
            refused: 1,
            ..Counters::default()
        };
        assert_eq!(counters, expected);
    }
}
