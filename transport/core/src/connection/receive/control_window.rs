//! Which control packets were seen: the protection against replays of them.

use crate::drops::DropReason;
use crate::path::PATHS_MAX;
use serde::{Deserialize, Serialize};

/// Words of the replay window of control packets (RFC 6479).
const CONTROL_WORDS: usize = 16;

/// Control packets may overtake each other by this many: one word of the window is being filled.
const CONTROL_WINDOW: u64 = (CONTROL_WORDS as u64 - 1) * 64;

// After an outage every path is probed at once, and a receiver that wakes late reads port by port: the probes of
// one round, and as many acknowledgements and refusals between them, arrive in any order.
const _: () = assert!(CONTROL_WINDOW >= 2 * PATHS_MAX as u64);

/// Which control packets were seen: an anti-replay window that is never shifted (RFC 6479). The word of a number
/// is cleared when the newest number enters it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ControlWindow {
    newest: u64,
    seen: [u64; CONTROL_WORDS],
}

impl ControlWindow {
    /// Refuses a control packet that was seen before, or that is too old to tell.
    pub(super) fn check(&mut self, number: u64) -> Result<(), DropReason> {
        if number > self.newest {
            let (from, to) = (self.newest / 64, number / 64);
            for word in 1..=(to - from).min(CONTROL_WORDS as u64) {
                self.seen[(from + word) as usize % CONTROL_WORDS] = 0;
            }
            self.newest = number;
        } else if self.newest - number >= CONTROL_WINDOW {
            return Err(DropReason::Duplicate);
        }
        let (word, bit) = (
            &mut self.seen[(number / 64) as usize % CONTROL_WORDS],
            1 << (number % 64),
        );
        if *word & bit != 0 {
            return Err(DropReason::Duplicate);
        }
        *word |= bit;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_takes_and_refuses_what_a_list_of_all_numbers_would() {
        let mut window = ControlWindow::default();
        let (mut seen, mut newest) = (std::collections::BTreeSet::new(), 0);
        let mut draw = 1u64;
        for _ in 0..20_000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let step = (draw >> 33) % 1_200;
            let number = (newest + step).saturating_sub(1_100);
            let fresh =
                number > newest || newest - number < CONTROL_WINDOW && !seen.contains(&number);
            assert_eq!(window.check(number).is_ok(), fresh, "{number} at {newest}");
            seen.insert(number);
            newest = newest.max(number);
        }
    }
}
