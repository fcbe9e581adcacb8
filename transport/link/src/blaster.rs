//! The yardstick of `make bench`'s `raw` row: the same kernel calls without any protocol.
//!
//! One socket sends a message's bytes as GSO runs of full datagrams, straight from the message (no
//! header, no checksum, no gathering), as fast as the kernel takes them; one socket receives with
//! GRO and counts. Nothing is acknowledged, checked, placed or resent. The two ends share a counter
//! in memory by which the sender stays just ahead of the receiver: without it the receive buffer
//! overflows, and a blaster that loses two thirds measures the losing. So this is what the kernel's
//! UDP can do at this datagram size on this machine, and no transport over it can do better.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{MsgFlags, SockaddrIn, sendmsg};

use crate::error::LinkError;
use crate::ports::PortRange;
use crate::udp::{Batch, SocketBuffers, UdpConfig, UdpLink};

/// Largest payload of one UDP send: 65,535 less IP and UDP headers.
const SEND_BYTES_MAX: usize = 65_507;

/// The kernel's UDP_MAX_SEGMENTS.
const SEND_PACKETS_MAX: usize = 64;

/// The receiver ends when nothing has arrived for this long after something has.
const SILENCE: Duration = Duration::from_millis(50);

/// Bytes that the sender may be ahead: 32 full runs, which a receive buffer holds.
const AHEAD_BYTES_MAX: u64 = 2 << 20;

/// How far the receiver is: what both ends of a blast share.
#[derive(Debug, Default)]
pub struct Progress {
    received: AtomicU64,
}

/// What one end is set up with.
#[derive(Debug, Clone, Copy)]
pub struct BlasterConfig {
    /// This end.
    pub local: SocketAddrV4,
    /// Bytes of a full datagram (UDP payload).
    pub datagram_bytes: u16,
    /// How long to poll before blocking when there is nothing to do.
    pub spin: Duration,
}

/// What the receiver saw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Blasted {
    /// Bytes received, without IP and UDP headers.
    pub bytes: u64,
    /// Datagrams received.
    pub packets: u64,
    /// From the first to the last of them.
    pub span: Duration,
}

impl Blasted {
    /// Bytes per second between the first and the last datagram.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.span.as_secs_f64().max(1e-9)
    }
}

/// One end, its socket bound.
pub struct Blaster {
    link: UdpLink,
    config: BlasterConfig,
}

impl Blaster {
    /// Binds the socket, in the network namespace of the calling thread.
    pub fn bind(config: BlasterConfig) -> Result<Self, LinkError> {
        let link = UdpLink::bind(UdpConfig {
            address: *config.local.ip(),
            ports: PortRange {
                first: config.local.port(),
                count: 1,
            },
            datagram_bytes: config.datagram_bytes,
            dscp: 0,
            buffers: SocketBuffers::default(),
        })?;
        Ok(Self { link, config })
    }

