//! Which message goes to which child next: credits, the cache, and what must be read again.
//!
//! Sans-IO: the sender tells it what happened and does what it asks for. Each child gets every
//! message, in order, as soon as this node has the message and the child has a free slot. A slow
//! child never delays another one: messages that have left the cache are read again for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::transfer::message::{Message, PresentBlocks, data_bytes};
use crate::transfer::receive_window::WINDOW_MESSAGES;

/// Messages kept because some child still needs them: a round trip's worth beyond the slots.
pub(crate) const CACHE_MESSAGES: usize = 8;

/// Children that may stand still, each with a message of its own, while the others go on. With a buffer for each of 64
/// children a sender would need more than `limits.memory` has by default.
const STANDING_STILL_MAX: usize = 16;

/// What a sender may do with its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SendLimits {
    /// Messages that are kept because some child still needs them.
    cache: usize,
    /// Messages under way to each child: a child that stands still must not take all buffers.
    in_flight: usize,
}

impl SendLimits {
    /// Enough buffers that nothing waits for one: the cache, and for each child all its slots and one message
    /// that is being read.
    pub(crate) const fn buffers_most(children: usize, slots: usize) -> usize {
        CACHE_MESSAGES + children * (slots + 1)
    }

    /// Buffers with which each child goes on, whatever the others do: one under way to each, and one more. Where
    /// there are many children, as long as no more than [`STANDING_STILL_MAX`] of them stand still.
    pub(crate) const fn buffers_least(children: usize) -> usize {
        match children < STANDING_STILL_MAX {
            true => children + 1,
            false => STANDING_STILL_MAX + 1,
        }
    }

    /// The limits for so many buffers.
    pub(crate) fn of(buffers: usize, children: usize) -> Self {
        let spare = buffers.saturating_sub(children);
        let cache = spare.min(buffers / 2).clamp(1, CACHE_MESSAGES);
        let remaining = buffers.saturating_sub(cache);
        Self {
            cache,
            in_flight: (remaining / children.max(1)).max(1),
        }
    }
}

/// Index of a child in the task of this agent.
pub(crate) type ChildIndex = usize;

/// What the sender must do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Read (at the source: and hash) this message, and answer with [`Fanout::built`].
    Build(u32),
    /// Write this message into the child's slot.
    Send {
        /// To whom.
        child: ChildIndex,
        /// Where.
        slot: u16,
        /// What.
        message: Message,
    },
}

/// The state of a child.
#[derive(Debug)]
enum ChildState {
    /// Not connected yet.
    Awaited,
    /// Being sent to.
    Open(OpenChild),
    /// It has returned every credit after the last message: everything is published there.
    Done,
    /// Its connection failed.
    Failed,
}

#[derive(Debug)]
struct OpenChild {
    present: PresentBlocks,
    free: Vec<u16>,
    /// What is under way in each slot; none in a free one.
    in_flight: Vec<Option<InFlight>>,
    /// The next message it gets.
    next: u32,
}

/// A message whose credit has not come back.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    number: u32,
    /// Of data.
    bytes: u64,
}

impl OpenChild {
    /// Whether the next message may go to it: there is a slot and room for one more, and the message is
    /// near enough to the first whose credit has not come back.
    fn may_go_on(&self, limits: SendLimits) -> bool {
        let in_flight = self.in_flight.len() - self.free.len();
        if self.free.is_empty() || in_flight >= limits.in_flight {
            return false;
        }
        let first = self
            .in_flight
            .iter()
            .flatten()
            .map(|under| under.number)
            .min();
        first.is_none_or(|first| self.next - first < WINDOW_MESSAGES)
    }
}

/// The state of one sender.
#[derive(Debug)]
pub(crate) struct Fanout {
    /// Messages of the transfer.
    messages: u32,
    /// Messages below this number can be read.
    readable_until: u32,
    children: Vec<ChildState>,
    cache: BTreeMap<u32, Message>,
    building: BTreeSet<u32>,
    actions: VecDeque<Action>,
    limits: SendLimits,
}

impl Fanout {
    /// For a transfer of `messages`, to so many children. At a source all can be read.
    pub(crate) fn new(
        messages: u32,
        children: usize,
        readable_until: u32,
        limits: SendLimits,
    ) -> Self {
        Self {
            messages,
            readable_until,
            children: (0..children).map(|_| ChildState::Awaited).collect(),
            cache: BTreeMap::new(),
            building: BTreeSet::new(),
            actions: VecDeque::new(),
            limits,
        }
    }

    /// There are more or fewer buffers now.
    pub(crate) fn set_limits(&mut self, limits: SendLimits) {
        if limits != self.limits {
            self.limits = limits;
            self.advance();
        }
    }

    /// A child has connected, with so many slots, and holds some blocks.
    pub(crate) fn connected(&mut self, child: ChildIndex, slots: u16, present: PresentBlocks) {
        self.children[child] = ChildState::Open(OpenChild {
            present,
            free: (0..slots).rev().collect(),
            in_flight: vec![None; usize::from(slots)],
            next: 0,
        });
        self.advance();
    }

