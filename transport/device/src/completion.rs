//! Completions, as they lie in the slots of a completion ring.
//!
//! | word | |
//! |---|---|
//! | 0 | opcode: 8 · flags: 8 · slots: 8 · status: 8 · immediate, or vendor error: 32 |
//! | 1 | `wr_id` |
//! | 2 | bytes: 32 · queue pair: 32 |
//! | 3 | of a datagram: source queue pair: 32 · slots produced, by the end of the work request's entry: 32 |
//!
//! Only the engine writes them, and only the program reads them. Fields of a word are named from the lowest address on.
//! A datagram's bytes begin with the 40 of its global routing header, as verbs has it.

use std::ops::Deref;

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::entry::Head;
use crate::ring::{Consumer, RingError, SLOT_WORDS, Slot};
use crate::sync::AtomicU64;

/// How a work request has ended. The numbers are those of `enum ibv_wc_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Status {
    /// The work request succeeded.
    Success = 0,
    /// A receive was too small, or bytes too many for one message.
    LocalLength = 1,
    /// The work request itself was bad.
    LocalQueuePairOperation = 2,
    /// A scatter-gather entry lies in no region of this program that allows it.
    LocalProtection = 4,
    /// The queue pair is in error: this was not carried out.
    Flushed = 5,
    /// The peer sent what this end does not understand.
    BadResponse = 7,
    /// The peer's write or send met a region of this program that does not allow it.
    LocalAccess = 8,
    /// The peer's receive was too small, or the peer does not do this.
    RemoteInvalidRequest = 9,
    /// The peer's region does not allow it.
    RemoteAccess = 10,
    /// The peer could not carry it out.
    RemoteOperation = 11,
    /// The peer did not answer.
    RetryExceeded = 12,
    /// The peer has posted no receive.
    ReceiverNotReadyRetryExceeded = 13,
    /// The device or the engine has failed.
    Fatal = 19,
    /// Another error, which the vendor error names.
    General = 21,
}

impl Status {
    #[inline]
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Success,
            1 => Self::LocalLength,
            2 => Self::LocalQueuePairOperation,
            4 => Self::LocalProtection,
            5 => Self::Flushed,
            7 => Self::BadResponse,
            8 => Self::LocalAccess,
            9 => Self::RemoteInvalidRequest,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::RetryExceeded,
            13 => Self::ReceiverNotReadyRetryExceeded,
            19 => Self::Fatal,
            21 => Self::General,
            _ => return None,
        })
    }
}

/// The kind of the completed work request. The numbers are those of `enum ibv_wc_opcode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Opcode {
    /// A send.
    Send = 0,
    /// A write.
    Write = 1,
    /// A read.
    Read = 2,
    /// A compare-and-swap.
    CompareSwap = 3,
    /// A fetch-and-add.
    FetchAdd = 4,
    /// A receive, by a send of the peer.
    Receive = 128,
    /// A receive, by a write of the peer with an immediate.
    ReceiveWithImmediate = 129,
}

impl Opcode {
    /// Whether the peer sends something back that ends it.
    #[must_use]
    pub fn awaits_response(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether it is one of a receive queue.
    #[must_use]
    pub fn is_receive(self) -> bool {
        matches!(self, Self::Receive | Self::ReceiveWithImmediate)
    }

    #[inline]
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Send,
            1 => Self::Write,
            2 => Self::Read,
            3 => Self::CompareSwap,
            4 => Self::FetchAdd,
            128 => Self::Receive,
            129 => Self::ReceiveWithImmediate,
            _ => return None,
        })
    }
}

/// The end of one work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// As it was posted.
    pub wr_id: u64,
    /// How it has ended.
    pub outcome: Outcome,
    /// What it was.
    pub opcode: Opcode,
    /// Bytes that were received or fetched.
    pub bytes: u32,
    /// The queue pair here.
    pub queue_pair: u32,
    /// Of a datagram: the queue pair that sent it.
    pub source_queue_pair: Option<u32>,
    /// Which entry of the send or receive ring it ends: the slots that were produced there by the end of the entry.
    /// It ends those before it, too, that asked for no completion.
    pub produced: u32,
}

/// How it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Success {
        /// What the peer gave with a send or write.
        immediate: Option<u32>,
    },
    /// Not.
    Failure {
        /// The reason, as verbs has it.
        status: Status,
        /// The reason, as the engine has it (`vendor_err`).
        vendor_error: u32,
    },
}

/// Why no completion can be taken out of a ring. The ring is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    /// The ring's counts are wrong.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The slot holds no completion of this version.
    #[error("the engine's completion cannot be read: use the library of the engine's release")]
    Unknown,
}

impl CompletionError {
    /// A short stable name.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Ring(error) => error.reason(),
            Self::Unknown => "CompletionUnknown",
        }
    }
}

const IMMEDIATE: u8 = 1;
const DATAGRAM: u8 = 2;

/// Words of a [`Header`].
const HEADER_WORDS: usize = size_of::<Header>() / size_of::<u64>();

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    head: Head,
    bytes: u32,
    queue_pair: u32,
    source_queue_pair: u32,
    produced: u32,
}

