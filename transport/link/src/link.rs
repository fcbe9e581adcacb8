//! What every link does for its worker.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;

use mio::Registry;
use mio::event::Event;
use weft_core::drops::DropReason;
use weft_core::memory::Place;
use weft_core::received::{Offer, Received};
use weft_core::units::{PathId, Source, Time};
use weft_core::wire::Envelope;

use crate::address::LinkAddress;
use crate::error::{LinkError, Refusal};

/// One NIC queue's way to other machines. Owned by one worker.
///
/// # Order of calls
/// [`Link::open`], [`Link::register`], then in each turn of the worker:
/// 1. [`crate::Poller::poll`] when [`Link::is_readable`] is false, and now and then when it is true. Readiness
///    of a port is kept until the port is drained, so no turn needs a system call to know what it knows.
/// 2. [`Link::receive`] while [`Link::is_readable`], up to the worker's limit for a turn.
/// 3. [`Link::flush`], then [`Link::send_chunk`] while [`Link::can_send`], and [`Link::send_control`] at any time.
/// 4. [`Link::send_gathered`] behind the last chunk, and [`Link::poll_path`] until there is none.
///
/// Before the worker sleeps it asks [`Link::flush_at`] for the time at which it must call [`Link::flush`], and calls
/// [`Link::prepare_to_sleep`].
pub trait Link: Sized {
    /// What the link is opened with.
    type Config: Clone + fmt::Debug;

    /// What the link knows of another machine, made once for each.
    type Peer: Clone + fmt::Debug;

    /// Opens the link.
    ///
    /// # Errors
    /// The address is not here, is taken, or the system refuses it.
    fn open(config: Self::Config) -> Result<Self, LinkError>;

    /// Where other machines reach this end.
    fn address(&self) -> LinkAddress;

    /// What the link can do.
    fn capabilities(&self) -> Capabilities;

    /// What the link has done.
    fn counters(&self) -> &Counters;

    /// The peer at `address`.
    ///
    /// # Errors
    /// The address is none that this link can send to.
    fn peer(&self, address: &LinkAddress) -> Result<Self::Peer, LinkError>;

    /// Registers with a poller: it may use every token but [`crate::Poller`]'s own.
    ///
    /// # Errors
    /// The system refuses.
    fn register(&mut self, registry: &Registry) -> io::Result<()>;

    /// Takes note of a readiness that the poller reports.
    fn handle_event(&mut self, event: &Event);

    /// Whether there may be something to receive. True after a receive call that failed, too: then the poller
    /// stays silent and the worker tries again after a while.
    fn is_readable(&self) -> bool;

    /// Whether [`Link::is_readable`] shows what arrives without the poller being asked. The poller has to be asked now and then
    /// all the same: it tells what has become of connections.
    fn shows_arrivals(&self) -> bool {
        false
    }

    /// From here on what comes ends the wait of [`crate::Waiter`]. Answers whether nothing has come so far.
    fn prepare_to_sleep(&mut self) -> bool;

    /// Receives one batch and hands it over: what one system call brings over UDP, a connection's share of a turn over TCP and
    /// shared memory.
    /// Answers how many runs.
    fn receive(&mut self, handler: &mut impl Handler) -> usize;

    /// Whether a chunk can be sent: none is kept that keeps all paths from sending.
    fn can_send(&self) -> bool;

    /// Sends a chunk of `packets` packets to `peer` on `path`. `seal(i, room)` writes the `i`-th packet into
    /// `room` and answers its length; all packets but the last are equally long. The caller has asked
    /// [`Link::can_send`].
    ///
    /// What the system does not take now the link keeps, sealed, and sends in a later [`Link::flush`]: a chunk is
    /// sealed once.
    fn send_chunk(
        &mut self,
        now: Time,
        peer: &Self::Peer,
        path: PathId,
        packets: u32,
        seal: impl FnMut(u32, &mut [u8]) -> usize,
    ) -> Sent;

    /// Sends what a link has gathered of the chunks of a turn, to hand several over at once.
    fn send_gathered(&mut self) {}

    /// Sends one packet. One that the system does not take now is lost and counted: the next acknowledgement
    /// or probe says the same.
    fn send_control(&mut self, to: Destination<'_, Self::Peer>, packet: &[u8]);

    /// Sends what is kept, when the system has said that it takes more or [`Link::flush_at`] has come. Answers
    /// whether it tried.
    fn flush(&mut self, now: Time) -> bool;

    /// When to call [`Link::flush`] although the poller reports nothing.
    fn flush_at(&self) -> Option<Time>;

    /// What has become of a path since the last call. A link that is not reliable tells only where there are several NICs.
    fn poll_path(&mut self) -> Option<PathChange> {
        None
    }
}

/// What has become of a path of this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathChange {
    /// Where it leads to.
    pub to: LinkAddress,
    /// Which.
    pub path: PathId,
    /// What it is now.
    pub condition: PathCondition,
}

/// What a path takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathCondition {
    /// No chunk until it is ready. Those that were sent on it before leave by then.
    Blocked,
    /// Chunks.
    Ready,
    /// No chunk until it is ready. What was sent on it before may be lost.
    Broken,
    /// Chunks. What was sent on it just now was not: its NIC is down, or has no route.
    Unreachable,
}

