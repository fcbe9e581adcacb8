//! Work requests, as they lie in the slots of a send or receive ring.
//!
//! The first slot is the header; the scatter-gather entries or the inline bytes follow in further slots.
//!
//! | word | of a send ring | of a receive ring |
//! |---|---|---|
//! | 0 | opcode: 8 · flags: 8 · slots: 8 · entries: 8 · immediate: 32 | the same; opcode and immediate are 0 |
//! | 1 | `wr_id` | `wr_id` |
//! | 2 | remote address | 0 |
//! | 3 | remote key: 32 · inline bytes: 32 | 0 |
//! | 4 | add, or compare | 0 |
//! | 5 | swap | 0 |
//! | 6 | datagrams: address handle: 32 · queue pair: 32 | 0 |
//! | 7 | datagrams: Q_Key: 32 · 0 | 0 |
//!
//! A sge is two words: its address, and its length: 32 · local key: 32. Fields of a word are named from the lowest
//! bit on.

use crate::ring::{SLOT_BYTES, SLOT_WORDS, Slot};

/// Sges of memory of one work request.
pub const SGES_MAX: usize = 32;
/// Payload that a work request may carry itself.
pub const INLINE_MAX: usize = 1024;
/// Slots of one work request.
pub const ENTRY_SLOTS_MAX: u32 = 1 + (INLINE_MAX / SLOT_BYTES) as u32;

const SGES_PER_SLOT: usize = SLOT_WORDS / 2;

const _: () = assert!(SGES_MAX.div_ceil(SGES_PER_SLOT) < ENTRY_SLOTS_MAX as usize);

/// Memory of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// Its address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u32,
    /// The region that it lies in.
    pub local_key: u32,
}

/// Memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteAddress {
    /// Its address in the peer's program.
    pub address: u64,
    /// The region that it lies in.
    pub key: u32,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Put the bytes into the peer's next receive.
    Send,
    /// Put the bytes there.
    Write(RemoteAddress),
    /// Fetch the bytes from there.
    Read(RemoteAddress),
    /// Add to 8 bytes there.
    FetchAdd {
        /// Where.
        remote: RemoteAddress,
        /// How much.
        add: u64,
    },
    /// Replace 8 bytes there, if they are as expected.
    CompareSwap {
        /// Where.
        remote: RemoteAddress,
        /// What is expected.
        compare: u64,
        /// What is to be there.
        swap: u64,
    },
}

/// Where the bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// In sges of the program's memory.
    Sges(Vec<Sge>),
    /// In the ring.
    Inline(Vec<u8>),
}

/// To whom a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramAddress {
    /// The address handle of the peer.
    pub address_handle: u32,
    /// The queue pair of the peer.
    pub queue_pair: u32,
    /// The Q_Key of that queue pair.
    pub q_key: u32,
}

/// What a program posts to a send queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkRequest {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What is to be done.
    pub operation: Operation,
    /// Of a send or write: 32 bits for the peer's completion.
    pub immediate: Option<u32>,
    /// Whether a completion says that it is done.
    pub signaled: bool,
    /// Whether it waits for the reads before it.
    pub fence: bool,
    /// Whether the peer is woken though it waits for solicited completions only.
    pub solicited: bool,
    /// Its bytes, or where they go.
    pub payload: Payload,
    /// Of a datagram.
    pub datagram: Option<DatagramAddress>,
}

/// What a program posts to a receive queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub sges: Vec<Sge>,
}

/// The slots hold no valid work request: the program wrote to the ring directly, or its library has another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WorkRequestError {
    /// No such operation.
    #[error("no operation has the number {0}: use the library of this release")]
    Opcode(u8),
    /// Flags that mean nothing, or nothing here.
    #[error("flags {0:#04x} mean nothing for this operation: use the library of this release")]
    Flags(u8),
    /// More slots than any has, or others than its bytes take.
    #[error("it has {given} slots and needs {needed}: use the library of this release")]
    Slots {
        /// What it says.
        given: u32,
        /// What its sges or bytes take.
        needed: u32,
    },
    /// More than a work request may have.
    #[error(
        "it has {sges} scatter-gather entries, at most {SGES_MAX}, and {inline_bytes} inline bytes, at most {INLINE_MAX}: split it"
    )]
    TooLarge {
        /// Sges.
        sges: u32,
        /// Payload in the ring.
        inline_bytes: u32,
    },
}

impl WorkRequestError {
    /// A short stable name.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Opcode(_) => "WorkRequestOpcode",
            Self::Flags(_) => "WorkRequestFlags",
            Self::Slots { .. } => "WorkRequestSlots",
            Self::TooLarge { .. } => "WorkRequestTooLarge",
        }
    }
}

