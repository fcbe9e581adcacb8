//! Reads frames: long payloads into their places, everything else into buffers.
//!
//! A payload is read into its place in one call that takes all of it, so it is never under way between two turns: nobody waits
//! for a peer that stops in the middle of one. What has not come whole by then goes to a buffer, and is handed over as a
//! packet when its end is there. That costs a copy, where the receiver is faster than what sends to it.

use std::io::{self, IoSliceMut, Read as _};
use std::net::TcpStream;
use std::ops::Range;

use rustix::io::ioctl_fionread;
use weft_core::drops::DropReason;
use weft_core::received::{Offer, Received};
use weft_core::units::Source;
use weft_core::wire::{Kind, OVERHEAD_BYTES, TRAILER_BYTES, peek};

use super::frame::{self, ENVELOPE_BYTES};
use super::stream::{Input, Stream};
use crate::link::{Counters, Handler};

/// Bytes that are read at once where packets are short.
const READ_BYTES: usize = 64 << 10;

/// Bytes that are read behind a payload, and where a long one is likely to follow: the head of the next frame, and a few
/// short ones.
const AHEAD_BYTES: usize = 2 << 10;

/// A shorter payload costs less to copy than to ask for its place.
const PLACE_BYTES_MIN: usize = 4 << 10;

/// Reads of one connection before it is another one's turn.
const READS_MAX: usize = 8;

/// Payloads that are placed in one turn of a connection, at most.
const PLACEMENTS_MAX: usize = 8;

/// Buffers of frames that are kept for the next ones.
const SPARE_MAX: usize = 16;

/// What a turn of a connection ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// There may be more.
    More,
    /// Nothing more has come.
    Drained,
    /// It has ended, has failed, or what came is no frame or was damaged.
    Ended,
}

/// Where what is read goes.
pub(super) struct Sink<'a, H> {
    pub(super) from: Source,
    pub(super) counters: &'a mut Counters,
    pub(super) handler: &'a mut H,
    /// Packets that were handed over.
    pub(super) packets: usize,
}

/// The buffers of a link's reads.
pub(super) struct Reader {
    packet_bytes_max: usize,
    /// What was read, with room for a frame's head before it, and for a trailer behind it.
    read: Box<[u8]>,
    ahead: Box<[u8; AHEAD_BYTES]>,
    /// Payloads that were placed in this turn.
    placements: usize,
    spare: Vec<Box<[u8]>>,
}

impl Reader {
    pub(super) fn new(packet_bytes_max: usize) -> Self {
        Self {
            packet_bytes_max,
            read: vec![0; ENVELOPE_BYTES + READ_BYTES + TRAILER_BYTES].into(),
            ahead: Box::new([0; AHEAD_BYTES]),
            placements: 0,
            spare: Vec::new(),
        }
    }

    /// Reads what has come on a connection, up to its share of the time, and hands it over.
    pub(super) fn turn(&mut self, stream: &mut Stream, sink: &mut Sink<'_, impl Handler>) -> Turn {
        self.placements = 0;
        for _ in 0..READS_MAX {
            let filled = self.fill(stream, sink);
            if let Err(turn) = filled.and_then(|filled| self.parse(stream, filled, sink)) {
                return turn;
            }
            if self.placements == PLACEMENTS_MAX {
                break;
            }
        }
        Turn::More
    }

    /// One read. Answers how many bytes there are to parse.
    fn fill(
        &mut self,
        stream: &mut Stream,
        sink: &mut Sink<'_, impl Handler>,
    ) -> Result<usize, Turn> {
        match &mut stream.input {
            Input::Head { bytes, filled } => {
                let room = match stream.is_bulk {
                    true => AHEAD_BYTES,
                    false => READ_BYTES,
                };
                let before = *filled;
                self.read[..before].copy_from_slice(&bytes[..before]);
                let behind = &mut self.read[before..before + room];
                let read = read(&stream.socket, &mut [IoSliceMut::new(behind)], sink)?;
                *filled = 0;
                Ok(before + read)
            }
            Input::Part {
                buffer,
                filled,
                frame,
                is_wanted,
            } => {
                let (rest, behind) = (*frame - *filled, &mut self.read[..AHEAD_BYTES]);
                let mut parts = [&mut buffer[*filled..*frame], behind].map(IoSliceMut::new);
                let read = read(&stream.socket, &mut parts, sink)?;
                if read < rest {
                    *filled += read;
                    return Ok(0);
                }
                if *is_wanted {
                    sink.hand_over(buffer, *frame);
                }
                stream.half_by = None;
                if let Input::Part { buffer, .. } = std::mem::take(&mut stream.input)
                    && self.spare.len() < SPARE_MAX
                {
                    self.spare.push(buffer);
                }
                Ok(read - rest)
            }
        }
    }

