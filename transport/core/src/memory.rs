//! Where arriving payload goes.
//!
//! The core places nothing itself: it hands each payload with its key and offset to a [`Memory`],
//! which knows the regions, checks the key, the domain and the bounds, and copies (or, where a NIC
//! has placed the bytes already, only checks). What [`Memory::place`] refuses is never acknowledged.

use crate::drops::DropReason;
use crate::units::Key;

/// The memory regions that one connection may write to: those of its protection domain.
pub trait Memory {
    /// Puts `payload` at `offset` of the region that `key` opens.
    ///
    /// # Errors
    /// [`DropReason::Key`], [`DropReason::Bounds`] or [`DropReason::NotArmed`]; nothing was written.
    fn place(&mut self, key: Key, offset: u64, payload: &[u8]) -> Result<(), DropReason>;
}

/// Checks that `length` bytes at `offset` lie within a region of `region` bytes.
///
/// # Errors
/// [`DropReason::Bounds`] when they do not; the sum is checked for overflow.
pub fn check_bounds(region: u64, offset: u64, length: u64) -> Result<(), DropReason> {
    match offset.checked_add(length) {
        Some(end) if end <= region => Ok(()),
        _ => Err(DropReason::Bounds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_overflows_the_offset_is_out_of_bounds() {
        assert_eq!(check_bounds(10, 4, 6), Ok(()));
        assert_eq!(check_bounds(10, 4, 7), Err(DropReason::Bounds));
        assert_eq!(check_bounds(10, u64::MAX, 2), Err(DropReason::Bounds));
    }
}
