//! What is asked of a connection: work requests, and buffers for the peer's sends.

use super::Settings;
use crate::units::Key;
use crate::wire::{Atomic, CHUNK_INDEX_MAX};
use serde::{Deserialize, Serialize};

/// Reads and atomics of one end that wait for their responses at most (verbs' `max_rd_atomic`).
pub const REQUESTS_MAX: usize = 128;

/// Something to do, in the order in which it is posted; the end is reported by
/// [`Event::Completed`](super::Event::Completed) with its token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkRequest {
    /// Write to one place.
    Write(Write),
    /// Write pages to many places.
    WritePages(WritePages),
    /// Send to where the peer chooses.
    Send(SendMessage),
    /// Report a write.
    ReportWrite(ReportWrite),
    /// Read from the peer.
    Read(Read),
    /// Change a word at the peer.
    Atomic(AtomicChange),
}

/// A one-sided write to a region of the peer. One without bytes signals: its immediate is all that it brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// The caller's name for it: comes back in chunks and in the completion.
    pub token: u64,
    /// How many bytes; 0 is fine.
    pub bytes: u64,
    /// The key of the peer's region.
    pub key: Key,
    /// Where in that region, bytes.
    pub offset: u64,
    /// Counts at the peer once all bytes are placed.
    pub immediate: Option<u32>,
}

/// A one-sided write of pages of one size to places of a region of the peer. Pages that a whole number of equal packets
/// holds share chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WritePages {
    /// As in [`Write::token`]. The bytes of the message are the pages, one behind the other.
    pub token: u64,
    /// The key of the peer's region.
    pub key: Key,
    /// Where in that region they go.
    pub pages: Pages,
    /// Counts at the peer once all pages are placed.
    pub immediate: Option<u32>,
}

/// Where pages go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pages {
    /// Bytes of each page, at least 1.
    pub bytes: u32,
    /// Where in the region each of them goes, bytes.
    pub offsets: std::sync::Arc<Vec<u64>>,
}

impl Pages {
    /// Bytes of all of them.
    pub fn total(&self) -> u64 {
        u64::from(self.bytes).saturating_mul(self.offsets.len() as u64)
    }
}

/// A message whose place the receiver chooses: the n-th send of a connection goes into the n-th receive that the
/// peer posts. Until that is posted, the peer refuses it, and it is sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendMessage {
    /// As in [`Write::token`].
    pub token: u64,
    /// How many bytes; 0 is fine.
    pub bytes: u64,
    /// Comes with the message.
    pub immediate: Option<u32>,
}

/// Takes the peer's next receive to tell of the write that was posted before it, and places nothing there. On an in-order
/// connection the write is placed by then: both are verbs' RDMA WRITE with immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReportWrite {
    /// As in [`Write::token`].
    pub token: u64,
    /// How many bytes were written.
    pub written: u64,
    /// Comes with the report.
    pub immediate: u32,
}

/// A read of a region of the peer, which must be open to reads. It ends when the bytes are here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The caller's name for it.
    pub token: u64,
    /// How many bytes; 0 is fine.
    pub bytes: u64,
    /// The key of the peer's region.
    pub key: Key,
    /// Where in that region, bytes.
    pub offset: u64,
    /// The key of the region here that the bytes go to; of the connection's domain, and open to writes. The peer is not
    /// told it.
    pub to_key: Key,
    /// Where in that region, bytes.
    pub to_offset: u64,
}

/// A change of 8 bytes of a region of the peer, which must be open to atomics. It is made once. What was there before
/// is written here, 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicChange {
    /// The caller's name for it.
    pub token: u64,
    /// The change.
    pub atomic: Atomic,
    /// The key of the peer's region.
    pub key: Key,
    /// Where in that region, a multiple of 8 bytes.
    pub offset: u64,
    /// As in [`Read::to_key`].
    pub to_key: Key,
    /// As in [`Read::to_offset`].
    pub to_offset: u64,
}

/// A buffer for one send of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceiveBuffer {
    /// The caller's name for it: comes back in [`Event::Received`](super::Event::Received).
    pub token: u64,
    /// The key of its region; of the connection's domain, and open to writes.
    pub key: Key,
    /// Where in that region it begins, bytes.
    pub offset: u64,
    /// How long it is. A longer send is refused and ends the peer's connection.
    pub bytes: u64,
}

/// Why a work request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// It needs more than 2^24 chunks, or ends beyond the last offset there can be.
    #[error(
        "the message has more than 2^24 packets or ends beyond offset 2^64: split it, or check its offset"
    )]
    TooLong,
    /// Pages of no bytes, or none of them.
    #[error(
        "there are no pages, or they have no bytes: `pages` needs at least one page of one byte"
    )]
    NoPages,
    /// [`REQUESTS_MAX`] reads and atomics wait for their responses. A cancelled read is one of them until the peer has sent
    /// its response.
    #[error(
        "{REQUESTS_MAX} reads and atomics are under way, cancelled reads that the peer still answers among them: wait \
         until one has ended"
    )]
    TooManyRequests,
    /// The connection has failed or was closed.
    #[error("the connection is closed: connect again")]
    Closed,
}

