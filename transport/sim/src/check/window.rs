//! The window is conserved.

use std::collections::BTreeMap;

use super::Checker;
use crate::observation::{End, Observation};
use crate::scenario::Scenario;

/// Never more chunks outstanding than the receiver has room for; none when idle.
pub(super) struct WindowConserved {
    window_chunks: usize,
    chunk_bytes: u64,
    /// At the end of the last turn: a window that shrinks calls nothing back.
    in_flight: BTreeMap<End, u64>,
}

impl WindowConserved {
    pub(super) fn new(scenario: &Scenario) -> WindowConserved {
        WindowConserved {
            window_chunks: usize::from(scenario.settings.window_chunks),
            chunk_bytes: scenario.settings.chunk_bytes.into(),
            in_flight: BTreeMap::new(),
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
        let in_flight = connection.in_flight();
        if connection.is_idle() && (outstanding > 0 || in_flight > 0) {
            return Err(format!(
                "{end:?} is idle with {outstanding} chunks outstanding, {in_flight} B in flight"
            ));
        }
        // One chunk may always be under way, whatever the window.
        let most = connection.window().max(self.chunk_bytes);
        if in_flight > most && in_flight > self.in_flight.get(&end).copied().unwrap_or(0) {
            return Err(format!(
                "{end:?} sends up to {in_flight} B in flight, the window is {most}"
            ));
        }
        self.in_flight.insert(end, in_flight);
        Ok(())
    }
}
