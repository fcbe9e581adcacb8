//! Messages on their way: what was posted, requests, and responses to the peer's.

use super::super::Event;
use super::super::chunk::ChunkSource;
use super::super::receives::Requests;
use super::super::work::{Pages, WorkRequest};
use super::SendHalf;
use super::readiness::Readiness;
use super::revocations::RevocationReason;
use crate::path::BASE_PACKET_BYTES;
use crate::units::{ChunkNumber, Key};
use crate::wire::{Atomic, CHUNK_PACKETS_MAX, Flags, OVERHEAD_BYTES, Opcode, Request};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A message that is not complete.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Posted {
    pub(super) opcode: Opcode,
    pub(super) source: ChunkSource,
    pub(super) bytes: u64,
    pub(super) key: Key,
    pub(super) offset: u64,
    pub(super) pages: Option<Pages>,
    /// What the packet that ends it says: flags and immediate.
    pub(super) end: Flags,
    pub(super) immediate: u32,
    /// Bytes cut into chunks so far.
    pub(super) cut: u64,
    /// Chunks cut so far.
    pub(super) chunks: u32,
    /// Chunks not acknowledged.
    pub(super) outstanding: u32,
    /// Whether its last chunk was cut.
    pub(super) done: bool,
    /// Why the receiver is asked to place no more of it.
    pub(super) revoked: Option<RevocationReason>,
}

impl Posted {
    fn new(opcode: Opcode, source: ChunkSource, bytes: u64, key: Key, offset: u64) -> Posted {
        Posted {
            opcode,
            source,
            bytes,
            key,
            offset,
            pages: None,
            end: Flags::LAST,
            immediate: 0,
            cut: 0,
            chunks: 0,
            outstanding: 0,
            done: false,
            revoked: None,
        }
    }

    /// The packet that ends it has this immediate, if any.
    fn with_immediate(mut self, immediate: Option<u32>) -> Posted {
        if let Some(immediate) = immediate {
            self.end = self.end.with(Flags::IMMEDIATE);
            self.immediate = immediate;
        }
        self
    }

    /// The next chunk: its length and the payload of each of its packets but the last. `packets` is how many it may
    /// have, `widest` the payload of the longest packet and `payload` that of the longest now.
    pub(super) fn next_chunk(&self, packets: u64, widest: u16, payload: u16) -> (u32, u16) {
        let left = self.bytes - self.cut;
        match &self.pages {
            None => (left.min(packets * u64::from(widest)) as u32, payload),
            Some(pages) => pages.next_chunk(self.cut, left, packets, widest, payload),
        }
    }
}

/// Responses in a row that may overtake a message: a peer that reads without end keeps none waiting.
const RESPONSES_IN_A_ROW_MAX: u8 = 8;

/// The payload of the longest packet that every path carries, bytes.
const BASE_PAYLOAD: u16 = BASE_PACKET_BYTES - OVERHEAD_BYTES as u16;

impl Pages {
    /// Payload of equal packets, at most `payload` bytes each, that hold a page exactly.
    fn step(&self, payload: u16) -> Option<u16> {
        let least = self.bytes.div_ceil(payload.into());
        if least as usize > CHUNK_PACKETS_MAX {
            return None;
        }
        let packets = (least..=2 * least).find(|packets| self.bytes.is_multiple_of(*packets))?;
        Some((self.bytes / packets) as u16)
    }

    /// As [`Posted::next_chunk`]. No packet spans two pages, however often its chunk is cut anew: a chunk lies within
    /// one page, or it is whole pages, which equal packets hold, also packets that every path carries.
    fn next_chunk(
        &self,
        cut: u64,
        left: u64,
        packets: u64,
        widest: u16,
        payload: u16,
    ) -> (u32, u16) {
        let page = u64::from(self.bytes);
        if cut.is_multiple_of(page)
            && let (Some(step), Some(base)) = (self.step(payload), self.step(BASE_PAYLOAD))
        {
            let base = CHUNK_PACKETS_MAX as u64 * u64::from(base);
            let pages = (packets * u64::from(step)).min(base) / page;
            if pages > 0 {
                return (left.min(pages * page) as u32, step);
            }
        }
        let in_page = page - cut % page;
        (in_page.min(packets * u64::from(widest)) as u32, payload)
    }