impl Completion {
    /// The slot that it is in a ring.
    #[must_use]
    pub fn slot(&self) -> Slot {
        let (status, immediate, detail) = match self.outcome {
            Outcome::Success { immediate } => (
                Status::Success,
                immediate.is_some(),
                immediate.unwrap_or_default(),
            ),
            Outcome::Failure {
                status,
                vendor_error,
            } => (status, false, vendor_error),
        };
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let header = Header {
            head: Head {
                opcode: self.opcode as u8,
                flags: flag(immediate, IMMEDIATE)
                    | flag(self.source_queue_pair.is_some(), DATAGRAM),
                slots: 1,
                third: status as u8,
                immediate: detail,
                wr_id: self.wr_id,
            },
            bytes: self.bytes,
            queue_pair: self.queue_pair,
            source_queue_pair: self.source_queue_pair.unwrap_or_default(),
            produced: self.produced,
        };
        let words: [u64; HEADER_WORDS] = zerocopy::transmute!(header);
        let mut slot = [0; SLOT_WORDS];
        slot[..HEADER_WORDS].copy_from_slice(&words);
        slot
    }

    /// Takes the next completion out of a ring, if there is one.
    ///
    /// # Errors
    /// Nothing was taken.
    #[inline(always)]
    pub fn take<M>(ring: &mut Consumer<M>) -> Result<Option<Self>, CompletionError>
    where
        M: Deref<Target = [AtomicU64]>,
    {
        let Some(words) = ring.peek_words::<HEADER_WORDS>()? else {
            return Ok(None);
        };
        let completion = Self::of(words).ok_or(CompletionError::Unknown)?;
        ring.consume(1);
        Ok(Some(completion))
    }

    #[inline(always)]
    fn of(words: [u64; HEADER_WORDS]) -> Option<Self> {
        let Header {
            head,
            bytes,
            queue_pair,
            source_queue_pair,
            produced,
        } = zerocopy::transmute!(words);
        let has = |bit| head.flags & bit != 0;
        let outcome = match Status::from_number(head.third)? {
            Status::Success => Outcome::Success {
                immediate: has(IMMEDIATE).then_some(head.immediate),
            },
            status => Outcome::Failure {
                status,
                vendor_error: head.immediate,
            },
        };
        Some(Self {
            wr_id: head.wr_id,
            outcome,
            opcode: Opcode::from_number(head.opcode)?,
            bytes,
            queue_pair,
            source_queue_pair: has(DATAGRAM).then_some(source_queue_pair),
            produced,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ring::{Producer, RING_HEADER_WORDS, Ring};

    /// The memory of a ring of one slot.
    fn ring_words() -> Vec<AtomicU64> {
        let words = 0..RING_HEADER_WORDS + SLOT_WORDS;
        words.map(|_| AtomicU64::new(0)).collect()
    }

    fn statuses() -> impl Iterator<Item = Status> {
        (0..=u8::MAX).filter_map(Status::from_number)
    }

    fn opcodes() -> impl Iterator<Item = Opcode> {
        (0..=u8::MAX).filter_map(Opcode::from_number)
    }

    proptest! {
        #[test]
        fn a_completion_survives_a_round_trip(
            (wr_id, queue_pair, bytes, produced) in any::<(u64, u32, u32, u32)>(),
            status in prop::sample::select(statuses().collect::<Vec<_>>()),
            opcode in prop::sample::select(opcodes().collect::<Vec<_>>()),
            (immediate, source_queue_pair) in any::<(Option<u32>, Option<u32>)>(),
            vendor_error: u32,
        ) {
            let completion = Completion {
                wr_id,
                outcome: match status {
                    Status::Success => Outcome::Success { immediate },
                    status => Outcome::Failure { status, vendor_error },
                },
                opcode,
                bytes,
                queue_pair,
                source_queue_pair,
                produced,
            };
            let words = ring_words();
            let ring = Ring::new(words.as_slice()).unwrap();
            Producer::new(ring, 0).push(&[completion.slot()]).unwrap();
            let mut consumer = Consumer::new(ring, 0);
            prop_assert_eq!(Completion::take(&mut consumer), Ok(Some(completion)));
            prop_assert_eq!(Completion::take(&mut consumer), Ok(None));
        }
    }

    #[test]
    fn the_numbers_are_those_of_verbs() {
        // libibverbs/verbs.h, enum ibv_wc_status and enum ibv_wc_opcode.
        let statuses: Vec<u8> = statuses().map(|status| status as u8).collect();
        assert_eq!(statuses, [0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 19, 21]);
        let opcodes: Vec<u8> = opcodes().map(|opcode| opcode as u8).collect();
        assert_eq!(opcodes, [0, 1, 2, 3, 4, 128, 129]);
    }

    #[test]
    fn what_is_no_completion_stays_in_the_ring() {
        // Status 3 and opcode 5, which the engine does not use.
        for first in [[0, 0, 1, 3], [5, 0, 1, 0]] {
            let words = ring_words();
            let ring = Ring::new(words.as_slice()).unwrap();
            let mut slot = [0; SLOT_WORDS];
            slot[0] = u64::from(u32::from_ne_bytes(first));
            Producer::new(ring, 0).push(&[slot]).unwrap();
            let mut consumer = Consumer::new(ring, 0);
            let taken = Completion::take(&mut consumer);
            assert_eq!(taken, Err(CompletionError::Unknown), "{first:?}");
            assert_eq!(consumer.consumed(), 0);
        }
    }
}
