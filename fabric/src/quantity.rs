//! Sizes, rates and fractions as people write them on the command line, and back.
//!
//! | | units | examples |
//! |---|---|---|
//! | bytes | `B`; `kB MB GB TB` by 1000; `KiB MiB GiB TiB` by 1024; none is bytes | `256MiB`, `1.5 GB`, `4096` |
//! | rate, bits per second | `bit kbit mbit gbit tbit` by 1000, with or without `/s`; none is bit/s | `1gbit`, `300 Mbit/s` |
//! | fraction, 0 to 1 | `%`, or none | `0.1%`, `0.001` |
//!
//! Upper and lower case are the same. What could be meant in two ways is refused: `256M` (by 1000 or
//! by 1024?), `1gbps` (bits, or bytes as in `tc`?). Arithmetic is exact; nothing is rounded.

use thiserror::Error;

/// Why a quantity cannot be read. Every text says how to write it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// There is no number at the front.
    #[error("{text:?} does not start with a number: write {example}")]
    NoNumber {
        /// What was given.
        text: String,
        /// How it could be written.
        example: &'static str,
    },
    /// The unit is unknown, or could be meant in two ways.
    #[error("{text:?} has the unit {unit:?}, which is not one of {known}: write {example}")]
    UnknownUnit {
        /// What was given.
        text: String,
        /// The part after the number.
        unit: String,
        /// The units there are.
        known: &'static str,
        /// How it could be written.
        example: &'static str,
    },
    /// The value is not a whole number of the smallest unit.
    #[error("{text:?} is not a whole number of {smallest}: use a smaller unit")]
    NotWhole {
        /// What was given.
        text: String,
        /// "bytes" or "bit/s".
        smallest: &'static str,
    },
    /// The value is too large.
    #[error("{text:?} is too large: 2^64 - 1 {smallest} is the most")]
    TooLarge {
        /// What was given.
        text: String,
        /// "bytes" or "bit/s".
        smallest: &'static str,
    },
    /// A rate of nothing.
    #[error("{text:?} is no rate: write one above 0, as 1gbit")]
    ZeroRate {
        /// What was given.
        text: String,
    },
    /// No number, or one below 0 or above 99.9 %.
    #[error("{text:?} is not a share from 0 to 99.9%: write 0.1% or 0.001")]
    NotAFraction {
        /// What was given.
        text: String,
    },
    /// No number, or one below 0 or above 1.
    #[error("{text:?} is not a share from 0 to 100%: write 92% or 0.92")]
    NotAShare {
        /// What was given.
        text: String,
    },
}

impl QuantityError {
    /// A short stable name.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoNumber { .. } => "QuantityNoNumber",
            Self::UnknownUnit { .. } => "QuantityUnknownUnit",
            Self::NotWhole { .. } => "QuantityNotWhole",
            Self::TooLarge { .. } => "QuantityTooLarge",
            Self::ZeroRate { .. } => "QuantityZeroRate",
            Self::NotAFraction { .. } => "QuantityNotAFraction",
            Self::NotAShare { .. } => "QuantityNotAShare",
        }
    }
}

/// A kind of quantity: its units in lower case, and words for errors.
struct Kind {
    units: &'static [(&'static str, u64)],
    known: &'static str,
    example: &'static str,
    smallest: &'static str,
}

const BYTES: Kind = Kind {
    units: &[
        ("", 1),
        ("b", 1),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("tib", 1 << 40),
    ],
    known: "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB",
    example: "256MiB or 1.5GB",
    smallest: "bytes",
};

const RATE: Kind = Kind {
    units: &[
        ("", 1),
        ("bit", 1),
        ("kbit", 1_000),
        ("mbit", 1_000_000),
        ("gbit", 1_000_000_000),
        ("tbit", 1_000_000_000_000),
    ],
    known: "bit, kbit, mbit, gbit, tbit",
    example: "1gbit or 300mbit",
    smallest: "bit/s",
};

/// Reads a size in bytes, as `256MiB`.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    parse(text, text.trim(), &BYTES)
}

