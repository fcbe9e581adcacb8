//! A window that never moves.

use super::{AckSample, Congestion, Limits, Time};

/// A window that never moves.
#[derive(Debug)]
pub(super) struct Fixed {
    window: u64,
}

impl Fixed {
    pub(super) fn new(limits: Limits, bytes: u32) -> Fixed {
        Fixed {
            window: u64::from(bytes).clamp(limits.packet, limits.max),
        }
    }
}

impl Congestion for Fixed {
    fn window(&self) -> u64 {
        self.window
    }
    fn on_ack(&mut self, _now: Time, _sample: AckSample) {}
    fn on_loss(&mut self, _now: Time, _packets: u64) {}
    fn on_timeout(&mut self, _now: Time) {}
    fn on_spurious_timeout(&mut self) {}
}
