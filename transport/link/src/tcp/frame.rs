//! How packets stand in a stream: length, trailer, then the packet without its trailer.
//!
//! The trailer goes first so that a header can be authenticated, and its payload placed, before the payload is read. What
//! comes in may be anything: only a length is believed, and only up to a limit.

use weft_core::wire::{CHUNK_PACKETS_MAX, Envelope, HEADER_BYTES, OVERHEAD_BYTES, TRAILER_BYTES};

/// Bytes of the length, little endian: of the packet, with its trailer.
const LENGTH_BYTES: usize = 4;

/// Bytes before the packet's own first byte.
pub(super) const FRONT_BYTES: usize = LENGTH_BYTES + TRAILER_BYTES;

/// Bytes of a frame up to its payload.
pub(super) const ENVELOPE_BYTES: usize = FRONT_BYTES + HEADER_BYTES;

/// Bytes of the frames of a chunk at most, with the trailer of the last one, which is moved.
pub(super) const CHUNK_BYTES: usize =
    65_536 + CHUNK_PACKETS_MAX * (OVERHEAD_BYTES + LENGTH_BYTES) + TRAILER_BYTES;

/// Bytes of a frame that has a packet of so many.
pub(super) const fn frame_bytes(packet: usize) -> usize {
    LENGTH_BYTES + packet
}

/// A length that no packet has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadFrame;

/// The bytes of the frame that begins with `bytes`; `None` as long as too few of them are there.
///
/// # Errors
/// [`BadFrame`]: the packet would be shorter than a trailer, or longer than `packet_bytes_max`.
pub(super) fn parse_length(
    bytes: &[u8],
    packet_bytes_max: usize,
) -> Result<Option<usize>, BadFrame> {
    let Some(&length) = bytes.first_chunk() else {
        return Ok(None);
    };
    let packet = u32::from_le_bytes(length) as usize;
    match (TRAILER_BYTES..=packet_bytes_max).contains(&packet) {
        true => Ok(Some(frame_bytes(packet))),
        false => Err(BadFrame),
    }
}

/// What stands around the payload of a packet whose frame begins with `bytes`; `None` as long as too few of them are there.
pub(super) fn envelope(bytes: &[u8]) -> Option<Envelope> {
    let trailer = bytes[..bytes.len().min(FRONT_BYTES)].last_chunk()?;
    let header = bytes.get(FRONT_BYTES..)?.first_chunk()?;
    let (header, trailer) = (*header, *trailer);
    Some(Envelope { header, trailer })
}

/// Shows `with` the packet of the frame that is the first `frame` bytes of `buffer`, put together as on a network of
/// datagrams. `buffer` has room for a trailer behind the frame; what stands there stays.
pub(super) fn with_packet<R>(
    buffer: &mut [u8],
    frame: usize,
    with: impl FnOnce(&mut [u8]) -> R,
) -> R {
    let mut trailer = [0; TRAILER_BYTES];
    trailer.copy_from_slice(&buffer[LENGTH_BYTES..FRONT_BYTES]);
    let behind = frame..frame + TRAILER_BYTES;
    let mut kept = [0; TRAILER_BYTES];
    kept.copy_from_slice(&buffer[behind.clone()]);
    buffer[behind.clone()].copy_from_slice(&trailer);
    let result = with(&mut buffer[FRONT_BYTES..behind.end]);
    buffer[behind].copy_from_slice(&kept);
    result
}

/// Writes the frame of a packet that `seal` writes, to the start of `out`. Answers how long it is.
pub(super) fn put(out: &mut [u8], seal: impl FnOnce(&mut [u8]) -> usize) -> usize {
    let packet = seal(&mut out[FRONT_BYTES..]);
    let frame = frame_bytes(packet);
    // The trailer stands behind the frame now.
    out.copy_within(frame..frame + TRAILER_BYTES, LENGTH_BYTES);
    out[..LENGTH_BYTES].copy_from_slice(&(packet as u32).to_le_bytes());
    frame
}