    /// Payload of the packets into which a lost chunk of `length` bytes is cut anew, at most `payload` bytes.
    pub(super) fn payload_again(&self, length: u32, payload: u16) -> u16 {
        match self.step(payload) {
            Some(step) if length > self.bytes => step,
            // A chunk within one page; whole pages are cut only where `step` was asked at this length before.
            found => {
                debug_assert!(
                    length <= self.bytes || found.is_some(),
                    "no packet spans two pages"
                );
                payload
            }
        }
    }

    /// Where in the region the byte `at` of the message goes.
    pub(in super::super) fn place_of(&self, at: u64) -> u64 {
        let bytes = u64::from(self.bytes);
        let page = self.offsets.get((at / bytes) as usize);
        page.copied().unwrap_or(0) + at % bytes
    }
}

/// A response to a request of the peer, to be sent.
#[derive(Debug)]
pub(in super::super) struct Response {
    /// The request's number.
    pub(in super::super) request: u64,
    pub(in super::super) source: ChunkSource,
    pub(in super::super) bytes: u64,
}

impl SendHalf {
    /// Takes a work request in, which was checked. The response to a read or an atomic goes to `requests`.
    pub(in super::super) fn post(&mut self, request: WorkRequest, requests: &mut Requests) {
        if self.in_order {
            self.completions.post(request.token());
        }
        let posted = |token| ChunkSource::Posted { token };
        let posted = match request {
            WorkRequest::Write(write) => {
                let source = posted(write.token);
                Posted::new(Opcode::Write, source, write.bytes, write.key, write.offset)
                    .with_immediate(write.immediate)
            }
            WorkRequest::WritePages(write) => {
                let (source, bytes) = (posted(write.token), write.pages.total());
                let posted = Posted {
                    pages: Some(write.pages),
                    ..Posted::new(Opcode::Write, source, bytes, write.key, 0)
                };
                posted.with_immediate(write.immediate)
            }
            WorkRequest::Send(send) => {
                let number = self.sends;
                self.sends += 1;
                Posted::new(Opcode::Send, posted(send.token), send.bytes, Key(number), 0)
                    .with_immediate(send.immediate)
            }
            WorkRequest::ReportWrite(report) => {
                let (number, source) = (self.sends, posted(report.token));
                self.sends += 1;
                // The length of the write stands in place of an offset.
                let posted = Posted {
                    end: Flags::LAST.with(Flags::WRITTEN),
                    ..Posted::new(Opcode::Send, source, 0, Key(number), report.written)
                };
                posted.with_immediate(Some(report.immediate))
            }
            WorkRequest::Read(read) => {
                let number =
                    requests.add(read.token, read.to_key, read.to_offset, read.bytes, true);
                let request = Request::Read { bytes: read.bytes };
                request_message(number, request, read.key, read.offset)
            }
            WorkRequest::Atomic(change) => {
                let (key, offset) = (change.to_key, change.to_offset);
                let number = requests.add(change.token, key, offset, Atomic::BYTES, false);
                let request = Request::Atomic(change.atomic);
                request_message(number, request, change.key, change.offset)
            }
        };
        let at = self.keep(posted);
        self.queue.push_back(at);
        self.awaited = requests.len();
    }

    /// Queues a response.
    pub(in super::super) fn respond(&mut self, response: Response) {
        let Response {
            request,
            source,
            bytes,
        } = response;
        let key = Key(request);
        let at = self.keep(Posted::new(Opcode::Response, source, bytes, key, 0));
        self.responses.push_back(at);
        self.unacked_responses += 1;
    }

