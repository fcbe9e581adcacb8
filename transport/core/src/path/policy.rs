//! The trait of the path policies.
//!
//! A connection owns one policy and saves it whole. It calls [`PathPolicy::choose`] for each chunk and
//! reports what was sent, acknowledged and lost. UCCL's extension interface (section 3.4) has the same hooks.

use super::{Nanos, PathId, PathView, Rng, Time};

/// What one acknowledgement says about one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathSample {
    /// The path.
    pub path: PathId,
    /// Round-trip time of the newest packet, without the time that it waited for its acknowledgement.
    pub rtt: Option<Nanos>,
    /// Packets that arrived on it since the acknowledgement before.
    pub packets: u32,
    /// Those of them with Congestion Experienced (RFC 3168).
    pub ce: u16,
    /// Bytes of whole chunks, headers included, that are no longer in flight on it.
    pub bytes: u32,
}

/// Chooses the path of each chunk of one connection. One file per policy; listed in [`PolicyKind`](crate::path::PolicyKind).
pub trait PathPolicy {
    /// The path of the next chunk, one that [`PathView::allows`]. Every choice is used: a resend has a view
    /// without the paths that it must not take.
    fn choose(&mut self, view: &PathView<'_>, rng: &mut Rng) -> PathId;

    /// Whether a chunk for which `path` was chosen, and which the congestion control then held back, still takes
    /// it; if not, the policy is asked again.
    fn keeps(&self, path: PathId) -> bool {
        let _ = path;
        true
    }

    /// `bytes` (headers included) were sent on `path`.
    fn on_sent(&mut self, now: Time, path: PathId, bytes: u32) {
        let _ = (now, path, bytes);
    }

    /// Data on a path was acknowledged; called once per path and acknowledgement.
    fn on_ack(&mut self, view: &PathView<'_>, sample: &PathSample) {
        let _ = (view, sample);
    }

    /// The peer answered on a path on which this connection has no data in flight: to a probe, or to data that came
    /// late or twice.
    fn on_probe_answer(&mut self, view: &PathView<'_>, sample: &PathSample) {
        let _ = (view, sample);
    }

    /// A chunk on `path` is declared lost, with so many packets missing.
    fn on_loss(&mut self, now: Time, path: PathId, packets: u32) {
        let _ = (now, path, packets);
    }

    /// The next path that the policy wants a probe on.
    fn poll_probe(&mut self) -> Option<PathId> {
        None
    }

    /// New chunks wait until then.
    fn resumes_at(&self) -> Time {
        Time::ZERO
    }

    /// The connection was restored. In between nothing was measured: moments that were noted mean nothing any more.
    fn rebase(&mut self, now: Time) {
        let _ = now;
    }
}