mod flag {
    pub(super) const SIGNALED: u8 = 1;
    pub(super) const FENCE: u8 = 2;
    pub(super) const SOLICITED: u8 = 4;
    pub(super) const IMMEDIATE: u8 = 8;
    pub(super) const INLINE: u8 = 16;
    pub(super) const DATAGRAM: u8 = 32;
    pub(super) const ALL: u8 = 63;
}

mod opcode {
    pub(super) const SEND: u8 = 1;
    pub(super) const WRITE: u8 = 2;
    pub(super) const READ: u8 = 3;
    pub(super) const FETCH_ADD: u8 = 4;
    pub(super) const COMPARE_SWAP: u8 = 5;
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// The first slot of either kind, checked as far as it can be by itself.
struct Header {
    opcode: u8,
    flags: u8,
    slots: u32,
    sges: usize,
    inline_bytes: usize,
}

impl Header {
    fn of(slot: &Slot) -> Result<Self, WorkRequestError> {
        let [opcode, flags, slots, sges, ..] = slot[0].to_le_bytes();
        let (_, inline_bytes) = split(slot[3]);
        let has = |bit| flags & bit != 0;
        let inline = inline_bytes as usize;
        let is_known = flags & !flag::ALL == 0 && (has(flag::INLINE) || inline == 0);
        if !is_known || has(flag::INLINE) && sges != 0 {
            return Err(WorkRequestError::Flags(flags));
        }
        if usize::from(sges) > SGES_MAX || inline > INLINE_MAX {
            return Err(WorkRequestError::TooLarge {
                sges: sges.into(),
                inline_bytes,
            });
        }
        let behind = match has(flag::INLINE) {
            true => inline.div_ceil(SLOT_BYTES),
            false => usize::from(sges).div_ceil(SGES_PER_SLOT),
        };
        let (given, needed) = (u32::from(slots), 1 + behind as u32);
        if given != needed {
            return Err(WorkRequestError::Slots { given, needed });
        }
        Ok(Self {
            opcode,
            flags,
            slots: needed,
            sges: sges.into(),
            inline_bytes: inline,
        })
    }

    fn has(&self, bit: u8) -> bool {
        self.flags & bit != 0
    }
}

/// How many slots the work request takes that begins with this one.
///
/// # Errors
/// The slot is no valid header.
pub fn entry_slots(first: &Slot) -> Result<u32, WorkRequestError> {
    Header::of(first).map(|header| header.slots)
}

fn words(rest: &[Slot]) -> impl Iterator<Item = u64> {
    rest.iter().flatten().copied()
}

fn read_sges(rest: &[Slot], sges: usize) -> Vec<Sge> {
    let words: Vec<u64> = words(rest).collect();
    let read = words.as_chunks::<2>().0.iter().take(sges);
    read.map(|&[address, second]| {
        let (bytes, local_key) = split(second);
        Sge {
            address,
            bytes,
            local_key,
        }
    })
    .collect()
}

fn write_sges(sges: &[Sge], out: &mut Vec<Slot>) {
    for some in sges.chunks(SGES_PER_SLOT) {
        let mut slot = Slot::default();
        for (words, sge) in slot.as_chunks_mut::<2>().0.iter_mut().zip(some) {
            *words = [sge.address, join(sge.bytes, sge.local_key)];
        }
        out.push(slot);
    }
}

fn first_word(opcode: u8, flags: u8, slots: usize, sges: usize, immediate: u32) -> u64 {
    let low = u32::from_le_bytes([opcode, flags, slots as u8, sges as u8]);
    join(low, immediate)
}

fn check_size(sges: usize, inline_bytes: usize) -> Result<(), WorkRequestError> {
    if sges <= SGES_MAX && inline_bytes <= INLINE_MAX {
        return Ok(());
    }
    Err(WorkRequestError::TooLarge {
        sges: u32::try_from(sges).unwrap_or(u32::MAX),
        inline_bytes: u32::try_from(inline_bytes).unwrap_or(u32::MAX),
    })
}

impl WorkRequest {
    /// Writes its slots to `out`, which is emptied before.
    ///
    /// # Errors
    /// [`WorkRequestError::TooLarge`].
    pub fn encode(&self, out: &mut Vec<Slot>) -> Result<(), WorkRequestError> {
        out.clear();
        out.push(Slot::default());
        let mut flags = 0;
        let (sges, inline_bytes) = match &self.payload {
            Payload::Sges(sges) => {
                check_size(sges.len(), 0)?;
                write_sges(sges, out);
                (sges.len(), 0)
            }
            Payload::Inline(bytes) => {
                check_size(0, bytes.len())?;
                flags |= flag::INLINE;
                for some in bytes.chunks(SLOT_BYTES) {
                    let mut block = [0; SLOT_BYTES];
                    block[..some.len()].copy_from_slice(some);
                    let words = block.as_chunks::<8>().0;
                    out.push(std::array::from_fn(|word| u64::from_le_bytes(words[word])));
                }
                (0, bytes.len())
            }
        };
        let mut header = Slot::default();
        let (opcode, remote) = match self.operation {
            Operation::Send => (opcode::SEND, RemoteAddress::default()),
            Operation::Write(remote) => (opcode::WRITE, remote),
            Operation::Read(remote) => (opcode::READ, remote),
            Operation::FetchAdd { remote, add } => {
                header[4] = add;
                (opcode::FETCH_ADD, remote)
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                header[4] = compare;
                header[5] = swap;
                (opcode::COMPARE_SWAP, remote)
            }
        };
        for (is_set, bit) in [
            (self.signaled, flag::SIGNALED),
            (self.fence, flag::FENCE),
            (self.solicited, flag::SOLICITED),
            (self.immediate.is_some(), flag::IMMEDIATE),
            (self.datagram.is_some(), flag::DATAGRAM),
        ] {
            flags |= if is_set { bit } else { 0 };
        }
        let immediate = self.immediate.unwrap_or_default();
        header[0] = first_word(opcode, flags, out.len(), sges, immediate);
        header[1] = self.wr_id;
        header[2] = remote.address;
        header[3] = join(remote.key, inline_bytes as u32);
        if let Some(datagram) = self.datagram {
            header[6] = join(datagram.address_handle, datagram.queue_pair);
            header[7] = join(datagram.q_key, 0);
        }
        out[0] = header;
        Ok(())
    }

