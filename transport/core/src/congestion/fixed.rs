//! A window that never moves.

use super::{CongestionControl, Limits, Time};
use serde::{Deserialize, Serialize};

/// A window that never moves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Fixed {
    limits: Limits,
    window: u64,
}

impl Fixed {
    pub(super) fn new(limits: Limits, bytes: u32) -> Fixed {
        Fixed {
            window: u64::from(bytes).clamp(limits.packet, limits.max),
            limits,
        }
    }
}

impl CongestionControl for Fixed {
    #[inline]
    fn window(&self) -> u64 {
        self.window
    }
    #[inline]
    fn chunk_bytes(&self) -> u64 {
        self.limits.chunk_bytes(self.window)
    }
    fn on_loss(&mut self, _now: Time, _packets: u64) {}
    fn on_timeout(&mut self, _now: Time) {}
    fn rebase(&mut self, _now: Time) {}
}
