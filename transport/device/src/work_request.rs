//! Work requests, as they lie in the slots of a send or receive ring.
//!
//! The first slot is the header; the pieces of memory or the inline bytes follow in further slots.
//!
//! | word | of a send ring | of a receive ring |
//! |---|---|---|
//! | 0 | opcode: 8 · flags: 8 · slots: 8 · pieces: 8 · immediate: 32 | the same; opcode and immediate are 0 |
//! | 1 | `wr_id` | `wr_id` |
//! | 2 | remote address | 0 |
//! | 3 | remote key: 32 · inline bytes: 32 | 0 |
//! | 4 | add, or compare | 0 |
//! | 5 | swap | 0 |
//! | 6 | datagrams: address handle: 32 · queue pair: 32 | 0 |
//! | 7 | datagrams: Q_Key: 32 · 0 | 0 |
//!
//! A piece is two words: its address, and its length: 32 · local key: 32. Fields of a word are named from the lowest
//! bit on.

use crate::ring::{SLOT_BYTES, SLOT_WORDS, Slot};

/// Pieces of memory of one work request.
pub const PIECES_MAX: usize = 32;
/// Bytes that a work request may carry itself.
pub const INLINE_MAX: usize = 1024;
/// Slots of one work request.
pub const SLOTS_MAX: u32 = 1 + (INLINE_MAX / SLOT_BYTES) as u32;

const PIECES_PER_SLOT: usize = SLOT_WORDS / 2;

const _: () = assert!(PIECES_MAX.div_ceil(PIECES_PER_SLOT) < SLOTS_MAX as usize);

/// Memory of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Piece {
    /// Its address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u32,
    /// The region that it lies in.
    pub local_key: u32,
}

/// Memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remote {
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
    Write(Remote),
    /// Fetch the bytes from there.
    Read(Remote),
    /// Add to 8 bytes there.
    FetchAdd {
        /// Where.
        remote: Remote,
        /// How much.
        add: u64,
    },
    /// Replace 8 bytes there, if they are as expected.
    CompareSwap {
        /// Where.
        remote: Remote,
        /// What is expected.
        compare: u64,
        /// What is to be there.
        swap: u64,
    },
}

/// Where the bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bytes {
    /// In pieces of the program's memory.
    Pieces(Vec<Piece>),
    /// In the ring.
    Inline(Vec<u8>),
}

/// To whom a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Datagram {
    /// The way there.
    pub address_handle: u32,
    /// The queue pair there.
    pub queue_pair: u32,
    /// The key that it asks for.
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
    pub bytes: Bytes,
    /// Of a datagram.
    pub datagram: Option<Datagram>,
}

/// What a program posts to a receive queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub pieces: Vec<Piece>,
}

/// Slots that are no work request. The program wrote them past its library, or the library has another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WorkRequestError {
    /// No such operation.
    #[error("no operation has the number {0}")]
    Opcode(u8),
    /// Flags that mean nothing, or nothing here.
    #[error("flags {0:#04x} mean nothing for this operation")]
    Flags(u8),
    /// More slots than any has, or others than its bytes take.
    #[error("it has {given} slots and needs {needed}")]
    Slots {
        /// What it says.
        given: u32,
        /// What its pieces or bytes take.
        needed: u32,
    },
    /// More than one work request may have.
    #[error(
        "it has {pieces} pieces, at most {PIECES_MAX}, and {inline_bytes} inline bytes, at most {INLINE_MAX}"
    )]
    TooMuch {
        /// Pieces.
        pieces: u32,
        /// Bytes in the ring.
        inline_bytes: u32,
    },
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
    pieces: usize,
    inline_bytes: usize,
}

