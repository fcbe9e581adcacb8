//! Completions, as they lie in the slots of a completion ring: one slot each.
//!
//! | word | |
//! |---|---|
//! | 0 | `wr_id` |
//! | 1 | status: 8 · opcode: 8 · flags: 8 · 0: 8 · bytes: 32 |
//! | 2 | queue pair: 32 · immediate: 32 |
//! | 3 | of a datagram: source queue pair: 32 · slots produced, by the end of the entry: 32 |
//! | 4–7 | 0 |
//!
//! Only the engine writes them, and only the program reads them.

use crate::ring::Slot;

/// How a work request has ended. The numbers are those of `enum ibv_wc_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The work request succeeded.
    Success = 0,
    /// A receive was too small, or bytes too many for one message.
    LocalLength = 1,
    /// The work request itself was bad.
    LocalQueuePairOperation = 2,
    /// A piece lies in no region of this program that allows it.
    LocalProtection = 4,
    /// The queue pair is in error: this was not carried out.
    Flushed = 5,
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
}

impl Status {
    const ALL: [Status; 11] = [
        Status::Success,
        Status::LocalLength,
        Status::LocalQueuePairOperation,
        Status::LocalProtection,
        Status::Flushed,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::ReceiverNotReadyRetryExceeded,
        Status::Fatal,
    ];
}

/// The kind of the completed work request. The numbers are those of `enum ibv_wc_opcode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    pub status: Status,
    /// What it was.
    pub opcode: Opcode,
    /// Bytes that were received or fetched.
    pub bytes: u32,
    /// The queue pair here.
    pub queue_pair: u32,
    /// What the peer gave with a send or write.
    pub immediate: Option<u32>,
    /// Of a datagram: the queue pair that sent it.
    pub source_queue_pair: Option<u32>,
    /// Which entry of the send or receive ring it ends: the slots that were produced there by the end of the entry.
    /// It ends those before it, too, that asked for no completion.
    pub produced: u32,
}

const IMMEDIATE: u8 = 1;
const DATAGRAM: u8 = 2;

impl Completion {
    /// The slot.
    #[must_use]
    pub fn encode(&self) -> Slot {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let flags = bit(self.immediate.is_some(), IMMEDIATE)
            | bit(self.source_queue_pair.is_some(), DATAGRAM);
        let low = u32::from_le_bytes([self.status as u8, self.opcode as u8, flags, 0]);
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            self.wr_id,
            join(low, self.bytes),
            join(self.queue_pair, self.immediate.unwrap_or_default()),
            join(self.source_queue_pair.unwrap_or_default(), self.produced),
            0,
            0,
            0,
            0,
        ]
    }

    /// What the slot says; `None` where it is none of this version.
    #[must_use]
    pub fn decode(slot: &Slot) -> Option<Self> {
        let [status, opcode, flags, ..] = slot[1].to_le_bytes();
        let high = |word: u64| (word >> 32) as u32;
        Some(Self {
            wr_id: slot[0],
            status: Status::ALL
                .into_iter()
                .find(|known| *known as u8 == status)?,
            opcode: Opcode::ALL
                .into_iter()
                .find(|known| *known as u8 == opcode)?,
            bytes: high(slot[1]),
            queue_pair: slot[2] as u32,
            immediate: (flags & IMMEDIATE != 0).then_some(high(slot[2])),
            source_queue_pair: (flags & DATAGRAM != 0).then_some(slot[3] as u32),
            produced: high(slot[3]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_survives_a_round_trip_and_its_numbers_are_those_of_verbs() {
        for status in Status::ALL {
            for opcode in Opcode::ALL {
                for (immediate, source_queue_pair) in
                    [(None, None), (Some(7), None), (Some(0), Some(9))]
                {
                    let completion = Completion {
                        wr_id: u64::MAX - 1,
                        status,
                        opcode,
                        bytes: u32::MAX,
                        queue_pair: 0x00ff_ffff,
                        immediate,
                        source_queue_pair,
                        produced: 0xffff_fff0,
                    };
                    assert_eq!(Completion::decode(&completion.encode()), Some(completion));
                }
            }
        }
        // libibverbs/verbs.h, enum ibv_wc_status and enum ibv_wc_opcode.
        let statuses = Status::ALL.map(|status| status as u8);
        assert_eq!(statuses, [0, 1, 2, 4, 5, 9, 10, 11, 12, 13, 19]);
        let opcodes = Opcode::ALL.map(|opcode| opcode as u8);
        assert_eq!(opcodes, [0, 1, 2, 3, 4, 128, 129]);
        assert_eq!(Completion::decode(&[0, 3, 0, 0, 0, 0, 0, 0]), None);
    }
}
