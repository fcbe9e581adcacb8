//! How fast the reports of an agent are read, and how many of them the job hears.
//!
//! Pure: times are since some start, and whoever reads does the waiting. A report says how everything
//! stands, so of those that come too fast the newest is as good as all: it is withheld until it is time
//! and takes the place of the one before it. What is not read yet stays with the agent, for HTTP/2 lets it
//! send no more than a window ahead.

use std::time::Duration;

use weft_proto::agent::v1::{ProgressResponse, State};

/// So many reports are passed on in the time between two that were asked for …
const TOLD: u32 = 4;
/// … and so many at once: all states of a short attempt.
const TOLD_AT_ONCE: u32 = 16;
/// So many are read in that time …
const READ: u32 = 64;
/// … and so many at once: an agent reports every thread that ends, and has four for each of 64 children.
const READ_AT_ONCE: u32 = 256;

/// What may happen so often, and so often at once.
#[derive(Debug)]
struct Rate {
    gap: Duration,
    /// What may be ahead of `gap`.
    slack: Duration,
    /// When everything that has happened will have had its time.
    settled: Duration,
}

impl Rate {
    fn of(interval: Duration, times: u32, at_once: u32) -> Self {
        let gap = interval / times;
        Self {
            gap,
            slack: gap * (at_once - 1),
            settled: Duration::ZERO,
        }
    }

    fn happens(&mut self, now: Duration) {
        self.settled = self.settled.max(now) + self.gap;
    }

    /// When it may happen again.
    fn free(&self) -> Duration {
        self.settled.saturating_sub(self.slack)
    }
}

/// Of one stream.
#[derive(Debug)]
pub(super) struct Pace {
    read: Rate,
    told: Rate,
    /// The newest, while it is not time.
    withheld: Option<Box<ProgressResponse>>,
    /// That the attempt is over at that node has been passed on.
    is_over_told: bool,
}

impl Pace {
    /// Of a stream that was asked to report so often.
    pub(super) fn of(interval: Duration) -> Self {
        Self {
            read: Rate::of(interval, READ, READ_AT_ONCE),
            told: Rate::of(interval, TOLD, TOLD_AT_ONCE),
            withheld: None,
            is_over_told: false,
        }
    }

    /// When the next report may be read.
    pub(super) fn free(&self) -> Duration {
        self.read.free()
    }

    /// When the one that is withheld is to be passed on, if one is.
    pub(super) fn due(&self) -> Option<Duration> {
        self.withheld.as_ref().map(|_| self.told.free())
    }

    /// A report was read: it, where it is to be passed on now. The first that says how the attempt ended
    /// there is waited with by nobody.
    pub(super) fn read(
        &mut self,
        now: Duration,
        report: Box<ProgressResponse>,
    ) -> Option<Box<ProgressResponse>> {
        self.read.happens(now);
        let is_over = matches!(report.state(), State::Verified | State::Failed);
        let is_news = is_over && !self.is_over_told;
        self.withheld = Some(report);
        if now < self.told.free() && !is_news {
            return None;
        }
        self.is_over_told |= is_over;
        self.release(now)
    }

    /// The one that is withheld: it is time, or there will be no other.
    pub(super) fn release(&mut self, now: Duration) -> Option<Box<ProgressResponse>> {
        let report = self.withheld.take()?;
        self.told.happens(now);
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn report(bytes: u64, state: State) -> Box<ProgressResponse> {
        Box::new(ProgressResponse {
            bytes,
            state: state.into(),
            ..ProgressResponse::default()
        })
    }

    /// What is passed on of reports that come at these times, and when: its number.
    fn told(interval: Duration, come: impl Iterator<Item = Duration>) -> Vec<(Duration, u64)> {
        let mut pace = Pace::of(interval);
        let mut told = Vec::new();
        for (at, bytes) in come.zip(0..) {
            let now = pace.free().max(at);
            if let Some(due) = pace.due().filter(|due| *due < now) {
                told.extend(pace.release(due).map(|it| (due, it.bytes)));
            }
            let passed = pace.read(now, report(bytes, State::Transferring));
            told.extend(passed.map(|it| (now, it.bytes)));
        }
        if let Some(due) = pace.due() {
            told.extend(pace.release(due).map(|it| (due, it.bytes)));
        }
        told
    }

    #[test]
    fn who_reports_as_often_as_it_was_asked_is_heard_at_once_each_time() {
        for interval in [SECOND, SECOND / 20] {
            let come = || (0..100u32).map(move |n| interval * n);
            assert_eq!(told(interval, come()), come().zip(0..).collect::<Vec<_>>());
            // Each state of an attempt that was over at once is a report of its own.
            let come = || (0..100u32).map(move |n| interval * (n / TOLD_AT_ONCE * 10));
            assert_eq!(told(interval, come()), come().zip(0..).collect::<Vec<_>>());
        }
    }

    #[test]
    fn of_what_comes_too_fast_the_newest_is_passed_on_as_soon_as_it_is_time() {
        let all = told(SECOND, std::iter::repeat_n(Duration::ZERO, 200));
        assert_eq!(all.len(), 17);
        assert_eq!(all[15], (Duration::ZERO, 15));
        // Nothing comes after it.
        assert_eq!(all[16], (SECOND / 4, 199));
    }

    #[test]
    fn a_flood_is_read_sixty_four_times_in_an_interval_and_heard_four_times() {
        let all = told(SECOND, std::iter::repeat_n(Duration::ZERO, 256 + 64 * 10));
        // 256 at once, and the last ten seconds after the first.
        assert_eq!(all.last(), Some(&(10 * SECOND, 895)));
        assert_eq!(all.len(), 16 + 4 * 10);
    }

    #[test]
    fn how_an_attempt_ended_is_passed_on_at_once_and_once() {
        let mut pace = Pace::of(SECOND);
        for bytes in 0..100 {
            pace.read(Duration::ZERO, report(bytes, State::Transferring));
        }
        let last = pace.read(Duration::ZERO, report(100, State::Verified));
        assert_eq!(last.map(|it| it.bytes), Some(100));
        assert_eq!(pace.due(), None, "what was withheld is older");
        for state in [State::Verified, State::Failed, State::Verified] {
            assert_eq!(pace.read(Duration::ZERO, report(101, state)), None);
        }
        let due = pace.due().unwrap();
        assert_eq!(due, SECOND / 2);
        assert_eq!(pace.release(due).map(|it| it.bytes), Some(101));
    }

    #[test]
    fn who_was_silent_for_long_may_say_no_more_at_once_for_that() {
        let late = told(SECOND, std::iter::repeat_n(3600 * SECOND, 17));
        assert_eq!(late[15], (3600 * SECOND, 15));
        assert_eq!(late[16], (3600 * SECOND + SECOND / 4, 16));
    }
}
