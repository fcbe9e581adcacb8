//! The AF_XDP socket of one queue of an interface, with the frames that it shares with the kernel.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};
use weft_core::wire::CHUNK_PACKETS_MAX;
use xdp::nic::NicIndex;
use xdp::slab::{Slab, StackSlab};
use xdp::socket::{SocketError, XdpSocket, XdpSocketBuilder};
use xdp::umem::{FrameSize, UmemCfgBuilder};
use xdp::{CompletionRing, FillRing, RingConfigBuilder, RxRing, TxRing, Umem};

/// Bytes of the largest packet, with its Ethernet header: a frame of 4,096 without what the kernel keeps free of it.
pub(super) const PACKET_BYTES_MAX: usize = 4096 - 256;

/// Frames that are sent and not back: 32 of the longest chunks.
pub(super) const SEND_FRAMES: u32 = 2048;

/// Frames that all queues together receive into: 14 MB of packets while a worker is off its core.
pub(super) const RECEIVE_FRAMES: u32 = 4096;

/// Packets taken by one call: so many stay in a core's second-level cache.
const BATCH: usize = 64;

/// The kernel sends so many packets in a call.
const PACKETS_PER_CALL: usize = 32;

/// Bytes of packets that the kernel has copied and the device has not sent.
const SEND_BUFFER_BYTES: usize = 8 << 20;

const _: () = assert!(BATCH.is_power_of_two() && CHUNK_PACKETS_MAX <= BATCH);

/// One queue. The fields end in this order: the kernel's rings before the frames that they speak of.
pub(super) struct Queue {
    socket: XdpSocket,
    receive: RxRing,
    fill: FillRing,
    completion: CompletionRing,
    send: Option<TxRing>,
    /// Frames that can be sent.
    free: usize,
    /// Packets in the ring since the kernel was last told.
    untold: usize,
    /// Frames to receive into that the kernel has not got back yet.
    owed: usize,
    frames: Umem,
}

