//! The key phase: which key of its direction seals a packet.

use serde::{Deserialize, Serialize};

/// Which key of its direction seals a packet: the number of key updates so far, modulo 4. Two bits tell the
/// previous, the current and the next key apart without trying any (IEEE 802.1AE's association number has two
/// bits for the same purpose; QUIC has one and compares packet numbers, RFC 9001, section 6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KeyPhase(u8);

impl KeyPhase {
    /// The phase that every connection starts with.
    pub const FIRST: KeyPhase = KeyPhase(0);

    /// The phase after this one.
    #[must_use]
    pub const fn next(self) -> KeyPhase {
        KeyPhase((self.0 + 1) & 3)
    }

    /// From the two high bits of the prefix's byte.
    pub(super) const fn from_bits(byte: u8) -> KeyPhase {
        KeyPhase(byte >> 6)
    }

    /// As the two high bits of the prefix's byte.
    pub(super) const fn bits(self) -> u8 {
        self.0 << 6
    }
}
