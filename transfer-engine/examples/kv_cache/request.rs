//! What decoder and prefiller agree on: the messages, the layout of a cache, and the model.

use serde::{Deserialize, Serialize};
use weft_transfer_engine::{
    EngineAddress, MemoryRegion, MrDescriptor, Options, PagedWrites, Pages, SingleWrite,
    TransferEngine,
};

use crate::Result;

pub(crate) const LAYERS: u64 = 16;
/// Pages of a request in each layer.
pub(crate) const PAGES: u64 = 8;
pub(crate) const PAGE_BYTES: u64 = 64 << 10;
/// What the decoder needs beside the pages: the hidden state of the last token.
pub(crate) const TAIL_BYTES: u64 = 4096;

/// Pages of the decoder's cache in each layer.
pub(crate) const CACHE_PAGES: u64 = 4 * PAGES;
/// The layers of the cache follow each other. Behind them each page of a layer has the place of a tail.
pub(crate) const CACHE_BYTES: u64 = TAILS_OFFSET + CACHE_PAGES * TAIL_BYTES;
const TAILS_OFFSET: u64 = LAYERS * CACHE_PAGES * PAGE_BYTES;

/// The prefiller's memory of a request: the same, with the pages of this request only.
pub(crate) const REQUEST_BYTES: u64 = REQUEST_TAIL_OFFSET + TAIL_BYTES;
pub(crate) const REQUEST_TAIL_OFFSET: u64 = LAYERS * PAGES * PAGE_BYTES;

/// What a prefiller submits for a request, each with the immediate of the request: the layers and the tail.
pub(crate) const TRANSFERS: u64 = LAYERS + 1;

/// The longest message and the number of buffers for messages.
pub(crate) const MESSAGES: (u64, u64) = (16 << 10, 16);

#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Message {
    Prefill(Request),
    /// The decoder does not need a request any more, and waits for the answer.
    Cancel {
        id: u32,
        decoder: EngineAddress,
    },
    /// The answer: no byte of the request lands any more.
    Cancelled {
        id: u32,
    },
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Its number, which is its immediate too; at least 1.
    pub(crate) id: u32,
    /// Stands for the prompt.
    pub(crate) prompt: u64,
    /// The decoder's cache, under a key of this request.
    pub(crate) cache: MrDescriptor,
    /// Where its [`PAGES`] pages go in each layer of the cache.
    pub(crate) pages: Vec<u32>,
    /// The prefiller's GPU hangs when it has computed so many layers, if there are more.
    pub(crate) hangs_after: u64,
}

impl Message {
    /// Sends it. Nobody waits: a peer that does not get it does not answer.
    pub(crate) fn send(&self, engine: &TransferEngine, to: &EngineAddress) -> Result<()> {
        engine.submit_send(to, postcard::to_allocvec(self)?, None, Options::default())?;
        Ok(())
    }
}

impl Request {
    /// The decoder, and the number there.
    pub(crate) fn key(&self) -> (EngineAddress, u32) {
        (self.cache.engine.clone(), self.id)
    }

    /// The transfer of a layer. The last page goes first: any order is as good.
    pub(crate) fn layer(&self, layer: u64, computed: &MemoryRegion) -> PagedWrites {
        let pages = |indices, pages_per_layer: u64| Pages {
            indices,
            stride: PAGE_BYTES,
            offset: layer * pages_per_layer * PAGE_BYTES,
        };
        let from = (0..PAGES as u32).rev().collect();
        let to = self.pages.iter().rev().copied().collect();
        PagedWrites {
            source: (computed.clone(), pages(from, PAGES)),
            destination: (self.cache.clone(), pages(to, CACHE_PAGES)),
            page_bytes: PAGE_BYTES as u32,
            immediate: Some(self.id),
        }
    }

    /// The transfer of the tail.
    pub(crate) fn tail(&self, computed: &MemoryRegion) -> SingleWrite {
        SingleWrite {
            source: (computed.clone(), REQUEST_TAIL_OFFSET),
            destination: (self.cache.clone(), self.tail_offset()),
            bytes: TAIL_BYTES,
            immediate: Some(self.id),
        }
    }

    /// Where a page of a layer lies in the decoder's cache.
    pub(crate) fn page_offset(&self, layer: u64, page: u32) -> u64 {
        (layer * CACHE_PAGES + u64::from(page)) * PAGE_BYTES
    }

    /// Where the tail lies there: at the place of the first page.
    pub(crate) fn tail_offset(&self) -> u64 {
        TAILS_OFFSET + u64::from(self.pages[0]) * TAIL_BYTES
    }

    /// The model: bytes that differ by prompt, layer and index of the page.
    pub(crate) fn compute_page(&self, layer: u64, index: u64) -> Vec<u8> {
        self.compute(layer * PAGES + index, PAGE_BYTES)
    }

    pub(crate) fn compute_tail(&self) -> Vec<u8> {
        self.compute(LAYERS * PAGES, TAIL_BYTES)
    }

    fn compute(&self, place: u64, bytes: u64) -> Vec<u8> {
        let mut state = (self.prompt << 32) + place + 1;
        let mut computed = vec![0; bytes as usize];
        for word in computed.as_chunks_mut().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        computed
    }
}
