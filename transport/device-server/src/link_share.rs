//! How the devices that are open share what their node may send.
//!
//! All have the same limit: max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, 1992, section
//! 6.5.2). A device that sends nearly as much as that wants more; any other has what it wants, and leaves the rest to those.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::context::CAP_BPS_MIN;

/// How often a device's thread says what it has sent. At 1 Gbit/s, 40 chunks of 64 KiB go in that time.
pub(crate) const SHARE_INTERVAL: Duration = Duration::from_millis(20);
/// A device that has not said for so long sends nothing: its thread sleeps.
const SILENT_AFTER: Duration = Duration::from_millis(100);
/// A device that sends so many percent of the limit wants more.
const NEARLY_PERCENT: u64 = 90;

/// What the node may send, and who sends how much of it. Time is an argument.
#[derive(Debug)]
pub(crate) struct LinkShare {
    /// Bits per second of IP packets, of all devices.
    cap_bps: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What each device may send.
    limit_bps: u64,
    /// By range of ports.
    senders: BTreeMap<u16, Sender>,
}

#[derive(Debug)]
struct Sender {
    counted_at: Duration,
    sent_bytes: u64,
    bps: u64,
}

impl LinkShare {
    pub(crate) fn new(cap_bps: u64) -> Self {
        let state = State {
            limit_bps: cap_bps,
            senders: BTreeMap::new(),
        };
        Self {
            cap_bps,
            state: Mutex::new(state),
        }
    }

    /// A device has sent so many bytes by now, ever. Answers how much it may send, bits per second.
    pub(crate) fn limit(&self, slot: u16, now: Duration, sent_bytes: u64) -> u64 {
        // Each change is whole.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Sender {
            counted_at: now,
            sent_bytes,
            bps: 0,
        };
        let sender = state.senders.entry(slot).or_insert(begun);
        let nanos = now.saturating_sub(sender.counted_at).as_nanos();
        // Another device may have had these ports.
        let bits = u128::from(sent_bytes.saturating_sub(sender.sent_bytes)) * 8;
        if let Some(bps) = (bits * 1_000_000_000).checked_div(nanos) {
            *sender = Sender {
                counted_at: now,
                sent_bytes,
                bps: u64::try_from(bps).unwrap_or(u64::MAX),
            };
        }
        let senders = state.senders.values();
        let rates = senders.filter(|it| now.saturating_sub(it.counted_at) < SILENT_AFTER);
        let rates = rates.map(|it| it.bps).collect();
        state.limit_bps = fill(self.cap_bps, rates, state.limit_bps);
        state.limit_bps
    }
}

/// The limit that shares `cap_bps` among devices which send at these rates under the limit `before`. Who sends most may
/// always send more, up to what is left.
fn fill(cap_bps: u64, mut rates: Vec<u64>, before: u64) -> u64 {
    rates.sort_unstable();
    let has_enough = |bps: u64| bps / NEARLY_PERCENT < before / 100;
    let (mut left, mut devices) = (cap_bps, rates.len() as u64);
    for bps in rates {
        if devices == 1 || !has_enough(bps) || bps > left / devices {
            return (left / devices).max(CAP_BPS_MIN);
        }
        left -= bps;
        devices -= 1;
    }
    cap_bps
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: u64 = 950_000_000;
    const LINK: u64 = 1_000_000_000;

    /// Devices that send over a link which gives to each by its weight what it wants and may, for so many intervals. The
    /// rates at the end.
    fn rates_after<const N: usize>(
        intervals: u32,
        weights: [u64; N],
        wanted: [u64; N],
    ) -> [u64; N] {
        let share = LinkShare::new(CAP);
        let (mut sent, mut limits, mut rates) = ([0; N], [CAP; N], [0; N]);
        for turn in 1..=intervals {
            let now = SHARE_INTERVAL * turn;
            let most: [u64; N] = std::array::from_fn(|at| wanted[at].min(limits[at]));
            rates = by_weight(most, weights);
            for at in 0..N {
                sent[at] += rates[at] / 8 / 50;
                limits[at] = share.limit(at as u16, now, sent[at]);
            }
        }
        rates
    }

    /// What the link gives: to each by its weight, where that is more than it takes the rest goes to the others.
    fn by_weight<const N: usize>(most: [u64; N], weights: [u64; N]) -> [u64; N] {
        let mut rates = [0; N];
        for _ in 0..N {
            let left = LINK - rates.iter().sum::<u64>();
            let open = |at: &usize| rates[*at] < most[*at];
            let all: u64 = (0..N).filter(open).map(|at| weights[at]).sum();
            let gains: [u64; N] = std::array::from_fn(|at| match open(&at) {
                true => (left * weights[at] / all).min(most[at] - rates[at]),
                false => 0,
            });
            rates = std::array::from_fn(|at| rates[at] + gains[at]);
        }
        rates
    }

    #[test]
    fn a_thousand_queue_pairs_get_no_more_than_one() {
        let [many, one] = rates_after(100, [1000, 1], [u64::MAX; 2]);
        assert!(one.abs_diff(many) < CAP / 50, "{many} {one}");
        assert!(many + one > CAP * 95 / 100, "{many} {one}");
    }

    #[test]
    fn what_a_device_does_not_want_goes_to_the_others() {
        let wanted = [u64::MAX, 100_000_000, u64::MAX];
        let [many, little, one] = rates_after(100, [1000, 1, 1], wanted);
        assert_eq!(little, 100_000_000);
        assert!(one.abs_diff(many) < CAP / 50, "{many} {one}");
        assert!(many + one > (CAP - little) * 95 / 100, "{many} {one}");
    }

    #[test]
    fn a_device_that_sends_alone_may_send_all() {
        assert_eq!(rates_after(100, [1], [u64::MAX]), [CAP]);
        assert_eq!(rates_after(100, [1, 1], [u64::MAX, 0])[0], CAP);
    }

    #[test]
    fn a_device_whose_thread_sleeps_takes_no_share() {
        let share = LinkShare::new(CAP);
        share.limit(0, Duration::ZERO, 0);
        share.limit(1, Duration::ZERO, 0);
        let at = SHARE_INTERVAL;
        share.limit(0, at, 2_000_000);
        assert!(share.limit(1, at, 2_000_000) < CAP);
        let at = at + SILENT_AFTER;
        assert_eq!(share.limit(1, at, 4_000_000), CAP);
    }

    #[test]
    fn no_device_is_limited_to_less_than_an_engine_takes() {
        let rates = vec![u64::MAX; 5000];
        assert_eq!(fill(CAP, rates, CAP), CAP_BPS_MIN);
    }
}