    /// Hands over the frames that begin the first `filled` bytes. What is placed brings the beginning of what follows with it.
    fn parse(
        &mut self,
        stream: &mut Stream,
        mut filled: usize,
        sink: &mut Sink<'_, impl Handler>,
    ) -> Result<(), Turn> {
        let mut at = 0;
        while at < filled {
            let length = frame::parse_length(&self.read[at..filled], self.packet_bytes_max);
            let have = filled - at;
            match length {
                Err(frame::BadFrame) => {
                    sink.counters.bad_frames += 1;
                    return Err(Turn::Ended);
                }
                Ok(Some(frame)) if frame <= have => {
                    sink.hand_over(&mut self.read[at..], frame);
                    stream.is_bulk = frame >= PLACE_BYTES_MIN;
                    stream.half_by = None;
                    at += frame;
                }
                Ok(Some(frame)) if have >= ENVELOPE_BYTES => {
                    stream.is_bulk = frame >= PLACE_BYTES_MIN;
                    (at, filled) = (0, self.begin(stream, at..filled, frame, sink)?);
                }
                Ok(_) => {
                    let mut bytes = [0; ENVELOPE_BYTES];
                    bytes[..have].copy_from_slice(&self.read[at..filled]);
                    let filled = have;
                    stream.input = Input::Head { bytes, filled };
                    break;
                }
            }
        }
        Ok(())
    }

    /// The head of a frame has come, and not its end. Answers how many bytes have come behind the end of its payload, if that
    /// was read into its place: they are parsed next.
    fn begin(
        &mut self,
        stream: &mut Stream,
        range: Range<usize>,
        frame: usize,
        sink: &mut Sink<'_, impl Handler>,
    ) -> Result<usize, Turn> {
        let front = &self.read[range];
        let (have, rest) = (front.len(), frame - front.len());
        let payload = frame.saturating_sub(frame::frame_bytes(OVERHEAD_BYTES));
        let is_here = || ioctl_fionread(stream.fd()).is_ok_and(|queued| queued >= rest as u64);
        let mut offer = Offer::Whole;
        if payload >= PLACE_BYTES_MIN
            && self.placements < PLACEMENTS_MAX
            && let Some(envelope) = frame::envelope(front)
            && let Ok(Kind::Data | Kind::Send | Kind::Response) =
                peek(&envelope.header).map(|peek| peek.kind)
            && is_here()
        {
            offer = sink.handler.offer(sink.from, &envelope, payload as u32);
        }
        let Offer::Place { ticket, place, crc } = offer else {
            let bytes = frame::frame_bytes(self.packet_bytes_max) + TRAILER_BYTES;
            let spare = self.spare.pop();
            let mut buffer = spare.unwrap_or_else(|| vec![0; bytes].into());
            buffer[..have].copy_from_slice(front);
            stream.input = Input::Part {
                buffer,
                filled: have,
                frame,
                is_wanted: offer == Offer::Whole,
            };
            return Ok(0);
        };
        self.placements += 1;
        stream.half_by = None;
        let (first, ahead) = (&front[ENVELOPE_BYTES..], &mut self.ahead[..]);
        let landed = sink
            .handler
            .receive(&place, crc, first, stream.fd(), ahead)
            .unwrap_or_else(|_| {
                sink.counters.receive_errors += 1;
                Err(DropReason::Truncated)
            });
        sink.count(frame);
        let result = landed.map(|_| ());
        sink.handler.handle(Received::Placed { ticket, result });
        // Where the next frame begins is not known behind one that was not read to its end.
        let Ok(ahead) = landed else {
            sink.counters.bad_frames += 1;
            return Err(Turn::Ended);
        };
        sink.counters.placed_bytes += payload as u64;
        self.read[..ahead].copy_from_slice(&self.ahead[..ahead]);
        Ok(ahead)
    }
}

impl<H: Handler> Sink<'_, H> {
    fn count(&mut self, frame: usize) {
        self.packets += 1;
        self.counters.received_runs += 1;
        self.counters.received_packets += 1;
        self.counters.received_bytes += frame as u64;
    }

    fn hand_over(&mut self, buffer: &mut [u8], frame: usize) {
        self.count(frame);
        frame::with_packet(buffer, frame, |bytes| {
            let segment = bytes.len();
            self.handler.handle(Received::Packets {
                from: self.from,
                ce: false,
                bytes,
                segment,
            });
        });
    }
}

/// The bytes of a read that brought some.
fn read(
    mut socket: &TcpStream,
    parts: &mut [IoSliceMut<'_>],
    sink: &mut Sink<'_, impl Handler>,
) -> Result<usize, Turn> {
    loop {
        match socket.read_vectored(parts) {
            Ok(0) => return Err(Turn::Ended),
            Ok(bytes) => return Ok(bytes),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Err(Turn::Drained),
                io::ErrorKind::Interrupted => {}
                _ => {
                    sink.counters.receive_errors += 1;
                    return Err(Turn::Ended);
                }
            },
        }
    }
}
