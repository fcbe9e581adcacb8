//! Values a configuration file spells as text: names, sizes, durations, keys.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use weft_core::congestion::{BASE_TARGET, CongestionKind, ROUND_TRIP, TARGET_QUEUEING};
use weft_core::units::Nanos;

use crate::files::{Access, MinFree};

macro_rules! from_text {
    ($($name:ident)*) => {$(
        impl TryFrom<String> for $name {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    )*};
}

from_text!(NodeName FabricName ByteCount Duration PublicKey Congestion);

/// A node's name: dot-separated labels, as Kubernetes names nodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct NodeName(String);

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() <= 253 && text.split('.').all(is_label) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "`{text}` is not a node name: dot-separated labels of [a-z0-9-], 253 bytes at most"
            ))
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A fabric's name: one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct FabricName(String);

impl FabricName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FabricName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if is_label(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "`{text}` is not a fabric name: 1 to 63 of [a-z0-9-]"
            ))
        }
    }
}

impl fmt::Display for FabricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A number of bytes: a whole number with an optional KiB, MiB or GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ByteCount(pub u64);

impl FromStr for ByteCount {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, shift) = match text {
            t if t.ends_with("KiB") => (&t[..t.len() - 3], 10),
            t if t.ends_with("MiB") => (&t[..t.len() - 3], 20),
            t if t.ends_with("GiB") => (&t[..t.len() - 3], 30),
            t => (t, 0),
        };
        digits
            .trim_end()
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(1 << shift))
            .map(Self)
            .ok_or_else(|| {
                format!(
                    "`{text}` is not a size: a whole number of bytes, or one with KiB, MiB, GiB"
                )
            })
    }
}

/// A time span: a whole number with us, ms, s, m or h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Duration(u64);

impl Duration {
    pub(crate) const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    pub(crate) const fn from_micros(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// Nanoseconds.
    #[must_use]
    pub fn nanos(self) -> u64 {
        self.0
    }

    /// For the transport.
    #[must_use]
    pub fn to_core(self) -> Nanos {
        Nanos::new(self.0)
    }

    /// For timers of the control plane.
    #[must_use]
    pub fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
}

impl FromStr for Duration {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let at = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (digits, unit) = text.split_at(at);
        let unit_ns: u64 = match unit {
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => 0,
        };
        digits
            .parse::<u64>()
            .ok()
            .filter(|_| unit_ns > 0)
            .and_then(|n| n.checked_mul(unit_ns))
            .map(Self)
            .ok_or_else(|| {
                format!("`{text}` is not a duration: a whole number with us, ms, s, m or h")
            })
    }
}

impl FromStr for Access {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ReadOnly" => Ok(Self::ReadOnly),
            "ReadWrite" => Ok(Self::ReadWrite),
            _ => Err(format!("`{text}` is not ReadOnly or ReadWrite")),
        }
    }
}

impl FromStr for MinFree {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.strip_suffix('%') {
            Some(percent) => percent
                .parse()
                .ok()
                .filter(|percent| *percent <= 100)
                .map(Self::Percent),
            None => text.parse().ok().map(|ByteCount(bytes)| Self::Bytes(bytes)),
        };
        parsed.ok_or_else(|| {
            format!(
                "`{text}` is not 0% to 100%, or a whole number of bytes, with KiB, MiB or GiB if wanted"
            )
        })
    }
}

/// An Ed25519 public key: 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PublicKey(pub [u8; 32]);

impl FromStr for PublicKey {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "must be 64 hexadecimal digits (an Ed25519 public key)".to_owned();
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut key = [0; 32];
        for (index, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(key))
    }
}

/// What bounds the bytes in flight: `ecn-rtt` or `swift`, with the queueing that they allow after a colon if it
/// is not the default, `eqds:RATE` with the rate at which every node of the fabric receives, or `fixed:SIZE`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct Congestion(pub CongestionKind);

impl FromStr for Congestion {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameter) = match text.split_once(':') {
            Some((name, parameter)) => (name, Some(parameter)),
            None => (text, None),
        };
        let queueing = |default| match parameter {
            None => Some(default),
            // With none allowed, every queue would be too long, and the window the least there is.
            Some(text) => text
                .parse()
                .ok()
                .map(|span: Duration| span.to_core())
                .filter(|span| span.get() > 0),
        };
        let kind = match name {
            "ecn-rtt" => queueing(TARGET_QUEUEING)
                .map(|target_queueing| CongestionKind::EcnRtt { target_queueing }),
            "swift" => {
                queueing(BASE_TARGET).map(|base_target| CongestionKind::Swift { base_target })
            }
            "eqds" => parameter.and_then(eqds),
            "fixed" => parameter
                .and_then(|size| size.parse::<ByteCount>().ok())
                .and_then(|size| u32::try_from(size.0).ok())
                .filter(|bytes| *bytes > 0)
                .map(|bytes| CongestionKind::Fixed { bytes }),
            _ => None,
        };
        kind.map(Self).ok_or_else(|| {
            format!(
                "`{text}` is not `ecn-rtt`, `swift` (with a queueing above 0, for example ecn-rtt:50us), \
                 `eqds:RATE` (with a round trip, for example eqds:25000mbit:50us) or `fixed:SIZE` (for \
                 example fixed:1MiB)"
            )
        })
    }
}

/// `RATE` or `RATE:ROUND-TRIP`; the rate in whole mbit.
fn eqds(text: &str) -> Option<CongestionKind> {
    let (rate, round_trip) = match text.split_once(':') {
        Some((rate, span)) => (rate, span.parse::<Duration>().ok()?.to_core()),
        None => (text, ROUND_TRIP),
    };
    let mbps = rate.strip_suffix("mbit")?.parse::<u32>().ok()?;
    (mbps > 0).then_some(CongestionKind::Eqds {
        receive_bps: u64::from(mbps) * 1_000_000,
        round_trip,
    })
}

pub(crate) fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}
