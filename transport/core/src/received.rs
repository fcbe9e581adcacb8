//! What a link hands over: packets as they arrived, or the notice that a payload lies in place.
//!
//! Links make these values and an endpoint takes them. A link that writes payload straight into memory (tcp,
//! shm) first asks with the packet's header and gets an [`Offer`]; a link that receives packets into buffers of
//! its own (udp) never asks.

use crate::drops::DropReason;
use crate::memory::{Place, Ticket};
use crate::units::Source;

/// Something that arrived.
#[derive(Debug)]
pub enum Received<'a> {
    /// Packets of one sender, in one buffer of the link. They may be decrypted in place.
    Packets {
        /// Where they came from, and where they arrived.
        from: Source,
        /// Congestion Experienced (RFC 3168, section 5) was set on them.
        ce: bool,
        /// The packets, one behind the other.
        bytes: &'a mut [u8],
        /// Bytes of each packet but the last, at least 1.
        segment: usize,
    },
    /// The link has written a payload where an [`Offer`] said, or will not.
    Placed {
        /// The ticket of the offer.
        ticket: Ticket,
        /// Whether all of it is there. [`DropReason::Key`] when the region was closed meanwhile;
        /// [`DropReason::Truncated`] when the sender was gone before its end.
        result: Result<(), DropReason>,
    },
}

/// The answer to the header and the trailer of a payload that a link could write into place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// Write it there. The placement is under way until [`Received::Placed`] gives the ticket back. The place is looked
    /// up again for each write to it, so that none follows when the region was closed. A link that gets none of the
    /// payload for 100 ms gives the ticket back with [`DropReason::Truncated`]: until then the packet is refused on every
    /// path, and the connection is not closed.
    Place {
        /// The name of the placement.
        ticket: Ticket,
        /// Where.
        place: Place,
        /// The CRC32C that the payload must have once it is there; if it has another one, the placement has ended with
        /// [`DropReason::Checksum`]. `None` where the link keeps it whole.
        crc: Option<u32>,
    },
    /// Read the payload into a buffer, and hand the packet over whole: only so it can be checked, or it has no place yet.
    Whole,
    /// Read the payload and forget it.
    Discard,
}
