//! One chunk laid out for a single gather: headers and trailers here, payload where it lies.

use std::io::IoSlice;
use std::ops::Range;

use weft_core::wire::{HEADER_BYTES, OVERHEAD_BYTES, TRAILER_BYTES};

/// Most packets of one GSO send: the kernel's UDP_MAX_SEGMENTS on every version since 4.18.
pub(crate) const PACKETS_MAX: usize = 64;

/// Most pieces of one frame: a header, then payload and "trailer, next header" for each packet.
/// (2n + 1 pieces beat 3n by up to 30 % on a cold source: docs/decisions/0001.)
pub(crate) const PIECES_MAX: usize = 2 * PACKETS_MAX + 1;

/// A chunk's headers, trailers and payload ranges. One is kept by each worker and reused: it never
/// allocates after it is made.
pub struct Frame {
    /// header 0 | trailer 0 | header 1 | trailer 1 | …
    controls: Box<[u8; OVERHEAD_BYTES * PACKETS_MAX]>,
    payloads: [(usize, usize); PACKETS_MAX],
    packets: usize,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            controls: Box::new([0; OVERHEAD_BYTES * PACKETS_MAX]),
            payloads: [(0, 0); PACKETS_MAX],
            packets: 0,
        }
    }
}

impl Frame {
    /// Forgets every packet.
    pub fn clear(&mut self) {
        self.packets = 0;
    }

    /// How many packets the frame holds.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Appends a packet whose payload is `payload` of the source that [`crate::UdpLink::send`] is
    /// given. All packets but the last carry equally many bytes. Answers false, and appends
    /// nothing, when the frame is full.
    pub fn push(
        &mut self,
        header: &[u8; HEADER_BYTES],
        payload: Range<usize>,
        trailer: &[u8; TRAILER_BYTES],
    ) -> bool {
        if self.packets == PACKETS_MAX {
            return false;
        }
        let at = self.packets * OVERHEAD_BYTES;
        self.controls[at..at + HEADER_BYTES].copy_from_slice(header);
        self.controls[at + HEADER_BYTES..at + OVERHEAD_BYTES].copy_from_slice(trailer);
        self.payloads[self.packets] = (payload.start, payload.end);
        self.packets += 1;
        true
    }

    /// The pieces of packets `range` in the order of the wire, for one gathering send, and their
    /// number of bytes.
    pub(crate) fn gather<'a>(
        &'a self,
        range: Range<usize>,
        source: &'a [u8],
        pieces: &mut [IoSlice<'a>; PIECES_MAX],
    ) -> (usize, usize) {
        let (first, end) = (range.start, range.end);
        let mut at = first * OVERHEAD_BYTES;
        pieces[0] = IoSlice::new(&self.controls[at..at + HEADER_BYTES]);
        at += HEADER_BYTES;
        let mut bytes = HEADER_BYTES;
        let mut used = 1;
        for packet in first..end {
            let (from, to) = self.payloads[packet];
            let next = if packet + 1 == end {
                TRAILER_BYTES
            } else {
                OVERHEAD_BYTES
            };
            pieces[used] = IoSlice::new(&source[from..to]);
            pieces[used + 1] = IoSlice::new(&self.controls[at..at + next]);
            at += next;
            bytes += to - from + next;
            used += 2;
        }
        (used, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payloads: &[Range<usize>]) -> Frame {
        let mut frame = Frame::default();
        for (i, payload) in payloads.iter().enumerate() {
            let byte = i as u8;
            assert!(frame.push(
                &[byte; HEADER_BYTES],
                payload.clone(),
                &[0x80 | byte; TRAILER_BYTES]
            ));
        }
        frame
    }

    fn wire(frame: &Frame, range: Range<usize>, source: &[u8]) -> Vec<u8> {
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let (used, bytes) = frame.gather(range, source, &mut pieces);
        let wire: Vec<u8> = pieces[..used]
            .iter()
            .flat_map(|piece| piece.to_vec())
            .collect();
        assert_eq!(wire.len(), bytes);
        wire
    }

    #[test]
    fn pieces_come_in_the_order_of_the_wire() {
        let source: Vec<u8> = (0..30).map(|i| 0x40 + i).collect();
        let frame = frame(&[0..10, 20..30, 10..13]);
        let mut expected = Vec::new();
        for (byte, payload) in [(0u8, 0..10), (1, 20..30), (2, 10..13)] {
            expected.extend_from_slice(&[byte; HEADER_BYTES]);
            expected.extend_from_slice(&source[payload]);
            expected.extend_from_slice(&[0x80 | byte; TRAILER_BYTES]);
        }
        assert_eq!(wire(&frame, 0..3, &source), expected);
        let second = HEADER_BYTES + 10 + TRAILER_BYTES;
        assert_eq!(wire(&frame, 1..3, &source), expected[second..]);
    }

    #[test]
    fn a_packet_without_payload_is_header_and_trailer() {
        let frame = frame(std::slice::from_ref(&(0..0)));
        assert_eq!(wire(&frame, 0..1, &[]).len(), OVERHEAD_BYTES);
    }

    #[test]
    fn a_full_frame_takes_no_more() {
        let mut frame = frame(&vec![0..0; PACKETS_MAX]);
        assert!(!frame.push(&[0; HEADER_BYTES], 0..0, &[0; TRAILER_BYTES]));
        assert_eq!(frame.packets(), PACKETS_MAX);
    }
}
