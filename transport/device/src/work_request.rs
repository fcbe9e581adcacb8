//! Work requests, as they lie in the slots of a send or receive ring.
//!
//! | word | of a send, write or read | of an atomic | of a receive |
//! |---|---|---|---|
//! | 0 | opcode: 8 · flags: 8 · slots: 8 · entries: 8 · immediate: 32 | the same | the same; all but slots and entries are 0 |
//! | 1 | `wr_id` | the same | the same |
//! | 2 | remote address; of a datagram: address handle: 32 · queue pair: 32 | remote address | payload … |
//! | 3 | remote key, or Q_Key: 32 · inline bytes: 32 | remote key: 32 · 0 | |
//! | 4 | payload … | add, or compare | |
//! | 5 | | swap | |
//! | 6 | | payload … | |
//!
//! The payload is scatter-gather entries (address: 64 · bytes: 32 · local key: 32), or inline bytes. It goes on in
//! further slots. So a request with two entries or 32 inline bytes takes one slot. Fields of a word are named from the
//! lowest address on; numbers are the processor's own, for both ends run on it.

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use std::ops::Deref;

use crate::entry::{ENTRY_SLOTS_MAX, Entry, Head, Slots};
use crate::ring::{Batch, RingError, SLOT_BYTES};
use crate::sync::AtomicU64;

/// Scatter-gather entries of one work request.
pub const SGES_MAX: usize = 32;
/// Payload that a work request may carry itself.
pub const INLINE_MAX: usize = 1024;

/// Scatter-gather entries of a [`PlainRequest`].
pub const PLAIN_SGES_MAX: usize = 2;

const TARGET: usize = size_of::<Head>();
const OPERANDS: usize = TARGET + size_of::<Target>();
const ATOMIC_PAYLOAD: usize = OPERANDS + size_of::<Operands>();

const _: () = assert!(OPERANDS + INLINE_MAX <= ENTRY_SLOTS_MAX * SLOT_BYTES);
const _: () = assert!(ATOMIC_PAYLOAD + SGES_MAX * size_of::<Sge>() <= ENTRY_SLOTS_MAX * SLOT_BYTES);

/// Memory of the program.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Serialize,
    Deserialize,
)]
#[repr(C)]
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

/// The destination of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramAddress {
    /// The address handle of the peer.
    pub address_handle: u32,
    /// The queue pair of the peer.
    pub queue_pair: u32,
    /// The Q_Key of that queue pair.
    pub q_key: u32,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Put the bytes into the peer's next receive.
    Send,
    /// Put the bytes into the next receive of a queue pair.
    SendDatagram(DatagramAddress),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload<'e> {
    /// In the program's memory.
    Sges(&'e [Sge]),
    /// In the ring.
    Inline(&'e [u8]),
}

/// What a program posts to a send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRequest<'e> {
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
    pub payload: Payload<'e>,
}

/// What programs post most: a send, write or read of a connected queue pair, whose entry takes one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainRequest<'e> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What is to be done.
    pub operation: PlainOperation,
    /// Where, of a write or read.
    pub remote: RemoteAddress,
    /// As [`WorkRequest::immediate`].
    pub immediate: Option<u32>,
    /// As [`WorkRequest::signaled`].
    pub signaled: bool,
    /// As [`WorkRequest::fence`].
    pub fence: bool,
    /// As [`WorkRequest::solicited`].
    pub solicited: bool,
    /// Where the bytes are, or go: at most [`PLAIN_SGES_MAX`] places.
    pub sges: &'e [Sge],
}

/// What a [`PlainRequest`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PlainOperation {
    /// [`Operation::Send`].
    Send = opcode::SEND,
    /// [`Operation::Write`].
    Write = opcode::WRITE,
    /// [`Operation::Read`].
    Read = opcode::READ,
}

