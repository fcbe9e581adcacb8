//! One chunk as it will stand on the wire, for a single GSO send.

use std::ops::Range;

use weft_core::wire::{CHUNK_PACKETS_MAX, OVERHEAD_BYTES};

/// Bytes of the largest frame: more than one UDP send carries, and the headers that come in when a chunk of that length
/// is cut anew into as many packets as it may have.
pub(super) const FRAME_BYTES: usize = 65_536 + CHUNK_PACKETS_MAX * OVERHEAD_BYTES;

/// A chunk's packets, one behind the other. A link has one and uses it again. It allocates only
/// where another link of this process has taken the buffer and none has come back.
///
/// The payload is copied here, from the cache in which its checksum has just put it. Gathering it by
/// the kernel from where it lies saves no copy, only this one, and costs more: the kernel copies
/// each of the 2n + 1 pieces by itself (docs/decisions/0001).
pub(super) struct Frame {
    bytes: Box<[u8]>,
    /// Bytes of each packet but the last.
    packet: usize,
    used: usize,
    packets: usize,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            bytes: vec![0; FRAME_BYTES].into(),
            packet: 0,
            used: 0,
            packets: 0,
        }
    }
}

impl Frame {
    /// Holds `packets` packets from now on, each written by `seal` into the room that is left; it answers how
    /// many bytes the packet has. All but the last have equally many.
    pub(super) fn fill(&mut self, packets: u32, mut seal: impl FnMut(u32, &mut [u8]) -> usize) {
        (self.packet, self.used, self.packets) = (0, 0, packets as usize);
        for packet in 0..packets {
            let bytes = seal(packet, &mut self.bytes[self.used..]);
            if packet == 0 {
                self.packet = bytes;
            }
            debug_assert!(bytes <= self.packet && self.used == packet as usize * self.packet);
            self.used += bytes;
        }
    }

    /// Takes the packets out, with the buffer and how many bytes of it they are. The frame goes on with another one, of
    /// [`FRAME_BYTES`].
    pub(super) fn take(&mut self, other: Box<[u8]>) -> (Box<[u8]>, usize) {
        debug_assert_eq!(other.len(), FRAME_BYTES);
        let bytes = std::mem::take(&mut self.used);
        self.packets = 0;
        (std::mem::replace(&mut self.bytes, other), bytes)
    }

    /// How many packets the frame holds.
    pub(super) fn packets(&self) -> usize {
        self.packets
    }

    /// Bytes of each packet but the last.
    pub(super) fn packet_bytes(&self) -> usize {
        self.packet
    }

    /// The packets of `range`, one behind the other.
    pub(super) fn wire(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range.start * self.packet..(range.end * self.packet).min(self.used)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(packets: &[&[u8]]) -> Frame {
        let mut frame = Frame::default();
        refill(&mut frame, packets);
        frame
    }

    fn refill(frame: &mut Frame, packets: &[&[u8]]) {
        frame.fill(packets.len() as u32, |i, room| {
            let packet = packets[i as usize];
            room[..packet.len()].copy_from_slice(packet);
            packet.len()
        });
    }

    #[test]
    fn packets_come_in_the_order_of_the_wire_and_can_be_cut_between() {
        let frame = frame(&[&[1; 74], &[2; 74], &[3; 67]]);
        let expected = [&[1; 74][..], &[2; 74], &[3; 67]].concat();
        assert_eq!((frame.packets(), frame.packet_bytes()), (3, 74));
        assert_eq!(frame.wire(0..3), expected);
        assert_eq!(frame.wire(1..3), &expected[74..]);
        assert_eq!(frame.wire(1..2), &expected[74..148]);
        assert_eq!(frame.wire(2..3), &expected[148..]);
    }

    #[test]
    fn a_frame_that_is_filled_again_holds_nothing_of_before() {
        let mut frame = frame(&[&[1; 40_000]]);
        refill(&mut frame, &[&[2; 30_000], &[3; 30_000], &[4; 5_536]]);
        assert_eq!(frame.packets(), 3);
        assert_eq!(frame.wire(0..3).len(), 65_536);
        assert_eq!(frame.wire(2..3), &[4; 5_536]);
    }
}
