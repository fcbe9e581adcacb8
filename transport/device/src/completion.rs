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

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::entry::{Entry, Head};

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
    const ALL: [Status; 14] = [
        Status::Success,
        Status::LocalLength,
        Status::LocalQueuePairOperation,
        Status::LocalProtection,
        Status::Flushed,
        Status::BadResponse,
        Status::LocalAccess,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::ReceiverNotReadyRetryExceeded,
        Status::Fatal,
        Status::General,
    ];
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

    const ALL: [Opcode; 7] = [
        Opcode::Send,
        Opcode::Write,
        Opcode::Read,
        Opcode::CompareSwap,
        Opcode::FetchAdd,
        Opcode::Receive,
        Opcode::ReceiveWithImmediate,
    ];
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

/// The slots hold no completion of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine's completion cannot be read: use the library of the engine's release")]
pub struct CompletionError;

impl CompletionError {
    /// A short stable name.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        "CompletionUnknown"
    }
}

const IMMEDIATE: u8 = 1;
const DATAGRAM: u8 = 2;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    head: Head,
    bytes: u32,
    queue_pair: u32,
    source_queue_pair: u32,
    produced: u32,
}

impl Entry {
    /// Makes it this completion.
    pub fn set_completion(&mut self, completion: &Completion) {
        let (status, immediate, detail) = match completion.outcome {
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
        let mut flags = 0;
        for (is_set, bit) in [
            (immediate, IMMEDIATE),
            (completion.source_queue_pair.is_some(), DATAGRAM),
        ] {
            flags |= if is_set { bit } else { 0 };
        }
        let (out, slots) = self.resize(size_of::<Header>());
        let header = Header {
            head: Head {
                opcode: completion.opcode as u8,
                flags,
                slots,
                third: status as u8,
                immediate: detail,
                wr_id: completion.wr_id,
            },
            bytes: completion.bytes,
            queue_pair: completion.queue_pair,
            source_queue_pair: completion.source_queue_pair.unwrap_or_default(),
            produced: completion.produced,
        };
        out[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    }

    /// The completion that it is.
    ///
    /// # Errors
    /// The slots hold no completion of this version.
    #[inline]
    pub fn completion(&self) -> Result<Completion, CompletionError> {
        let (header, _) = Header::read_from_prefix(self.bytes()).map_err(|_| CompletionError)?;
        let head = header.head;
        let status = Status::ALL
            .into_iter()
            .find(|known| *known as u8 == head.third);
        let opcode = Opcode::ALL
            .into_iter()
            .find(|known| *known as u8 == head.opcode);
        let has = |bit| head.flags & bit != 0;
        Ok(Completion {
            wr_id: head.wr_id,
            outcome: match status.ok_or(CompletionError)? {
                Status::Success => Outcome::Success {
                    immediate: has(IMMEDIATE).then_some(head.immediate),
                },
                status => Outcome::Failure {
                    status,
                    vendor_error: head.immediate,
                },
            },
            opcode: opcode.ok_or(CompletionError)?,
            bytes: header.bytes,
            queue_pair: header.queue_pair,
            source_queue_pair: has(DATAGRAM).then_some(header.source_queue_pair),
            produced: header.produced,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_completion_survives_a_round_trip(
            (wr_id, queue_pair, bytes, produced) in any::<(u64, u32, u32, u32)>(),
            status in prop::sample::select(Status::ALL.to_vec()),
            opcode in prop::sample::select(Opcode::ALL.to_vec()),
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
            let mut entry = Entry::new();
            entry.set_completion(&completion);
            prop_assert_eq!(entry.completion(), Ok(completion));
            prop_assert_eq!(entry.slots().len(), 1);
        }
    }

    #[test]
    fn the_numbers_are_those_of_verbs() {
        // libibverbs/verbs.h, enum ibv_wc_status and enum ibv_wc_opcode.
        let statuses = Status::ALL.map(|status| status as u8);
        assert_eq!(statuses, [0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 19, 21]);
        let opcodes = Opcode::ALL.map(|opcode| opcode as u8);
        assert_eq!(opcodes, [0, 1, 2, 3, 4, 128, 129]);
        let mut entry = Entry::new();
        // Of status 3, which the engine does not use.
        entry.resize(64).0[..4].copy_from_slice(&[0, 0, 1, 3]);
        assert_eq!(entry.completion(), Err(CompletionError));
    }
}
