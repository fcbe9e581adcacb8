//! Work requests as the engine's user posts them: the operation, the pieces of memory, the immediate.

use core::ops::Range;

use weft_core::connection::{
    AtomicChange, Chunk, Pages, Read, SendMessage, WorkRequest, Write, WritePages,
};
use weft_core::drops::DropReason;
use weft_core::memory::{Access, Place, check_bounds};
use weft_core::units::{ConnectionId, Key};
use weft_core::wire::Atomic;
use weft_memory::{Placing, Region, Source};

use crate::error::EngineError;

/// A work request.
#[derive(Debug, Clone)]
pub struct Post {
    /// On which connection.
    pub connection: ConnectionId,
    /// What to do.
    pub operation: Operation,
    /// The bytes of a write or send, one piece behind the other; empty for the rest.
    pub pieces: Vec<Piece>,
    /// Of a write, a send or a signal: comes with the message.
    pub immediate: Option<u32>,
    /// Comes back in [`crate::Event::Completed`].
    pub context: u64,
}

/// What a work request does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Writes the pieces to one place of a region of the peer.
    Write {
        /// The region's key.
        key: Key,
        /// Where in it.
        offset: u64,
    },
    /// Writes the bytes of the pieces page by page to places of a region of the peer.
    WritePages {
        /// The region's key.
        key: Key,
        /// Where each page goes. All pages together are as long as the pieces together.
        pages: Pages,
    },
    /// Sends the pieces to the next receive that the peer has posted. All sends of a connection go over its first part.
    Send,
    /// Brings the immediate and nothing else.
    Signal,
    /// Reads from a region of the peer, which must be registered for it, into one of this end.
    Read {
        /// How many bytes.
        bytes: u64,
        /// The key of the peer's region.
        key: Key,
        /// Where in it.
        offset: u64,
        /// The key of this end's region, of the connection's domain.
        to_key: Key,
        /// Where in it.
        to_offset: u64,
    },
    /// Changes a word of a region of the peer, which must be registered for it, and writes what was there into a region
    /// of this end.
    Atomic {
        /// The change.
        atomic: Atomic,
        /// The key of the peer's region.
        key: Key,
        /// Where in it, a multiple of 8.
        offset: u64,
        /// The key of this end's region, of the connection's domain.
        to_key: Key,
        /// Where in it.
        to_offset: u64,
    },
}

/// Bytes that are sent.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Where they lie. Shared, so that one block can be on its way to several peers.
    pub source: Source,
    /// Where in it they begin.
    pub offset: u64,
    /// How many they are.
    pub bytes: u64,
}

impl Piece {
    /// Refuses a piece that does not lie within its source.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match check_bounds(self.source.len(), self.offset, self.bytes) {
            Ok(()) => Ok(()),
            Err(_) => Err(EngineError::BeyondSource {
                source_offset: self.offset,
                bytes: self.bytes,
                source_bytes: self.source.len(),
            }),
        }
    }
}

/// The pieces of a message. Most have one, and a write posted by [`crate::Engine::write`] gives it back alone.
#[derive(Debug)]
pub(crate) enum Pieces {
    One(Piece),
    Many(Vec<Piece>),
}

impl Pieces {
    /// `length` bytes of the message from `at` on: where they lie if they lie in one piece that nobody changes,
    /// else a copy in `scratch`.
    pub(crate) fn read<'a>(
        &'a self,
        at: u64,
        length: usize,
        scratch: &'a mut [u8],
    ) -> Result<&'a [u8], DropReason> {
        let pieces = match self {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Many(pieces) => pieces,
        };
        let (mut at, mut first) = (at, 0);
        while let Some(piece) = pieces.get(first).filter(|piece| piece.bytes <= at) {
            (at, first) = (at - piece.bytes, first + 1);
        }
        let pieces = &pieces[first..];
        if let Some(piece) = pieces
            .first()
            .filter(|piece| at + length as u64 <= piece.bytes)
        {
            return piece.source.read(piece.offset + at, length, scratch);
        }
        let out = scratch.get_mut(..length).ok_or(DropReason::Bounds)?;
        let mut filled = 0;
        for piece in pieces {
            let take = (out.len() - filled).min((piece.bytes - at) as usize);
            let room = &mut out[filled..filled + take];
            piece.source.copy_out(piece.offset + at, room)?;
            (filled, at) = (filled + take, 0);
        }
        if filled < out.len() {
            return Err(DropReason::Bounds);
        }
        Ok(out)
    }

    pub(crate) fn bytes(&self) -> Result<u64, EngineError> {
        match self {
            Pieces::One(piece) => Ok(piece.bytes),
            Pieces::Many(pieces) => {
                let add = |sum: u64, piece: &Piece| sum.checked_add(piece.bytes);
                let bytes = pieces.iter().try_fold(0, add);
                bytes.ok_or(EngineError::PiecesTooLong)
            }
        }
    }
}