/// What a program posts to a receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveRequest<'e> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub sges: &'e [Sge],
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
    /// Others than its payload takes.
    #[error("it has {given} slots and needs {needed}: use the library of this release")]
    Slots {
        /// What it has.
        given: usize,
        /// What its payload takes.
        needed: usize,
    },
    /// More than a work request may have.
    #[error(
        "it has {sges} scatter-gather entries, at most {SGES_MAX}, and {inline_bytes} inline bytes, at most {INLINE_MAX}: split it"
    )]
    TooLarge {
        /// Scatter-gather entries.
        sges: usize,
        /// Payload in the ring.
        inline_bytes: usize,
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

/// Why a request is not appended to a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// It is no entry of any ring.
    #[error(transparent)]
    Request(#[from] WorkRequestError),
    /// The ring does not take it.
    #[error(transparent)]
    Ring(#[from] RingError),
}

impl AppendError {
    /// A short stable name.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Request(error) => error.reason(),
            Self::Ring(error) => error.reason(),
        }
    }
}

mod flag {
    pub(super) const SIGNALED: u8 = 1;
    pub(super) const FENCE: u8 = 2;
    pub(super) const SOLICITED: u8 = 4;
    pub(super) const IMMEDIATE: u8 = 8;
    pub(super) const INLINE: u8 = 16;
    pub(super) const ALL: u8 = 31;
}

mod opcode {
    pub(super) const RECEIVE: u8 = 0;
    pub(super) const SEND: u8 = 1;
    pub(super) const WRITE: u8 = 2;
    pub(super) const READ: u8 = 3;
    pub(super) const FETCH_ADD: u8 = 4;
    pub(super) const COMPARE_SWAP: u8 = 5;
    pub(super) const SEND_DATAGRAM: u8 = 6;
}

/// Where it goes, and how much it carries.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Target {
    address: u64,
    key: u32,
    inline_bytes: u32,
}

/// Of an atomic.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Operands {
    add_or_compare: u64,
    swap: u64,
}

impl RemoteAddress {
    fn target(self) -> Target {
        Target {
            address: self.address,
            key: self.key,
            inline_bytes: 0,
        }
    }
}

impl DatagramAddress {
    fn target(self) -> Target {
        Target {
            address: u64::from(self.address_handle) | u64::from(self.queue_pair) << 32,
            key: self.q_key,
            inline_bytes: 0,
        }
    }

    fn of(target: Target) -> Self {
        Self {
            address_handle: target.address as u32,
            queue_pair: (target.address >> 32) as u32,
            q_key: target.key,
        }
    }
}

#[inline]
fn check_size(sges: usize, inline_bytes: usize) -> Result<(), WorkRequestError> {
    if sges <= SGES_MAX && inline_bytes <= INLINE_MAX {
        return Ok(());
    }
    Err(WorkRequestError::TooLarge { sges, inline_bytes })
}

fn payload_offset(code: u8) -> usize {
    match code {
        opcode::RECEIVE => TARGET,
        opcode::FETCH_ADD | opcode::COMPARE_SWAP => ATOMIC_PAYLOAD,
        _ => OPERANDS,
    }
}

/// Slots of an entry of this kind with so much payload.
fn slots_of(code: u8, payload_bytes: usize) -> usize {
    (payload_offset(code) + payload_bytes).div_ceil(SLOT_BYTES)
}

/// Slots of a ring for as many of a queue pair's work requests as it may have outstanding, each with so many
/// scatter-gather entries or inline bytes: a power of two. `None` where no ring is as large.
#[must_use]
pub fn ring_slots(requests: u32, sges: usize, inline_bytes: usize) -> Option<u32> {
    check_size(sges, inline_bytes).ok()?;
    // Atomics have one entry, and then take one slot as well.
    let by_sges = slots_of(opcode::SEND, sges * size_of::<Sge>());
    let by_bytes = slots_of(opcode::SEND, inline_bytes);
    let entry = u32::try_from(by_sges.max(by_bytes)).ok()?;
    let slots = requests
        .max(1)
        .checked_mul(entry)?
        .checked_next_power_of_two()?;
    (slots <= crate::ring::RING_SLOTS_MAX).then_some(slots)
}

/// Puts two words to their places, by the bytes before them.
#[inline]
fn put(slots: &mut impl Slots, at: usize, [first, second]: [u64; 2]) {
    slots.set(at / size_of::<u64>(), first);
    slots.set(at / size_of::<u64>() + 1, second);
}

