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

    fn reads_may_fail(&self) -> bool {
        matches!(&self.source, Source::Region(region) if region.reads_may_fail())
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
        /// That of one of them, known once: each chunk asks.
        reads_may_fail: bool,
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
        let reads_may_fail = pieces.iter().any(Piece::reads_may_fail);
        Ok(Pieces::Many {
            pieces,
            ends,
            reads_may_fail,
        })
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
        match self {
            Pieces::One(piece) => piece.reads_may_fail(),
            Pieces::Many { reads_may_fail, .. } => *reads_may_fail,
        }
    }

    /// `length` bytes of the message from `at` on where they lie; `None` if they do not lie in one piece that nobody changes.
    fn in_place(&self, at: u64, length: usize) -> Result<Option<&[u8]>, DropReason> {
        let (piece, within) = match self {
            Pieces::One(piece) => (piece, at),
            Pieces::Many { pieces, ends, .. } => {
                let first = ends.partition_point(|&end| end <= at);
                let Some((piece, &end)) = pieces.get(first).zip(ends.get(first)) else {
                    return match length {
                        0 => Ok(Some(&[])),
                        _ => Err(DropReason::Bounds),
                    };
                };
                (piece, at - (end - piece.bytes))
            }
        };
        match within + length as u64 <= piece.bytes {
            true => piece.source.in_place(piece.offset + within, length),
            false => Ok(None),
        }
    }

    /// Copies the message from `at` on.
    fn copy_out(&self, at: u64, out: &mut [u8]) -> Result<(), DropReason> {
        let (pieces, first, mut within) = match self {
            Pieces::One(piece) => (std::slice::from_ref(piece), 0, at),
            Pieces::Many { pieces, ends, .. } => {
                let first = ends.partition_point(|&end| end <= at);
                let before = first.checked_sub(1).map_or(0, |before| ends[before]);
                (&pieces[..], first, at - before)
            }
        };
        let mut filled = 0;
        for piece in &pieces[first..] {
            // A message may have 100,000 pieces more.
            if filled == out.len() {
                break;
            }
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
    /// Writes the `i`-th packet of `chunk` to the start of `room`; answers its length.
    ///
    /// # Errors
    /// [`DropReason::Bounds`]: the message is shorter.
    pub(crate) fn seal(&self, chunk: &Chunk, i: u32, room: &mut [u8]) -> Result<usize, DropReason> {
        let Range { start, end } = chunk.payload(i);
        let length = (end - start) as usize;
        let (before, bytes) = match self {
            Payload::Pieces(pieces) => {
                return match pieces.in_place(start, length)? {
                    Some(bytes) => Ok(chunk.seal(i, bytes, room)),
                    None => chunk.seal_with(i, length, room, |out| pieces.copy_out(start, out)),
                };
            }
            Payload::Bytes(bytes) => (0, bytes),
            Payload::Chunk(before, bytes) => (*before, bytes),
        };
        let at = (start - before) as usize;
        let bytes = bytes.get(at..at + length).ok_or(DropReason::Bounds)?;
        Ok(chunk.seal(i, bytes, room))
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
        let mut copied = [0; 100];
        for at in 0..=message.len() {
            for end in at..=message.len() {
                let wanted = &message[at..end];
                let in_place = pieces.in_place(at as u64, end - at).unwrap();
                let is_one_piece = end <= 10 || at >= 10 && end <= 40 || at >= 40 || at == end;
                assert_eq!(in_place, is_one_piece.then_some(wanted), "{at}..{end}");
                let copied = &mut copied[..end - at];
                assert_eq!(pieces.copy_out(at as u64, copied), Ok(()));
                assert_eq!(copied, wanted, "{at}..{end}");
            }
        }
        assert_eq!(pieces.in_place(42, 2), Err(DropReason::Bounds));
        assert_eq!(pieces.copy_out(40, &mut [0; 2]), Err(DropReason::Bounds));
    }

    #[test]
    fn pieces_behind_what_is_copied_are_not_looked_at() {
        let source = Source::Bytes(Arc::new(vec![7; 10].into()));
        let piece = |offset, bytes| Piece {
            source: source.clone(),
            offset,
            bytes,
        };
        // Nothing can be read of the last one.
        let pieces = Pieces::Many {
            pieces: vec![piece(0, 5), piece(5, 5), piece(1000, 5)],
            ends: vec![5, 10, 15],
            reads_may_fail: false,
        };
        let mut copied = [0; 8];
        assert_eq!(pieces.copy_out(0, &mut copied), Ok(()));
        assert_eq!(copied, [7; 8]);
        assert_eq!(pieces.copy_out(0, &mut [0; 11]), Err(DropReason::Bounds));
    }
}
