//! Power of two choices on the round-trip time: UCCL, section 4.1 (after Mitzenmacher, 2001).

use super::{PathId, PathPolicy, PathView, Rng};
use serde::{Deserialize, Serialize};

/// Of two live paths drawn evenly, the one with the lower smoothed round-trip time. A path never
/// measured counts as the lower one, so that every path is tried.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TwoChoices;

impl TwoChoices {
    pub(super) fn new() -> TwoChoices {
        TwoChoices
    }
}

impl PathPolicy for TwoChoices {
    #[inline]
    fn choose(&mut self, view: &PathView<'_>, rng: &mut Rng) -> PathId {
        let (first, second) = (view.draw(rng), view.draw(rng));
        if view.rtt(second).smoothed() < view.rtt(first).smoothed() {
            second
        } else {
            first
        }
    }
}
