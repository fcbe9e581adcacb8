//! What the ends of a run post: writes, and where a scenario has them sends, reads, additions and pages.

use std::sync::Arc;

use weft_core::connection::{
    AtomicChange, Pages, PostError, Read, ReceiveBuffer, SendMessage, WorkRequest, Write,
    WritePages,
};
use weft_core::units::Key;
use weft_core::wire::Atomic;

use crate::end::{EndState, Status};
use crate::observation::{End, Message, Observation, Operation};
use crate::simulation::Simulation;

/// Pages of a message at most.
const PAGES_MAX: u64 = 64;

impl Simulation {
    /// Posts messages while there is a place for them.
    pub(crate) fn post(&mut self, end: End) {
        let workload = self.scenario.workload;
        let EndState { pair, host, id, .. } = self.ends[end.0];
        let side = end.0 % 2;
        while self.ends[end.0].alive() && self.pairs[pair].left[side] > 0 {
            let operation = self.draw_operation(end);
            let reader = match operation {
                Operation::Read { .. } | Operation::Add => end,
                Operation::Write | Operation::Pages(_) | Operation::Send => end.peer(),
            };
            let Some(slot) = self.ends[reader.0].target.free_slot() else {
                return;
            };
            let token = self.totals.posted;
            let empty = self.work.chance(workload.empty);
            let most = workload.message_bytes;
            let bytes = match (empty, self.work.chance(workload.longest)) {
                (true, _) => 0,
                (false, true) => most,
                (false, false) => self.work.magnitude(1, most),
            };
            let signals = empty || self.work.chance(workload.immediate);
            let (operation, bytes) = self.fit(operation, bytes, end);
            // Of a read or an addition the peer's user learns nothing.
            let signals = signals && reader != end;
            let (key, start) = self.ends[reader.0].target.place_of(slot);
            let message = Message {
                id: token,
                writer: end,
                operation,
                key,
                offset: start + self.work.within(0, workload.message_bytes - bytes),
                bytes,
                immediate: signals.then_some(token as u32),
                packet_payload: self.scenario.settings.packet_payload.into(),
            };
            let request = self.request(&message);
            let Some(running) = self.machines[host].running() else {
                return;
            };
            if let Err(error) = running.endpoint.post(id, request) {
                let connection = running.endpoint.connection(id);
                if error == PostError::TooManyRequests
                    && connection.is_some_and(|connection| connection.cancelled_reads() > 0)
                {
                    // The peer has yet to answer some that are cancelled, and have no place any more.
                    continue;
                }
                if connection.is_none_or(|connection| connection.failure().is_none()) {
                    let text = format!("{end:?} refuses a message: {error}");
                    self.checkers.violated("messages are taken", self.now, text);
                }
                return;
            }
            self.totals.posted += 1;
            self.totals.operations += u64::from(operation != Operation::Write);
            self.totals.bytes += bytes;
            self.pairs[pair].left[side] -= 1;
            self.ends[end.0].open += 1;
            if let Operation::Read { .. } | Operation::Add = operation {
                self.ends[end.0].requests.push(token);
            }
            self.ends[reader.0].target.expect(slot, message);
            self.checkers
                .observe(self.now, &Observation::Posted { message: &message });
            self.draw_cancel(message);
            if operation == Operation::Send {
                let behind = start + workload.message_bytes - message.offset;
                self.ends[reader.0].receives.push_back(ReceiveBuffer {
                    token,
                    key,
                    offset: message.offset,
                    bytes: self.operations.within(bytes, behind),
                });
                // Otherwise the host posts it at the end of its next turn.
                if self.operations.coin() {
                    self.post_receives(self.ends[reader.0].host);
                }
            }
        }
    }

    fn draw_operation(&mut self, end: End) -> Operation {
        if !self.operations.chance(self.scenario.workload.operations) {
            return Operation::Write;
        }
        let (key, _) = self.ends[end.peer().0].target.region(0);
        let page = self.scenario.workload.message_bytes;
        let page = self.operations.magnitude(1, page);
        self.operations.pick(&[
            Operation::Pages(page),
            Operation::Send,
            Operation::Read { key, offset: 0 },
            Operation::Add,
        ])
    }

    /// The operation with so many bytes, or with as many as it can have.
    fn fit(&mut self, operation: Operation, bytes: u64, end: End) -> (Operation, u64) {
        match operation {
            Operation::Pages(_) if bytes == 0 => (Operation::Write, 0),
            Operation::Pages(page) => {
                let page = page.min(bytes);
                (Operation::Pages(page), page * (bytes / page).min(PAGES_MAX))
            }
            Operation::Read { key, .. } => {
                let (_, region_bytes) = self.ends[end.peer().0].target.region(0);
                let offset = self.operations.within(0, region_bytes - bytes);
                (Operation::Read { key, offset }, bytes)
            }
            Operation::Add if self.scenario.workload.message_bytes < Atomic::BYTES => {
                let (key, _) = self.ends[end.peer().0].target.region(0);
                (Operation::Read { key, offset: 0 }, 0)
            }
            Operation::Add => (Operation::Add, Atomic::BYTES),
            Operation::Write | Operation::Send => (operation, bytes),
        }
    }

    fn request(&self, message: &Message) -> WorkRequest {
        let Message {
            id: token,
            writer,
            operation,
            key,
            offset,
            bytes,
            immediate,
            ..
        } = *message;
        match operation {
            Operation::Write => WorkRequest::Write(Write {
                token,
                bytes,
                key,
                offset,
                immediate,
            }),
            Operation::Pages(page) => {
                let offsets = (0..bytes / page).rev().map(|at| offset + at * page);
                let pages = Pages {
                    bytes: page as u32,
                    offsets: Arc::new(offsets.collect()),
                };
                WorkRequest::WritePages(WritePages {
                    token,
                    key,
                    pages,
                    immediate,
                })
            }
            Operation::Send => WorkRequest::Send(SendMessage {
                token,
                bytes,
                immediate,
            }),
            Operation::Read {
                key: from,
                offset: at,
            } => WorkRequest::Read(Read {
                token,
                bytes,
                key: from,
                offset: at,
                to_key: key,
                to_offset: offset,
            }),
            Operation::Add => WorkRequest::Atomic(AtomicChange {
                token,
                atomic: Atomic::FetchAdd { add: token + 1 },
                key: self.word(writer),
                offset: 0,
                to_key: key,
                to_offset: offset,
            }),
        }
    }

    /// The region whose first word an end adds to.
    fn word(&self, writer: End) -> Key {
        self.ends[writer.peer().0].target.region(0).0
    }

    /// Posts the receives of a host's ends, as far as they run.
    pub(crate) fn post_receives(&mut self, host: usize) {
        let Simulation { machines, ends, .. } = self;
        let machine = &mut machines[host];
        let open: Vec<End> = machine.ends.values().copied().collect();
        let Some(running) = machine.running() else {
            return;
        };
        for end in open {
            let EndState {
                id,
                status: Status::Open,
                receives,
                ..
            } = &mut ends[end.0]
            else {
                continue;
            };
            while let Some(&buffer) = receives.front() {
                if running.endpoint.post_receive(*id, buffer).is_err() {
                    break;
                }
                receives.pop_front();
            }
        }
    }
}