impl Header {
    fn of(slot: &Slot) -> Result<Self, WorkRequestError> {
        let [opcode, flags, slots, pieces, ..] = slot[0].to_le_bytes();
        let (_, inline_bytes) = split(slot[3]);
        let has = |bit| flags & bit != 0;
        let inline = inline_bytes as usize;
        let is_known = flags & !flag::ALL == 0 && (has(flag::INLINE) || inline == 0);
        if !is_known || has(flag::INLINE) && pieces != 0 {
            return Err(WorkRequestError::Flags(flags));
        }
        if usize::from(pieces) > PIECES_MAX || inline > INLINE_MAX {
            return Err(WorkRequestError::TooMuch {
                pieces: pieces.into(),
                inline_bytes,
            });
        }
        let behind = match has(flag::INLINE) {
            true => inline.div_ceil(SLOT_BYTES),
            false => usize::from(pieces).div_ceil(PIECES_PER_SLOT),
        };
        let (given, needed) = (u32::from(slots), 1 + behind as u32);
        if given != needed {
            return Err(WorkRequestError::Slots { given, needed });
        }
        Ok(Self {
            opcode,
            flags,
            slots: needed,
            pieces: pieces.into(),
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
/// The slot begins none.
pub fn slots(first: &Slot) -> Result<u32, WorkRequestError> {
    Header::of(first).map(|header| header.slots)
}

fn words(rest: &[Slot]) -> impl Iterator<Item = u64> {
    rest.iter().flatten().copied()
}

fn read_pieces(rest: &[Slot], pieces: usize) -> Vec<Piece> {
    let words: Vec<u64> = words(rest).collect();
    let read = words.as_chunks::<2>().0.iter().take(pieces);
    read.map(|&[address, second]| {
        let (bytes, local_key) = split(second);
        Piece {
            address,
            bytes,
            local_key,
        }
    })
    .collect()
}

fn write_pieces(pieces: &[Piece], out: &mut Vec<Slot>) {
    for some in pieces.chunks(PIECES_PER_SLOT) {
        let mut slot = Slot::default();
        for (words, piece) in slot.as_chunks_mut::<2>().0.iter_mut().zip(some) {
            *words = [piece.address, join(piece.bytes, piece.local_key)];
        }
        out.push(slot);
    }
}

fn first_word(opcode: u8, flags: u8, slots: usize, pieces: usize, immediate: u32) -> u64 {
    let low = u32::from_le_bytes([opcode, flags, slots as u8, pieces as u8]);
    join(low, immediate)
}

fn too_much(pieces: usize, inline_bytes: usize) -> Result<(), WorkRequestError> {
    if pieces <= PIECES_MAX && inline_bytes <= INLINE_MAX {
        return Ok(());
    }
    Err(WorkRequestError::TooMuch {
        pieces: u32::try_from(pieces).unwrap_or(u32::MAX),
        inline_bytes: u32::try_from(inline_bytes).unwrap_or(u32::MAX),
    })
}

impl WorkRequest {
    /// Writes its slots to `out`, which is emptied before.
    ///
    /// # Errors
    /// [`WorkRequestError::TooMuch`].
    pub fn encode(&self, out: &mut Vec<Slot>) -> Result<(), WorkRequestError> {
        out.clear();
        out.push(Slot::default());
        let mut flags = 0;
        let (pieces, inline_bytes) = match &self.bytes {
            Bytes::Pieces(pieces) => {
                too_much(pieces.len(), 0)?;
                write_pieces(pieces, out);
                (pieces.len(), 0)
            }
            Bytes::Inline(bytes) => {
                too_much(0, bytes.len())?;
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
            Operation::Send => (opcode::SEND, Remote::default()),
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
        header[0] = first_word(opcode, flags, out.len(), pieces, immediate);
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
    /// They are none.
    pub fn decode(first: &Slot, rest: &[Slot]) -> Result<Self, WorkRequestError> {
        let header = Header::of(first)?;
        if rest.len() + 1 != header.slots as usize {
            return Err(WorkRequestError::Slots {
                given: rest.len() as u32 + 1,
                needed: header.slots,
            });
        }
        let remote = Remote {
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
        let bytes = if header.has(flag::INLINE) {
            let mut bytes: Vec<u8> = words(rest).flat_map(u64::to_le_bytes).collect();
            bytes.truncate(header.inline_bytes);
            Bytes::Inline(bytes)
        } else {
            Bytes::Pieces(read_pieces(rest, header.pieces))
        };
        let (address_handle, queue_pair) = split(first[6]);
        Ok(Self {
            wr_id: first[1],
            operation,
            immediate: header.has(flag::IMMEDIATE).then_some(split(first[0]).1),
            signaled: header.has(flag::SIGNALED),
            fence: header.has(flag::FENCE),
            solicited: header.has(flag::SOLICITED),
            bytes,
            datagram: header.has(flag::DATAGRAM).then_some(Datagram {
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
    /// [`WorkRequestError::TooMuch`].
    pub fn encode(&self, out: &mut Vec<Slot>) -> Result<(), WorkRequestError> {
        too_much(self.pieces.len(), 0)?;
        out.clear();
        out.push(Slot::default());
        write_pieces(&self.pieces, out);
        out[0][0] = first_word(0, 0, out.len(), self.pieces.len(), 0);
        out[0][1] = self.wr_id;
        Ok(())
    }

    /// Reads the slots of one receive, the first and the further ones.
    ///
    /// # Errors
    /// They are none.
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
            pieces: read_pieces(rest, header.pieces),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece() -> impl Strategy<Value = Piece> {
        any::<(u64, u32, u32)>().prop_map(|(address, bytes, local_key)| Piece {
            address,
            bytes,
            local_key,
        })
    }

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        prop::collection::vec(piece(), 0..=PIECES_MAX)
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
            pieces in pieces(),
            inline in prop::option::of(prop::collection::vec(any::<u8>(), 0..=INLINE_MAX)),
            datagram: Option<(u32, u32, u32)>,
        ) -> WorkRequest {
            let remote = Remote { address, key };
            let operation = match which {
                0 => Operation::Send,
                1 => Operation::Write(remote),
                2 => Operation::Read(remote),
                3 => Operation::FetchAdd { remote, add: operands.0 },
                _ => Operation::CompareSwap { remote, compare: operands.0, swap: operands.1 },
            };
            let datagram = datagram.filter(|_| which == 0).map(|(address_handle, queue_pair, q_key)| Datagram {
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
                bytes: match inline {
                    Some(bytes) if which < 2 => Bytes::Inline(bytes),
                    _ => Bytes::Pieces(pieces),
                },
                datagram,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(request in work_request()) {
            let mut encoded = Vec::new();
            request.encode(&mut encoded).unwrap();
            let (first, rest) = encoded.split_first().unwrap();
            prop_assert_eq!(slots(first), Ok(encoded.len() as u32));
            prop_assert!(encoded.len() as u32 <= SLOTS_MAX);
            prop_assert_eq!(WorkRequest::decode(first, rest), Ok(request));
        }

        #[test]
        fn a_receive_too(wr_id: u64, pieces in pieces()) {
            let request = ReceiveRequest { wr_id, pieces };
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
                if let Ok(slots) = slots(&first) {
                    prop_assert!((1..=SLOTS_MAX).contains(&slots));
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
    fn too_many_pieces_and_too_many_inline_bytes_are_refused() {
        let mut out = Vec::new();
        let pieces = vec![Piece::default(); PIECES_MAX + 1];
        let receive = ReceiveRequest { wr_id: 1, pieces };
        let error = receive.encode(&mut out).unwrap_err();
        assert!(
            error.to_string().contains("33 pieces, at most 32"),
            "{error}"
        );
        let request = WorkRequest {
            wr_id: 1,
            operation: Operation::Send,
            immediate: None,
            signaled: true,
            fence: false,
            solicited: false,
            bytes: Bytes::Inline(vec![0; INLINE_MAX + 1]),
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