    /// The message that the next chunk is of: one that has begun, for the chunks of a message have numbers in a row;
    /// else a response, which somebody waits for, before what was posted.
    #[inline]
    pub(super) fn next_message(&self, chunk_bytes: u32) -> Option<u32> {
        let Some(&response) = self.responses.front() else {
            return self.queue.front().copied();
        };
        let message = |at: u32| self.posted[at as usize].as_ref();
        let has_begun = |at| message(at).is_some_and(|message| message.chunks > 0);
        match self.queue.front() {
            Some(&posted) if has_begun(posted) => Some(posted),
            Some(&posted)
                if self.responses_in_a_row >= RESPONSES_IN_A_ROW_MAX
                    && !has_begun(response)
                    && message(posted)
                        .is_some_and(|message| self.has_room(message, chunk_bytes)) =>
            {
                Some(posted)
            }
            _ => Some(response),
        }
    }

    /// The last chunk of a message is cut.
    pub(super) fn end_message(&mut self, opcode: Opcode) {
        match opcode {
            Opcode::Response => {
                self.responses.pop_front();
                self.responses_in_a_row = self.responses_in_a_row.saturating_add(1);
            }
            Opcode::Write | Opcode::Send | Opcode::Request => {
                self.queue.pop_front();
                self.responses_in_a_row = 0;
            }
        }
    }

    /// Keeps a message until it is complete. Returns its place.
    fn keep(&mut self, posted: Posted) -> u32 {
        let posted = Some(posted);
        match self.free.pop() {
            Some(at) => {
                self.posted[at as usize] = posted;
                at
            }
            None => {
                self.posted.push(posted);
                self.posted.len() as u32 - 1
            }
        }
    }

    /// Completes the messages of which every chunk and every chunk before them is acknowledged, in their order: what
    /// ends a message waits at the peer for what was sent before it.
    #[cold]
    pub(super) fn complete_in_order(&mut self, events: &mut VecDeque<Event>) {
        let first = self.board.first();
        let ahead = |(last, _): &(ChunkNumber, u32)| last.ahead_of(first);
        let passed = self.whole.extract_if(.., |whole| ahead(whole) < 0);
        let mut passed: Vec<(ChunkNumber, u32)> = passed.collect();
        passed.sort_by_key(ahead);
        for (_, at) in passed {
            if let Some(token) = self.complete(at) {
                self.completions.complete(token, events);
            }
        }
    }

    /// A read or an atomic is answered, on a connection that completes in order.
    pub(in super::super) fn complete_request(&mut self, token: u64, events: &mut VecDeque<Event>) {
        self.completions.complete(token, events);
    }

    /// Every chunk of a message is acknowledged. Returns the token of what was posted, if it ends by that.
    #[inline]
    pub(super) fn complete(&mut self, at: u32) -> Option<u64> {
        let posted = self.posted[at as usize].take()?;
        self.free.push(at);
        self.unacked_responses -= usize::from(posted.opcode == Opcode::Response);
        match posted.source {
            ChunkSource::Posted { token } => Some(token),
            ChunkSource::Region(_) | ChunkSource::Inline(_) => None,
        }
    }

    /// So many responses are waited for.
    pub(in super::super) fn set_awaited(&mut self, awaited: usize) {
        self.awaited = awaited;
    }

    /// Whether this end waits for a response.
    pub(in super::super) fn awaits_response(&self) -> bool {
        self.awaited > 0
    }

    /// Responses that the peer has not acknowledged.
    pub(in super::super) fn unacked_responses(&self) -> usize {
        self.unacked_responses
    }

