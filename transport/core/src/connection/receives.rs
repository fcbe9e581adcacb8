//! Where messages go whose place this end has chosen: sends into posted buffers, responses to the place that the read or
//! the atomic named.

use super::work::ReceiveBuffer;
use crate::drops::DropReason;
use crate::memory::check_bounds;
use crate::units::Key;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Buffers that several connections take from: verbs' shared receive queue (InfiniBand Architecture Specification,
/// volume 1, section 10.2.9). A connection takes one when the first packet of a send arrives for which it has none.
pub trait SharedReceives: std::fmt::Debug + Send + Sync {
    /// The oldest one, which is another's no more.
    fn take(&self) -> Option<ReceiveBuffer>;

    /// Takes buffers back that were not filled, and gives them before the others.
    fn give_back(&self, buffers: Vec<ReceiveBuffer>);
}

/// A connection takes this many sends further than its oldest one that is not here: more than there are chunks in a
/// window.
const AHEAD_MAX: u64 = 1 << 16;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PostedReceives {
    /// The queue that more come from. It is not saved: after a restore it is shared again.
    #[serde(skip)]
    shared: Option<Arc<dyn SharedReceives>>,
    /// The number of the first one of the queue.
    first: u64,
    /// `None` where the send is here whole.
    posted: VecDeque<Option<ReceiveBuffer>>,
}

impl PostedReceives {
    pub(super) fn post(&mut self, buffer: ReceiveBuffer) {
        self.posted.push_back(Some(buffer));
    }

    /// From here on, buffers come from there.
    pub(super) fn share(&mut self, shared: Arc<dyn SharedReceives>) {
        self.shared = Some(shared);
    }

    /// None of the buffers that it has taken is given back.
    pub(super) fn unshare(&mut self) {
        self.shared = None;
    }

    /// Takes buffers for the sends up to this one, as far as there are shared ones.
    #[inline(never)]
    pub(super) fn take_shared(&mut self, number: u64) {
        let Some(shared) = &self.shared else {
            return;
        };
        let ahead = number.saturating_sub(self.first);
        let missing = (ahead + 1).saturating_sub(self.posted.len() as u64);
        if missing == 0 || ahead >= AHEAD_MAX {
            return;
        }
        let taken = std::iter::from_fn(|| shared.take());
        self.posted.extend(taken.take(missing as usize).map(Some));
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

impl Drop for PostedReceives {
    /// Gives buffers back that were taken for sends which did not come.
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.give_back(self.posted.drain(..).flatten().collect());
        }
    }
}

/// A request that waits for its response.
#[derive(Debug, Serialize, Deserialize)]
struct PendingRequest {
    token: u64,
    key: Key,
    offset: u64,
    bytes: u64,
    /// A read, and no atomic.
    is_read: bool,
}

/// The requests of this end whose responses are not here, by number.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Requests {
    next: u32,
    waiting: BTreeMap<u64, PendingRequest>,
    /// Number and token of those that were cancelled, and not reported yet.
    cancelled: Vec<(u64, u64)>,
    /// The numbers of those that were cancelled and whose responses are not here whole: the peer keeps them until then.
    unwanted: BTreeSet<u64>,
}

