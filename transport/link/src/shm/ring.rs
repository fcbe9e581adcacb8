//! Rings of packets in memory that two processes share: each has one producer and one consumer.
//!
//! A packet stands behind a *front*, whose first word is the packet's length, and 0 as long as there is none. The producer
//! writes the packet, then 0 into the front behind it, then the length. The consumer counts the bytes that it has passed in a
//! word that the producer reads when it is short of room.
//!
//! A packet is never cut at the end of the ring: where the longest one would not fit any more, the next one begins at the start.
//! Both ends know that by the same rule, so nothing but lengths and one count is read out of shared memory. Each is read once,
//! and checked: the other process may write anything there at any time.
//!
//! | bytes of the memory | |
//! |---|---|
//! | 0 | bytes consumed of the data ring, by the end that was connected to |
//! | 128 | bytes consumed of the control ring, by the end that connected |
//! | 256, 384 | what the end that connected, and the other one, want to be woken for |
//! | 4096 … | the data ring: what the end that connected sends |
//! | … | the control ring: what the other one sends |

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use weft_core::drops::DropReason;
use weft_core::wire::{CHUNK_PACKETS_MAX, CONTROL_BYTES_MAX, OVERHEAD_BYTES, TRAILER_BYTES};
use weft_memory::{Region, Words};

/// Payload of the longest packet, bytes: two of them are a chunk of 64 KiB.
pub(super) const PAYLOAD_BYTES: usize = 32 << 10;

/// Bytes of the longest packet.
pub(super) const PACKET_BYTES_MAX: usize = PAYLOAD_BYTES + OVERHEAD_BYTES;

/// Bytes of a front. With a header of 48 bytes a payload begins at a cache line.
const FRONT_BYTES: usize = 16;

/// Frames begin at cache lines, in bytes.
const LINE: usize = 64;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Where a ring lies, and how long its packets may be.
#[derive(Debug, Clone, Copy)]
struct Shape {
    start: usize,
    bytes: usize,
    packet_bytes_max: usize,
    /// Where the count of the consumer lies.
    consumed: usize,
}

const DATA: Shape = Shape {
    start: 4096,
    bytes: 2 << 20,
    packet_bytes_max: PACKET_BYTES_MAX,
    consumed: 0,
};

const CONTROL: Shape = Shape {
    start: DATA.start + DATA.bytes,
    bytes: 128 << 10,
    packet_bytes_max: CONTROL_BYTES_MAX,
    consumed: 128,
};

/// What each end wants to be woken for: that of the end that connected, and of the other one.
const WANTED: [usize; 2] = [256, 384];

/// Bytes of the memory of a connection.
pub(super) const MEMORY_BYTES: usize = CONTROL.start + CONTROL.bytes;

const _: () = assert!(
    DATA.bytes.is_power_of_two() && CONTROL.bytes.is_power_of_two(),
    "a position is where it is modulo the ring's length"
);

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It connected, and sends data.
    Connector,
    /// The other one.
    Acceptor,
}

/// What the other process wrote is nothing that it could have written by the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadRing;

/// Bytes of the frame of a packet.
const fn frame_bytes(packet: usize) -> usize {
    (FRONT_BYTES + packet).next_multiple_of(LINE)
}

impl Shape {
    /// Room that a packet needs at most: itself, what is left over at the end of the ring, and the next front.
    const fn packet_room(self) -> usize {
        2 * frame_bytes(self.packet_bytes_max) + LINE
    }

    fn at(self, position: u64) -> usize {
        position as usize & (self.bytes - 1)
    }

    /// The position behind a packet at `position`. At each position there is place for the longest packet.
    fn after(self, position: u64, packet: usize) -> u64 {
        let at = self.at(position);
        let end = at + frame_bytes(packet);
        let is_last = end + frame_bytes(self.packet_bytes_max) > self.bytes;
        let end = if is_last { self.bytes } else { end };
        position + (end - at) as u64
    }
}

/// One end's view of a ring.
#[derive(Debug)]
struct Ring {
    shape: Shape,
    memory: Arc<Region>,
    words: Words,
    consumed: Words,
}

impl Ring {
    fn new(shape: Shape, memory: &Arc<Region>) -> Result<Self, DropReason> {
        Ok(Self {
            shape,
            memory: Arc::clone(memory),
            words: Words::new(memory, shape.start as u64, shape.bytes / WORD)?,
            consumed: Words::new(memory, shape.consumed as u64, 1)?,
        })
    }

    fn front(&self, position: u64) -> &AtomicU64 {
        &self.words[self.shape.at(position) / WORD]
    }

    /// `bytes` bytes of the packet at `position`, from its byte `from` on.
    fn cells(&self, position: u64, from: usize, bytes: usize) -> &[AtomicU8] {
        let at = self.shape.start + self.shape.at(position) + FRONT_BYTES + from;
        let cells = self.memory.cells(at as u64, bytes);
        cells.expect("at each position the longest packet has its place")
    }
}

/// The end of a ring that packets are put into.
#[derive(Debug)]
pub(super) struct Producer {
    ring: Ring,
    position: u64,
    /// What the consumer had passed when that was read.
    consumed: u64,
}

impl Producer {
    /// Room that a chunk needs at most: its packets, and what is left over at the end of the ring.
    pub(super) const CHUNK_ROOM: usize = 65_536
        + CHUNK_PACKETS_MAX * (FRONT_BYTES + OVERHEAD_BYTES + LINE)
        + frame_bytes(PACKET_BYTES_MAX)
        + DATA.packet_room();

