//! Oblivious spraying: STELLAR, section 7 ("128-path Oblivious Packet Spraying").

use super::{PathId, PathPolicy, PathView, Rng};
use serde::{Deserialize, Serialize};

/// Drawn evenly among the live paths, whatever their state.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Oblivious;

impl Oblivious {
    pub(super) fn new() -> Oblivious {
        Oblivious
    }
}

impl PathPolicy for Oblivious {
    #[inline]
    fn choose(&mut self, view: &PathView<'_>, rng: &mut Rng) -> PathId {
        view.draw(rng)
    }
}
