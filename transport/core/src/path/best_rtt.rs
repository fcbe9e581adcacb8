//! The path with the lowest round-trip time: STELLAR, section 7 ("best RTT").

use super::{PathId, PathPolicy, PathView, Rng};
use serde::{Deserialize, Serialize};

/// The live path with the lowest smoothed round-trip time; of equal ones the lowest. A path never
/// measured comes first, so that every path is tried.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BestRtt;

impl BestRtt {
    pub(super) fn new() -> BestRtt {
        BestRtt
    }
}

impl PathPolicy for BestRtt {
    fn choose(&mut self, view: &PathView<'_>, _rng: &mut Rng) -> PathId {
        let paths = view.live().iter().copied();
        // Paths without a measurement share the load by what is in flight on them.
        let best = paths.min_by_key(|&path| (view.rtt(path).smoothed(), view.in_flight(path)));
        best.unwrap_or(view.live()[0])
    }
}
