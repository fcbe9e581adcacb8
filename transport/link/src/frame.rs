//! One chunk as it will stand on the wire, for a single GSO send.

use std::ops::Range;

use weft_core::wire::{HEADER_BYTES, TRAILER_BYTES};

/// Bytes of the largest frame: more than one UDP send carries.
const FRAME_BYTES: usize = 65_536;

/// A chunk's packets, one behind the other. One is kept by each worker and reused: it never
/// allocates after it is made.
///
/// The payload is copied here, from the cache in which its checksum has just put it. Gathering it by
/// the kernel from where it lies saves no copy, only this one, and costs more: the kernel copies
/// each of the 2n + 1 pieces by itself (docs/decisions/0001).
pub struct Frame {
    bytes: Box<[u8; FRAME_BYTES]>,
    /// Bytes of each packet but the last.
    packet: usize,
    used: usize,
    packets: usize,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            bytes: Box::new([0; FRAME_BYTES]),
            packet: 0,
            used: 0,
            packets: 0,
        }
    }
}

impl Frame {
    /// Forgets every packet.
    pub fn clear(&mut self) {
        (self.packet, self.used, self.packets) = (0, 0, 0);
    }

    /// How many packets the frame holds.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Appends a packet. All but the last carry equally many bytes. Answers false, and appends
    /// nothing, when the frame is full.
    pub fn push(
        &mut self,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        trailer: &[u8; TRAILER_BYTES],
    ) -> bool {
        let length = HEADER_BYTES + payload.len() + TRAILER_BYTES;
        let Some(room) = self.bytes.get_mut(self.used..self.used + length) else {
            return false;
        };
        let (front, rest) = room.split_at_mut(HEADER_BYTES);
        let (middle, back) = rest.split_at_mut(payload.len());
        front.copy_from_slice(header);
        middle.copy_from_slice(payload);
        back.copy_from_slice(trailer);
        if self.packets == 0 {
            self.packet = length;
        }
        self.used += length;
        self.packets += 1;
        true
    }

    /// The packets of `range`, one behind the other.
    pub(crate) fn wire(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range.start * self.packet..(range.end * self.packet).min(self.used)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payloads: &[&[u8]]) -> Frame {
        let mut frame = Frame::default();
        for (i, payload) in payloads.iter().enumerate() {
            let byte = i as u8;
            assert!(frame.push(
                &[byte; HEADER_BYTES],
                payload,
                &[0x80 | byte; TRAILER_BYTES]
            ));
        }
        frame
    }

    #[test]
    fn packets_come_in_the_order_of_the_wire_and_can_be_cut_between() {
        let payloads: [&[u8]; 3] = [&[0x40; 10], &[0x41; 10], &[0x42; 3]];
        let frame = frame(&payloads);
        let mut expected = Vec::new();
        for (byte, payload) in payloads.iter().enumerate() {
            expected.extend_from_slice(&[byte as u8; HEADER_BYTES]);
            expected.extend_from_slice(payload);
            expected.extend_from_slice(&[0x80 | byte as u8; TRAILER_BYTES]);
        }
        let packet = HEADER_BYTES + 10 + TRAILER_BYTES;
        assert_eq!(frame.wire(0..3), expected);
        assert_eq!(frame.wire(1..3), &expected[packet..]);
        assert_eq!(frame.wire(1..2), &expected[packet..2 * packet]);
        assert_eq!(frame.wire(2..3), &expected[2 * packet..]);
    }

    #[test]
    fn a_packet_without_payload_is_header_and_trailer() {
        assert_eq!(frame(&[&[]]).wire(0..1).len(), HEADER_BYTES + TRAILER_BYTES);
    }

    #[test]
    fn a_full_frame_takes_no_more_and_a_cleared_one_does() {
        let mut frame = frame(&[&[7; 40_000]]);
        assert!(!frame.push(&[0; HEADER_BYTES], &[0; 30_000], &[0; TRAILER_BYTES]));
        assert_eq!(frame.packets(), 1);
        frame.clear();
        assert!(frame.push(&[0; HEADER_BYTES], &[0; 30_000], &[0; TRAILER_BYTES]));
        assert_eq!(
            frame.wire(0..1).len(),
            30_000 + HEADER_BYTES + TRAILER_BYTES
        );
    }
}