/// What the packets of a chunk carry.
pub(crate) enum Payload<'a> {
    Pieces(&'a Pieces),
    /// The message, whole.
    Bytes(&'a [u8]),
    /// The chunk, which begins so far from the message's beginning.
    Answer(u64, &'a [u8]),
}

impl Payload<'_> {
    /// A range of the message.
    pub(crate) fn get<'a>(
        &'a self,
        range: Range<u64>,
        scratch: &'a mut [u8],
    ) -> Result<&'a [u8], DropReason> {
        let length = (range.end - range.start) as usize;
        let (before, bytes) = match self {
            Payload::Pieces(pieces) => return pieces.read(range.start, length, scratch),
            Payload::Bytes(bytes) => (0, bytes),
            Payload::Answer(before, bytes) => (*before, bytes),
        };
        let at = (range.start - before) as usize;
        bytes.get(at..at + length).ok_or(DropReason::Bounds)
    }
}

/// A chunk that answers a read, copied out of its region at once: the region may be closed a moment later.
#[derive(Default)]
pub(crate) struct AnswerBuffer(Vec<u8>);

impl AnswerBuffer {
    /// `None` when the region is closed to reads by now.
    pub(crate) fn read(
        &mut self,
        place: &Place,
        chunk: &Chunk,
        regions: &Placing<'_, Region>,
    ) -> Option<Payload<'_>> {
        let before = chunk.payload(0).start;
        let bytes = chunk.payload(chunk.packets() - 1).end - before;
        let place = Place {
            offset: place.offset + before,
            bytes,
            ..*place
        };
        self.0.resize(bytes as usize, 0);
        let region = regions.resolve(&place, Access::READ).ok()?;
        region.read(place.offset, &mut self.0).ok()?;
        Some(Payload::Answer(before, &self.0))
    }
}

impl Operation {
    /// The work request for the core; the worker names it.
    pub(crate) fn request(
        self,
        bytes: u64,
        immediate: Option<u32>,
    ) -> Result<WorkRequest, EngineError> {
        let takes_pieces = match &self {
            Operation::Write { .. } | Operation::WritePages { .. } | Operation::Send => true,
            Operation::Signal => false,
            Operation::Read { .. } | Operation::Atomic { .. } => {
                if immediate.is_some() {
                    return Err(EngineError::NoImmediate);
                }
                false
            }
        };
        if !takes_pieces && bytes > 0 {
            return Err(EngineError::NoPieces);
        }
        let token = 0;
        Ok(match self {
            Operation::Write { .. } | Operation::Signal if bytes == 0 && immediate.is_none() => {
                return Err(EngineError::EmptyWrite);
            }
            Operation::Write { key, offset } => {
                if offset.checked_add(bytes).is_none() {
                    return Err(EngineError::OffsetOverflow { bytes, offset });
                }
                WorkRequest::Write(Write {
                    token,
                    bytes,
                    key,
                    offset,
                    immediate,
                })
            }
            Operation::Signal => WorkRequest::Write(Write {
                token,
                bytes: 0,
                key: crate::SIGNAL,
                offset: 0,
                immediate,
            }),
            Operation::WritePages { key, pages } => {
                let pages_bytes = u64::from(pages.bytes) * pages.offsets.len() as u64;
                if pages_bytes != bytes {
                    return Err(EngineError::PagesDiffer { pages_bytes, bytes });
                }
                WorkRequest::WritePages(WritePages {
                    token,
                    key,
                    pages,
                    immediate,
                })
            }
            Operation::Send => WorkRequest::Send(SendMessage {
                token,
                bytes,
                immediate,
            }),
            Operation::Read {
                bytes,
                key,
                offset,
                to_key,
                to_offset,
            } => WorkRequest::Read(Read {
                token,
                bytes,
                key,
                offset,
                to_key,
                to_offset,
            }),
            Operation::Atomic {
                atomic,
                key,
                offset,
                to_key,
                to_offset,
            } => WorkRequest::Atomic(AtomicChange {
                token,
                atomic,
                key,
                offset,
                to_key,
                to_offset,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn pieces_are_read_as_one_message() {
        let whole: Vec<u8> = (0..100).collect();
        let source = Source::Bytes(Arc::new(whole.clone().into()));
        let piece = |offset, bytes| Piece {
            source: source.clone(),
            offset,
            bytes,
        };
        let pieces = Pieces::Many(vec![piece(50, 10), piece(0, 0), piece(0, 30), piece(99, 1)]);
        let message = [&whole[50..60], &whole[..30], &whole[99..]].concat();
        let mut scratch = [0; 100];
        for at in 0..=message.len() {
            for end in at..=message.len() {
                let read = pieces.read(at as u64, end - at, &mut scratch);
                assert_eq!(read, Ok(&message[at..end]), "{at}..{end}");
            }
        }
        let beyond = pieces.read(40, 2, &mut scratch);
        assert_eq!(beyond, Err(DropReason::Bounds));
        assert_eq!(pieces.read(0, 30, &mut [0; 29]), Err(DropReason::Bounds));
    }
}
