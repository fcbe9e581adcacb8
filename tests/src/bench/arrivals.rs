//! What a receiver saw over time: latencies, goodput in bins, and when it is back after a fault.
//! Pure: times are durations since the measurement began.

use std::time::Duration;

use crate::report::median;

/// A message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it was given to the engine.
    pub posted: Duration,
    /// When its receiver knew that all of it was placed.
    pub placed: Duration,
    /// Its payload.
    pub bytes: u64,
}

/// Bins in a row over which goodput must be back, so that one burst is no recovery.
const BACK_BINS: usize = 5;

/// The longest way of a message.
pub fn worst(arrivals: &[Arrival]) -> Duration {
    arrivals
        .iter()
        .map(|a| a.placed.saturating_sub(a.posted))
        .max()
        .unwrap_or_default()
}

/// Bytes per second of consecutive bins of `width` from `from` on; the last, partly over, is left
/// out. A message counts whole in the bin in which the last of it was placed.
pub fn bins(arrivals: &[Arrival], from: Duration, until: Duration, width: Duration) -> Vec<f64> {
    let count = (until.saturating_sub(from).as_nanos() / width.as_nanos().max(1)) as usize;
    let mut bytes = vec![0u64; count];
    for arrival in arrivals {
        let Some(after) = arrival.placed.checked_sub(from) else {
            continue;
        };
        let bin = (after.as_nanos() / width.as_nanos().max(1)) as usize;
        if let Some(bytes) = bytes.get_mut(bin) {
            *bytes += arrival.bytes;
        }
    }
    bytes
        .into_iter()
        .map(|bytes| bytes as f64 / width.as_secs_f64())
        .collect()
}

/// The middle of the bins.
pub fn typical(bins: &[f64]) -> f64 {
    median(&mut bins.to_vec())
}

/// The first bin that has at least `least` and with its four successors has as much on average.
/// `None` where there is none.
pub fn back_at(bins: &[f64], least: f64) -> Option<usize> {
    (0..bins.len()).find(|&bin| {
        let Some(following) = bins.get(bin..bin + BACK_BINS) else {
            return false;
        };
        bins[bin] >= least && following.iter().sum::<f64>() / BACK_BINS as f64 >= least
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn arrival(posted: u64, placed: u64) -> Arrival {
        Arrival {
            posted: ms(posted),
            placed: ms(placed),
            bytes: 1000,
        }
    }

    #[test]
    fn a_message_counts_in_the_bin_in_which_it_was_placed() {
        let arrivals = [
            arrival(0, 9),
            arrival(5, 10),
            arrival(6, 19),
            arrival(0, 45),
        ];
        // 1000 B in 10 ms are 100 kB/s; the bin from 40 ms to 50 ms is not over at 45 ms.
        assert_eq!(bins(&arrivals, ms(10), ms(45), ms(10)), [200e3, 0.0, 0.0]);
        assert_eq!(bins(&arrivals, ms(50), ms(45), ms(10)), Vec::<f64>::new());
    }

    #[test]
    fn the_worst_way_is_the_longest_and_not_the_last() {
        assert_eq!(
            worst(&[arrival(0, 9), arrival(5, 50), arrival(60, 61)]),
            ms(45)
        );
        assert_eq!(worst(&[]), ms(0));
    }

    #[test]
    fn a_burst_between_two_gaps_is_no_recovery() {
        let bins = [1.0, 0.0, 9.0, 0.0, 0.0, 0.0, 9.0, 9.0, 8.5, 9.5, 9.0, 9.0];
        assert_eq!(back_at(&bins, 9.0), Some(6));
        assert_eq!(back_at(&bins, 9.1), None);
        assert_eq!(back_at(&bins[..8], 9.0), None, "not seen long enough");
    }
}