    /// Sends `message` `times` times to `peer`.
    pub fn send(
        &self,
        peer: SocketAddrV4,
        message: &[u8],
        times: usize,
        progress: &Progress,
    ) -> io::Result<()> {
        let datagram = usize::from(self.config.datagram_bytes);
        let run = datagram * (SEND_BYTES_MAX / datagram).clamp(1, SEND_PACKETS_MAX);
        let to = SockaddrIn::from(peer);
        let socket = self.link.socket(0);
        // Sent, less what was given up for lost.
        let mut sent = 0;
        for _ in 0..times {
            for piece in message.chunks(run) {
                sent = keep_pace(sent, progress) + piece.len() as u64;
                let pieces = [IoSlice::new(piece)];
                let mut idle = Idle::new(self.config.spin);
                loop {
                    match sendmsg(
                        socket.as_raw_fd(),
                        &pieces,
                        &[],
                        MsgFlags::MSG_DONTWAIT,
                        Some(&to),
                    ) {
                        Ok(_) => break,
                        Err(Errno::EAGAIN | Errno::ENOBUFS) => {
                            idle.wait(socket, PollFlags::POLLOUT, SILENCE)?;
                        }
                        Err(Errno::EINTR) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
            }
        }
        Ok(())
    }

    /// Receives until `bytes` have arrived or the sender has fallen silent; waits at most
    /// `patience` for the first datagram.
    pub fn receive(
        &mut self,
        bytes: u64,
        patience: Duration,
        progress: &Progress,
    ) -> io::Result<Blasted> {
        let start = Instant::now();
        let mut seen: Option<(Instant, Instant)> = None;
        let (mut received, mut packets) = (0u64, 0u64);
        let mut idle = Idle::new(self.config.spin);
        while received < bytes {
            let before = received;
            let batch = self.link.receive(0, |run| {
                received += run.bytes.len() as u64;
                packets += run.bytes.len().div_ceil(run.segment) as u64;
            });
            if received > before {
                progress.received.store(received, Ordering::Release);
                let now = Instant::now();
                seen = Some((seen.map_or(now, |(first, _)| first), now));
                idle = Idle::new(self.config.spin);
            }
            if batch == Batch::More {
                continue;
            }
            let quiet_since = seen.map_or(start, |(_, last)| last);
            let limit = if seen.is_some() { SILENCE } else { patience };
            if quiet_since.elapsed() >= limit {
                break;
            }
            idle.wait(self.link.socket(0), PollFlags::POLLIN, limit)?;
        }
        match seen {
            Some((first, last)) => Ok(Blasted {
                bytes: received,
                packets,
                span: last - first,
            }),
            None => Err(io::Error::new(
                ErrorKind::TimedOut,
                format!(
                    "nothing arrived on {} in {patience:?}: is the sender there?",
                    self.config.local
                ),
            )),
        }
    }
}

/// Waits until what was `sent` is not too far ahead. Answers what counts as sent: what has not
/// arrived in a silence is lost, and the sender goes on without it.
fn keep_pace(sent: u64, progress: &Progress) -> u64 {
    let since = Instant::now();
    let mut polls = 0u32;
    loop {
        let received = progress.received.load(Ordering::Acquire);
        if sent.saturating_sub(received) < AHEAD_BYTES_MAX {
            return sent;
        }
        polls += 1;
        if polls.is_multiple_of(1024) {
            if since.elapsed() >= SILENCE {
                return received;
            }
            // On a machine with fewer free cores than threads the receiver needs this one.
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// Polls for a while, then blocks: the engine's workers wait the same way.
struct Idle {
    spin: Duration,
    since: Option<Instant>,
}

impl Idle {
    fn new(spin: Duration) -> Self {
        Self { spin, since: None }
    }

    fn wait(&mut self, socket: &UdpSocket, ready: PollFlags, limit: Duration) -> io::Result<()> {
        if self.since.get_or_insert_with(Instant::now).elapsed() < self.spin {
            std::hint::spin_loop();
            return Ok(());
        }
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match nix::poll::poll(&mut [PollFd::new(socket.as_fd(), ready)], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn what_is_blasted_over_loopback_arrives_in_runs() {
        let end = |port| {
            Blaster::bind(BlasterConfig {
                local: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
                datagram_bytes: 1472,
                spin: Duration::ZERO,
            })
            .unwrap()
        };
        let (sender, mut receiver) = (end(24_100), end(24_101));
        let message = vec![7; 1 << 20];
        let progress = Progress::default();
        // One message fits the receive buffer, so nothing can be lost before it is read.
        sender
            .send(
                SocketAddrV4::new(Ipv4Addr::LOCALHOST, 24_101),
                &message,
                1,
                &progress,
            )
            .unwrap();
        let seen = receiver
            .receive(1 << 20, Duration::from_secs(5), &progress)
            .unwrap();
        assert_eq!(seen.bytes, 1 << 20);
        assert_eq!(seen.packets, (1u64 << 20).div_ceil(1472));
    }

    #[test]
    fn a_receiver_without_a_sender_gives_up_and_says_so() {
        let mut receiver = Blaster::bind(BlasterConfig {
            local: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 24_102),
            datagram_bytes: 1472,
            spin: Duration::ZERO,
        })
        .unwrap();
        let error = receiver
            .receive(1, Duration::from_millis(10), &Progress::default())
            .unwrap_err();
        assert!(error.to_string().contains("24102"));
    }
}
