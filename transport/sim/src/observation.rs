//! What checkers see of a run: one enum, told in order of virtual time.

use weft_core::connection::{CancelError, Chunk, Connection};
use weft_core::drops::DropReason;
use weft_core::memory::Ticket;
use weft_core::path::BASE_PACKET_BYTES;
use weft_core::units::Key;
use weft_core::wire::OVERHEAD_BYTES;

use crate::pattern;

/// The most that a packet carries on a path where long ones are lost.
pub(crate) const SHORT_PAYLOAD: u64 = BASE_PACKET_BYTES as u64 - OVERHEAD_BYTES as u64;

/// One end of one incarnation of a connection. Ends come in pairs; see [`End::peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End(pub usize);

impl End {
    /// The end that this one talks to.
    pub const fn peer(self) -> End {
        End(self.0 ^ 1)
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A write to one place.
    Write,
    /// A write of pages of so many bytes, the last one first.
    Pages(u64),
    /// A send.
    Send,
    /// A read of the peer's region.
    Read {
        /// What opens it.
        key: Key,
        /// Where in the region.
        offset: u64,
    },
    /// An addition to a word of the peer: its number and one more.
    Add,
}

/// One message: its number in the run is its token, and names its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its number in the run, its token and the name of its content.
    pub id: u64,
    /// The end that posts it.
    pub writer: End,
    /// What it is.
    pub operation: Operation,
    /// The region that it fills.
    pub key: Key,
    /// Where in the region.
    pub offset: u64,
    /// How long; may be 0 with an immediate.
    pub bytes: u64,
    /// What it signals.
    pub immediate: Option<u32>,
    /// Payload bytes of a full packet; only the message's last one is shorter.
    pub packet_payload: u64,
}

impl Message {
    /// The end whose region it fills.
    pub fn reader(&self) -> End {
        match self.operation {
            Operation::Write | Operation::Pages(_) | Operation::Send => self.writer.peer(),
            Operation::Read { .. } | Operation::Add => self.writer,
        }
    }

    /// Whether its end is told where it arrives.
    pub fn is_told(&self) -> bool {
        self.immediate.is_some() || self.operation == Operation::Send
    }

    /// What belongs `start` bytes behind the beginning of its place. An [`Operation::Add`] has other content.
    pub fn content(&self, start: u64, length: usize) -> &'static [u8] {
        match self.operation {
            Operation::Pages(page) => {
                let behind = self.bytes - start / page * page - page;
                pattern::slice(self.id, behind + start % page, length)
            }
            Operation::Read { key, offset } => pattern::slice(key.0, offset + start, length),
            Operation::Write | Operation::Send | Operation::Add => {
                pattern::slice(self.id, start, length)
            }
        }
    }
}

/// Why a connection has a reason to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excuse {
    /// Both ends' hosts have kept their state: it has none.
    None,
    /// The peer's host has lost its state, or its end has failed.
    PeerDied,
    /// It was given a write that the peer must refuse.
    Strayed,
}

/// A packet that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The open end that it names.
    pub end: Option<End>,
    /// Whether it was damaged or made up.
    pub tampered: bool,
    /// Header, payload, trailer.
    pub bytes: &'a [u8],
}

/// What became of packets that had arrived together.
#[derive(Debug)]
pub struct Received<'a> {
    /// The packets.
    pub packets: Vec<Arrived<'a>>,
    /// Those whose payload was placed; on an in-order connection also what ends a message and waits for its turn.
    pub placed: &'a [Ticket],
    /// What was dropped: by which end's connection, or by the endpoint.
    pub dropped: Vec<(Option<End>, DropReason, u64)>,
}

/// Something that happened.
#[expect(missing_docs, reason = "each variant's text says what its fields are")]
#[derive(Debug)]
pub enum Observation<'a> {
    /// A connection between two hosts is made.
    Connected { ends: [End; 2] },
    /// A message was accepted.
    Posted { message: &'a Message },
    /// A write was accepted that the peer must refuse.
    Strayed { writer: End, token: u64 },
    /// From now on the regions of an end refuse for a while.
    Away,
    /// The core had payload placed at `reader`; `message` is the one that owns the place.
    Placed {
        reader: End,
        message: Option<&'a Message>,
        key: Key,
        offset: u64,
        payload: &'a [u8],
    },
    /// The core reports an immediate at `reader`.
    Signalled { reader: End, value: u32, key: Key },
    /// The core reports a send at `reader`.
    Delivered {
        reader: End,
        token: u64,
        bytes: u64,
        immediate: Option<u32>,
    },
    /// A word was added to, in which the core found `before`.
    Added { token: u64, before: u64 },
    /// The core reports a message as complete at `writer`.
    Completed { writer: End, token: u64 },
    /// The core was asked to cancel a message of `writer`, and has answered. It may have completed before. `untold`: some
    /// events of the connection are not taken yet.
    CancelAsked {
        message: &'a Message,
        result: Result<(), CancelError>,
        untold: bool,
    },
    /// The core reports a message as cancelled at `writer`: from now on its place may be used again.
    Cancelled { writer: End, token: u64 },
    /// The core reports that the peer has refused a message of `writer`, whose connection goes on: from now on its place may be
    /// used again.
    Refused { writer: End, token: u64 },
    /// The core names the message by which a connection that `writer` writes on fails, with all after it.
    RequestFailed { writer: End, token: u64 },
    /// The core gives up a connection.
    Failed {
        end: End,
        excuse: Excuse,
        reason: &'static str,
    },
    /// A packet goes onto the network.
    Transmitted { packet: &'a [u8] },
    /// Packets that had arrived together were taken in.
    Received { received: &'a Received<'a> },
    /// A region is closed: from now on nothing may be placed there.
    Deregistered { reader: End, key: Key },
    /// The core hands out a chunk of `writer` to be sent.
    Sent { writer: End, chunk: &'a Chunk },
    /// A worker has had its turn with a connection.
    Turned {
        end: End,
        connection: &'a Connection,
        events: usize,
    },
    /// The host of an end has lost its state, or the connection was closed with its failed peer.
    Lost { end: End },
    /// The host of an end is gone for good.
    Orphaned { end: End },
    /// From now on the network is fair and nothing goes wrong.
    Healed,
}