#[inline]
fn put_sges(slots: &mut impl Slots, at: usize, sges: &[Sge]) {
    for (at, sge) in (at..).step_by(size_of::<Sge>()).zip(sges) {
        put(slots, at, zerocopy::transmute!(*sge));
    }
}

fn put_bytes(slots: &mut impl Slots, at: usize, bytes: &[u8]) {
    for (at, part) in (at / size_of::<u64>()..).zip(bytes.chunks(size_of::<u64>())) {
        let mut word = [0; size_of::<u64>()];
        word[..part.len()].copy_from_slice(part);
        slots.set(at, u64::from_ne_bytes(word));
    }
}

fn get<T: FromBytes + Default>(bytes: &[u8], at: usize) -> T {
    let value = bytes.get(at..).map(T::read_from_prefix);
    // An entry has a whole slot, which holds every header.
    value
        .and_then(Result::ok)
        .map_or_else(T::default, |(value, _)| value)
}

#[inline]
fn flags(signaled: bool, fence: bool, solicited: bool, has_immediate: bool) -> u8 {
    let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    flag(signaled, flag::SIGNALED)
        | flag(fence, flag::FENCE)
        | flag(solicited, flag::SOLICITED)
        | flag(has_immediate, flag::IMMEDIATE)
}

impl WorkRequest<'_> {
    /// Bytes of its entry before the payload.
    fn payload_offset(&self) -> usize {
        match self.operation {
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => ATOMIC_PAYLOAD,
            _ => OPERANDS,
        }
    }

    /// Slots of its entry.
    #[inline]
    fn slots(&self) -> Result<usize, WorkRequestError> {
        let payload_bytes = match self.payload {
            Payload::Sges(sges) => {
                check_size(sges.len(), 0)?;
                size_of_val(sges)
            }
            Payload::Inline(bytes) => {
                check_size(0, bytes.len())?;
                bytes.len()
            }
        };
        Ok((self.payload_offset() + payload_bytes).div_ceil(SLOT_BYTES))
    }

    /// Fills its slots, of which there are `count`.
    #[inline]
    fn fill(&self, count: usize, slots: &mut impl Slots) {
        let mut operands = None;
        let (opcode, mut target) = match self.operation {
            Operation::Send => (opcode::SEND, Target::default()),
            Operation::SendDatagram(to) => (opcode::SEND_DATAGRAM, to.target()),
            Operation::Write(remote) => (opcode::WRITE, remote.target()),
            Operation::Read(remote) => (opcode::READ, remote.target()),
            Operation::FetchAdd { remote, add } => {
                operands = Some([add, 0]);
                (opcode::FETCH_ADD, remote.target())
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                operands = Some([compare, swap]);
                (opcode::COMPARE_SWAP, remote.target())
            }
        };
        if let Some(operands) = operands {
            put(slots, OPERANDS, operands);
        }
        let begin = self.payload_offset();
        let (kind, sges) = match self.payload {
            Payload::Sges(sges) => {
                put_sges(slots, begin, sges);
                (0, sges.len())
            }
            Payload::Inline(bytes) => {
                put_bytes(slots, begin, bytes);
                target.inline_bytes = bytes.len() as u32;
                (flag::INLINE, 0)
            }
        };
        let has_immediate = self.immediate.is_some();
        let head = Head {
            opcode,
            flags: kind | flags(self.signaled, self.fence, self.solicited, has_immediate),
            slots: count as u8,
            third: sges as u8,
            immediate: self.immediate.unwrap_or_default(),
            wr_id: self.wr_id,
        };
        put(slots, 0, zerocopy::transmute!(head));
        put(slots, TARGET, zerocopy::transmute!(target));
    }
}

impl ReceiveRequest<'_> {
    /// Slots of its entry.
    #[inline]
    fn slots(&self) -> Result<usize, WorkRequestError> {
        check_size(self.sges.len(), 0)?;
        Ok((TARGET + size_of_val(self.sges)).div_ceil(SLOT_BYTES))
    }

    /// Fills its slots, of which there are `count`.
    #[inline]
    fn fill(&self, count: usize, slots: &mut impl Slots) {
        let head = Head {
            opcode: opcode::RECEIVE,
            flags: 0,
            slots: count as u8,
            third: self.sges.len() as u8,
            immediate: 0,
            wr_id: self.wr_id,
        };
        put(slots, 0, zerocopy::transmute!(head));
        put_sges(slots, TARGET, self.sges);
    }
}

