//! The payload of a request: a read, or an atomic change of one word. The header names what is asked for.

use super::field::request;
use super::{DropReason, get_u32, get_u64, put_u32, put_u64};
use serde::{Deserialize, Serialize};

/// A change of 8 bytes, little endian, that nothing else comes between. Its response is what stood there before.
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
    /// Bytes of the word and of the response.
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

/// What is asked; the payload of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// So many bytes.
    Read {
        /// How many.
        bytes: u64,
    },
    /// A change of one word.
    Atomic(Atomic),
}

const READ: u32 = 0;
const FETCH_ADD: u32 = 1;
const COMPARE_SWAP: u32 = 2;

impl Request {
    /// Bytes of the payload.
    pub const BYTES: usize = request::COMPARE.end;

    /// Writes the payload.
    pub fn emit(&self) -> [u8; Request::BYTES] {
        let (kind, value, compare) = match *self {
            Request::Read { bytes } => (READ, bytes, 0),
            Request::Atomic(Atomic::FetchAdd { add }) => (FETCH_ADD, add, 0),
            Request::Atomic(Atomic::CompareSwap { compare, swap }) => (COMPARE_SWAP, swap, compare),
        };
        let mut out = [0; Request::BYTES];
        put_u32(&mut out, request::KIND, kind);
        put_u64(&mut out, request::VALUE, value);
        put_u64(&mut out, request::COMPARE, compare);
        out
    }

    /// Reads the payload of an authentic packet.
    ///
    /// # Errors
    /// [`DropReason::Malformed`].
    pub fn parse(payload: &[u8]) -> Result<Request, DropReason> {
        if payload.len() != Request::BYTES || get_u32(payload, request::ZERO) != 0 {
            return Err(DropReason::Malformed);
        }
        let value = get_u64(payload, request::VALUE);
        let compare = get_u64(payload, request::COMPARE);
        match (get_u32(payload, request::KIND), compare) {
            (READ, 0) => Ok(Request::Read { bytes: value }),
            (FETCH_ADD, 0) => Ok(Request::Atomic(Atomic::FetchAdd { add: value })),
            (COMPARE_SWAP, compare) => Ok(Request::Atomic(Atomic::CompareSwap {
                compare,
                swap: value,
            })),
            _ => Err(DropReason::Malformed),
        }
    }

    /// Bytes of the response.
    pub fn response_bytes(&self) -> u64 {
        match self {
            Request::Read { bytes } => *bytes,
            Request::Atomic(_) => Atomic::BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_request() -> impl Strategy<Value = Request> {
        prop_oneof![
            any::<u64>().prop_map(|bytes| Request::Read { bytes }),
            any::<u64>().prop_map(|add| Request::Atomic(Atomic::FetchAdd { add })),
            any::<(u64, u64)>()
                .prop_map(|(compare, swap)| Request::Atomic(Atomic::CompareSwap { compare, swap })),
        ]
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed_back(request in any_request()) {
            prop_assert_eq!(Request::parse(&request.emit()), Ok(request));
        }

        #[test]
        fn no_bytes_make_parsing_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Request::parse(&bytes);
        }
    }
}