impl PathChange {
    pub(crate) fn new((to, path): (LinkAddress, PathId), condition: PathCondition) -> Self {
        Self {
            to,
            path,
            condition,
        }
    }
}

/// What a link can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Paths to a peer whose address has the same shape as the link's own.
    pub paths: u32,
    /// Bytes of the largest packet: header, payload and trailer.
    pub packet_bytes: usize,
    /// Bytes of the largest chunk, all its packets together.
    pub chunk_bytes: usize,
    /// Packets of one path arrive in the order in which they were sent, or not at all.
    pub in_order: bool,
    /// Nobody on the way can read or change a packet.
    pub encrypts: bool,
    /// Payload is written straight into place: the link asks [`Handler::offer`].
    pub places: bool,
    /// What it takes arrives, or [`Link::poll_path`] says that its path has broken.
    pub reliable: bool,
}

/// Where a control packet goes.
#[derive(Debug)]
pub enum Destination<'a, P> {
    /// To a peer, on a path of this end.
    Path(&'a P, PathId),
    /// To a peer, the way back of a path of the peer's.
    Reverse(&'a P, PathId),
    /// Back to where a packet came from.
    Source(Source),
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It left.
    Whole,
    /// No more is taken yet; the link keeps what has not left. Until that has left, a link that keeps one chunk for all
    /// paths answers false to [`Link::can_send`], and one that keeps them by path says that the path is
    /// [`PathCondition::Blocked`].
    Kept,
    /// The system refused it or a part of it; to recovery it is a loss like any other.
    Dropped(Refusal),
}

/// Takes in what a link receives: an endpoint, with the time.
pub trait Handler {
    /// Where to write the payload, of `bytes` bytes, that stands between this header and trailer; only links that place
    /// ask. The link hands over [`Received::Placed`] with the ticket before anything else.
    fn offer(&mut self, from: Source, envelope: &Envelope, bytes: u32) -> Offer;

    /// Writes `first` to the beginning of a place that was offered, and receives the rest of it from `socket`, which has all
    /// of it; what follows there goes to `ahead`, as far as it has come. Checks that the payload has `crc`. Answers how many
    /// bytes of `ahead` have come, or why the payload is not there.
    ///
    /// # Errors
    /// Those of the socket, or its end.
    fn receive(
        &mut self,
        place: &Place,
        crc: Option<u32>,
        first: &[u8],
        socket: BorrowedFd<'_>,
        ahead: &mut [u8],
    ) -> io::Result<Result<usize, DropReason>>;

    /// The same from memory that another process may change at any time: writes all of a payload to a place that was offered.
    ///
    /// # Errors
    /// Why the payload is not there.
    fn copy(
        &mut self,
        place: &Place,
        crc: Option<u32>,
        payload: &[AtomicU8],
    ) -> Result<(), DropReason>;

    /// Takes in what has arrived.
    fn handle(&mut self, received: Received<'_>);
}

/// What a link has done since it was opened; every field only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed to the kernel.
    pub sent_packets: u64,
    /// Bytes of them, without IP and UDP headers.
    pub sent_bytes: u64,
    /// System calls that handed packets over.
    pub send_calls: u64,
    /// Sends that met a full send buffer; what was not sent is kept and sent later, or lost if a control packet.
    pub blocked: u64,
    /// Sends for which the kernel had no memory (ENOBUFS, ENOMEM); as `blocked`.
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
    /// Runs (what GRO made of datagrams, or another link of this process a chunk) received.
    pub received_runs: u64,
    /// Packets put into the queues of other links of this process.
    pub local_packets: u64,
    /// Bytes of them.
    pub local_bytes: u64,
    /// Runs for other links of this process that found no room in their queues: lost.
    pub local_lost: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Bytes of them, without IP and UDP headers.
    pub received_bytes: u64,
    /// Packets that arrived with Congestion Experienced set.
    pub received_ce: u64,
    /// Receive calls that failed with something else than "nothing there".
    pub receive_errors: u64,
    /// Bytes of payload that were received straight into place.
    pub placed_bytes: u64,
    /// Connections of paths that broke; their chunks are sent again.
    pub broken_paths: u64,
    /// Connections closed because their makers did not send this end's token, gave an IP address that is not their own or a
    /// path that does not exist, had too many connections, or said nothing in time; over shared memory, or handed over memory
    /// that cannot be used without harm.
    pub strangers: u64,
    /// Connections closed because of bytes that are no packets, a payload that was read into its place and is
    /// damaged or has no place any more, a packet whose end did not come, or counts of a ring in shared memory that cannot be.
    pub bad_frames: u64,
    /// Packets over AF_XDP whose headers or lengths are wrong: dropped, as the kernel does.
    pub malformed: u64,
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
        self.local_packets += other.local_packets;
        self.local_bytes += other.local_bytes;
        self.local_lost += other.local_lost;
        self.received_runs += other.received_runs;
        self.received_packets += other.received_packets;
        self.received_bytes += other.received_bytes;
        self.received_ce += other.received_ce;
        self.receive_errors += other.receive_errors;
        self.placed_bytes += other.placed_bytes;
        self.broken_paths += other.broken_paths;
        self.strangers += other.strangers;
        self.bad_frames += other.bad_frames;
        self.malformed += other.malformed;
    }
}
