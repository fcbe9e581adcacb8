//! The engine's clocks.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use weft_core::units::Time;

/// Nanoseconds of the machine's monotonic clock: a step of the wall clock is nothing to it, and the next
/// program on this machine, which may restore this one's connections, goes on with the same clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock;

impl Clock {
    pub(crate) fn now(self) -> Time {
        let now = clock_gettime(ClockId::Monotonic);
        let [seconds, nanos] = [now.tv_sec, now.tv_nsec].map(i64::cast_unsigned);
        // 2^64 ns are 584 years.
        Time::from_nanos(seconds * 1_000_000_000 + nanos)
    }

    /// The time from now until `then`; zero when it has passed.
    pub(crate) fn until(self, then: Time) -> Duration {
        Duration::from_nanos((then - self.now()).get())
    }
}

/// CPU time that the calling thread has used.
pub(crate) fn thread_cpu() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    let [seconds, nanos] = [used.tv_sec, used.tv_nsec].map(i64::cast_unsigned);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}
