//! Buffers for the peer's sends: the n-th send goes into the n-th buffer that was posted.

use super::work::ReceiveBuffer;
use crate::drops::DropReason;
use crate::memory::check_bounds;
use crate::units::Key;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Receives {
    /// The number of the first one of the queue.
    first: u64,
    /// `None` where the send is here whole.
    posted: VecDeque<Option<ReceiveBuffer>>,
}

impl Receives {
    pub(super) fn post(&mut self, buffer: ReceiveBuffer) {
        self.posted.push_back(Some(buffer));
    }

    /// The key and the offset of the place of `bytes` bytes at `offset` of a send.
    ///
    /// # Errors
    /// [`DropReason::Duplicate`] when the send is here, [`DropReason::NotArmed`] when there is no buffer for it yet,
    /// [`DropReason::Bounds`].
    pub(super) fn place_of(
        &self,
        number: u64,
        offset: u64,
        bytes: u64,
    ) -> Result<(Key, u64), DropReason> {
        let at = number
            .checked_sub(self.first)
            .ok_or(DropReason::Duplicate)?;
        let posted = self.posted.get(at as usize).ok_or(DropReason::NotArmed)?;
        let buffer = posted.as_ref().ok_or(DropReason::Duplicate)?;
        check_bounds(buffer.bytes, offset, bytes)?;
        let place = buffer.offset.checked_add(offset);
        Ok((buffer.key, place.ok_or(DropReason::Bounds)?))
    }

    /// The send is here whole. Returns its buffer's token.
    pub(super) fn complete(&mut self, number: u64) -> Option<u64> {
        let at = number.checked_sub(self.first)?;
        let buffer = self.posted.get_mut(at as usize)?.take()?;
        while let Some(None) = self.posted.front() {
            self.posted.pop_front();
            self.first += 1;
        }
        Some(buffer.token)
    }

    pub(super) fn shrink(&mut self) {
        self.posted.shrink_to_fit();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.posted.capacity() * size_of::<Option<ReceiveBuffer>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_fill_the_buffers_by_their_numbers_in_any_order() {
        let mut receives = Receives::default();
        assert_eq!(receives.place_of(0, 0, 1), Err(DropReason::NotArmed));
        for token in [10, 11, 12] {
            let offset = 100 * token;
            receives.post(ReceiveBuffer {
                token,
                key: Key(token),
                offset,
                bytes: 50,
            });
        }
        assert_eq!(receives.place_of(1, 20, 30), Ok((Key(11), 1_120)));
        assert_eq!(receives.place_of(1, 20, 31), Err(DropReason::Bounds));
        assert_eq!(receives.place_of(1, u64::MAX, 1), Err(DropReason::Bounds));
        assert_eq!(receives.complete(1), Some(11));
        assert_eq!(receives.place_of(1, 0, 1), Err(DropReason::Duplicate));
        assert_eq!(receives.complete(0), Some(10));
        assert_eq!((receives.complete(0), receives.complete(1)), (None, None));
        assert_eq!(receives.place_of(0, 0, 1), Err(DropReason::Duplicate));
        assert_eq!(receives.place_of(2, 0, 50), Ok((Key(12), 1_200)));
        assert_eq!(receives.place_of(3, 0, 0), Err(DropReason::NotArmed));
    }
}
