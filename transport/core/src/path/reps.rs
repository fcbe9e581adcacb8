//! Recycled entropies: REPS (Bonato et al., "REPS: Recycling Entropies for Packet Spraying to Adaptively
//! Explore Paths and Mitigate Failures", arXiv 2407.21625), with chunks for packets and round-trip times
//! beside the ECN marks.
//!
//! A path whose data came back unmarked and in time competes for the next chunk with two drawn ones; the lowest
//! round trip wins (UCCL, section 4.1, with a memory). So the acknowledgements clock each spine by itself: a spine
//! gets as many chunks as it delivers, whatever its rate and however many of the paths lead over it. The drawn
//! ones are ours: where nothing marks, REPS alone stays on the spines that it began with, and filled two or three of
//! four equal ones (2,500 of 4,000 Mbit/s; with them 3,670, as two choices alone).

use super::{PathId, PathPolicy, PathSample, PathView, Rng, RttEstimator};
use serde::{Deserialize, Serialize};

/// Paths that wait to be used again, at most; further ones replace the oldest. One acknowledgement
/// echoes at most as many paths. (REPS has a buffer of 8 packets' entropies; it is acknowledged packet
/// by packet.)
const RECYCLED_MAX: usize = 32;

/// A path is used again while its chunk's round trip took at most this many times the smoothed one of the
/// connection's chunks. Ours (REPS looks at marks alone): where nothing marks, a slow spine shows itself by its
/// queue.
const LATE: u64 = 2;

/// REPS' circular buffer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reps {
    recycled: [PathId; RECYCLED_MAX],
    /// The place of the oldest.
    first: u8,
    count: u8,
    /// Of whole chunks.
    rtt: RttEstimator,
}

impl Reps {
    pub(super) fn new() -> Reps {
        Reps {
            recycled: [PathId(0); RECYCLED_MAX],
            first: 0,
            count: 0,
            rtt: RttEstimator::default(),
        }
    }

    fn push(&mut self, path: PathId) {
        let at = usize::from(self.first + self.count) % RECYCLED_MAX;
        self.recycled[at] = path;
        if usize::from(self.count) == RECYCLED_MAX {
            self.first = (self.first + 1) % RECYCLED_MAX as u8;
        } else {
            self.count += 1;
        }
    }

    fn pop(&mut self) -> Option<PathId> {
        self.count = self.count.checked_sub(1)?;
        let path = self.recycled[usize::from(self.first)];
        self.first = (self.first + 1) % RECYCLED_MAX as u8;
        Some(path)
    }
}

impl PathPolicy for Reps {
    fn choose(&mut self, view: &PathView<'_>, rng: &mut Rng) -> PathId {
        // Not measured counts as typical: a path that was tried and is slow is worse, one that is fast is better, so
        // that a slow spine is not flooded to learn of each of its paths.
        let rtt = |path| view.rtt(path).smoothed().or(view.srtt());
        let (first, second) = (view.draw(rng), view.draw(rng));
        let drawn = if rtt(second) < rtt(first) {
            second
        } else {
            first
        };
        // A resend is no answer to an acknowledgement: it leaves the recycled paths to new chunks.
        while !view.is_resend()
            && let Some(path) = self.pop()
        {
            if view.allows(path) {
                return if rtt(drawn) < rtt(path) { drawn } else { path };
            }
        }
        drawn
    }

    fn on_ack(&mut self, _view: &PathView<'_>, sample: &PathSample) {
        // Once for a chunk, which may be acknowledged in parts: the first packets' round trips are shorter.
        let Some(rtt) = sample.rtt.filter(|_| sample.bytes > 0) else {
            return;
        };
        let in_time = self
            .rtt
            .smoothed()
            .is_none_or(|typical| rtt <= typical.times(LATE));
        self.rtt.update(rtt);
        if in_time && sample.ce == 0 {
            self.push(sample.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recycled_paths_are_used_in_the_order_of_their_acknowledgements_and_the_oldest_gives_way() {
        let mut reps = Reps::new();
        for path in 0..RECYCLED_MAX as u8 + 2 {
            reps.push(PathId(path));
        }
        for path in 2..RECYCLED_MAX as u8 + 2 {
            assert_eq!(reps.pop(), Some(PathId(path)));
        }
        assert_eq!(reps.pop(), None);
    }
}