    /// Reads the slots of one work request, the first and the further ones.
    ///
    /// # Errors
    /// The slots are no valid work request.
    pub fn decode(first: &Slot, rest: &[Slot]) -> Result<Self, WorkRequestError> {
        let header = Header::of(first)?;
        if rest.len() + 1 != header.slots as usize {
            return Err(WorkRequestError::Slots {
                given: rest.len() as u32 + 1,
                needed: header.slots,
            });
        }
        let remote = RemoteAddress {
            address: first[2],
            key: split(first[3]).0,
        };
        let operation = match header.opcode {
            opcode::SEND => Operation::Send,
            opcode::WRITE => Operation::Write(remote),
            opcode::READ => Operation::Read(remote),
            opcode::FETCH_ADD => Operation::FetchAdd {
                remote,
                add: first[4],
            },
            opcode::COMPARE_SWAP => Operation::CompareSwap {
                remote,
                compare: first[4],
                swap: first[5],
            },
            other => return Err(WorkRequestError::Opcode(other)),
        };
        // What brings bytes here carries none, and only what has a receive at the other end an immediate.
        let is_fetch = header.opcode >= opcode::READ;
        let is_send = header.opcode == opcode::SEND;
        if is_fetch && (header.has(flag::INLINE) || header.has(flag::IMMEDIATE))
            || header.has(flag::DATAGRAM) && !is_send
        {
            return Err(WorkRequestError::Flags(header.flags));
        }
        let payload = if header.has(flag::INLINE) {
            let mut bytes: Vec<u8> = words(rest).flat_map(u64::to_le_bytes).collect();
            bytes.truncate(header.inline_bytes);
            Payload::Inline(bytes)
        } else {
            Payload::Sges(read_sges(rest, header.sges))
        };
        let (address_handle, queue_pair) = split(first[6]);
        Ok(Self {
            wr_id: first[1],
            operation,
            immediate: header.has(flag::IMMEDIATE).then_some(split(first[0]).1),
            signaled: header.has(flag::SIGNALED),
            fence: header.has(flag::FENCE),
            solicited: header.has(flag::SOLICITED),
            payload,
            datagram: header.has(flag::DATAGRAM).then_some(DatagramAddress {
                address_handle,
                queue_pair,
                q_key: split(first[7]).0,
            }),
        })
    }
}

impl ReceiveRequest {
    /// Writes its slots to `out`, which is emptied before.
    ///
    /// # Errors
    /// [`WorkRequestError::TooLarge`].
    pub fn encode(&self, out: &mut Vec<Slot>) -> Result<(), WorkRequestError> {
        check_size(self.sges.len(), 0)?;
        out.clear();
        out.push(Slot::default());
        write_sges(&self.sges, out);
        out[0][0] = first_word(0, 0, out.len(), self.sges.len(), 0);
        out[0][1] = self.wr_id;
        Ok(())
    }