/// Reads a rate in bits per second, as `1gbit`; 0 is refused.
pub fn parse_rate(text: &str) -> Result<u64, QuantityError> {
    let trimmed = text.trim();
    match parse(text, trimmed.strip_suffix("/s").unwrap_or(trimmed), &RATE)? {
        0 => Err(QuantityError::ZeroRate {
            text: text.to_owned(),
        }),
        rate_bps => Ok(rate_bps),
    }
}

/// Reads a fraction from 0 to 0.999, as `0.1%` or `0.001`.
pub fn parse_fraction(text: &str) -> Result<f64, QuantityError> {
    fraction(text)
        .filter(|value| *value < 0.9995)
        .ok_or_else(|| QuantityError::NotAFraction {
            text: text.to_owned(),
        })
}

/// A share of a whole, all of it included: `0.95`, `95%` or `1`.
pub fn parse_share(text: &str) -> Result<f64, QuantityError> {
    fraction(text).ok_or_else(|| QuantityError::NotAShare {
        text: text.to_owned(),
    })
}

fn fraction(text: &str) -> Option<f64> {
    let trimmed = text.trim();
    let (number, divisor) = match trimmed.strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (trimmed, 1.0),
    };
    // `inf` and `nan` are numbers to `f64`, but not in this range.
    let value = number.parse::<f64>().ok()? / divisor;
    (0.0..=1.0).contains(&value).then(|| value.abs())
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

fn parse(text: &str, trimmed: &str, kind: &Kind) -> Result<u64, QuantityError> {
    let end = trimmed.find(|c| !is_of_number(c)).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim();
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || part.contains('.') {
        return Err(QuantityError::NoNumber {
            text: text.to_owned(),
            example: kind.example,
        });
    }
    let named = kind
        .units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let Some(&(_, factor)) = named else {
        return Err(QuantityError::UnknownUnit {
            text: text.to_owned(),
            unit: unit.to_owned(),
            known: kind.known,
            example: kind.example,
        });
    };
    let too_large = || QuantityError::TooLarge {
        text: text.to_owned(),
        smallest: kind.smallest,
    };
    let not_whole = || QuantityError::NotWhole {
        text: text.to_owned(),
        smallest: kind.smallest,
    };

    // Zeros at either end say nothing, and what is left must fit; 20 digits hold 2^64.
    let digits = |digits: &str| -> Option<u128> {
        if digits.is_empty() {
            Some(0)
        } else {
            digits.parse().ok()
        }
    };
    let factor = u128::from(factor);
    let whole = digits(whole.trim_start_matches('0')).ok_or_else(too_large)?;
    let part = part.trim_end_matches('0');
    // A whole number of bytes needs no more decimals than 1 TiB has factors of two: 40.
    let scale = u32::try_from(part.len())
        .ok()
        .and_then(|places| 10u128.checked_pow(places));
    let scale = scale.ok_or_else(not_whole)?;
    let scaled = digits(part)
        .and_then(|part| part.checked_mul(factor))
        .ok_or_else(not_whole)?;
    if scaled % scale != 0 {
        return Err(not_whole());
    }
    let value = whole
        .checked_mul(factor)
        .and_then(|value| value.checked_add(scaled / scale));
    value
        .and_then(|value| u64::try_from(value).ok())
        .ok_or_else(too_large)
}

