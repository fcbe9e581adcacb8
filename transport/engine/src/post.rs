//! What is sent: the pieces of memory that a work request names, and what the packets of a chunk carry of them.

use core::ops::Range;

use weft_core::connection::{Chunk, WorkRequest};
use weft_core::drops::DropReason;
use weft_core::memory::{Access, Place, check_bounds};
use weft_core::units::ConnectionId;
use weft_memory::{Placing, Region, Source};

use crate::error::EngineError;

/// A work request of the engine's user.
#[derive(Debug, Clone)]
pub struct Post {
    /// On which connection.
    pub connection: ConnectionId,
    /// What to do. Its token comes back in [`crate::Event::Completed`] as `context`. All sends of a split connection go
    /// over its first part.
    pub request: WorkRequest,
    /// The bytes of a write, of pages or of a send, one piece behind the other.
    pub pieces: Vec<Piece>,
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

/// The pieces of a message. A write posted by [`crate::Engine::write`] has one, which [`crate::Event::Written`] returns.
#[derive(Debug)]
pub(crate) enum Pieces {
    One(Piece),
    Many {
        pieces: Vec<Piece>,
        /// Where in the message each piece ends.
        ends: Vec<u64>,
    },
}

impl Pieces {
    pub(crate) fn many(pieces: Vec<Piece>) -> Result<Pieces, EngineError> {
        pieces.iter().try_for_each(Piece::check)?;
        let mut end = 0u64;
        let ends = pieces.iter().map(|piece| {
            end = end.checked_add(piece.bytes)?;
            Some(end)
        });
        let ends: Option<Vec<u64>> = ends.collect();
        let ends = ends.ok_or(EngineError::PiecesTooLong)?;
        Ok(Pieces::Many { pieces, ends })
    }

    /// As [`Pieces::into_vec`] gave them; none where they cannot be.
    pub(crate) fn of_saved(mut pieces: Vec<Piece>, is_single: bool) -> Option<Pieces> {
        match is_single {
            false => Pieces::many(pieces).ok(),
            true => pieces
                .pop()
                .filter(|piece| pieces.is_empty() && piece.check().is_ok())
                .map(Pieces::One),
        }
    }

    pub(crate) fn into_vec(self) -> Vec<Piece> {
        match self {
            Pieces::One(piece) => vec![piece],
            Pieces::Many { pieces, .. } => pieces,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Pieces::One(piece) => piece.bytes,
            Pieces::Many { ends, .. } => ends.last().copied().unwrap_or(0),
        }
    }

    /// Whether reading them may fail, and costs more than a copy.
    pub(crate) fn reads_may_fail(&self) -> bool {
        let may_fail =
            |piece: &Piece| matches!(&piece.source, Source::Region(it) if it.reads_may_fail());
        match self {
            Pieces::One(piece) => may_fail(piece),
            Pieces::Many { pieces, .. } => pieces.iter().any(may_fail),
        }
    }

    /// `length` bytes of the message from `at` on: where they lie if they lie in one piece that nobody changes,
    /// else a copy in `scratch`.
    fn read<'a>(
        &'a self,
        at: u64,
        length: usize,
        scratch: &'a mut [u8],
    ) -> Result<&'a [u8], DropReason> {
        let (piece, within) = match self {
            Pieces::One(piece) => (piece, at),
            Pieces::Many { pieces, ends } => {
                let first = ends.partition_point(|&end| end <= at);
                let Some((piece, &end)) = pieces.get(first).zip(ends.get(first)) else {
                    return match length {
                        0 => Ok(&[]),
                        _ => Err(DropReason::Bounds),
                    };
                };
                (piece, at - (end - piece.bytes))
            }
        };
        if within + length as u64 <= piece.bytes {
            return piece.source.read(piece.offset + within, length, scratch);
        }
        let out = scratch.get_mut(..length).ok_or(DropReason::Bounds)?;
        self.copy_out(at, out)?;
        Ok(out)
    }

    /// Copies the message from `at` on.
    fn copy_out(&self, at: u64, out: &mut [u8]) -> Result<(), DropReason> {
        let (pieces, first, mut within) = match self {
            Pieces::One(piece) => (std::slice::from_ref(piece), 0, at),
            Pieces::Many { pieces, ends } => {
                let first = ends.partition_point(|&end| end <= at);
                let before = first.checked_sub(1).map_or(0, |before| ends[before]);
                (&pieces[..], first, at - before)
            }
        };
        let mut filled = 0;
        for piece in &pieces[first..] {
            let take = (out.len() - filled).min((piece.bytes - within) as usize);
            let room = &mut out[filled..filled + take];
            piece.source.copy_out(piece.offset + within, room)?;
            (filled, within) = (filled + take, 0);
        }
        match filled == out.len() {
            true => Ok(()),
            false => Err(DropReason::Bounds),
        }
    }
}

/// What the packets of a chunk carry.
pub(crate) enum Payload<'a> {
    Pieces(&'a Pieces),
    /// The message, whole.
    Bytes(&'a [u8]),
    /// The chunk, which begins so far from the message's beginning.
    Chunk(u64, &'a [u8]),
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
            Payload::Chunk(before, bytes) => (*before, bytes),
        };
        let at = (range.start - before) as usize;
        bytes.get(at..at + length).ok_or(DropReason::Bounds)
    }
}

/// A chunk that is copied out at once, before its first packet is sent: of the response to a read, because the region may be
/// closed a moment later, and of another process's memory, because reading it may fail.
#[derive(Default)]
pub(crate) struct ChunkBuffer(Vec<u8>);

impl ChunkBuffer {
    /// Copies what `chunk` carries of `place`.
    pub(crate) fn read_region(
        &mut self,
        place: &Place,
        chunk: &Chunk,
        regions: &Placing<'_, Region>,
    ) -> Result<Payload<'_>, DropReason> {
        let before = self.make_room(chunk);
        let place = Place {
            offset: place.offset + before,
            bytes: self.0.len() as u64,
            ..*place
        };
        let region = regions.resolve(&place, Access::READ)?;
        region.read(place.offset, &mut self.0)?;
        Ok(Payload::Chunk(before, &self.0))
    }

    /// Copies what `chunk` carries of `pieces`.
    pub(crate) fn read_pieces(
        &mut self,
        pieces: &Pieces,
        chunk: &Chunk,
    ) -> Result<Payload<'_>, DropReason> {
        let before = self.make_room(chunk);
        pieces.copy_out(before, &mut self.0)?;
        Ok(Payload::Chunk(before, &self.0))
    }

    /// Makes room for the chunk; where in the message it begins.
    fn make_room(&mut self, chunk: &Chunk) -> u64 {
        let before = chunk.payload(0).start;
        let bytes = chunk.payload(chunk.packets() - 1).end - before;
        self.0.resize(bytes as usize, 0);
        before
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
        let pieces = vec![piece(50, 10), piece(0, 0), piece(0, 30), piece(99, 1)];
        let pieces = Pieces::many(pieces).unwrap();
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
