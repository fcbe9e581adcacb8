//! Messages on their way: what was posted, what is asked for, and answers to what the peer asks for.

use super::super::chunk::ChunkSource;
use super::super::work::{Pages, PostError, REQUESTS_MAX, WorkRequest};
use super::super::{Event, Settings};
use super::Transmit;
use crate::path::BASE_PACKET_BYTES;
use crate::units::{ChunkNumber, Key};
use crate::wire::{CHUNK_PACKETS_MAX, Flags, OVERHEAD_BYTES, Opcode, Request, RequestKind};
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
    /// A request's number, too.
    pub(super) immediate: Option<u32>,
    /// It answers a request of the peer.
    pub(super) answer: bool,
    /// Bytes cut into chunks so far.
    pub(super) cut: u64,
    /// Chunks cut so far.
    pub(super) chunks: u32,
    /// Chunks not acknowledged.
    pub(super) outstanding: u32,
    /// Whether its last chunk was cut.
    pub(super) done: bool,
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
            immediate: None,
            answer: false,
            cut: 0,
            chunks: 0,
            outstanding: 0,
            done: false,
        }
    }

    /// What the packet that ends it says: flags and immediate.
    pub(super) fn end(&self) -> (Flags, u32) {
        let flags = match (self.opcode, self.immediate) {
            (Opcode::Request, _) | (_, None) => Flags::LAST,
            (_, Some(_)) => Flags::LAST.with(Flags::IMMEDIATE),
        };
        let flags = match self.answer {
            true => flags.with(Flags::ANSWER),
            false => flags,
        };
        (flags, self.immediate.unwrap_or(0))
    }

    /// The next chunk: its length and the payload of each of its packets but the last. `packets` is how many it may
    /// have, `widest` the payload of the longest packet and `payload` that of the longest now.
    pub(super) fn next_chunk(&self, packets: u64, widest: u16, payload: u16) -> (u32, u16) {
        let left = self.bytes - self.cut;
        match &self.pages {
            None => (left.min(packets * u64::from(widest)) as u32, payload),
            Some(pages) => pages.next_chunk(self.cut, left, packets, payload),
        }
    }
}

/// The payload of the longest packet that every path carries, bytes.
const BASE_PAYLOAD: u16 = BASE_PACKET_BYTES - OVERHEAD_BYTES as u16;

impl Pages {
    /// Payload of equal packets, at most `payload` bytes each, that hold a page exactly.
    fn step(&self, payload: u16) -> Option<u16> {
        let least = self.bytes.div_ceil(payload.into());
        let packets = (least..=2 * least).find(|packets| self.bytes.is_multiple_of(*packets))?;
        Some((self.bytes / packets) as u16)
    }

    /// As [`Posted::next_chunk`]. Pages share a chunk when equal packets hold them, also packets that every path
    /// carries, into which a lost chunk may have to be cut: no packet spans two pages.
    fn next_chunk(&self, cut: u64, left: u64, packets: u64, payload: u16) -> (u32, u16) {
        if let (Some(step), Some(base)) = (self.step(payload), self.step(BASE_PAYLOAD)) {
            let most = (packets * u64::from(step)).min(CHUNK_PACKETS_MAX as u64 * u64::from(base));
            let whole = most - most % u64::from(step);
            return (left.min(whole.max(step.into())) as u32, step);
        }
        let in_page = u64::from(self.bytes) - cut % u64::from(self.bytes);
        let length = in_page.min(packets * u64::from(payload));
        (length as u32, payload)
    }

    /// Payload of the packets into which a lost chunk is cut anew, at most `payload` bytes.
    pub(super) fn payload_again(&self, payload: u16) -> u16 {
        match (self.step(payload), self.step(BASE_PAYLOAD)) {
            (Some(step), Some(_)) => step,
            _ => payload,
        }
    }

    /// Where in the region the byte `at` of the message goes.
    pub(in super::super) fn place_of(&self, at: u64) -> u64 {
        let bytes = u64::from(self.bytes);
        let page = self.offsets.get((at / bytes) as usize);
        page.copied().unwrap_or(0) + at % bytes
    }
}

/// An answer to a request of the peer, to be sent.
#[derive(Debug)]
pub(in super::super) struct Answer {
    /// The request's number.
    pub(in super::super) request: u32,
    pub(in super::super) source: ChunkSource,
    pub(in super::super) bytes: u64,
    /// Where it goes at the peer.
    pub(in super::super) key: Key,
    pub(in super::super) offset: u64,
}