    /// Reads the slots of one receive, the first and the further ones.
    ///
    /// # Errors
    /// The slots are no valid work request.
    pub fn decode(first: &Slot, rest: &[Slot]) -> Result<Self, WorkRequestError> {
        let header = Header::of(first)?;
        if header.opcode != 0 {
            return Err(WorkRequestError::Opcode(header.opcode));
        }
        if header.flags != 0 {
            return Err(WorkRequestError::Flags(header.flags));
        }
        if rest.len() + 1 != header.slots as usize {
            return Err(WorkRequestError::Slots {
                given: rest.len() as u32 + 1,
                needed: header.slots,
            });
        }
        Ok(Self {
            wr_id: first[1],
            sges: read_sges(rest, header.sges),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sge() -> impl Strategy<Value = Sge> {
        any::<(u64, u32, u32)>().prop_map(|(address, bytes, local_key)| Sge {
            address,
            bytes,
            local_key,
        })
    }

    fn sges() -> impl Strategy<Value = Vec<Sge>> {
        prop::collection::vec(sge(), 0..=SGES_MAX)
    }

    prop_compose! {
        fn work_request()(
            wr_id: u64,
            which in 0..5u8,
            address: u64,
            key: u32,
            operands: (u64, u64),
            immediate: Option<u32>,
            (signaled, fence, solicited) in any::<(bool, bool, bool)>(),
            sges in sges(),
            inline in prop::option::of(prop::collection::vec(any::<u8>(), 0..=INLINE_MAX)),
            datagram: Option<(u32, u32, u32)>,
        ) -> WorkRequest {
            let remote = RemoteAddress { address, key };
            let operation = match which {
                0 => Operation::Send,
                1 => Operation::Write(remote),
                2 => Operation::Read(remote),
                3 => Operation::FetchAdd { remote, add: operands.0 },
                _ => Operation::CompareSwap { remote, compare: operands.0, swap: operands.1 },
            };
            let datagram = datagram.filter(|_| which == 0).map(|(address_handle, queue_pair, q_key)| DatagramAddress {
                address_handle,
                queue_pair,
                q_key,
            });
            WorkRequest {
                wr_id,
                operation,
                immediate: immediate.filter(|_| which < 2),
                signaled,
                fence,
                solicited,
                payload: match inline {
                    Some(bytes) if which < 2 => Payload::Inline(bytes),
                    _ => Payload::Sges(sges),
                },
                datagram,
            }
        }
    }

    proptest! {
        #[test]
        fn a_work_request_survives_a_round_trip(request in work_request()) {
            let mut encoded = Vec::new();
            request.encode(&mut encoded).unwrap();
            let (first, rest) = encoded.split_first().unwrap();
            prop_assert_eq!(entry_slots(first), Ok(encoded.len() as u32));
            prop_assert!(encoded.len() as u32 <= ENTRY_SLOTS_MAX);
            prop_assert_eq!(WorkRequest::decode(first, rest), Ok(request));
        }

        #[test]
        fn a_receive_request_survives_a_round_trip(wr_id: u64, sges in sges()) {
            let request = ReceiveRequest { wr_id, sges };
            let mut encoded = Vec::new();
            request.encode(&mut encoded).unwrap();
            let (first, rest) = encoded.split_first().unwrap();
            prop_assert_eq!(ReceiveRequest::decode(first, rest), Ok(request));
        }

        /// What a program may write past its library.
        #[test]
        fn any_words_are_a_work_request_or_refused_and_never_more_slots_than_allowed(
            words: [u64; SLOT_WORDS],
            few in 0..64u64,
            rest in prop::collection::vec(any::<Slot>(), 0..20),
        ) {
            for first in [words, [few, 0, 0, 0, 0, 0, 0, 0]] {
                if let Ok(slots) = entry_slots(&first) {
                    prop_assert!((1..=ENTRY_SLOTS_MAX).contains(&slots));
                }
                let _ = ReceiveRequest::decode(&first, &rest);
                if let Ok(request) = WorkRequest::decode(&first, &rest) {
                    let mut again = Vec::new();
                    prop_assert_eq!(request.encode(&mut again), Ok(()));
                    prop_assert_eq!(again.len(), 1 + rest.len());
                }
            }
        }
    }

    #[test]
    fn too_many_entries_and_too_many_inline_bytes_are_refused() {
        let mut out = Vec::new();
        let sges = vec![Sge::default(); SGES_MAX + 1];
        let receive = ReceiveRequest { wr_id: 1, sges };
        let error = receive.encode(&mut out).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("33 scatter-gather entries, at most 32"),
            "{error}"
        );
        let request = WorkRequest {
            wr_id: 1,
            operation: Operation::Send,
            immediate: None,
            signaled: true,
            fence: false,
            solicited: false,
            payload: Payload::Inline(vec![0; INLINE_MAX + 1]),
            datagram: None,
        };
        let error = request.encode(&mut out).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("1025 inline bytes, at most 1024"),
            "{error}"
        );
    }
}