impl WorkRequest {
    /// Refuses what [`Connection::post`](super::Connection::post) would refuse of it alone.
    ///
    /// # Errors
    /// [`PostError::TooLong`], [`PostError::NoPages`].
    pub fn check(&self, settings: &Settings) -> Result<(), PostError> {
        let packets = |bytes: u64| bytes.div_ceil(settings.packet_payload.into());
        let (packets, ends) = match self {
            WorkRequest::Write(write) => {
                let end = write.offset.checked_add(write.bytes);
                (packets(write.bytes), end.is_some())
            }
            WorkRequest::WritePages(WritePages { pages, .. }) => {
                if pages.bytes == 0 || pages.offsets.is_empty() {
                    return Err(PostError::NoPages);
                }
                let bytes = u64::from(pages.bytes);
                let mut ends = pages.offsets.iter().map(|offset| offset.checked_add(bytes));
                // Equal packets are at least half as long as they may be.
                let packets = packets(bytes).saturating_mul(2 * pages.offsets.len() as u64);
                (packets, ends.all(|end| end.is_some()))
            }
            WorkRequest::Send(send) => (packets(send.bytes), true),
            WorkRequest::ReportWrite(_) => (1, true),
            WorkRequest::Read(read) => {
                let [there, here] =
                    [read.offset, read.to_offset].map(|at| at.checked_add(read.bytes));
                (packets(read.bytes), there.is_some() && here.is_some())
            }
            WorkRequest::Atomic(change) => {
                let here = change.to_offset.checked_add(Atomic::BYTES);
                (1, here.is_some())
            }
        };
        // A chunk may be one packet.
        if packets > u64::from(CHUNK_INDEX_MAX) || !ends {
            return Err(PostError::TooLong);
        }
        Ok(())
    }

    /// Bytes that its caller sends.
    pub fn bytes(&self) -> u64 {
        match self {
            WorkRequest::Write(write) => write.bytes,
            WorkRequest::WritePages(write) => write.pages.total(),
            WorkRequest::Send(send) => send.bytes,
            WorkRequest::ReportWrite(_) | WorkRequest::Read(_) | WorkRequest::Atomic(_) => 0,
        }
    }

    /// Bytes that it moves, in either direction.
    pub fn load(&self) -> u64 {
        match self {
            WorkRequest::Read(read) => read.bytes,
            WorkRequest::Atomic(_) => Atomic::BYTES,
            _ => self.bytes(),
        }
    }

    /// Its caller's name for it.
    pub fn token(&self) -> u64 {
        match self {
            WorkRequest::Write(Write { token, .. })
            | WorkRequest::WritePages(WritePages { token, .. })
            | WorkRequest::Send(SendMessage { token, .. })
            | WorkRequest::ReportWrite(ReportWrite { token, .. })
            | WorkRequest::Read(Read { token, .. })
            | WorkRequest::Atomic(AtomicChange { token, .. }) => *token,
        }
    }

    /// Names it anew.
    #[must_use]
    pub fn with_token(mut self, name: u64) -> WorkRequest {
        match &mut self {
            WorkRequest::Write(Write { token, .. })
            | WorkRequest::WritePages(WritePages { token, .. })
            | WorkRequest::Send(SendMessage { token, .. })
            | WorkRequest::ReportWrite(ReportWrite { token, .. })
            | WorkRequest::Read(Read { token, .. })
            | WorkRequest::Atomic(AtomicChange { token, .. }) => *token = name,
        }
        self
    }

    /// Whether it ends by a response, of which [`REQUESTS_MAX`] may be waited for.
    pub fn awaits_response(&self) -> bool {
        matches!(self, WorkRequest::Read(_) | WorkRequest::Atomic(_))
    }
}

impl PostError {
    /// A stable label.
    pub const fn reason(self) -> &'static str {
        match self {
            PostError::TooLong => "TooLong",
            PostError::NoPages => "NoPages",
            PostError::TooManyRequests => "TooManyRequests",
            PostError::Closed => "Closed",
        }
    }
}

macro_rules! work_requests {
    ($($name:ident($type:ty),)*) => {
        $(impl From<$type> for WorkRequest {
            fn from(request: $type) -> WorkRequest {
                WorkRequest::$name(request)
            }
        })*
    };
}

work_requests! {
    Write(Write),
    WritePages(WritePages),
    Send(SendMessage),
    ReportWrite(ReportWrite),
    Read(Read),
    Atomic(AtomicChange),
}
