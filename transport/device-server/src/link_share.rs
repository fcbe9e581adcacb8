//! How the devices that are open share what their node may send.
//!
//! Each has a limit by its weight: weighted max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks,
//! 1992, section 6.5.2). A device that its limit has held back wants more. Any other has what it wants, and leaves the rest to
//! those.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weft_engine::EgressReport;

use crate::context::CAP_BPS_MIN;

/// How often a device's thread says what it has sent. At 1 Gbit/s, 40 chunks of 64 KiB go in that time.
pub(crate) const SHARE_INTERVAL: Duration = Duration::from_millis(20);
/// A device that has not said for so long sends nothing: its thread sleeps.
const SILENT_AFTER: Duration = Duration::from_millis(100);

/// What the node may send, and who sends how much of it. Time is an argument.
#[derive(Debug)]
pub(crate) struct LinkShare {
    /// Bits per second of IP packets, of all devices.
    cap_bps: u64,
    /// By range of ports.
    senders: Mutex<BTreeMap<u16, Sender>>,
}

#[derive(Debug)]
struct Sender {
    counted_at: Duration,
    sent_bytes: u64,
    demand: Demand,
}

#[derive(Debug, Clone, Copy)]
struct Demand {
    /// What the device wants: what it has sent of late, or anything.
    bps: u64,
    /// Its weight beside others, 1 or more.
    share: u32,
}

impl LinkShare {
    pub(crate) fn new(cap_bps: u64) -> Self {
        Self {
            cap_bps,
            senders: Mutex::default(),
        }
    }

    /// What a device of this weight has sent by now. Answers how much it may send, bits per second.
    pub(crate) fn limit(&self, slot: u16, share: u32, now: Duration, report: EgressReport) -> u64 {
        let EgressReport {
            sent_bytes,
            was_held_back,
        } = report;
        // A thread that has panicked has ended the process.
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        let is_silent = |it: &Sender| now.saturating_sub(it.counted_at) >= SILENT_AFTER;
        let begun = Sender {
            counted_at: now,
            sent_bytes,
            demand: Demand { bps: 0, share },
        };
        let sender = senders.entry(slot).or_insert(begun);
        let nanos = now.saturating_sub(sender.counted_at).as_nanos();
        // Another device may have had these ports.
        let bits = u128::from(sent_bytes.saturating_sub(sender.sent_bytes)) * 8;
        if let Some(bps) = (bits * 1_000_000_000).checked_div(nanos) {
            let sent_bps = u64::try_from(bps).unwrap_or(u64::MAX);
            *sender = Sender {
                counted_at: now,
                sent_bytes,
                demand: Demand {
                    bps: if was_held_back { u64::MAX } else { sent_bps },
                    share,
                },
            };
        }
        senders.retain(|_, it| !is_silent(it));
        let demands = senders.values().map(|it| it.demand);
        fill(self.cap_bps, demands.collect(), share)
    }
}

/// The limit of a device of weight `share` where `cap_bps` is shared among devices with these demands. One that wants more than
/// all others may have all that these leave: what it wants next nobody knows.
fn fill(cap_bps: u64, mut demands: Vec<Demand>, share: u32) -> u64 {
    demands.sort_unstable_by_key(|it| per_share(it.bps, 1, it.share));
    let mut left = cap_bps;
    let mut shares: u64 = demands.iter().map(|it| u64::from(it.share)).sum();
    for demand in demands {
        let own = u64::from(demand.share);
        if own == shares || demand.bps > per_share(left, demand.share, shares) {
            // What it wanted last may be taken from `left` already, and its share from `shares`.
            return per_share(left, share, shares).clamp(CAP_BPS_MIN, cap_bps.max(CAP_BPS_MIN));
        }
        left -= demand.bps;
        shares -= own;
    }
    cap_bps
}

