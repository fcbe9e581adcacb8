//! Messages that the peer revokes: no packet of them is placed any more, and it is told when nothing of them lands.

use super::super::{ControlPacket, PathOwner};
use super::ReceiveHalf;
use crate::drops::DropReason;
use crate::units::{ChunkNumber, ConnectionId, PathId};
use crate::wire::{Revoke, Revoked, Seal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A revocation to answer.
#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    number: u64,
    /// As in [`Revoke::first`].
    first: ChunkNumber,
    /// As in [`Revoke::end`].
    end: ChunkNumber,
    /// The path that it came on last.
    path: PathId,
    /// Placements of its chunks that are under way: none where a connection is saved.
    #[serde(skip)]
    landing: usize,
}

impl Asked {
    fn contains(&self, chunk: ChunkNumber) -> bool {
        chunk.ahead_of(self.first) >= 0 && chunk.ahead_of(self.end) < 0
    }
}

/// Messages that were revoked, by the number of the revocation, until the peer says that it has the answer: it may ask
/// again. Bounded by [`crate::wire::REVOCATIONS_MAX`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RevokedMessages {
    /// The peer has the answers to all before this one.
    oldest: u64,
    /// As in [`Revoked::whole`].
    whole: BTreeMap<u64, bool>,
    /// The revocations to answer.
    asked: Vec<Asked>,
}

impl RevokedMessages {
    /// A placement has ended. Answers whether it is of a message whose revocation waits for its answer. Once that is given,
    /// no placement of the message is under way, and its chunk numbers may come round again.
    pub(super) fn placed(&mut self, chunk: ChunkNumber) -> bool {
        let mut is_revoked = false;
        for asked in &mut self.asked {
            if asked.contains(chunk) {
                asked.landing = asked.landing.saturating_sub(1);
                is_revoked = true;
            }
        }
        is_revoked
    }

    /// Heap memory, bytes: about, for the nodes of the tree.
    pub(super) fn heap_bytes(&self) -> usize {
        self.whole.len() * size_of::<(u64, bool)>() + self.asked.capacity() * size_of::<Asked>()
    }
}

impl ReceiveHalf {
    /// The peer revokes a message. From here on no packet of it is placed.
    ///
    /// # Errors
    /// [`DropReason::Kind`] on an in-order connection, [`DropReason::Duplicate`] when the peer has the answer, and as
    /// [`crate::recovery::ReceiveBoard::revoke`].
    pub(in super::super) fn handle_revoke(
        &mut self,
        path: PathId,
        revoke: Revoke,
    ) -> Result<(), DropReason> {
        if self.board.is_in_order() {
            return Err(DropReason::Kind);
        }
        let revoked = &mut self.revoked;
        if revoke.number < revoked.oldest {
            return Err(DropReason::Duplicate);
        }
        let oldest = revoke.oldest.max(revoked.oldest);
        revoked.oldest = oldest;
        revoked.whole = revoked.whole.split_off(&oldest);
        revoked.asked.retain(|asked| asked.number >= oldest);
        let Revoke {
            first, end, number, ..
        } = revoke;
        if let Entry::Vacant(vacant) = revoked.whole.entry(number) {
            vacant.insert(self.board.revoke(first, end)?);
        }
        let mut asked = revoked.asked.iter_mut();
        if let Some(asked) = asked.find(|asked| asked.number == number) {
            asked.path = path;
            return Ok(());
        }
        let mut asked = Asked {
            number,
            first,
            end,
            path,
            landing: 0,
        };
        let chunks = self.pending.iter().map(|pending| pending.header.chunk);
        asked.landing = chunks.filter(|&chunk| asked.contains(chunk)).count();
        revoked.asked.push(asked);
        Ok(())
    }

    /// Whether a revocation is to be answered.
    #[inline]
    pub(in super::super) fn has_revocations(&self) -> bool {
        !self.revoked.asked.is_empty()
    }

    /// Writes the next answer to a revocation: of a message of which no placement is under way.
    #[cold]
    pub(in super::super) fn poll_revoked(
        &mut self,
        out: &mut [u8],
        seal: &Seal,
        remote: ConnectionId,
        packet_number: u64,
    ) -> Option<ControlPacket> {
        let RevokedMessages { whole, asked, .. } = &mut self.revoked;
        let at = asked.iter().position(|asked| asked.landing == 0)?;
        let Asked { number, path, .. } = asked.remove(at);
        let whole = *whole.get(&number)?;
        let revoked = Revoked { number, whole };
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
    fn a_chunk_number_that_comes_round_again_is_not_of_a_revocation_that_was_answered() {
        let [first, end] = [u32::MAX, 2].map(ChunkNumber);
        let mut revoked = RevokedMessages::default();
        revoked.asked.push(Asked {
            number: 5,
            first,
            end,
            path: PathId(0),
            landing: 2,
        });
        let placed = [u32::MAX - 1, u32::MAX, 0, 2].map(|n| revoked.placed(ChunkNumber(n)));
        assert_eq!(placed, [false, true, true, false]);
        assert_eq!(revoked.asked[0].landing, 0);
        revoked.asked.clear();
        assert!(!revoked.placed(ChunkNumber(0)));
    }
}
