//! When an acknowledgement is worth a packet.

use weft_core::units::{Nanos, Time};

/// Runs that one acknowledgement answers while they come thick. On 16 sockets each acknowledgement
/// is a system call at both ends, as dear as a fifth of a chunk.
const RUNS: u32 = 4;

/// Runs come thick when the gap between them is shorter: what a core takes to send a full chunk,
/// twice. Slower traffic is acknowledged run by run.
const GAP: Nanos = Nanos::from_micros(25);

/// The longest that a run waits for others to be acknowledged with; nothing beside the
/// retransmission timeout. The acknowledgement says how long it waited.
const DELAY: Nanos = Nanos::from_micros(60);

/// One connection's state: what has arrived since the last acknowledgement.
#[derive(Debug, Default)]
pub(crate) struct AckPace {
    runs: u32,
    /// The last gap before the first of them was shorter than [`GAP`].
    thick: bool,
    first: Time,
    newest: Time,
}

impl AckPace {
    /// A run of data has arrived.
    pub(crate) fn arrived(&mut self, now: Time) {
        if self.runs == 0 {
            self.first = now;
            self.thick = now - self.newest < GAP;
        }
        self.runs += 1;
        self.newest = now;
    }

    /// A message is whole: its sender waits for nothing else.
    pub(crate) fn message_ended(&mut self) {
        self.thick = false;
    }

    /// An acknowledgement is sent.
    pub(crate) fn answered(&mut self) {
        self.runs = 0;
    }

    /// Until when the acknowledgement waits for more to answer; `None` when it is to be sent.
    pub(crate) fn wait_until(&self, now: Time) -> Option<Time> {
        let due = self.first + DELAY;
        (self.thick && (1..RUNS).contains(&self.runs) && now < due).then_some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: u64) -> Time {
        Time::from_nanos(1_000_000 + micros * 1_000)
    }

    #[test]
    fn the_first_run_after_a_pause_is_answered_at_once() {
        let mut pace = AckPace::default();
        pace.arrived(at(0));
        assert_eq!(pace.wait_until(at(0)), None);
        pace.answered();
        pace.arrived(at(100));
        assert_eq!(pace.wait_until(at(100)), None);
    }

    #[test]
    fn runs_that_come_thick_share_an_answer_but_not_for_long() {
        let mut pace = AckPace::default();
        pace.arrived(at(0));
        pace.answered();
        pace.arrived(at(10));
        assert_eq!(pace.wait_until(at(10)), Some(at(70)));
        assert_eq!(pace.wait_until(at(70)), None);
        for micros in [20, 30, 34] {
            pace.arrived(at(micros));
        }
        assert_eq!(pace.wait_until(at(34)), None);
    }

    #[test]
    fn a_whole_message_is_answered_at_once() {
        let mut pace = AckPace::default();
        pace.arrived(at(0));
        pace.answered();
        pace.arrived(at(5));
        pace.message_ended();
        assert_eq!(pace.wait_until(at(5)), None);
    }
}