impl<M: Deref<Target = [AtomicU64]>> Batch<'_, M> {
    /// Fills the next slots with a work request.
    ///
    /// # Errors
    /// [`WorkRequestError::TooLarge`], and those of [`Batch::append`]; the batch is as it was.
    #[inline]
    pub fn append_work_request(&mut self, request: &WorkRequest<'_>) -> Result<(), AppendError> {
        let count = request.slots()?;
        request.fill(count, &mut self.reserve(count)?);
        Ok(())
    }

    /// Fills the next slot with a plain work request.
    ///
    /// # Errors
    /// [`WorkRequestError::TooLarge`], and those of [`Batch::append`]; the batch is as it was.
    #[inline(always)]
    pub fn append_plain(&mut self, request: &PlainRequest<'_>) -> Result<(), AppendError> {
        let count = request.sges.len();
        if count > PLAIN_SGES_MAX {
            return Err(AppendError::Request(WorkRequestError::TooLarge {
                sges: count,
                inline_bytes: 0,
            }));
        }
        let head = Head {
            opcode: request.operation as u8,
            flags: flags(
                request.signaled,
                request.fence,
                request.solicited,
                request.immediate.is_some(),
            ),
            slots: 1,
            third: count as u8,
            immediate: request.immediate.unwrap_or_default(),
            wr_id: request.wr_id,
        };
        let slot = &mut self.reserve_slot()?;
        put(slot, 0, zerocopy::transmute!(head));
        put(slot, TARGET, zerocopy::transmute!(request.remote.target()));
        if let [first, rest @ ..] = request.sges {
            put(slot, OPERANDS, zerocopy::transmute!(*first));
            if let [second, ..] = rest {
                put(
                    slot,
                    OPERANDS + size_of::<Sge>(),
                    zerocopy::transmute!(*second),
                );
            }
        }
        Ok(())
    }

    /// Fills the next slots with a receive.
    ///
    /// # Errors
    /// As [`Batch::append_work_request`].
    #[inline]
    pub fn append_receive(&mut self, receive: &ReceiveRequest<'_>) -> Result<(), AppendError> {
        let count = receive.slots()?;
        receive.fill(count, &mut self.reserve(count)?);
        Ok(())
    }
}

impl Entry {
    /// Makes it this work request.
    ///
    /// # Errors
    /// [`WorkRequestError::TooLarge`]; nothing was changed.
    pub fn set_work_request(&mut self, request: &WorkRequest<'_>) -> Result<(), WorkRequestError> {
        let count = request.slots()?;
        request.fill(count, self.resize(count));
        Ok(())
    }

