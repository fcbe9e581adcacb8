//! What the `raw` row is held against: the same kernel calls without any protocol.
//!
//! One socket sends a message's bytes as GSO runs of full datagrams, straight from the message (no
//! header, no checksum, no gathering), as fast as the kernel takes them; one socket receives with
//! GRO and counts. Nothing is acknowledged, checked, placed or resent. The two ends share a counter
//! in memory by which the sender stays just ahead of the receiver: without it the receive buffer
//! overflows, and a blaster that loses two thirds measures the losing. So this is what the kernel's
//! UDP can do at this datagram size on this machine, and no transport over it can do better.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{MsgFlags, SockaddrStorage, sendmsg, setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use socket2::SockRef;

/// Largest payload of one UDP send: 65,535 less IP and UDP headers.
const SEND_BYTES_MAX: usize = 65_507;

/// The kernel's UDP_MAX_SEGMENTS.
const SEND_PACKETS_MAX: usize = 64;

/// Runs that one receive call takes, and bytes of the largest that GRO makes: what the engine's
/// link uses.
const BATCH_RUNS: usize = 8;
const RUN_BYTES: usize = 65_536;

/// Bytes that the socket's buffers hold: what the engine's link asks for. The kernel doubles what it
/// is asked for.
const RECEIVE_BUFFER: usize = 8 << 20;
const SEND_BUFFER: usize = 1 << 20;

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
    pub local: SocketAddr,
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
    /// CPU time of the receiving thread, from the call to its return.
    pub cpu: Duration,
}

impl Blasted {
    /// Bytes per second between the first and the last datagram.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.span.as_secs_f64().max(1e-9)
    }
}

/// One end, its socket bound.
pub struct Blaster {
    socket: UdpSocket,
    state: UdpSocketState,
    storage: Box<[u8]>,
    config: BlasterConfig,
}

impl Blaster {
    /// Binds the socket, in the network namespace of the calling thread.
    pub fn bind(config: BlasterConfig) -> io::Result<Self> {
        let socket = UdpSocket::bind(config.local)?;
        // Switches GRO on, and blocking off.
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // Time stamps, which it switches on too, cost the receiver and are of no use here.
        setsockopt(&socket, sockopt::ReceiveTimestampns, &false)?;
        setsockopt(
            &socket,
            sockopt::UdpGsoSegment,
            &i32::from(config.datagram_bytes),
        )?;
        let options = SockRef::from(&socket);
        if setsockopt(&socket, sockopt::RcvBufForce, &(RECEIVE_BUFFER / 2)).is_err() {
            options.set_recv_buffer_size(RECEIVE_BUFFER / 2)?;
        }
        if setsockopt(&socket, sockopt::SndBufForce, &(SEND_BUFFER / 2)).is_err() {
            options.set_send_buffer_size(SEND_BUFFER / 2)?;
        }
        Ok(Self {
            socket,
            state,
            storage: vec![0; BATCH_RUNS * RUN_BYTES].into_boxed_slice(),
            config,
        })
    }

    /// Sends `message` `times` times to `peer`.
    pub fn send(
        &self,
        peer: SocketAddr,
        message: &[u8],
        times: usize,
        progress: &Progress,
    ) -> io::Result<()> {
        let datagram = usize::from(self.config.datagram_bytes);
        let run = datagram * (SEND_BYTES_MAX / datagram).clamp(1, SEND_PACKETS_MAX);
        let to = SockaddrStorage::from(peer);
        let socket = &self.socket;
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
        let (start, cpu) = (Instant::now(), cpu_time()?);
        let mut seen: Option<(Instant, Instant)> = None;
        let (mut received, mut packets) = (0u64, 0u64);
        let mut idle = Idle::new(self.config.spin);
        while received < bytes {
            let batch = self.take_batch()?;
            if batch.runs > 0 {
                received += batch.bytes;
                packets += batch.packets;
                progress.received.store(received, Ordering::Release);
                let now = Instant::now();
                seen = Some((seen.map_or(now, |(first, _)| first), now));
                idle = Idle::new(self.config.spin);
            }
            if batch.runs == BATCH_RUNS {
                continue;
            }
            let quiet_since = seen.map_or(start, |(_, last)| last);
            let limit = if seen.is_some() { SILENCE } else { patience };
            if quiet_since.elapsed() >= limit {
                break;
            }
            idle.wait(&self.socket, PollFlags::POLLIN, limit)?;
        }
        match seen {
            Some((first, last)) => Ok(Blasted {
                bytes: received,
                packets,
                span: last - first,
                cpu: cpu_time()?.saturating_sub(cpu),
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

    fn take_batch(&mut self) -> io::Result<Batch> {
        let mut rest = &mut self.storage[..];
        let mut slices: [IoSliceMut<'_>; BATCH_RUNS] = std::array::from_fn(|_| {
            let (run, behind) = std::mem::take(&mut rest).split_at_mut(RUN_BYTES);
            rest = behind;
            IoSliceMut::new(run)
        });
        let mut meta = [RecvMeta::default(); BATCH_RUNS];
        let socket = UdpSockRef::from(&self.socket);
        let runs = match self.state.recv(socket, &mut slices, &mut meta) {
            Ok(runs) => runs,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Batch::default()),
            Err(error) => return Err(error),
        };
        let mut batch = Batch {
            runs,
            ..Batch::default()
        };
        for run in &meta[..runs] {
            batch.bytes += run.len as u64;
            batch.packets += run.len.div_ceil(run.stride.max(1)) as u64;
        }
        Ok(batch)
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> io::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// What one receive call took.
#[derive(Default)]
struct Batch {
    runs: usize,
    bytes: u64,
    packets: u64,
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
pub(super) struct Idle {
    spin: Duration,
    since: Option<Instant>,
}

impl Idle {
    pub(super) fn new(spin: Duration) -> Self {
        Self { spin, since: None }
    }

    pub(super) fn wait(
        &mut self,
        socket: &impl AsFd,
        ready: PollFlags,
        limit: Duration,
    ) -> io::Result<()> {
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
                local: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
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
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 24_101),
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
            local: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 24_102),
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
