//! What a policy may look at.

use super::{PathId, PathSet, Rng, RttEstimator, Time};
use crate::units::Nanos;

/// The paths between two NICs as one connection sees them at one moment.
#[derive(Clone, Copy, Debug)]
pub struct PathView<'a> {
    pub(super) set: &'a PathSet,
    pub(super) now: Time,
    /// The paths to choose among.
    pub(super) live: &'a [PathId],
    /// This connection's bytes in flight by path.
    pub(super) in_flight: &'a [u32],
    /// Set for a resend.
    pub(super) resend: Option<Resend>,
}

/// What a resend must avoid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resend {
    /// The path that lost the chunk.
    pub(super) lost: PathId,
    /// Paths on which nothing has arrived since then.
    pub(super) answered_after: Option<Time>,
}

impl Resend {
    pub(super) fn allows(&self, set: &PathSet, path: PathId) -> bool {
        path != self.lost
            && self
                .answered_after
                .is_none_or(|sent_at| set.answered(path) > sent_at)
    }
}

impl<'a> PathView<'a> {
    /// The moment of the choice.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The paths to choose among, in ascending order; never empty in [`super::PathPolicy::choose`].
    pub fn live(&self) -> &'a [PathId] {
        self.live
    }

    /// Whether `path` is among [`PathView::live`].
    #[inline]
    pub fn allows(&self, path: PathId) -> bool {
        self.set.is_candidate(path)
            && self
                .resend
                .is_none_or(|resend| resend.allows(self.set, path))
    }

    /// Whether this choice is for a chunk that another path has lost.
    pub fn is_resend(&self) -> bool {
        self.resend.is_some()
    }

    /// The round-trip time of a path.
    #[inline]
    pub fn rtt(&self, path: PathId) -> RttEstimator {
        self.set.rtt(path)
    }

    /// The share of a path's packets with Congestion Experienced, in 1/256; a moving average.
    pub fn ce_share(&self, path: PathId) -> u8 {
        self.set.ce_share(path)
    }

    /// This connection's bytes in flight on a path, headers included.
    #[inline]
    pub fn in_flight(&self, path: PathId) -> u32 {
        self.in_flight
            .get(usize::from(path.0))
            .copied()
            .unwrap_or(0)
    }

    /// The smoothed round-trip time over all paths.
    pub fn srtt(&self) -> Option<Nanos> {
        self.set.srtt()
    }

    /// The lowest round-trip time of the last 10 to 20 s on any path: that of an empty network.
    pub fn base_rtt(&self) -> Option<Nanos> {
        self.set.base_rtt()
    }

    /// A path of [`PathView::live`], drawn evenly.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> PathId {
        // Lemire's multiply-shift: even enough for at most 256 out of 2^32.
        let draw = rand_core::Rng::next_u32(rng);
        self.live[((u64::from(draw) * self.live.len() as u64) >> 32) as usize]
    }
}
