//! The live paths in turn.

use super::{PathId, PathPolicy, PathView, Rng};

/// The live paths in turn.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    next: usize,
}

impl PathPolicy for RoundRobin {
    fn choose(&mut self, view: PathView<'_>, _rng: &mut Rng) -> PathId {
        let at = self.next % view.live().len();
        self.next = at + 1;
        view.live()[at]
    }
}