    /// Whether there is room for a packet.
    ///
    /// # Errors
    /// [`BadRing`]: the consumer has passed what was never put there.
    pub(super) fn has_packet_room(&mut self) -> Result<bool, BadRing> {
        self.has_room(self.ring.shape.packet_room())
    }

    /// Whether there is room for so many bytes.
    ///
    /// # Errors
    /// As before.
    pub(super) fn has_room(&mut self, bytes: usize) -> Result<bool, BadRing> {
        if self.free() >= bytes {
            return Ok(true);
        }
        // Ordered before what is written there from now on.
        let consumed = self.ring.consumed[0].load(Ordering::Acquire);
        if !(self.consumed..=self.position).contains(&consumed) {
            return Err(BadRing);
        }
        self.consumed = consumed;
        Ok(self.free() >= bytes)
    }

    /// Whether the consumer has passed all.
    pub(super) fn is_empty(&self) -> bool {
        self.ring.consumed[0].load(Ordering::Relaxed) == self.position
    }

    fn free(&self) -> usize {
        self.ring.shape.bytes - (self.position - self.consumed) as usize
    }

    /// Puts a packet into the ring. The caller has asked whether there is room. It is sealed before, in memory of this process:
    /// the other process reads and changes the ring at any time.
    pub(super) fn put(&mut self, packet: &[u8]) {
        let (ring, position) = (&self.ring, self.position);
        debug_assert!(
            self.free() >= ring.shape.packet_room(),
            "the caller has asked"
        );
        let at = ring.shape.start + ring.shape.at(position) + FRONT_BYTES;
        let written = ring.memory.write(at as u64, packet);
        written.expect("as in `Ring::cells`");
        let next = ring.shape.after(position, packet.len());
        ring.front(next).store(0, Ordering::Relaxed);
        ring.front(position)
            .store(packet.len() as u64, Ordering::Release);
        self.position = next;
    }
}

/// The end of a ring that packets are taken from.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: Ring,
    position: u64,
}

/// A packet that is to be taken: how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) bytes: usize,
}

impl Consumer {
    /// Whether there is something.
    pub(super) fn is_ready(&self) -> bool {
        self.ring.front(self.position).load(Ordering::Relaxed) != 0
    }

    /// The packet that is next, if one is there.
    ///
    /// # Errors
    /// [`BadRing`]: it would be shorter than a trailer, or longer than the ring's packets.
    pub(super) fn next(&self) -> Result<Option<Packet>, BadRing> {
        // Ordered before its bytes are read.
        match self.ring.front(self.position).load(Ordering::Acquire) {
            0 => Ok(None),
            bytes => {
                let allowed = TRAILER_BYTES as u64..=self.ring.shape.packet_bytes_max as u64;
                let is_packet = allowed.contains(&bytes);
                let bytes = bytes as usize;
                is_packet.then_some(Some(Packet { bytes })).ok_or(BadRing)
            }
        }
    }

    /// `bytes` bytes of the packet that is next, from its byte `from` on; both lie within it.
    pub(super) fn cells(&self, from: usize, bytes: usize) -> &[AtomicU8] {
        self.ring.cells(self.position, from, bytes)
    }

    /// Copies bytes of the packet that is next, from its byte `from` on.
    pub(super) fn copy_out(&self, from: usize, out: &mut [u8]) {
        let at = self.ring.shape.start + self.ring.shape.at(self.position) + FRONT_BYTES + from;
        let copied = self.ring.memory.read(at as u64, out);
        copied.expect("as in `Ring::cells`");
    }

    /// The packet that was next is done with: its room is the producer's.
    pub(super) fn pass(&mut self, packet: Packet) {
        self.position = self.ring.shape.after(self.position, packet.bytes);
        self.ring.consumed[0].store(self.position, Ordering::Release);
    }
}

/// What an end that sleeps wants to be woken for, and what the other one does.
#[derive(Debug)]
pub(super) struct Wakeups {
    here: Words,
    there: Words,
}

impl Wakeups {
    /// Something was put into the ring that it takes from.
    pub(super) const PACKETS: u64 = 1;
    /// There is room in the ring that it puts into.
    pub(super) const ROOM: u64 = 2;

    /// This end wants to be woken for these, or for nothing. A sequentially consistent fence has to stand between this and the
    /// last look at the rings.
    pub(super) fn want(&self, wanted: u64) {
        self.here[0].store(wanted, Ordering::Relaxed);
    }

    /// Whether the other end has to be woken for this, which is taken off it. It sees what was done before a sequentially
    /// consistent fence before this, or this sees what it wants.
    pub(super) fn take(&self, wanted: u64) -> bool {
        self.there[0].load(Ordering::Relaxed) & wanted != 0
            && self.there[0].swap(0, Ordering::Relaxed) & wanted != 0
    }
}

/// One end of the memory of a connection.
pub(super) fn ends(
    memory: &Arc<Region>,
    end: End,
) -> Result<(Producer, Consumer, Wakeups), DropReason> {
    let word = |at: usize| Words::new(memory, at as u64, 1);
    let (produced, consumed) = match end {
        End::Connector => (DATA, CONTROL),
        End::Acceptor => (CONTROL, DATA),
    };
    let [first, second] = WANTED;
    let (here, there) = match end {
        End::Connector => (first, second),
        End::Acceptor => (second, first),
    };
    let producer = Producer {
        ring: Ring::new(produced, memory)?,
        position: 0,
        consumed: 0,
    };
    let consumer = Consumer {
        ring: Ring::new(consumed, memory)?,
        position: 0,
    };
    let wakeups = Wakeups {
        here: word(here)?,
        there: word(there)?,
    };
    Ok((producer, consumer, wakeups))
}

#[cfg(test)]
mod tests;
