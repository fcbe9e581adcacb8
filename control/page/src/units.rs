//! Numbers as people read them.

use std::{fmt, time::Duration};

/// Bytes by 1000, with three digits at most: `1.25 GB`.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut units = ["B", "kB", "MB", "GB", "TB", "PB"].into_iter().peekable();
        let mut unit = units.next().unwrap_or_default();
        // What would be rounded to 1000 is 1 of the next unit.
        while value >= 999.5
            && let Some(next) = units.next()
        {
            (value, unit) = (value / 1000.0, next);
        }
        let digits = match value {
            _ if unit == "B" => 0,
            ..9.995 => 2,
            ..99.95 => 1,
            _ => 0,
        };
        write!(f, "{value:.digits$} {unit}")
    }
}

/// A share from 0 to 1 as whole percent, rounded down: 100 % means all.
pub(crate) fn percent(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * 100.0 + 1e-9).floor() as u32
}

/// `1 job`, `2 jobs`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{end}")
}

/// A round-trip time: `850 µs`, `1.2 ms`, `3.0 s`.
pub(crate) struct Rtt(pub(crate) Duration);

impl fmt::Display for Rtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        match us {
            ..1_000 => write!(f, "{us} µs"),
            1_000..1_000_000 => write!(f, "{:.1} ms", us as f64 / 1e3),
            _ => write!(f, "{:.1} s", us as f64 / 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits_at_most() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (12_345, "12.3 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (1_250_000_000, "1.25 GB"),
            (u64::MAX, "18447 PB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn only_all_is_100_percent() {
        assert_eq!(percent(0.999), 99);
        assert_eq!(percent(1.0), 100);
        assert_eq!(percent(0.29), 29);
        assert_eq!(percent(-1.0), 0);
        assert_eq!(percent(f64::NAN), 0);
    }

    #[test]
    fn a_round_trip_time_has_a_unit_that_fits() {
        for (us, text) in [(850, "850 µs"), (1_250, "1.2 ms"), (3_000_000, "3.0 s")] {
            assert_eq!(Rtt(Duration::from_micros(us)).to_string(), text);
        }
    }
}
