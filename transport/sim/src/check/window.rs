//! The window is conserved.

use super::Checker;
use crate::observation::Observation;
use crate::scenario::Scenario;

/// Never more chunks outstanding than the receiver has room for; none when idle.
pub(super) struct WindowConserved {
    window_chunks: usize,
}

impl WindowConserved {
    pub(super) fn new(scenario: &Scenario) -> WindowConserved {
        WindowConserved {
            window_chunks: usize::from(scenario.settings.window_chunks),
        }
    }
}

impl Checker for WindowConserved {
    fn name(&self) -> &'static str {
        "window and inflight conserved"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        let Observation::Turned {
            end, connection, ..
        } = *what
        else {
            return Ok(());
        };
        let outstanding = connection.outstanding();
        if outstanding > self.window_chunks {
            return Err(format!(
                "{end:?} has {outstanding} chunks outstanding, the window is {}",
                self.window_chunks
            ));
        }
        if connection.is_idle() && outstanding > 0 {
            return Err(format!(
                "{end:?} is idle with {outstanding} chunks outstanding"
            ));
        }
        Ok(())
    }
}