impl Queue {
    /// Opens a queue of an interface. It receives nothing until a program says so.
    ///
    /// # Errors
    /// What the kernel refused, and why.
    pub(super) fn open(
        interface: u32,
        queue: u32,
        receive_frames: u32,
        sends: bool,
    ) -> Result<Self, (&'static str, io::Error)> {
        let send_frames = if sends { SEND_FRAMES } else { 0 };
        let invalid = |error: xdp::error::Error| ("AF_XDP rings", io::Error::other(error));
        let memory = UmemCfgBuilder {
            frame_size: FrameSize::FourK,
            frame_count: receive_frames + send_frames,
            ..UmemCfgBuilder::default()
        };
        let memory = memory.build().map_err(invalid)?;
        let mut frames = Umem::map(memory).map_err(|error| ("mmap", error))?;
        let rings = RingConfigBuilder {
            rx_count: receive_frames,
            fill_count: receive_frames,
            tx_count: send_frames,
            completion_count: SEND_FRAMES,
        };
        let rings = rings.build().map_err(invalid)?;
        let mut socket = XdpSocketBuilder::new().map_err(failed)?;
        let (rings, mut flags) = socket.build_rings(&frames, rings).map_err(failed)?;
        flags.force_copy();
        let socket = socket.bind(NicIndex::new(interface), queue, flags);
        let socket = socket.map_err(failed)?;
        let Some(receive) = rings.rx_ring else {
            return Err(("AF_XDP rings", io::ErrorKind::Unsupported.into()));
        };
        let mut fill = rings.fill_ring;
        // SAFETY: the frames are a field of the queue, which ends after the socket.
        unsafe { fill.enqueue(&mut frames, receive_frames as usize) };
        let queue = Self {
            socket,
            receive,
            fill,
            completion: rings.completion_ring,
            send: rings.tx_ring,
            free: send_frames as usize,
            untold: 0,
            owed: 0,
            frames,
        };
        // Where it is refused the kernel's usual buffer blocks sooner.
        let _ = setsockopt(&queue.socket(), sockopt::SndBufForce, &SEND_BUFFER_BYTES);
        Ok(queue)
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as the queue is there.
        unsafe { BorrowedFd::borrow_raw(self.raw_fd()) }
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Has [`Self::poll`] take packets out of the interface, as many as a batch has.
    ///
    /// # Errors
    /// A kernel before Linux 5.11.
    pub(super) fn prefer_polling(&self) -> io::Result<()> {
        let options = [
            (libc::SO_PREFER_BUSY_POLL, 1),
            // Microseconds, which a call that does not block never takes.
            (libc::SO_BUSY_POLL, 20),
            (libc::SO_BUSY_POLL_BUDGET, BATCH as libc::c_int),
        ];
        for (option, value) in options {
            // SAFETY: the option's value is an int, which outlives the call.
            let answer = unsafe {
                libc::setsockopt(
                    self.raw_fd(),
                    libc::SOL_SOCKET,
                    option,
                    std::ptr::from_ref(&value).cast(),
                    size_of_val(&value) as libc::socklen_t,
                )
            };
            if answer != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Takes packets out of the interface now.
    pub(super) fn poll(&self) {
        // It says nothing about packets: the ring does.
        let _ = recv(self.raw_fd(), &mut [], MsgFlags::MSG_DONTWAIT);
    }

    /// Hands over what has arrived, a batch at most. Answers how many packets.
    pub(super) fn receive(&mut self, mut take: impl FnMut(&mut [u8])) -> usize {
        let mut packets = StackSlab::<BATCH>::new();
        // SAFETY: the packets end within this call, the frames with the queue.
        let received = unsafe { self.receive.recv(&self.frames, &mut packets) };
        while let Some(mut packet) = packets.pop_back() {
            take(&mut packet);
            self.frames.free_packet(packet);
        }
        // The ring may look full for a moment: the kernel says that it has taken frames after it has handed packets over.
        self.owed += received;
        // SAFETY: the frames are a field of the queue, which ends after the socket.
        self.owed -= unsafe { self.fill.enqueue(&mut self.frames, self.owed) };
        received
    }

    /// How many packets can be sent now.
    pub(super) fn room(&self) -> usize {
        self.free
    }

    /// Puts packets behind those that are to be sent: a chunk at most, for which there is room. `write(i, frame)` writes the
    /// `i`-th and answers its length. Answers the bytes of all.
    pub(super) fn put(
        &mut self,
        packets: u32,
        mut write: impl FnMut(u32, &mut [u8]) -> usize,
    ) -> usize {
        debug_assert!(packets as usize <= self.free.min(BATCH));
        let Some(send) = &mut self.send else {
            return 0;
        };
        let (mut slab, mut sum) = (StackSlab::<BATCH>::new(), 0);
        for index in 0..packets {
            // SAFETY: the packet goes to the ring below, and the frames end after the ring.
            let Some(mut packet) = (unsafe { self.frames.alloc() }) else {
                break;
            };
            let room = packet.capacity() as i32;
            // The frame is empty, so it takes as much as it has and gives back what is not written.
            let _ = packet.adjust_tail(room);
            let bytes = write(index, &mut packet);
            let _ = packet.adjust_tail(bytes as i32 - room);
            sum += bytes;
            let refused = slab.push_front(packet);
            debug_assert!(refused.is_none());
        }
        // SAFETY: the frames are a field of the queue, which ends after the socket.
        let sent = unsafe { send.send(&mut slab) };
        self.free -= sent;
        self.untold += sent;
        // The ring may look full for a moment, as above. What it does not take is lost, as on a network.
        while let Some(packet) = slab.pop_back() {
            self.frames.free_packet(packet);
        }
        sum
    }

    /// Has the kernel send what was put. Answers how many calls it took, and whether all has left.
    ///
    /// # Errors
    /// The interface is down or gone. What was put is sent when it is back.
    pub(super) fn transmit(&mut self) -> (u64, Result<bool, Errno>) {
        let most = self.untold / PACKETS_PER_CALL + 1;
        let mut calls = 0;
        while self.untold > 0 && calls < most {
            calls += 1;
            match send(self.raw_fd(), &[], MsgFlags::MSG_DONTWAIT) {
                Ok(_) => self.untold = 0,
                // More is in the ring; or the device has dropped a packet.
                Err(Errno::EAGAIN | Errno::EBUSY | Errno::ENOBUFS | Errno::EINTR) => {}
                Err(errno) => return (calls as u64, Err(errno)),
            }
        }
        self.reclaim();
        (calls as u64, Ok(self.untold == 0))
    }

    /// Whether the kernel has not been told of everything that was put.
    pub(super) fn has_untold(&self) -> bool {
        self.untold > 0
    }

    /// Takes back the frames that the device is done with.
    pub(super) fn reclaim(&mut self) {
        loop {
            match self
                .completion
                .dequeue(&mut self.frames, SEND_FRAMES as usize)
            {
                0 => return,
                done => self.free += done,
            }
        }
    }
}

fn failed(error: SocketError) -> (&'static str, io::Error) {
    match error {
        SocketError::SocketCreation(error) => ("socket AF_XDP", error),
        SocketError::SetSockOpt { inner, .. } => ("setsockopt AF_XDP", inner),
        SocketError::GetSockOpt { inner, .. } => ("getsockopt AF_XDP", inner),
        SocketError::RingMap { inner, .. } => ("mmap AF_XDP", inner),
        SocketError::Bind(error) => ("bind AF_XDP", error),
    }
}
