//! One path until it dies.

use super::{PathId, PathPolicy, PathView, Rng};

/// Always the lowest live path.
#[derive(Debug)]
pub(super) struct Single;

impl PathPolicy for Single {
    fn choose(&mut self, view: PathView<'_>, _rng: &mut Rng) -> PathId {
        view.live()[0]
    }
}
