//! What a connection waits for in time: one enum, and the table of the moments.

use crate::units::Time;

/// What is to be done at a moment. Each has one place in the [`TimerTable`], and nowhere else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// When to give the connection up: what waits for the peer has waited for the stall timeout.
    Stall,
    /// When to take chunks for lost that later ones have overtaken.
    Loss,
    /// When to take chunks for lost that nothing has answered.
    Retransmission,
    /// When to send a packet of the newest chunk again, so that its answer tells of losses at the end.
    TailProbe,
    /// When to send a chunk again that the receiver was not ready for.
    ReceiverNotReady,
    /// When to ask the receiver again for credit.
    Credit,
    /// When to send the next chunk, which the path policy or the congestion control has put off.
    Pacing,
    /// When to send the acknowledgement that is owed.
    Acknowledgement,
    /// When to send a revocation again that the receiver has not answered.
    Revocation,
    /// When to ask a peer that owes a response whether it is there.
    KeepAlive,
    /// When to give back the memory that a connection without traffic does not need.
    Idle,
}

impl Timer {
    /// Every timer, in the order in which those that are due are served.
    pub(super) const ALL: [Timer; 11] = [
        Timer::Stall,
        Timer::Loss,
        Timer::Retransmission,
        Timer::TailProbe,
        Timer::ReceiverNotReady,
        Timer::Credit,
        Timer::Pacing,
        Timer::Acknowledgement,
        Timer::Revocation,
        Timer::KeepAlive,
        Timer::Idle,
    ];
}

/// A timer that is stopped.
const NEVER: Time = Time::from_nanos(u64::MAX);

/// When each timer is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimerTable {
    due: [Time; Timer::ALL.len()],
}

impl Default for TimerTable {
    /// All are stopped.
    fn default() -> TimerTable {
        TimerTable {
            due: [NEVER; Timer::ALL.len()],
        }
    }
}

impl TimerTable {
    pub(super) fn set(&mut self, timer: Timer, at: Time) {
        self.due[timer as usize] = at;
    }

    /// Sets a timer that is stopped or due later.
    pub(super) fn set_earlier(&mut self, timer: Timer, at: Time) {
        let due = &mut self.due[timer as usize];
        *due = at.min(*due);
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.due[timer as usize] = NEVER;
    }

    pub(super) fn get(&self, timer: Timer) -> Option<Time> {
        Some(self.due[timer as usize]).filter(|&due| due != NEVER)
    }

    /// Stops a timer that is due. Returns whether it was.
    pub(super) fn take_expired(&mut self, timer: Timer, now: Time) -> bool {
        let expired = self.get(timer).is_some_and(|due| due <= now);
        if expired {
            self.stop(timer);
        }
        expired
    }

    /// When the next timer is due.
    pub(super) fn next(&self) -> Option<Time> {
        let next = self.due.iter().fold(NEVER, |next, &due| next.min(due));
        Some(next).filter(|&due| due != NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn every_timer_has_a_place_of_its_own() {
        let mut table = TimerTable::default();
        assert_eq!(table.next(), None);
        for (place, timer) in Timer::ALL.into_iter().enumerate() {
            table.set(timer, at(100 - place as u64));
            assert_eq!(table.next(), Some(at(100 - place as u64)));
        }
        for (place, timer) in Timer::ALL.into_iter().enumerate() {
            assert_eq!(table.get(timer), Some(at(100 - place as u64)));
        }
    }

    #[test]
    fn a_timer_expires_once_and_not_before_it_is_due() {
        let mut table = TimerTable::default();
        table.set_earlier(Timer::Loss, at(9));
        table.set_earlier(Timer::Loss, at(7));
        table.set_earlier(Timer::Loss, at(8));
        assert!(!table.take_expired(Timer::Loss, at(6)));
        assert!(table.take_expired(Timer::Loss, at(7)));
        assert!(!table.take_expired(Timer::Loss, at(9)));
        table.set(Timer::Stall, at(3));
        table.stop(Timer::Stall);
        assert_eq!(table.next(), None);
    }
}
