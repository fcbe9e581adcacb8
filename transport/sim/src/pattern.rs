//! What messages consist of: bytes that name their message and their place in it.

use std::sync::LazyLock;

/// Bytes of the cycle that every message's content is cut from. A prime, so that no packet or chunk
/// size divides it: bytes placed at a wrong offset differ.
const CYCLE: usize = 65_537;

/// The longest slice asked for at once: more than a chunk's payload.
pub const LONGEST: usize = 1 << 16;

static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut block: Vec<u8> = (0..CYCLE)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect();
    block.extend_from_within(..LONGEST);
    block
});

/// What message `message` holds from `offset` on: the next [`LONGEST`] bytes of it.
pub fn from(message: u64, offset: u64) -> &'static [u8] {
    let start = (message.wrapping_mul(40_503).wrapping_add(offset) % CYCLE as u64) as usize;
    &BLOCK[start..start + LONGEST]
}

/// The `length` bytes that message `message` has at `offset`; [`LONGEST`] at most.
pub fn slice(message: u64, offset: u64, length: usize) -> &'static [u8] {
    &from(message, offset)[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_the_message_and_the_offset_only() {
        assert_eq!(slice(3, 100, 50)[10..], slice(3, 110, 40)[..]);
        assert_ne!(slice(3, 100, 50), slice(4, 100, 50));
        assert_ne!(slice(3, 100, 50), slice(3, 8292, 50));
        assert_eq!(slice(3, 0, LONGEST).len(), LONGEST);
    }
}