    /// The work request that it is.
    ///
    /// # Errors
    /// The slots are no valid work request.
    pub fn work_request(&self) -> Result<WorkRequest<'_>, WorkRequestError> {
        let bytes = self.bytes();
        let (head, target): (Head, Target) = (get(bytes, 0), get(bytes, TARGET));
        let remote = RemoteAddress {
            address: target.address,
            key: target.key,
        };
        let operands = || get::<Operands>(bytes, OPERANDS);
        let operation = match head.opcode {
            opcode::SEND => Operation::Send,
            opcode::SEND_DATAGRAM => Operation::SendDatagram(DatagramAddress::of(target)),
            opcode::WRITE => Operation::Write(remote),
            opcode::READ => Operation::Read(remote),
            opcode::FETCH_ADD => Operation::FetchAdd {
                remote,
                add: operands().add_or_compare,
            },
            opcode::COMPARE_SWAP => Operation::CompareSwap {
                remote,
                compare: operands().add_or_compare,
                swap: operands().swap,
            },
            other => return Err(WorkRequestError::Opcode(other)),
        };
        let has = |bit| head.flags & bit != 0;
        // What brings bytes here carries none, and only what has a receive at the other end an immediate.
        let carries = !matches!(
            operation,
            Operation::Read(_) | Operation::FetchAdd { .. } | Operation::CompareSwap { .. }
        );
        let allowed = match carries {
            true => flag::ALL,
            false => flag::ALL & !(flag::INLINE | flag::IMMEDIATE),
        };
        let sges = usize::from(head.third);
        let stray = if has(flag::INLINE) {
            sges
        } else {
            target.inline_bytes as usize
        };
        if head.flags & !allowed != 0 || stray != 0 {
            return Err(WorkRequestError::Flags(head.flags));
        }
        let payload = match has(flag::INLINE) {
            true => Payload::Inline(
                self.payload(head.opcode, 0, target.inline_bytes as usize)?
                    .1,
            ),
            false => Payload::Sges(self.payload(head.opcode, sges, 0)?.0),
        };
        Ok(WorkRequest {
            wr_id: head.wr_id,
            operation,
            immediate: has(flag::IMMEDIATE).then_some(head.immediate),
            signaled: has(flag::SIGNALED),
            fence: has(flag::FENCE),
            solicited: has(flag::SOLICITED),
            payload,
        })
    }

    /// Makes it a receive.
    ///
    /// # Errors
    /// [`WorkRequestError::TooLarge`]; nothing was changed.
    pub fn set_receive(&mut self, receive: &ReceiveRequest<'_>) -> Result<(), WorkRequestError> {
        let count = receive.slots()?;
        receive.fill(count, self.resize(count));
        Ok(())
    }

    /// The receive that it is.
    ///
    /// # Errors
    /// The slots are no valid receive.
    pub fn receive(&self) -> Result<ReceiveRequest<'_>, WorkRequestError> {
        let head: Head = get(self.bytes(), 0);
        if head.opcode != opcode::RECEIVE {
            return Err(WorkRequestError::Opcode(head.opcode));
        }
        if head.flags != 0 {
            return Err(WorkRequestError::Flags(head.flags));
        }
        let (sges, _) = self.payload(head.opcode, head.third.into(), 0)?;
        Ok(ReceiveRequest {
            wr_id: head.wr_id,
            sges,
        })
    }

    /// The payload, of which there are so many entries or inline bytes.
    fn payload(
        &self,
        code: u8,
        sges: usize,
        inline_bytes: usize,
    ) -> Result<(&[Sge], &[u8]), WorkRequestError> {
        check_size(sges, inline_bytes)?;
        let payload_bytes = sges * size_of::<Sge>() + inline_bytes;
        let (given, needed) = (self.slots().len(), slots_of(code, payload_bytes));
        let wrong = WorkRequestError::Slots { given, needed };
        if given != needed {
            return Err(wrong);
        }
        let begin = payload_offset(code);
        let payload = self
            .bytes()
            .get(begin..begin + payload_bytes)
            .ok_or(wrong)?;
        let (entries, bytes) =
            <[Sge]>::ref_from_prefix_with_elems(payload, sges).map_err(|_| wrong)?;
        Ok((entries, bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ring::{Consumer, Producer, RING_HEADER_WORDS, Ring, SLOT_WORDS, Slot};
    use crate::sync::AtomicU64;

    fn sge() -> impl Strategy<Value = Sge> {
        any::<(u64, u32, u32)>().prop_map(|(address, bytes, local_key)| Sge {
            address,
            bytes,
            local_key,
        })
    }

    fn operation() -> impl Strategy<Value = Operation> {
        let remote =
            || any::<(u64, u32)>().prop_map(|(address, key)| RemoteAddress { address, key });
        prop_oneof![
            Just(Operation::Send),
            any::<(u32, u32, u32)>().prop_map(|(address_handle, queue_pair, q_key)| {
                Operation::SendDatagram(DatagramAddress {
                    address_handle,
                    queue_pair,
                    q_key,
                })
            }),
            remote().prop_map(Operation::Write),
            remote().prop_map(Operation::Read),
            (remote(), any::<u64>()).prop_map(|(remote, add)| Operation::FetchAdd { remote, add }),
            (remote(), any::<(u64, u64)>()).prop_map(|(remote, (compare, swap))| {
                Operation::CompareSwap {
                    remote,
                    compare,
                    swap,
                }
            }),
        ]
    }

    /// An entry of the slots that a program wrote past its library.
    fn taken(slots: &[Slot]) -> Option<Entry> {
        let words: Vec<AtomicU64> = (0..RING_HEADER_WORDS + 32 * SLOT_WORDS)
            .map(|_| AtomicU64::new(0))
            .collect();
        let ring = Ring::new(words.as_slice()).unwrap();
        Producer::new(ring, 0).push(slots).unwrap();
        let mut entry = Entry::new();
        let taken = entry.take(&mut Consumer::new(ring, 0));
        taken.is_ok_and(|taken| taken).then_some(entry)
    }

    /// What comes out of a ring that ends behind the first slot of what is appended. The slots had other entries before.
    fn appended(
        append: impl FnOnce(&mut Batch<'_, &[AtomicU64]>) -> Result<(), AppendError>,
    ) -> Entry {
        let words: Vec<AtomicU64> = (0..RING_HEADER_WORDS + 32 * SLOT_WORDS)
            .map(|_| AtomicU64::new(u64::MAX))
            .collect();
        let begin = u32::MAX;
        for count in &words[..RING_HEADER_WORDS] {
            count.store(begin.into(), crate::sync::Ordering::Relaxed);
        }
        let ring = Ring::new(words.as_slice()).unwrap();
        let mut producer = Producer::new(ring, begin);
        let mut batch = producer.begin();
        append(&mut batch).unwrap();
        batch.commit();
        let mut entry = Entry::new();
        assert_eq!(entry.take(&mut Consumer::new(ring, begin)), Ok(true));
        entry
    }

    proptest! {
        #[test]
        fn a_work_request_survives_a_round_trip(
            wr_id: u64,
            operation in operation(),
            immediate: Option<u32>,
            (signaled, fence, solicited) in any::<(bool, bool, bool)>(),
            sges in prop::collection::vec(sge(), 0..=SGES_MAX),
            inline in prop::option::of(prop::collection::vec(any::<u8>(), 0..=INLINE_MAX)),
        ) {
            let carries = matches!(
                operation,
                Operation::Send | Operation::SendDatagram(_) | Operation::Write(_)
            );
            let request = WorkRequest {
                wr_id,
                operation,
                immediate: immediate.filter(|_| carries),
                signaled,
                fence,
                solicited,
                payload: match &inline {
                    Some(bytes) if carries => Payload::Inline(bytes),
                    _ => Payload::Sges(&sges),
                },
            };
            // What the entry was before does not shine through.
            let mut entry = Entry::new();
            let all = entry.resize(ENTRY_SLOTS_MAX);
            (0..ENTRY_SLOTS_MAX * SLOT_WORDS).for_each(|at| all.set(at, u64::MAX));
            entry.set_work_request(&request).unwrap();
            prop_assert_eq!(entry.work_request(), Ok(request));
            let taken = taken(entry.slots()).unwrap();
            prop_assert_eq!(taken.work_request(), Ok(request));
            // The same where it is written to the ring itself, also where the ring ends within it.
            let whole = appended(|batch| batch.append_work_request(&request));
            prop_assert_eq!(whole.work_request(), Ok(request));
            // And where it is plain.
            let remote = RemoteAddress::default();
            let (operation, remote) = match request.operation {
                Operation::Send => (PlainOperation::Send, remote),
                Operation::Write(remote) => (PlainOperation::Write, remote),
                Operation::Read(remote) => (PlainOperation::Read, remote),
                _ => return Ok(()),
            };
            let sges = &sges[..sges.len().min(PLAIN_SGES_MAX)];
            let plain = PlainRequest {
                wr_id,
                operation,
                remote,
                immediate: request.immediate,
                signaled,
                fence,
                solicited,
                sges,
            };
            let payload = Payload::Sges(sges);
            let plain = appended(|batch| batch.append_plain(&plain));
            prop_assert_eq!(plain.work_request(), Ok(WorkRequest { payload, ..request }));
        }

        #[test]
        fn a_receive_request_survives_a_round_trip(
            wr_id: u64,
            sges in prop::collection::vec(sge(), 0..=SGES_MAX),
        ) {
            let request = ReceiveRequest { wr_id, sges: &sges };
            let mut entry = Entry::new();
            entry.set_receive(&request).unwrap();
            let taken = taken(entry.slots()).unwrap();
            prop_assert_eq!(taken.receive(), Ok(request));
            let appended = appended(|batch| batch.append_receive(&request));
            prop_assert_eq!(appended.receive(), Ok(request));
        }

        #[test]
        fn any_words_are_a_work_request_or_refused(
            words: [u64; SLOT_WORDS],
            (opcode, flags, slots, sges) in (0..8u8, 0..64u8, 0..20u8, 0..40u8),
            inline_bytes in 0..2000u32,
            rest in prop::collection::vec(any::<Slot>(), 19),
        ) {
            let mut likely = words;
            let low = u32::from_ne_bytes([opcode, flags, slots, sges]);
            likely[0] = u64::from(low);
            likely[3] = u64::from(inline_bytes) << 32;
            for first in [words, likely] {
                let mut slots = rest.clone();
                slots[0] = first;
                let Some(entry) = taken(&slots) else { continue };
                let _ = entry.receive();
                if let Ok(request) = entry.work_request() {
                    let mut again = Entry::new();
                    prop_assert_eq!(again.set_work_request(&request), Ok(()));
                    prop_assert_eq!(again.work_request(), Ok(request));
                    prop_assert_eq!(again.slots().len(), entry.slots().len());
                }
            }
        }
    }

    fn send(payload: Payload<'_>) -> WorkRequest<'_> {
        WorkRequest {
            wr_id: 1,
            operation: Operation::Send,
            immediate: None,
            signaled: true,
            fence: false,
            solicited: false,
            payload,
        }
    }

    #[test]
    fn the_commonest_requests_take_one_slot() {
        let mut entry = Entry::new();
        let sges = [Sge::default(); 3];
        let remote = RemoteAddress::default();
        let mut slots = |request: &WorkRequest<'_>| {
            entry.set_work_request(request).unwrap();
            entry.slots().len()
        };
        assert_eq!(slots(&send(Payload::Sges(&sges[..2]))), 1);
        assert_eq!(slots(&send(Payload::Sges(&sges))), 2);
        assert_eq!(slots(&send(Payload::Inline(&[0; 32]))), 1);
        assert_eq!(
            slots(&send(Payload::Inline(&[0; INLINE_MAX]))),
            ENTRY_SLOTS_MAX
        );
        let atomic = WorkRequest {
            operation: Operation::FetchAdd { remote, add: 1 },
            ..send(Payload::Sges(&sges[..1]))
        };
        assert_eq!(slots(&atomic), 1);
        let receive = ReceiveRequest {
            wr_id: 1,
            sges: &sges,
        };
        entry.set_receive(&receive).unwrap();
        assert_eq!(entry.slots().len(), 1);
    }

    #[test]
    fn a_ring_holds_as_many_requests_as_a_queue_pair_may_have() {
        assert_eq!(ring_slots(128, 1, 0), Some(128));
        assert_eq!(ring_slots(128, 1, 64), Some(256));
        assert_eq!(ring_slots(4096, 1, INLINE_MAX), Some(1 << 17));
        assert_eq!(ring_slots(0, 0, 0), Some(1));
        assert_eq!(ring_slots(1 << 20, SGES_MAX, 0), None);
        assert_eq!(ring_slots(1, SGES_MAX + 1, 0), None);
    }

    #[test]
    fn too_many_entries_and_too_many_inline_bytes_are_refused() {
        let mut entry = Entry::new();
        let sges = vec![Sge::default(); SGES_MAX + 1];
        let receive = ReceiveRequest {
            wr_id: 1,
            sges: &sges,
        };
        let error = entry.set_receive(&receive).unwrap_err().to_string();
        assert!(
            error.contains("33 scatter-gather entries, at most 32"),
            "{error}"
        );
        let request = send(Payload::Inline(&[0; INLINE_MAX + 1]));
        let error = entry.set_work_request(&request).unwrap_err().to_string();
        assert!(error.contains("1025 inline bytes, at most 1024"), "{error}");
    }
}
