//! One path until it dies.

use super::{PathId, PathPolicy, PathView, Rng};
use serde::{Deserialize, Serialize};

/// Always the lowest live path.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Single;

impl Single {
    pub(super) fn new() -> Single {
        Single
    }
}

impl PathPolicy for Single {
    #[inline]
    fn choose(&mut self, view: &PathView<'_>, _rng: &mut Rng) -> PathId {
        view.live()[0]
    }
}