/// So much of `bps` as `share` is of `shares`.
fn per_share(bps: u64, share: u32, shares: impl Into<u64>) -> u64 {
    let part = u128::from(bps) * u128::from(share) / u128::from(shares.into()).max(1);
    u64::try_from(part).unwrap_or(u64::MAX)
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
        rates_of_shares(intervals, [100; N], weights, wanted)
    }

    fn rates_of_shares<const N: usize>(
        intervals: u32,
        shares: [u32; N],
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
                let report = EgressReport {
                    sent_bytes: sent[at],
                    was_held_back: rates[at] == limits[at],
                };
                limits[at] = share.limit(at as u16, shares[at], now, report);
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
    fn devices_get_of_the_link_by_their_shares_whatever_connections_they_have() {
        let [gold, silver, bronze] =
            rates_of_shares(200, [400, 100, 50], [1, 1, 1000], [u64::MAX; 3]);
        let part = |share| CAP * share / 550;
        for (rate, fair) in [(gold, part(400)), (silver, part(100)), (bronze, part(50))] {
            assert!(rate.abs_diff(fair) < fair / 10, "{gold} {silver} {bronze}");
        }
        // What gold does not want the others share by their own.
        let wanted = [110_000_000, u64::MAX, u64::MAX];
        let [gold, silver, bronze] = rates_of_shares(200, [400, 100, 50], [1; 3], wanted);
        assert_eq!(gold, 110_000_000);
        let left = CAP - gold;
        for (rate, fair) in [(silver, left * 2 / 3), (bronze, left / 3)] {
            assert!(rate.abs_diff(fair) < fair / 10, "{silver} {bronze}");
        }
    }

    #[test]
    fn no_device_may_send_more_than_the_link_whatever_its_share_is() {
        let share = LinkShare::new(CAP);
        let [gold, bronze] = [10_000, 1];
        let quiet = EgressReport {
            sent_bytes: 0,
            was_held_back: false,
        };
        let (mut sent_bytes, mut now) = (0, Duration::ZERO);
        for _ in 0..4 {
            now += SHARE_INTERVAL;
            sent_bytes += CAP / 8 / 50;
            let held_back = EgressReport {
                sent_bytes,
                was_held_back: true,
            };
            for limit in [
                share.limit(1, bronze, now, held_back),
                share.limit(0, gold, now, quiet),
            ] {
                assert!(limit <= CAP, "{limit}");
            }
        }
    }

    #[test]
    fn a_device_that_sends_alone_may_send_all() {
        assert_eq!(rates_after(100, [1], [u64::MAX]), [CAP]);
        assert_eq!(rates_after(100, [1, 1], [u64::MAX, 0])[0], CAP);
    }

    #[test]
    fn many_devices_of_any_weight_get_the_same() {
        let mut weights = [1; 20];
        weights[..5].fill(1000);
        let rates = rates_after(200, weights, [u64::MAX; 20]);
        let fair = CAP / 20;
        let is_fair = |rate: &u64| rate.abs_diff(fair) < fair / 10;
        assert!(rates.iter().all(is_fair), "{rates:?}");
    }

    #[test]
    fn a_device_whose_thread_sleeps_takes_no_share() {
        let share = LinkShare::new(CAP);
        let held_back = |sent_bytes| EgressReport {
            sent_bytes,
            was_held_back: true,
        };
        share.limit(0, 100, Duration::ZERO, held_back(0));
        share.limit(1, 100, Duration::ZERO, held_back(0));
        let at = SHARE_INTERVAL;
        share.limit(0, 100, at, held_back(2_000_000));
        assert_eq!(share.limit(1, 100, at, held_back(2_000_000)), CAP / 2);
        let at = at + SILENT_AFTER;
        assert_eq!(share.limit(1, 100, at, held_back(4_000_000)), CAP);
    }

    #[test]
    fn no_device_is_limited_to_less_than_an_engine_takes() {
        let demand = Demand {
            bps: u64::MAX,
            share: 100,
        };
        assert_eq!(fill(CAP, vec![demand; 5000], 100), CAP_BPS_MIN);
    }
}