impl Requests {
    /// A request for `bytes` bytes that go to `offset` of the region of `key`. Returns its number.
    /// `is_read`: it is no atomic.
    pub(super) fn add(
        &mut self,
        token: u64,
        key: Key,
        offset: u64,
        bytes: u64,
        is_read: bool,
    ) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        let waiting = PendingRequest {
            token,
            key,
            offset,
            bytes,
            is_read,
        };
        self.waiting.insert(number.into(), waiting);
        number
    }

    /// Those that the peer has to answer, also those that were cancelled.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.unwanted.len()
    }

    /// Those that were cancelled among them.
    pub(super) fn unwanted(&self) -> usize {
        self.unwanted.len()
    }

    /// The key and the offset of the place of `bytes` bytes at `offset` of a response. `last`: it ends there.
    ///
    /// # Errors
    /// [`DropReason::Duplicate`] when nothing waits for it, [`DropReason::Bounds`] when it is not as long as was asked.
    pub(super) fn place_of(
        &self,
        number: u64,
        offset: u64,
        bytes: u64,
        last: bool,
    ) -> Result<(Key, u64), DropReason> {
        let waiting = self.waiting.get(&number).ok_or(DropReason::Duplicate)?;
        check_bounds(waiting.bytes, offset, bytes)?;
        if last && offset + bytes != waiting.bytes {
            return Err(DropReason::Bounds);
        }
        Ok((waiting.key, waiting.offset + offset))
    }

    /// The token of a request that waits for its response.
    pub(super) fn token(&self, number: u64) -> Option<u64> {
        Some(self.waiting.get(&number)?.token)
    }

    /// The response is here whole. Returns the token of what asked, unless that was cancelled.
    pub(super) fn complete(&mut self, number: u64) -> Option<u64> {
        self.unwanted.remove(&number);
        Some(self.waiting.remove(&number)?.token)
    }

    /// The number of a request that waits for its response, and whether it is a read.
    pub(super) fn find(&self, token: u64) -> Option<(u64, bool)> {
        let (&number, request) = self.waiting.iter().find(|(_, it)| it.token == token)?;
        Some((number, request.is_read))
    }

    /// The response is placed no more.
    pub(super) fn cancel(&mut self, number: u64) {
        if let Some(request) = self.waiting.remove(&number) {
            self.cancelled.push((number, request.token));
            self.unwanted.insert(number);
        }
    }

    /// Whether one with this token was cancelled, and that is not reported yet.
    pub(super) fn is_cancelled(&self, token: u64) -> bool {
        self.cancelled.iter().any(|(_, of)| *of == token)
    }

    /// The tokens of those that were cancelled since and of which nothing `lands` any more.
    pub(super) fn take_cancelled(
        &mut self,
        lands: impl Fn(u64) -> bool,
    ) -> impl Iterator<Item = u64> {
        let cancelled = self
            .cancelled
            .extract_if(.., move |(number, _)| !lands(*number));
        cancelled.map(|(_, token)| token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_as_long_as_was_asked_and_comes_once() {
        let mut requests = Requests::default();
        let number = requests.add(5, Key(9), 1_000, 100, true).into();
        assert_eq!(requests.place_of(number, 40, 60, true), Ok((Key(9), 1_040)));
        assert_eq!(
            requests.place_of(number, 40, 20, false),
            Ok((Key(9), 1_040))
        );
        assert_eq!(
            requests.place_of(number, 40, 20, true),
            Err(DropReason::Bounds)
        );
        assert_eq!(
            requests.place_of(number, 40, 61, false),
            Err(DropReason::Bounds)
        );
        assert_eq!(
            requests.place_of(number, u64::MAX, 2, false),
            Err(DropReason::Bounds)
        );
        assert_eq!(
            (requests.complete(number), requests.complete(number)),
            (Some(5), None)
        );
        assert_eq!(
            requests.place_of(number, 40, 60, true),
            Err(DropReason::Duplicate)
        );
    }

    #[test]
    fn a_cancelled_read_is_reported_when_nothing_lands_and_its_response_is_nobodys() {
        let mut requests = Requests::default();
        let number = requests.add(5, Key(9), 1_000, 100, true).into();
        assert_eq!(requests.find(5), Some((number, true)));
        requests.cancel(number);
        assert_eq!(requests.find(5), None, "its name is free");
        assert!(requests.is_cancelled(5));
        assert_eq!(requests.take_cancelled(|_| true).count(), 0);
        assert_eq!(requests.take_cancelled(|_| false).collect::<Vec<_>>(), [5]);
        assert!(!requests.is_cancelled(5));
        assert_eq!(requests.take_cancelled(|_| false).count(), 0);
        assert_eq!(requests.len(), 1, "the peer has yet to answer it");
        assert_eq!((requests.complete(number), requests.len()), (None, 0));
    }

    fn buffer(token: u64) -> ReceiveBuffer {
        ReceiveBuffer {
            token,
            key: Key(token),
            offset: 0,
            bytes: 50,
        }
    }

    #[expect(clippy::disallowed_types, reason = "the other side of the interface")]
    #[derive(Debug, Default)]
    struct Shared(std::sync::Mutex<VecDeque<ReceiveBuffer>>);

    impl SharedReceives for Shared {
        fn take(&self) -> Option<ReceiveBuffer> {
            self.0.lock().unwrap().pop_front()
        }

        fn give_back(&self, buffers: Vec<ReceiveBuffer>) {
            let mut all = self.0.lock().unwrap();
            buffers.into_iter().rev().for_each(|it| all.push_front(it));
        }
    }

    #[test]
    fn connections_take_shared_buffers_as_sends_come_and_give_back_what_was_not_filled() {
        let shared = Arc::new(Shared::default());
        shared.give_back((1..=4).map(buffer).collect());
        let sharing = || {
            let mut receives = PostedReceives::default();
            receives.share(shared.clone());
            receives
        };
        let (mut one, mut other) = (sharing(), sharing());
        one.take_shared(1);
        one.take_shared(0);
        other.take_shared(0);
        assert_eq!(one.place_of(0, 0, 50), Ok((Key(1), 0)));
        assert_eq!(one.place_of(1, 0, 50), Ok((Key(2), 0)));
        assert_eq!(other.place_of(0, 0, 50), Ok((Key(3), 0)));
        assert_eq!(one.complete(1), Some(2));
        // There is one more only, and no send is so far ahead.
        other.take_shared(AHEAD_MAX);
        other.take_shared(3);
        assert_eq!(other.place_of(1, 0, 50), Ok((Key(4), 0)));
        assert_eq!(other.place_of(2, 0, 50), Err(DropReason::NotArmed));
        drop(one);
        drop(other);
        let left = std::iter::from_fn(|| shared.take());
        let left: Vec<u64> = left.map(|buffer| buffer.token).collect();
        assert_eq!(left, [3, 4, 1]);
    }

    #[test]
    fn sends_fill_the_buffers_by_their_numbers_in_any_order() {
        let mut receives = PostedReceives::default();
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
