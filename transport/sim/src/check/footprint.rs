//! Memory is bounded.

use super::Checker;
use crate::observation::Observation;
use crate::scenario::Scenario;

/// Bytes of a connection whatever its shape: counters and the lists of one acknowledgement.
const BYTES_FIXED: usize = 8 << 10;
/// Bytes of a connection per slot of its two rings (a sent chunk, a received one, and their places in the
/// queues of the lost), and how many slots more than the window a ring has.
const BYTES_PER_SLOT: usize = 128;
const EXTRA_SLOTS: usize = 64;
/// Bytes of a connection per message that is posted, under way or to be reported. A list that grows by
/// doubling has twice the room that it needs.
const BYTES_PER_MESSAGE: usize = 2 * 160;

/// Bytes of the list of placements under way, 256 at most.
const BYTES_OF_COPIES: usize = 256 * 128;

/// In order, the end of each message waits for those before it: its packet and what is known of it, so much in all.
const BYTES_BESIDE_PACKET: usize = 128;
const BYTES_WAITING_MAX: usize = 1 << 20;

/// Revocations that are not answered, answers that may be asked for again, and responses to reads that were cancelled.
const BYTES_OF_CANCELS: usize = 128 * 128 + 256 * BYTES_PER_MESSAGE;

/// What a connection occupies grows with its window and its open messages only, and never with how
/// long it lives or what the network does.
pub(super) struct BoundedMemory {
    bytes_max: usize,
    events_max: usize,
}

impl BoundedMemory {
    pub(super) fn new(scenario: &Scenario) -> BoundedMemory {
        let window = usize::from(scenario.settings.window_chunks);
        let slots = (window + EXTRA_SLOTS).next_power_of_two();
        let messages = usize::from(scenario.workload.slots);
        // In order, immediates of complete messages wait for those before: one a chunk at most.
        let held_back = if scenario.in_order { window } else { 0 };
        let copies = if scenario.copies.0 > 0 {
            BYTES_OF_COPIES
        } else {
            0
        };
        let cancels = match scenario.workload.cancels {
            (0, _) => 0,
            _ => BYTES_OF_CANCELS,
        };
        let packet = usize::from(scenario.settings.packet_payload) + BYTES_BESIDE_PACKET;
        let waiting = (held_back * packet).min(BYTES_WAITING_MAX);
        BoundedMemory {
            bytes_max: copies
                + cancels
                + waiting
                + BYTES_FIXED
                + slots * BYTES_PER_SLOT
                + 2 * messages * BYTES_PER_MESSAGE,
            // Each message under way, ours and theirs, ends once; and one failure. What ended in the last turn
            // before a process was replaced comes with what ends in the first turn of the next.
            events_max: 4 * messages + held_back + 1,
        }
    }
}

impl Checker for BoundedMemory {
    fn name(&self) -> &'static str {
        "bounded memory"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        let Observation::Turned {
            end,
            connection,
            events,
        } = *what
        else {
            return Ok(());
        };
        let bytes = connection.heap_bytes();
        if bytes > self.bytes_max {
            return Err(format!(
                "{end:?} occupies {bytes} B, more than {} B",
                self.bytes_max
            ));
        }
        if events > self.events_max {
            return Err(format!(
                "{end:?} had {events} events at once, more than {}",
                self.events_max
            ));
        }
        Ok(())
    }
}
