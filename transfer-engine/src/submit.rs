//! The operations: what a program submits, and the checks that refuse it at once.

use std::sync::Arc;

use weft_engine::{Access, Piece, Post, Read, SendMessage, Write, WritePages};

use crate::address::{EngineAddress, MrDescriptor};
use crate::engine::TransferEngine;
use crate::error::TransferError;
use crate::operation::{Operation, Options};
use crate::operations::{Part, PartEnd, Place};
use crate::region::MemoryRegion;
use crate::work_request::{piece, post, signal};

/// A write of contiguous bytes.
#[derive(Debug, Clone)]
pub struct SingleWrite {
    /// The memory and the offset to write from. Do not change the bytes before the operation has ended.
    pub source: (MemoryRegion, u64),
    /// The memory and the offset to write to; it needs [`Access::WRITE`].
    pub destination: (MrDescriptor, u64),
    /// How many bytes, at least 1.
    pub bytes: u64,
    /// Counts once at the peer when all bytes are there.
    pub immediate: Option<u32>,
}

/// A read of contiguous bytes.
#[derive(Debug, Clone)]
pub struct SingleRead {
    /// The memory and the offset to read from; it needs [`Access::READ`].
    pub source: (MrDescriptor, u64),
    /// The memory and the offset to read to; it needs [`Access::WRITE`].
    pub destination: (MemoryRegion, u64),
    /// How many bytes, at least 1.
    pub bytes: u64,
}

/// Pages of a region: page `indices[i]` begins at `offset + indices[i] * stride` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pages {
    /// Which pages.
    pub indices: Vec<u32>,
    /// Bytes from the beginning of a page to that of the next.
    pub stride: u64,
    /// Where page 0 begins.
    pub offset: u64,
}

impl Pages {
    /// Where each page begins. One beyond 2^64 begins at the end, where no page fits.
    fn offsets(&self) -> Vec<u64> {
        let offset = |index: &u32| {
            let distance = self.stride.saturating_mul(u64::from(*index));
            self.offset.saturating_add(distance)
        };
        self.indices.iter().map(offset).collect()
    }
}

/// A write of pages, the i-th of the source to the i-th of the destination.
#[derive(Debug, Clone)]
pub struct PagedWrites {
    /// The memory and the pages to write from. Do not change the bytes before the operation has ended.
    pub source: (MemoryRegion, Pages),
    /// The memory and the pages to write to, as many; it needs [`Access::WRITE`]. Where pages overlap, any of them may be seen.
    pub destination: (MrDescriptor, Pages),
    /// Bytes of each page, at least 1.
    pub page_bytes: u32,
    /// Counts once at the peer when all pages are there.
    pub immediate: Option<u32>,
}

/// Peers for [`TransferEngine::submit_barrier`].
#[derive(Debug, Clone)]
pub struct PeerGroup(Arc<[EngineAddress]>);

/// A part for a peer. Without work it only connects.
type Given = (EngineAddress, Option<Post>);

/// An operation fails when a part of it fails; the failure names the first one. Each call that submits one refuses what it
/// can check here with a [`TransferError`] that names the field; then nothing was begun.
impl TransferEngine {
    /// Connects to a peer. Other operations do that when they need it.
    pub fn connect(
        &self,
        peer: &EngineAddress,
        options: Options,
    ) -> Result<Operation, TransferError> {
        self.submit(vec![(peer.clone(), None)], options)
    }

    /// Writes bytes.
    pub fn submit_single_write(
        &self,
        write: &SingleWrite,
        options: Options,
    ) -> Result<Operation, TransferError> {
        self.submit(vec![self.write(write)?], options)
    }

    /// Writes to many peers, at least 1 write.
    pub fn submit_scatter(
        &self,
        writes: &[SingleWrite],
        options: Options,
    ) -> Result<Operation, TransferError> {
        TransferError::check_at_least_one("writes", writes.len() as u64)?;
        let parts = writes.iter().map(|write| self.write(write));
        self.submit(parts.collect::<Result<_, _>>()?, options)
    }

    /// Writes pages of one size, at least 1.
    pub fn submit_paged_writes(
        &self,
        write: &PagedWrites,
        options: Options,
    ) -> Result<Operation, TransferError> {
        let bytes = u64::from(write.page_bytes);
        let (source, from) = (&write.source.0, write.source.1.offsets());
        let (to, offsets) = (&write.destination.0, write.destination.1.offsets());
        TransferError::check_at_least_one("page_bytes", bytes)?;
        TransferError::check_at_least_one("pages", from.len() as u64)?;
        if from.len() != offsets.len() {
            return Err(TransferError::Invalid {
                field: "destination",
                problem: "has another number of pages than source",
            });
        }
        let last = |offsets: &[u64]| offsets.iter().max().copied().unwrap_or(0);
        let source = source.check("source", &self.shared, last(&from), bytes)?;
        to.check("destination", Access::WRITE, last(&offsets), bytes)?;
        let mut pieces: Vec<Piece> = Vec::new();
        for offset in from {
            match pieces.last_mut() {
                Some(last) if last.offset + last.bytes == offset => last.bytes += bytes,
                _ => pieces.push(piece(source, offset, bytes)),
            }
        }
        let pages = WritePages {
            token: 0,
            key: to.key,
            pages: weft_engine::Pages {
                bytes: write.page_bytes,
                offsets: Arc::new(offsets),
            },
            immediate: write.immediate,
        };
        let part = (to.engine.clone(), Some(post(pages, pieces)));
        self.submit(vec![part], options)
    }

