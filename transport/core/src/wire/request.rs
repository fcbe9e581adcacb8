//! The payload of a request: a read, or an atomic change of one word. The header names what is asked for.

use super::field::wanted;
use super::{DropReason, Key, get_u32, get_u64, put_u32, put_u64};
use serde::{Deserialize, Serialize};

/// A change of 8 bytes, little endian, that nothing else comes between. Its answer is what stood there before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Atomic {
    /// Adds, modulo 2^64.
    FetchAdd {
        /// What is added.
        add: u64,
    },
    /// Puts `swap` there if `compare` stands there.
    CompareSwap {
        /// What must stand there.
        compare: u64,
        /// What is put there.
        swap: u64,
    },
}

impl Atomic {
    /// Bytes of the word and of the answer.
    pub const BYTES: u64 = 8;

    /// What the word becomes.
    #[must_use]
    pub fn apply(self, word: u64) -> u64 {
        match self {
            Atomic::FetchAdd { add } => word.wrapping_add(add),
            Atomic::CompareSwap { compare, swap } if word == compare => swap,
            Atomic::CompareSwap { .. } => word,
        }
    }
}

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RequestKind {
    /// So many bytes.
    Read {
        /// How many.
        bytes: u64,
    },
    /// A change of one word.
    Atomic(Atomic),
}

/// The payload of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// What is asked.
    pub kind: RequestKind,
    /// The key of the sender's region that the answer goes to.
    pub answer_key: Key,
    /// Where in that region.
    pub answer_offset: u64,
}

const READ: u32 = 0;
const FETCH_ADD: u32 = 1;
const COMPARE_SWAP: u32 = 2;

impl Request {
    /// Bytes of the payload.
    pub const BYTES: usize = wanted::COMPARE.end;

    /// Writes the payload.
    pub fn emit(&self) -> [u8; Request::BYTES] {
        let (kind, value, compare) = match self.kind {
            RequestKind::Read { bytes } => (READ, bytes, 0),
            RequestKind::Atomic(Atomic::FetchAdd { add }) => (FETCH_ADD, add, 0),
            RequestKind::Atomic(Atomic::CompareSwap { compare, swap }) => {
                (COMPARE_SWAP, swap, compare)
            }
        };
        let mut out = [0; Request::BYTES];
        put_u32(&mut out, wanted::KIND, kind);
        put_u64(&mut out, wanted::ANSWER_KEY, self.answer_key.0);
        put_u64(&mut out, wanted::ANSWER_OFFSET, self.answer_offset);
        put_u64(&mut out, wanted::VALUE, value);
        put_u64(&mut out, wanted::COMPARE, compare);
        out
    }

    /// Reads the payload of an authentic packet.
    ///
    /// # Errors
    /// [`DropReason::Malformed`].
    pub fn parse(payload: &[u8]) -> Result<Request, DropReason> {
        if payload.len() != Request::BYTES || get_u32(payload, wanted::ZERO) != 0 {
            return Err(DropReason::Malformed);
        }
        let value = get_u64(payload, wanted::VALUE);
        let compare = get_u64(payload, wanted::COMPARE);
        let kind = match (get_u32(payload, wanted::KIND), compare) {
            (READ, 0) => RequestKind::Read { bytes: value },
            (FETCH_ADD, 0) => RequestKind::Atomic(Atomic::FetchAdd { add: value }),
            (COMPARE_SWAP, compare) => RequestKind::Atomic(Atomic::CompareSwap {
                compare,
                swap: value,
            }),
            _ => return Err(DropReason::Malformed),
        };
        Ok(Request {
            kind,
            answer_key: Key(get_u64(payload, wanted::ANSWER_KEY)),
            answer_offset: get_u64(payload, wanted::ANSWER_OFFSET),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_kind() -> impl Strategy<Value = RequestKind> {
        prop_oneof![
            any::<u64>().prop_map(|bytes| RequestKind::Read { bytes }),
            any::<u64>().prop_map(|add| RequestKind::Atomic(Atomic::FetchAdd { add })),
            any::<(u64, u64)>().prop_map(|(compare, swap)| RequestKind::Atomic(
                Atomic::CompareSwap { compare, swap }
            )),
        ]
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed_back(kind in any_kind(), key: u64, answer_offset: u64) {
            let request = Request { kind, answer_key: Key(key), answer_offset };
            prop_assert_eq!(Request::parse(&request.emit()), Ok(request));
        }

        #[test]
        fn no_bytes_make_parsing_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Request::parse(&bytes);
        }
    }
}