    /// Messages below `readable_until` can be read from now on.
    pub(crate) fn set_readable_until(&mut self, readable_until: u32) {
        self.readable_until = self.readable_until.max(readable_until);
        self.advance();
    }

    /// A message that was asked for is here.
    pub(crate) fn built(&mut self, number: u32, message: Message) {
        self.building.remove(&number);
        if is_needed(&self.children, number) {
            self.cache.insert(number, message);
        }
        self.advance();
    }

    /// A child has emptied a slot. Returns the data bytes that were in it, or what is wrong with the credit.
    pub(crate) fn credit(&mut self, child: ChildIndex, slot: u32) -> Result<u64, String> {
        let wrong = || format!("a credit for slot {slot}, which it was not given");
        let ChildState::Open(open) = &mut self.children[child] else {
            return Err(wrong());
        };
        let bytes = usize::try_from(slot)
            .ok()
            .and_then(|index| open.in_flight.get_mut(index))
            .and_then(Option::take)
            .ok_or_else(wrong)?
            .bytes;
        // Fits: it is an index of `in_flight`.
        open.free.push(slot as u16);
        if open.next == self.messages && open.free.len() == open.in_flight.len() {
            self.children[child] = ChildState::Done;
        }
        self.advance();
        Ok(bytes)
    }

    /// A child's connection is over.
    pub(crate) fn failed(&mut self, child: ChildIndex) {
        if !matches!(self.children[child], ChildState::Done) {
            self.children[child] = ChildState::Failed;
        }
        self.advance();
    }

    /// What to do next, if anything.
    pub(crate) fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether this child has everything, published.
    pub(crate) fn is_done(&self, child: ChildIndex) -> bool {
        matches!(self.children[child], ChildState::Done)
    }

    /// Whether everything was sent to this child and only its last credits are missing.
    pub(crate) fn is_finishing(&self, child: ChildIndex) -> bool {
        matches!(&self.children[child], ChildState::Open(open) if open.next == self.messages)
    }

    /// Whether no child needs anything any more: each is done, or has failed.
    pub(crate) fn is_over(&self) -> bool {
        self.children
            .iter()
            .all(|child| matches!(child, ChildState::Done | ChildState::Failed))
    }

    /// Sends the messages that can be sent, drops those that no child needs, and asks for the next ones.
    fn advance(&mut self) {
        for child in 0..self.children.len() {
            self.send(child);
        }
        let children = &self.children;
        self.cache.retain(|number, _| is_needed(children, *number));
        self.trim();
        self.request_messages();
    }

    fn send(&mut self, index: ChildIndex) {
        let ChildState::Open(open) = &mut self.children[index] else {
            return;
        };
        while open.may_go_on(self.limits)
            && let Some(message) = self.cache.get(&open.next)
        {
            let Some(slot) = open.free.pop() else {
                return;
            };
            let message = match open.present.shorten(&message.buffer[..message.bytes]) {
                Some(short) => Message {
                    bytes: short.len(),
                    buffer: Arc::new(short),
                },
                None => message.clone(),
            };
            open.in_flight[usize::from(slot)] = Some(InFlight {
                number: open.next,
                bytes: data_bytes(&message),
            });
            open.next += 1;
            self.actions.push_back(Action::Send {
                child: index,
                slot,
                message,
            });
        }
    }

    /// Asks for the message each child needs next, and ahead of the fastest while there is room.
    fn request_messages(&mut self) {
        let mut wanted: Vec<u32> = Vec::new();
        for child in &self.children {
            if let ChildState::Open(open) = child
                && open.may_go_on(self.limits)
            {
                wanted.push(open.next);
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        if let Some(fastest) = wanted.last().copied() {
            wanted.extend((1..CACHE_MESSAGES as u32).map(|ahead| fastest + ahead));
        }
        for number in wanted {
            let here = self.cache.contains_key(&number) || self.building.contains(&number);
            if number >= self.readable_until.min(self.messages) || here {
                continue;
            }
            if self.cache.len() + self.building.len() >= self.limits.cache + self.children.len() {
                return;
            }
            self.building.insert(number);
            self.actions.push_back(Action::Build(number));
        }
    }

    /// Keeps the cache within its limit: the earliest message goes first, except for one that a child with a
    /// free slot would get next.
    fn trim(&mut self) {
        while self.cache.len() + self.building.len() > self.limits.cache {
            let next = |number: &u32| {
                self.children.iter().any(|child| {
                    matches!(child, ChildState::Open(open) if open.next == *number && open.may_go_on(self.limits))
                })
            };
            let oldest = self.cache.keys().copied().find(|number| !next(number));
            let Some(oldest) = oldest else {
                return;
            };
            self.cache.remove(&oldest);
        }
    }
}

/// Whether a child will be sent this message.
fn is_needed(children: &[ChildState], number: u32) -> bool {
    children.iter().any(|child| match child {
        ChildState::Open(open) => open.next <= number,
        ChildState::Awaited => true,
        ChildState::Done | ChildState::Failed => false,
    })
}

#[cfg(test)]
mod tests;