    /// Reads bytes.
    pub fn submit_read(
        &self,
        read: &SingleRead,
        options: Options,
    ) -> Result<Operation, TransferError> {
        let (bytes, (source, from)) = (read.bytes, &read.source);
        let (to, to_offset) = &read.destination;
        TransferError::check_at_least_one("bytes", bytes)?;
        source.check("source", Access::READ, *from, bytes)?;
        to.check("destination", &self.shared, *to_offset, bytes)?;
        let to = to.descriptor();
        to.check("destination", Access::WRITE, *to_offset, bytes)?;
        let work = Read {
            token: 0,
            bytes,
            key: source.key,
            offset: *from,
            to_key: to.key,
            to_offset: *to_offset,
        };
        let part = (source.engine.clone(), Some(post(work, Vec::new())));
        self.submit(vec![part], options)
    }

    /// Sends a message to the receives of a peer; it may be empty. Messages from one engine to one peer arrive in order. A
    /// message that finds no receive waits, and later ones wait behind it. A message that is longer than the receives ends
    /// the connections with the peer.
    pub fn submit_send(
        &self,
        peer: &EngineAddress,
        message: Vec<u8>,
        immediate: Option<u32>,
        options: Options,
    ) -> Result<Operation, TransferError> {
        let bytes = message.len() as u64;
        let send = SendMessage {
            token: 0,
            bytes,
            immediate,
        };
        let piece = Piece {
            source: Arc::new(message.into_boxed_slice()).into(),
            offset: 0,
            bytes,
        };
        let part = (peer.clone(), Some(post(send, vec![piece])));
        self.submit(vec![part], options)
    }

    /// Makes a group of peers, at least 1, and begins to connect to them.
    pub fn add_peer_group(&self, peers: Vec<EngineAddress>) -> Result<PeerGroup, TransferError> {
        TransferError::check_at_least_one("peers", peers.len() as u64)?;
        let connect = peers.iter().map(|peer| (peer.clone(), None)).collect();
        self.submit(connect, Options::default())?;
        Ok(PeerGroup(peers.into()))
    }

    /// Has `immediate` count once at each peer of a group. With [`TransferEngine::expect_imm_count`] at each peer it is a
    /// barrier.
    pub fn submit_barrier(
        &self,
        group: &PeerGroup,
        immediate: u32,
        options: Options,
    ) -> Result<Operation, TransferError> {
        let part = |peer: &EngineAddress| (peer.clone(), Some(signal(immediate)));
        self.submit(group.0.iter().map(part).collect(), options)
    }

    /// Waits until the count of an immediate is `count` or more. The count begins at 0 and grows until
    /// [`TransferEngine::free_imm`]. The order of the messages does not matter.
    pub fn expect_imm_count(
        &self,
        immediate: u32,
        count: u64,
        options: Options,
    ) -> Result<Operation, TransferError> {
        let (id, operation) = self.shared.begin(
            vec![Part {
                peer: None,
                place: Place::Expected(immediate),
            }],
            options,
        )?;
        if self.shared.counters.expect(immediate, count, id) {
            self.shared.end_part(id, PartEnd::Done);
        }
        Ok(operation)
    }

    /// Ends the counter of an immediate and returns its count: the next message with this immediate is the first one. An
    /// operation that expects a higher count then ends by its deadline.
    pub fn free_imm(&self, immediate: u32) -> u64 {
        self.shared.counters.free(immediate)
    }

    /// The part of a write.
    fn write(&self, write: &SingleWrite) -> Result<Given, TransferError> {
        let ((source, from), (to, offset)) = (&write.source, &write.destination);
        TransferError::check_at_least_one("bytes", write.bytes)?;
        let source = source.check("source", &self.shared, *from, write.bytes)?;
        to.check("destination", Access::WRITE, *offset, write.bytes)?;
        let pieces = vec![piece(source, *from, write.bytes)];
        let work = Write {
            token: 0,
            bytes: write.bytes,
            key: to.key,
            offset: *offset,
            immediate: write.immediate,
        };
        Ok((to.engine.clone(), Some(post(work, pieces))))
    }

    /// Begins an operation and gives its parts to the peers. A part without work only connects.
    fn submit(&self, work: Vec<Given>, options: Options) -> Result<Operation, TransferError> {
        let part = |(peer, _): &Given| Part {
            peer: Some(peer.clone()),
            place: Place::Waiting,
        };
        let parts = work.iter().map(part).collect();
        let (id, operation) = self.shared.begin(parts, options)?;
        for (part, (peer, work)) in (id..).zip(work) {
            self.shared.give(&peer, (part, work));
        }
        Ok(operation)
    }
}
