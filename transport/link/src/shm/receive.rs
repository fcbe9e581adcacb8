//! Takes packets out of rings: long payloads are copied straight into their places, everything else into a buffer.
//!
//! What stands in a ring may change at any time. A header and a trailer are copied out before anything of them is read, and so
//! is a packet that is handed over whole.

use std::sync::atomic::{Ordering, fence};

use weft_core::received::{Offer, Received};
use weft_core::units::Source;
use weft_core::wire::{Envelope, HEADER_BYTES, Kind, OVERHEAD_BYTES, TRAILER_BYTES, peek};

use super::connection::{Connection, Role};
use super::ring::{Consumer, Packet, Wakeups};
use super::{ShmLink, source};
use crate::link::{Counters, Handler};

/// A shorter payload costs less to copy than to ask for its place.
const PLACE_BYTES_MIN: usize = 4 << 10;

/// Packets of one connection before it is another one's turn.
const PACKETS_MAX: usize = 16;

/// The connection that a packet came on.
pub(super) fn slot_of(source: Source) -> usize {
    let [.., a, b] = source.0;
    u16::from_be_bytes([a, b]).into()
}

impl ShmLink {
    /// Hands over what has come on the connection whose turn it is. Answers how many packets.
    pub(super) fn take_in(&mut self, handler: &mut impl Handler) -> usize {
        let Some(slot) = self.next_readable() else {
            return 0;
        };
        let now = self.now;
        let (entries, packet) = (&mut self.entries, &mut self.packet);
        let Some(super::Entry::Open(connection)) = entries.get_mut(slot) else {
            return 0;
        };
        let mut sink = Sink {
            from: source(connection, slot),
            counters: &mut self.counters,
            handler,
            buffer: packet,
        };
        let mut packets = 0;
        let is_bad = loop {
            if packets == PACKETS_MAX {
                break false;
            }
            match connection.inbox.next() {
                Ok(Some(packet)) => {
                    sink.take(&connection.inbox, packet);
                    connection.inbox.pass(packet);
                    packets += 1;
                }
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        if packets > 0 {
            connection.used_at = now;
            if let Role::Outgoing { failures } = &mut connection.role {
                *failures = 0;
            }
            // The peer sees what was passed and goes on, or this end sees that it sleeps.
            fence(Ordering::SeqCst);
            if connection.wake(Wakeups::ROOM) {
                self.counters.send_calls += 1;
            }
        }
        if is_bad {
            self.close_bad(slot);
        } else if connection.has_ended && !connection.inbox.is_ready() {
            self.close(slot);
        }
        packets
    }

    /// The next connection in turn that has something.
    fn next_readable(&mut self) -> Option<usize> {
        let count = self.slots.len();
        let order = (0..count).map(|step| (self.turn + step) % count);
        let is_readable = |slot: usize| self.open(slot).is_some_and(Connection::is_readable);
        let at = order.into_iter().find(|&at| is_readable(self.slots[at]))?;
        self.turn = at + 1;
        Some(self.slots[at])
    }
}

/// Where what is taken goes.
struct Sink<'a, H> {
    from: Source,
    counters: &'a mut Counters,
    handler: &'a mut H,
    /// As long as the longest packet.
    buffer: &'a mut [u8],
}

impl<H: Handler> Sink<'_, H> {
    fn take(&mut self, inbox: &Consumer, packet: Packet) {
        self.counters.received_runs += 1;
        self.counters.received_packets += 1;
        self.counters.received_bytes += packet.bytes as u64;
        if packet.bytes >= OVERHEAD_BYTES + PLACE_BYTES_MIN
            && self.place(inbox, packet) != Offer::Whole
        {
            return;
        }
        let bytes = &mut self.buffer[..packet.bytes];
        inbox.copy_out(0, bytes);
        self.handler.handle(Received::Packets {
            from: self.from,
            ce: false,
            bytes,
            segment: packet.bytes,
        });
    }

    /// Copies a payload into its place, if it has one.
    fn place(&mut self, inbox: &Consumer, packet: Packet) -> Offer {
        let mut envelope = Envelope {
            header: [0; HEADER_BYTES],
            trailer: [0; TRAILER_BYTES],
        };
        inbox.copy_out(0, &mut envelope.header);
        inbox.copy_out(packet.bytes - TRAILER_BYTES, &mut envelope.trailer);
        let kind = peek(&envelope.header).map(|peek| peek.kind);
        if !matches!(kind, Ok(Kind::Data | Kind::Send | Kind::Response)) {
            return Offer::Whole;
        }
        let bytes = packet.bytes - OVERHEAD_BYTES;
        let offer = self.handler.offer(self.from, &envelope, bytes as u32);
        if let Offer::Place { ticket, place, crc } = offer {
            let payload = inbox.cells(HEADER_BYTES, bytes);
            let result = self.handler.copy(&place, crc, payload);
            if result.is_ok() {
                self.counters.placed_bytes += bytes as u64;
            }
            self.handler.handle(Received::Placed { ticket, result });
        }
        offer
    }
}
