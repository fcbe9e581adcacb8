//! Every reason for which an arriving packet is not used, and their counters.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a packet was dropped. The text of [`DropReason::reason`] is stable: a metric label.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error, Serialize, Deserialize)]
        pub enum DropReason {
            $($(#[$doc])* #[error($text)] $name,)*
        }

        impl DropReason {
            /// Every reason, in declaration order.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];

            /// A stable label, without blanks.
            pub const fn reason(self) -> &'static str {
                match self { $(DropReason::$name => stringify!($name),)* }
            }
        }
    };
}

reasons! {
    /// Shorter than its kind's header and trailer.
    Truncated = "the datagram is shorter than its header and trailer",
    /// Another wire version than ours.
    Version = "the datagram's wire version is not ours: both ends must run the same version",
    /// A kind that this end does not know, or not in this place.
    Kind = "the datagram's kind is not one this end handles",
    /// A field outside of its range, under a valid seal or before the seal could be checked.
    Malformed = "a field of the header is out of its range",
    /// Names no connection of this end.
    UnknownConnection = "the datagram names no connection of this end",
    /// The keyed hash of the header does not match: forged, or damaged in the header.
    Seal = "the header's keyed hash does not match: forged or damaged",
    /// The AEAD's tag does not match: forged, damaged, or sealed under other keys.
    Tag = "the packet does not decrypt: forged, damaged, or sealed under other keys",
    /// Its key phase is neither the previous, the current nor the next one.
    KeyPhase = "the packet's key is not in use: its key phase is over, or never began",
    /// The checksum of the payload does not match: damaged on the way.
    Checksum = "the payload's checksum does not match: damaged on the way",
    /// The packet was placed already: a replay or a spurious retransmission.
    Duplicate = "the packet was received before",
    /// Its chunk lies beyond the receive window.
    BeyondWindow = "the chunk lies beyond the receive window",
    /// No region has this key, or it is of another domain.
    Key = "the key opens no region of this connection's domain",
    /// The write does not lie within its region.
    Bounds = "the write does not lie within its region",
    /// The region's buffer is with its owner and not armed.
    NotArmed = "the region is not armed to receive",
    /// Too many placements of the connection are under way: the packet is lost, and sent again.
    PlacementsFull = "too many placements of the connection are under way",
    /// The connection has failed or was closed.
    Closed = "the connection is closed",
    /// An acknowledgement of something that was never sent.
    AckOfUnsent = "the acknowledgement covers chunks or packets that were never sent",
}

/// Counters by [`DropReason`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// Counts one packet dropped for `reason`.
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// How many packets were dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// How many packets were dropped in all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.get(reason)))
            .filter(|(_, n)| *n > 0)
    }

    /// Adds another set of counters to this one.
    pub fn add(&mut self, other: &Drops) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_counts_by_itself() {
        let mut drops = Drops::default();
        for (n, &reason) in DropReason::ALL.iter().enumerate() {
            for _ in 0..=n {
                drops.count(reason);
            }
        }
        for (n, (reason, count)) in drops.iter().enumerate() {
            assert_eq!((reason, count), (DropReason::ALL[n], n as u64 + 1));
        }
    }
}
