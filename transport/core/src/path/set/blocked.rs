//! What a link says of a path: that it takes no chunk for a while, or that it has broken.

use super::{PathId, PathSet, PathState, TIMEOUTS_UNTIL_SUSPENDED, Time};

impl PathSet {
    /// Whether the link delivers what it takes, or says that a path has broken: silence means that it waits.
    #[inline]
    pub fn is_reliable(&self) -> bool {
        self.reliable
    }

    /// The link takes no chunk on `path` from now on, or takes them again. Until then it is not probed; what was not answered
    /// before is asked for again at once.
    pub fn set_blocked(&mut self, now: Time, path: PathId, is_blocked: bool) {
        match (self.blocked.binary_search(&path), is_blocked) {
            (Err(at), true) if self.contains(path) => self.blocked.insert(at, path),
            (Ok(at), false) => {
                self.blocked.remove(at);
                let state = &mut self.paths[usize::from(path.0)];
                state.probe_at = now;
                state.probing = false;
            }
            _ => {}
        }
    }

    #[inline]
    pub(super) fn takes_chunks(&self, path: PathId) -> bool {
        self.blocked.is_empty() || !self.is_path_blocked(path)
    }

    #[cold]
    fn is_path_blocked(&self, path: PathId) -> bool {
        self.blocked.binary_search(&path).is_ok()
    }

    /// Whether the link takes no chunk on any of the paths that are given data.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        !self.blocked.is_empty() && self.are_candidates_blocked()
    }

    #[cold]
    fn are_candidates_blocked(&self) -> bool {
        let mut candidates = self.candidates().iter();
        !candidates.any(|&path| self.takes_chunks(path))
    }

    /// The link says that what was under way on `path` is lost. A path that takes chunks and breaks again before it has
    /// answered is given no data until a probe is answered: what is resent would break it at once.
    pub fn on_broken(&mut self, now: Time, path: PathId) {
        let takes_chunks = self.takes_chunks(path);
        let Some(state) = self.paths.get_mut(usize::from(path.0)) else {
            return;
        };
        match state.state {
            PathState::Live | PathState::Narrow => self.unanswered(now, path),
            PathState::Suspect if takes_chunks => {
                state.timeouts = TIMEOUTS_UNTIL_SUSPENDED - 1;
                self.unanswered(now, path);
            }
            PathState::Suspect | PathState::Suspended => {}
        }
    }
}
