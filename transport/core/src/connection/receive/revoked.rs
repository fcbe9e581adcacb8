//! Messages that the peer takes back: their chunks are closed, and it is told when nothing of them lands any more.

use super::super::{ControlPacket, PathOwner};
use super::ReceiveHalf;
use crate::drops::DropReason;
use crate::units::{ChunkNumber, ConnectionId, PathId};
use crate::wire::{Revoke, Revoked, Seal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A message that was closed.
#[derive(Debug, Serialize, Deserialize)]
struct Closed {
    first: ChunkNumber,
    end: ChunkNumber,
    /// As in [`Revoked::whole`].
    whole: bool,
}

impl Closed {
    fn contains(&self, chunk: ChunkNumber) -> bool {
        chunk.ahead_of(self.first) >= 0 && chunk.ahead_of(self.end) < 0
    }
}

/// Messages that were closed, by the number of the revocation, until the peer says that it has the answer: it may ask
/// again. Bounded by [`crate::wire::REVOCATIONS_MAX`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ClosedMessages {
    /// The peer has the answers to all before this one.
    oldest: u64,
    by_number: BTreeMap<u64, Closed>,
    /// The revocations to answer, and the path that each came on last.
    asked: Vec<(u64, PathId)>,
}

impl ClosedMessages {
    /// Whether a chunk is of a message whose revocation waits for its answer. Once that is given, no placement of it is
    /// under way, and its chunk numbers may come round again.
    pub(super) fn contain(&self, chunk: ChunkNumber) -> bool {
        let mut asked = self.asked.iter();
        let closed = |number| self.by_number.get(number);
        asked.any(|(number, _)| closed(number).is_some_and(|closed| closed.contains(chunk)))
    }

    /// Heap memory, bytes: about, for the nodes of the tree.
    pub(super) fn heap_bytes(&self) -> usize {
        self.by_number.len() * size_of::<(u64, Closed)>()
            + self.asked.capacity() * size_of::<(u64, PathId)>()
    }
}

impl ReceiveHalf {
    /// The peer takes a message back. From here on no packet of it is placed.
    ///
    /// # Errors
    /// [`DropReason::Kind`] on an in-order connection, [`DropReason::Duplicate`] when the peer has the answer, and as
    /// [`crate::recovery::ReceiveBoard::close`].
    pub(in super::super) fn handle_revoke(
        &mut self,
        path: PathId,
        revoke: Revoke,
    ) -> Result<(), DropReason> {
        if self.board.is_in_order() {
            return Err(DropReason::Kind);
        }
        let closed = &mut self.closed;
        if revoke.number < closed.oldest {
            return Err(DropReason::Duplicate);
        }
        closed.oldest = revoke.oldest.max(closed.oldest);
        closed.by_number = closed.by_number.split_off(&closed.oldest);
        if let Entry::Vacant(vacant) = closed.by_number.entry(revoke.number) {
            let (first, end) = (revoke.first, revoke.end);
            let whole = self.board.close(first, end)?;
            vacant.insert(Closed { first, end, whole });
        }
        let oldest = closed.oldest;
        let asked = &mut closed.asked;
        asked.retain(|&(number, _)| number >= oldest && number != revoke.number);
        asked.push((revoke.number, path));
        Ok(())
    }

    /// Writes the next answer to a revocation: of a message of which no placement is under way.
    pub(in super::super) fn poll_revoked(
        &mut self,
        out: &mut [u8],
        seal: &Seal,
        remote: ConnectionId,
        packet_number: u64,
    ) -> Option<ControlPacket> {
        let (pending, by_number) = (&self.pending, &self.closed.by_number);
        let lands = |closed: &Closed| {
            let mut chunks = pending.iter().map(|pending| pending.header.chunk);
            chunks.any(|chunk| closed.contains(chunk))
        };
        let is_due = |&(number, _): &(u64, PathId)| {
            let closed = by_number.get(&number);
            closed.is_some_and(|closed| !lands(closed))
        };
        let at = self.closed.asked.iter().position(is_due)?;
        let (number, path) = self.closed.asked.remove(at);
        let closed = by_number.get(&number)?;
        let revoked = Revoked {
            number,
            whole: closed.whole,
        };
        Some(ControlPacket {
            path,
            owner: PathOwner::Remote,
            bytes: revoked.emit(out, seal, path, remote, packet_number),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_number_that_comes_round_again_is_not_closed_by_a_revocation_that_was_answered() {
        let [first, end] = [u32::MAX, 2].map(ChunkNumber);
        let whole = false;
        let mut closed = ClosedMessages::default();
        closed.by_number.insert(5, Closed { first, end, whole });
        closed.asked.push((5, PathId(0)));
        let contained = [u32::MAX - 1, u32::MAX, 0, 1, 2].map(|n| closed.contain(ChunkNumber(n)));
        assert_eq!(contained, [false, true, true, true, false]);
        closed.asked.clear();
        assert!(!closed.contain(ChunkNumber(0)));
    }
}
