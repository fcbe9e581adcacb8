//! The engine's only clock.

use std::time::{Duration, Instant};

use weft_core::units::Time;

/// Nanoseconds since a worker's start; monotonic, so a step of the wall clock is nothing to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub(crate) fn now(self) -> Time {
        let nanos = self.start.elapsed().as_nanos();
        // 2^64 ns are 584 years.
        Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The time from now until `then`; zero when it has passed.
    pub(crate) fn until(self, then: Time) -> Duration {
        Duration::from_nanos((then - self.now()).get())
    }
}
