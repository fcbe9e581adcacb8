//! Time, identifiers and the random generator: the vocabulary of every other module.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::ops::{Add, AddAssign, Sub};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// A moment: nanoseconds of the caller's clock, which is monotonic. Never a wall clock.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize,
)]
pub struct Time(u64);

impl Time {
    /// The clock's start.
    pub const ZERO: Time = Time(0);

    /// The moment `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The wire's 32-bit clock: units of 64 ns, wrapping every 275 s.
    pub const fn to_wire(self) -> u32 {
        (self.0 >> WIRE_CLOCK_SHIFT) as u32
    }

    /// Nanoseconds since `sent`, a value of the wire's clock at most 275 s old.
    pub const fn since_wire(self, sent: u32) -> Nanos {
        Nanos((self.to_wire().wrapping_sub(sent) as u64) << WIRE_CLOCK_SHIFT)
    }
}

/// When a packet arrived by the receiver's clock less when it was sent by the sender's: its way's delay
/// plus whatever the two clocks lie apart, so that only differences of two mean anything. In units of
/// the wire's clock, wrapping: compared as in RFC 1982, which holds for 137 s.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
pub struct OneWay(u32);

impl OneWay {
    /// Of a packet sent at `sent` and received at `received`, either by its own end's wire clock.
    pub const fn new(sent: u32, received: u32) -> OneWay {
        OneWay(received.wrapping_sub(sent))
    }

    /// The shorter of two.
    #[must_use]
    pub const fn min(self, other: OneWay) -> OneWay {
        if (self.0.wrapping_sub(other.0) as i32) < 0 {
            self
        } else {
            other
        }
    }

    /// How much longer this one took than `other`; zero when it did not.
    pub const fn beyond(self, other: OneWay) -> Nanos {
        let ticks = self.0.wrapping_sub(other.0) as i32;
        if ticks < 0 {
            Nanos::ZERO
        } else {
            Nanos((ticks as u64) << WIRE_CLOCK_SHIFT)
        }
    }
}

/// The wire's clock ticks every 2^6 = 64 ns.
pub const WIRE_CLOCK_SHIFT: u32 = 6;

/// A span of time in nanoseconds.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize,
)]
pub struct Nanos(u64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Nanos = Nanos(0);

    /// A span of `nanos` nanoseconds.
    pub const fn new(nanos: u64) -> Nanos {
        Nanos(nanos)
    }

    /// A span of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros * 1_000)
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis * 1_000_000)
    }

    /// A span of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Nanos {
        Nanos(secs * 1_000_000_000)
    }

    /// The span in nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The span `n` times over, saturating.
    pub const fn times(self, n: u64) -> Nanos {
        Nanos(self.0.saturating_mul(n))
    }
}

impl Add<Nanos> for Time {
    type Output = Time;
    fn add(self, span: Nanos) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

/// Saturates at zero: a clock that is read out of order yields no time, not a panic.
impl Sub<Time> for Time {
    type Output = Nanos;
    fn sub(self, earlier: Time) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}

/// A path between two NICs, 0..=255. On UDP: source port p / 16, destination port p mod 16.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize,
)]
pub struct PathId(pub u8);

/// Names a connection at the end that receives; chosen by that end.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize,
)]
pub struct ConnectionId(pub u32);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// The number of a chunk within a connection and direction; wraps, compared as in RFC 1982.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
pub struct ChunkNumber(pub u32);

impl ChunkNumber {
    /// This number plus `n`, wrapping.
    pub const fn plus(self, n: u32) -> ChunkNumber {
        ChunkNumber(self.0.wrapping_add(n))
    }

    /// This number minus `n`, wrapping.
    pub const fn minus(self, n: u32) -> ChunkNumber {
        ChunkNumber(self.0.wrapping_sub(n))
    }

    /// How far this number lies ahead of `other` (negative: behind), RFC 1982 serial arithmetic.
    pub const fn ahead_of(self, other: ChunkNumber) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

/// The key of a memory region: 64 unguessable bits, carried by every packet that writes to it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize,
)]
pub struct Key(pub u64);

/// A machine as its link addresses it. For IP: the IPv6 address, or the IPv4-mapped one (RFC 4291,
/// section 2.5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Host(pub [u8; 16]);

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Host {
        Host(match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        })
    }
}

impl From<Host> for IpAddr {
    fn from(host: Host) -> IpAddr {
        Ipv6Addr::from(host.0).to_canonical()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IpAddr::from(*self).fmt(f)
    }
}

/// Where a packet came from and where it arrived, as the packet says: nothing of it is authenticated.
///
/// The link that received the packet makes it, and sends an answer back by it. The core knows the host in it
/// and nothing else. The first 16 bytes are the [`Host`]; what the rest means is known to the link only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Source(pub [u8; Source::BYTES]);

impl Source {
    /// Bytes of a source: the host, and 4 of its link.
    pub const BYTES: usize = 20;

    /// The machine.
    pub fn host(self) -> Host {
        let mut host = [0; 16];
        host.copy_from_slice(&self.0[..16]);
        Host(host)
    }

    /// A hash of the machine by which limits are kept for each. Without the salt nobody can choose
    /// addresses of equal hashes (SipHash, Aumasson and Bernstein 2012).
    pub fn host_hash(self, salt: u64) -> u64 {
        SipHasher13::new_with_keys(salt, 0).hash(&self.0[..16])
    }
}

/// The generator that every random choice draws from. A named type, so that a seed means the same
/// run in every release of the crate it comes from.
pub type Rng = rand_pcg::Pcg64Mcg;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_clock_measures_across_its_wrap() {
        let wrap = 1u64 << (32 + WIRE_CLOCK_SHIFT);
        let sent = Time::from_nanos(wrap - 6_400);
        let now = Time::from_nanos(wrap + 6_400);
        assert_eq!(now.since_wire(sent.to_wire()), Nanos::new(12_800));
    }

    #[test]
    fn chunk_numbers_compare_across_their_wrap() {
        assert_eq!(ChunkNumber(2).ahead_of(ChunkNumber(u32::MAX)), 3);
        assert_eq!(ChunkNumber(u32::MAX).ahead_of(ChunkNumber(2)), -3);
    }

    #[test]
    fn a_source_names_its_host_and_hosts_are_told_apart_by_address_only() {
        let source = |host: &str, link: u8| {
            let mut bytes = [link; Source::BYTES];
            bytes[..16].copy_from_slice(&Host::from(host.parse::<IpAddr>().unwrap()).0);
            Source(bytes)
        };
        for host in ["192.0.2.7", "2001:db8::7"] {
            assert_eq!(source(host, 1).host().to_string(), host);
            assert_ne!(source(host, 1), source(host, 2));
            assert_eq!(source(host, 1).host_hash(5), source(host, 2).host_hash(5));
            assert_ne!(source(host, 1).host_hash(5), source(host, 1).host_hash(6));
        }
    }

    #[test]
    fn a_clock_that_runs_backwards_yields_no_time() {
        assert_eq!(Time::from_nanos(5) - Time::from_nanos(9), Nanos::ZERO);
    }
}