impl Transmit {
    /// Takes a work request in.
    pub(in super::super) fn post(
        &mut self,
        request: WorkRequest,
        settings: &Settings,
    ) -> Result<(), PostError> {
        request.check(settings)?;
        if request.awaits_answer() && self.requests.len() == REQUESTS_MAX {
            return Err(PostError::TooManyRequests);
        }
        let posted = |token| ChunkSource::Posted { token };
        let posted = match request {
            WorkRequest::Write(write) => Posted {
                immediate: write.immediate,
                ..Posted::new(
                    Opcode::Write,
                    posted(write.token),
                    write.bytes,
                    write.key,
                    write.offset,
                )
            },
            WorkRequest::WritePages(write) => {
                let pages = &write.pages;
                let bytes = u64::from(pages.bytes) * pages.offsets.len() as u64;
                Posted {
                    immediate: write.immediate,
                    pages: Some(write.pages),
                    ..Posted::new(Opcode::Write, posted(write.token), bytes, write.key, 0)
                }
            }
            WorkRequest::Send(send) => Posted {
                immediate: send.immediate,
                ..Posted::new(
                    Opcode::Send,
                    posted(send.token),
                    send.bytes,
                    Key(self.sends),
                    0,
                )
            },
            WorkRequest::Read(read) => {
                let request = Request {
                    kind: RequestKind::Read { bytes: read.bytes },
                    answer_key: read.to_key,
                    answer_offset: read.to_offset,
                };
                self.request(read.token, &request, read.key, read.offset)
            }
            WorkRequest::Atomic(change) => {
                let request = Request {
                    kind: RequestKind::Atomic(change.atomic),
                    answer_key: change.to_key,
                    answer_offset: change.to_offset,
                };
                self.request(change.token, &request, change.key, change.offset)
            }
        };
        if posted.opcode == Opcode::Send {
            self.sends += 1;
        }
        self.push(posted);
        Ok(())
    }

    fn request(&mut self, token: u64, request: &Request, key: Key, offset: u64) -> Posted {
        let number = self.next_request;
        self.next_request = number.wrapping_add(1);
        self.requests.insert(number, token);
        let body = request.emit();
        let source = ChunkSource::Inline(body.into());
        Posted {
            immediate: Some(number),
            ..Posted::new(Opcode::Request, source, body.len() as u64, key, offset)
        }
    }

    /// Sends an answer.
    pub(in super::super) fn answer(&mut self, answer: Answer) {
        let Answer {
            request,
            source,
            bytes,
            key,
            offset,
        } = answer;
        self.answers += 1;
        self.push(Posted {
            immediate: Some(request),
            answer: true,
            ..Posted::new(Opcode::Write, source, bytes, key, offset)
        });
    }

    fn push(&mut self, posted: Posted) {
        let posted = Some(posted);
        let at = match self.free.pop() {
            Some(at) => {
                self.posted[at as usize] = posted;
                at
            }
            None => {
                self.posted.push(posted);
                self.posted.len() as u32 - 1
            }
        };
        self.queue.push_back(at);
    }

    /// Every chunk of a message is acknowledged.
    pub(super) fn complete(&mut self, at: u32, events: &mut VecDeque<Event>) {
        let Some(posted) = self.posted[at as usize].take() else {
            return;
        };
        self.free.push(at);
        self.answers -= usize::from(posted.answer);
        if let ChunkSource::Posted { token } = posted.source {
            events.push_back(Event::Completed { token });
        }
    }

    /// The answer to a request is here whole.
    pub(in super::super) fn handle_answer(&mut self, request: u32, events: &mut VecDeque<Event>) {
        if let Some(token) = self.requests.remove(&request) {
            events.push_back(Event::Completed { token });
        }
    }

    /// Whether this end waits for an answer.
    pub(in super::super) fn awaits_answers(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Answers that the peer has not acknowledged.
    pub(in super::super) fn answers(&self) -> usize {
        self.answers
    }

    /// What a chunk of the message says of its place: the message's pages, if it has any.
    pub(super) fn pages_of(&self, chunk: ChunkNumber) -> Option<&Pages> {
        let at = self.board.get(chunk).write;
        self.posted[at as usize].as_ref()?.pages.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(bytes: u32, count: u64) -> Pages {
        let offsets = (0..count).map(|page| 1_000_000 * (count - page));
        Pages {
            bytes,
            offsets: std::sync::Arc::new(offsets.collect()),
        }
    }

    #[test]
    fn no_packet_spans_two_pages_however_their_chunks_are_cut() {
        for bytes in [
            1, 7, 512, 1_000, 1_024, 1_409, 4_096, 4_099, 65_536, 100_003,
        ] {
            for payload in [1_408u16, 1_136, 8_896] {
                let pages = pages(bytes, 40);
                let total = u64::from(bytes) * 40;
                let (mut cut, mut shared) = (0, false);
                while cut < total {
                    let (length, step) = pages.next_chunk(cut, total - cut, 7, payload);
                    assert!(length > 0 && step <= payload && length.div_ceil(step.into()) <= 64);
                    shared |= length > bytes;
                    for payload in [step, pages.payload_again(step.min(BASE_PAYLOAD))] {
                        let mut at = 0;
                        while at < length {
                            let end = length.min(at + u32::from(payload));
                            let page = |at: u32| (cut + u64::from(at)) / u64::from(bytes);
                            assert_eq!(page(at), page(end - 1), "{bytes} B by {payload}");
                            at = end;
                        }
                    }
                    cut += u64::from(length);
                }
                assert_eq!(cut, total);
                let whole = bytes <= 1_024 || bytes == 4_096 && payload == 8_896;
                assert!(shared || !whole, "{bytes} B share chunks at {payload}");
            }
        }
    }
}
