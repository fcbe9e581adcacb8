//! The live paths in turn.

use super::{PathId, PathPolicy, PathView, Rng};
use serde::{Deserialize, Serialize};

/// The live paths in turn.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RoundRobin {
    /// Where the search for the next path starts.
    next: u16,
}

impl RoundRobin {
    pub(super) fn new() -> RoundRobin {
        RoundRobin { next: 0 }
    }
}

impl PathPolicy for RoundRobin {
    fn choose(&mut self, view: &PathView<'_>, _rng: &mut Rng) -> PathId {
        let live = view.live();
        let at = live.partition_point(|path| u16::from(path.0) < self.next);
        let path = live[at % live.len()];
        self.next = u16::from(path.0) + 1;
        path
    }
}