    /// Whether there is room on the board for the next chunk of a message, of `chunk_bytes` bytes. An eighth of the window
    /// is kept for responses behind chunks that the peer refuses, and behind sends, which it may refuse: it may have to
    /// read before it posts a receive. A message that has begun goes before them, so it begins where all of it fits, or
    /// where there is nothing before it; no send begins behind a refused one. A message that began before the first
    /// refusal, and is longer than the window, holds responses up.
    pub(super) fn has_room(&self, message: &Posted, chunk_bytes: u32) -> bool {
        let window = usize::from(self.board.window());
        let outstanding = self.board.outstanding();
        let is_ready = matches!(self.readiness, Readiness::Ready);
        let keeps = match message.opcode {
            Opcode::Response => false,
            Opcode::Send => true,
            Opcode::Write | Opcode::Request => !is_ready,
        };
        if !keeps {
            return outstanding < window;
        }
        let kept = outstanding + window / 8;
        if message.chunks > 0 {
            return kept < window;
        }
        let chunks = message.bytes.div_ceil(chunk_bytes.max(1).into()).max(1);
        let fits = outstanding == 0 || kept as u64 + chunks <= window as u64;
        fits && (is_ready || message.opcode != Opcode::Send)
    }

    /// What a chunk of the message says of its place: the message's pages, if it has any.
    pub(super) fn pages_of(&self, chunk: ChunkNumber) -> Option<&Pages> {
        let at = self.board.get(chunk).write;
        self.posted[at as usize].as_ref()?.pages.as_ref()
    }
}

/// A request, to be posted.
fn request_message(number: u32, request: Request, key: Key, offset: u64) -> Posted {
    let body = request.emit();
    let source = ChunkSource::Inline(body.into());
    // The payload does not say the number: the immediate does.
    Posted::new(Opcode::Request, source, body.len() as u64, key, offset)
        .with_immediate(Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::{SendBoard, Sent};

    #[test]
    fn no_packet_spans_two_pages_whatever_paths_carry_when_its_chunk_is_cut_and_cut_anew() {
        let payloads = [8_936u16, 1_408, BASE_PAYLOAD];
        let sizes = [
            1u32, 7, 250, 512, 1_000, 1_024, 1_409, 3_600, 4_096, 4_099, 60_701, 65_536, 73_728,
            100_003,
        ];
        let mut draw = 1u64;
        let mut next = |below: usize| {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (draw >> 33) as usize % below
        };
        for bytes in sizes {
            for widest in [8_936u16, 1_408] {
                let count = 40u64;
                let pages = Pages {
                    bytes,
                    offsets: std::sync::Arc::new((0..count).collect()),
                };
                let full = (65_000 / u64::from(widest)).max(1);
                let (total, mut cut, mut shared) = (u64::from(bytes) * count, 0, false);
                while cut < total {
                    // What paths carry, and how much the window lets go, changes from chunk to chunk.
                    let payload = payloads[next(3)].min(widest);
                    let most = 1 + next(full as usize) as u64;
                    let (length, step) = pages.next_chunk(cut, total - cut, most, widest, payload);
                    shared |= length > bytes;
                    let mut board = SendBoard::new(4, ChunkNumber(0));
                    let packets = length.div_ceil(step.into());
                    assert!(
                        length > 0 && step <= payload && packets <= 64,
                        "{bytes} B: {packets}"
                    );
                    let chunk = board.push(Sent {
                        length,
                        packets: packets as u8,
                        payload: step,
                        ..Sent::default()
                    });
                    let check = |step: u16| {
                        let mut at = 0;
                        while at < length {
                            let end = length.min(at + u32::from(step));
                            let page = |at: u32| (cut + u64::from(at)) / u64::from(bytes);
                            assert_eq!(page(at), page(end - 1), "{bytes} B by {step}");
                            at = end;
                        }
                    };
                    check(step);
                    if step > BASE_PAYLOAD && length > u32::from(BASE_PAYLOAD) {
                        board.lose(chunk, 1);
                        let sent = board.cut(chunk, pages.payload_again(length, BASE_PAYLOAD));
                        assert!(sent.packets <= 64 && u32::from(sent.packets) > packets);
                        check(sent.payload);
                    }
                    cut += u64::from(length);
                }
                assert_eq!(cut, total);
                let several = bytes <= 1_024 || bytes == 4_096;
                assert!(shared || !several, "{bytes} B share chunks");
            }
        }
    }
}
