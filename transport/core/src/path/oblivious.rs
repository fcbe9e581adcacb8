//! Oblivious spraying: STELLAR, section 7 ("128-path Oblivious Packet Spraying").

use super::{PathId, PathPolicy, PathView, Rng};

/// Drawn evenly among the live paths, whatever their state.
#[derive(Debug)]
pub(super) struct Oblivious;

impl PathPolicy for Oblivious {
    fn choose(&mut self, view: PathView<'_>, rng: &mut Rng) -> PathId {
        view.draw(rng)
    }
}