/// A size for people: three digits and a unit by 1000, as `90.9 MB`.
pub fn bytes(bytes: u64) -> String {
    three_digits(bytes, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// A rate for people, from bits per second: three digits and a unit, as `1 Gbit/s`.
pub fn rate(rate_bps: u64) -> String {
    three_digits(
        rate_bps,
        &[
            "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s", "Pbit/s", "Ebit/s",
        ],
    )
}

/// Rounds half up to three digits, in integers, and leaves closing zeros out.
fn three_digits(value: u64, units: &[&str; 7]) -> String {
    let value = u128::from(value);
    let mut exponent = 0;
    while 10u128.pow(exponent + 3) <= value {
        exponent += 1;
    }
    // `exponent` digits are cut off; 999.5 and up round to one digit more.
    let mut digits = (value + 10u128.pow(exponent) / 2) / 10u128.pow(exponent);
    if digits == 1000 {
        digits = 100;
        exponent += 1;
    }
    let unit = exponent.div_ceil(3);
    let decimals = (unit * 3 - exponent) as usize;
    let divisor = 10u128.pow(unit * 3 - exponent);
    let (whole, part) = (digits / divisor, digits % divisor);
    let unit = units[unit as usize];
    let part = format!("{part:0decimals$}");
    match part.trim_end_matches('0') {
        "" => format!("{whole} {unit}"),
        part => format!("{whole}.{part} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_exactly() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("256MiB", 256 << 20),
            ("256 mib", 256 << 20),
            ("1.5GB", 1_500_000_000),
            (".5KiB", 512),
            ("1.50kB", 1500),
            ("007B", 7),
            ("0.0009765625KiB", 1),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn rates_are_bits_per_second() {
        for (text, rate_bps) in [
            ("1gbit", 1_000_000_000),
            ("2.5 Gbit/s", 2_500_000_000),
            ("300mbit", 300_000_000),
            ("64kbit", 64_000),
            ("1000", 1000),
        ] {
            assert_eq!(parse_rate(text), Ok(rate_bps), "{text}");
        }
    }

    #[test]
    fn fractions_are_percent_or_plain() {
        for (text, fraction) in [
            ("0.1%", 0.001),
            ("0.001", 0.001),
            ("50 %", 0.5),
            ("0", 0.0),
            ("1e-3", 0.001),
        ] {
            assert_eq!(parse_fraction(text), Ok(fraction), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_says_how_to_write_it() {
        let reason = |result: Result<u64, QuantityError>| result.unwrap_err().reason();
        for (text, expected) in [
            ("", "QuantityNoNumber"),
            ("MiB", "QuantityNoNumber"),
            ("-1MB", "QuantityNoNumber"),
            ("1.2.3MB", "QuantityNoNumber"),
            ("256M", "QuantityUnknownUnit"),
            ("1gbit", "QuantityUnknownUnit"),
            ("1.5B", "QuantityNotWhole"),
            ("0.3KiB", "QuantityNotWhole"),
            ("18446744073709551616", "QuantityTooLarge"),
            ("99999999999TiB", "QuantityTooLarge"),
            (
                "9999999999999999999999999999999999999999999",
                "QuantityTooLarge",
            ),
        ] {
            assert_eq!(reason(parse_bytes(text)), expected, "{text:?}");
        }
        for (text, expected) in [
            ("1gbps", "QuantityUnknownUnit"),
            ("1MiB", "QuantityUnknownUnit"),
            ("0gbit", "QuantityZeroRate"),
        ] {
            assert_eq!(reason(parse_rate(text)), expected, "{text:?}");
        }
        for text in [
            "", "%", "101%", "100%", "1", "-0.1", "nan", "inf", "1%%", "half",
        ] {
            let error = parse_fraction(text).unwrap_err();
            assert_eq!(error.reason(), "QuantityNotAFraction", "{text:?}");
        }
        for text in ["1.01", "101%", "-1%", "nan"] {
            let error = parse_share(text).unwrap_err();
            assert_eq!(error.reason(), "QuantityNotAShare", "{text:?}");
        }
        assert_eq!(parse_share("1"), Ok(1.0));
        assert_eq!(parse_share("92%"), Ok(0.92));
        assert_eq!(
            parse_bytes("256M").unwrap_err().to_string(),
            r#""256M" has the unit "M", which is not one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB: write 256MiB or 1.5GB"#
        );
    }

    #[test]
    fn people_see_three_digits_and_no_closing_zeros() {
        for (value, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1 kB"),
            (1023, "1.02 kB"),
            (999_499, "999 kB"),
            (999_500, "1 MB"),
            (90_868_376, "90.9 MB"),
            (268_435_456, "268 MB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(rate(1_000_000_000), "1 Gbit/s");
        assert_eq!(rate(2_346_000_000), "2.35 Gbit/s");
        assert_eq!(rate(300_000_000), "300 Mbit/s");
    }

    #[test]
    fn every_whole_size_is_read_back() {
        for value in [1, 1000, 1024, 123_456_789, u64::MAX] {
            assert_eq!(parse_bytes(&value.to_string()), Ok(value));
            assert_eq!(parse_bytes(&format!("{value} B")), Ok(value));
        }
    }
}
