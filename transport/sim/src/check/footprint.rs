//! Memory is bounded.

use super::Checker;
use crate::observation::Observation;
use crate::scenario::Scenario;

/// Bytes of a saved connection whatever its shape: identity, settings, counters, RTT, window.
const SAVED_BYTES_FIXED: usize = 1024;
/// Bytes of a saved connection per slot of its rings (a sent chunk's twelve numbers, a packet map),
/// and how many slots more than the window the rings have.
const SAVED_BYTES_PER_SLOT: usize = 96;
const EXTRA_SLOTS: usize = 64;
/// Bytes of a saved connection per message that is posted or to be reported.
const SAVED_BYTES_PER_MESSAGE: usize = 128;

/// What a connection keeps grows with its window and its open messages only, and never with how
/// long it lives or what the network does.
pub(super) struct BoundedMemory {
    saved_bytes_max: usize,
    events_max: usize,
}

impl BoundedMemory {
    pub(super) fn new(scenario: &Scenario) -> BoundedMemory {
        let window = usize::from(scenario.settings.window_chunks);
        let slots = (window + EXTRA_SLOTS).next_power_of_two();
        let messages = usize::from(scenario.workload.slots);
        BoundedMemory {
            saved_bytes_max: SAVED_BYTES_FIXED
                + slots * SAVED_BYTES_PER_SLOT
                + 2 * messages * SAVED_BYTES_PER_MESSAGE,
            // Each message under way, ours and theirs, ends once; and one failure. What ended in the last turn
            // before a process was replaced comes with what ends in the first turn of the next.
            events_max: 4 * messages + 1,
        }
    }
}

impl Checker for BoundedMemory {
    fn name(&self) -> &'static str {
        "bounded memory"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        match *what {
            Observation::Saved { end, bytes } if bytes > self.saved_bytes_max => Err(format!(
                "{end:?} saves {bytes} B, more than {} B",
                self.saved_bytes_max
            )),
            Observation::Turned { end, events, .. } if events > self.events_max => Err(format!(
                "{end:?} had {events} events at once, more than {}",
                self.events_max
            )),
            _ => Ok(()),
        }
    }
}
