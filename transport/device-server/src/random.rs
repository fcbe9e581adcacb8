//! Numbers that nobody can guess.

use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of the system's randomness.
pub(crate) fn draw<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the engine has drawn from the system's randomness before, which does not end");
    bytes
}

/// A number of 32 bits.
pub(crate) fn word() -> u32 {
    u32::from_ne_bytes(draw())
}
