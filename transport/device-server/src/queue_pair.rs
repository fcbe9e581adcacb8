//! One queue pair: its two rings, what of them is outstanding, and its connection.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use weft_device::completion::{Completion, Opcode, Outcome, Status};
use weft_device::control::QueuePair as Made;
use weft_device::entry::Entry;
use weft_device::ring::Consumer;
use weft_device::state::State;
use weft_device::work_request::{Operation, Payload, WorkRequest as Posted};
use weft_engine::{
    Atomic, AtomicChange, ConnectionId, Engine, EngineError, Failure, Piece, Post, PostError, Read,
    ReceiveBuffer, SendMessage, Source, Words, WorkRequest, Write,
};

use crate::channel::CompletionQueue;
use crate::offer::Offer;
use crate::regions::{Regions, remote_key};

/// The longest message of an RC queue pair (InfiniBand Architecture Specification, volume 1, section 9.7.6).
const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// What a queue pair needs of its context while it moves work requests.
pub(crate) struct Surroundings<'c> {
    pub(crate) engine: &'c Engine,
    pub(crate) regions: &'c Regions,
    pub(crate) completion_queues: &'c mut BTreeMap<u32, CompletionQueue>,
    /// This completion queue was full, or its ring is broken: the whole context fails.
    pub(crate) overflowed: Option<u32>,
}

/// How far a queue pair is to being one end of a connection.
#[derive(Debug)]
pub(crate) enum Joining {
    /// No end is allocated.
    No,
    /// The offer of this end is sent again and again, since this time.
    Offered { offer: Box<Offer>, since: Duration },
    /// Connected. The offer, which now names the peer's end, is sent again where the peer shows that it has not come.
    Joined { offer: Box<Offer>, peer_prefix: u32 },
}

/// A work request of the send queue that is not complete.
struct Outstanding {
    token: u64,
    wr_id: u64,
    opcode: Opcode,
    bytes: u32,
    is_signaled: bool,
    /// Slots produced by the end of its entry.
    produced: u32,
    /// Once it is known. It is reported when all before it are.
    status: Option<Status>,
}

impl Outstanding {
    fn awaits_response(&self) -> bool {
        let request = matches!(
            self.opcode,
            Opcode::Read | Opcode::FetchAdd | Opcode::CompareSwap
        );
        request && self.status.is_none()
    }
}

/// A receive that no send of the peer has filled.
struct Receive {
    token: u64,
    wr_id: u64,
    produced: u32,
    /// Where the bytes go; not yet given to the engine before the queue pair is connected.
    buffer: ReceiveBuffer,
}

pub(crate) struct QueuePair {
    pub(crate) number: u32,
    pub(crate) made: Made,
    pub(crate) joining: Joining,
    /// Reads and atomics that may be under way (`max_rd_atomic`).
    pub(crate) requests_max: usize,
    sends: Consumer<Words>,
    /// None once the ring is broken.
    receives: Option<Consumer<Words>>,
    outstanding: VecDeque<Outstanding>,
    receive_queue: VecDeque<Receive>,
    /// An entry that is taken and waits for reads before it.
    waiting: Option<Box<Entry>>,
    next_token: u64,
    /// Nothing more is posted: a work request of the send queue has failed.
    is_broken: bool,
}

/// What an entry of the send ring has become.
enum Taken {
    /// It is outstanding.
    Yes,
    /// It waits for reads before it.
    Waits,
}

impl QueuePair {
    pub(crate) fn new(
        number: u32,
        made: Made,
        sends: Consumer<Words>,
        receives: Option<Consumer<Words>>,
    ) -> Self {
        Self {
            number,
            made,
            joining: Joining::No,
            requests_max: 0,
            sends,
            receives,
            outstanding: VecDeque::new(),
            receive_queue: VecDeque::new(),
            waiting: None,
            next_token: 0,
            is_broken: false,
        }
    }

    /// The end that is allocated, connected or not.
    pub(crate) fn connection(&self) -> Option<ConnectionId> {
        match &self.joining {
            Joining::No => None,
            Joining::Offered { offer, .. } | Joining::Joined { offer, .. } => Some(offer.end.id),
        }
    }

    /// The peer's end is known: what was posted begins to move.
    pub(crate) fn join(&mut self, peer: &Offer, around: &mut Surroundings<'_>) {
        let joining = std::mem::replace(&mut self.joining, Joining::No);
        if let Joining::Offered { mut offer, .. } | Joining::Joined { mut offer, .. } = joining {
            offer.answers = Some(peer.end.id);
            let peer_prefix = peer.key_prefix;
            for receive in &self.receive_queue {
                // A connection that failed meanwhile says so by an event.
                let _ = around.engine.post_receive(offer.end.id, receive.buffer);
            }
            self.joining = Joining::Joined { offer, peer_prefix };
        }
    }

    /// Takes what is new in both rings, as the state allows. Answers whether the queue pair is to fail.
    pub(crate) fn take(&mut self, state: State, around: &mut Surroundings<'_>) -> bool {
        if state == State::Error {
            self.flush(around);
            return false;
        }
        if state.takes_receives() && self.take_receives(around) {
            return true;
        }
        state == State::ReadyToSend && (self.take_sends(around) || self.settle(around))
    }

    fn take_receives(&mut self, around: &mut Surroundings<'_>) -> bool {
        let mut entry = Entry::new();
        while self.receive_queue.len() < self.made.sizes.receives as usize {
            let Some(ring) = &mut self.receives else {
                return false;
            };
            match entry.take(ring) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => {
                    tracing::debug!(
                        queue_pair = self.number,
                        "a receive ring is broken: {error}"
                    );
                    self.receives = None;
                    return true;
                }
            }
            let produced = ring.consumed();
            let token = self.next_token;
            let (wr_id, buffer) = match entry.receive() {
                Ok(receive) => {
                    let filled = receive.sges.iter().filter(|sge| sge.bytes > 0);
                    let sges: Vec<_> = filled.collect();
                    let domain = self.made.domain;
                    let target = match sges.as_slice() {
                        [] => Ok((weft_engine::SIGNAL, 0, 0)),
                        [sge] => {
                            let target = around.regions.target(domain, sge);
                            target.map(|(key, offset)| (key, offset, sge.bytes.into()))
                        }
                        _ => Err(Status::LocalQueuePairOperation),
                    };
                    (receive.wr_id, target)
                }
                Err(_) => (0, Err(Status::LocalQueuePairOperation)),
            };
            let (key, offset, bytes) = match buffer {
                Ok(buffer) => buffer,
                Err(status) => {
                    let completion = self.of_receive(wr_id, produced, status);
                    put(around, self.made.receive_completions, &completion);
                    return true;
                }
            };
            let buffer = ReceiveBuffer {
                token,
                key,
                offset,
                bytes,
            };
            self.next_token += 1;
            if let Joining::Joined { offer, .. } = &self.joining {
                // A connection that failed meanwhile says so by an event.
                let _ = around.engine.post_receive(offer.end.id, buffer);
            }
            self.receive_queue.push_back(Receive {
                token,
                wr_id,
                produced,
                buffer,
            });
        }
        false
    }

    fn take_sends(&mut self, around: &mut Surroundings<'_>) -> bool {
        let Joining::Joined { offer, peer_prefix } = &self.joining else {
            return false;
        };
        let (connection, prefix) = (offer.end.id, *peer_prefix);
        while !self.is_broken && self.outstanding.len() < self.made.sizes.sends as usize {
            let mut entry = self.waiting.take().unwrap_or_default();
            if entry.slots().is_empty() {
                match entry.take(&mut self.sends) {
                    Ok(true) => {}
                    Ok(false) => return false,
                    Err(error) => {
                        tracing::debug!(queue_pair = self.number, "a send ring is broken: {error}");
                        self.is_broken = true;
                        return true;
                    }
                }
            }
            if let Taken::Waits = self.post(&entry, connection, prefix, around) {
                self.waiting = Some(entry);
                return false;
            }
        }
        false
    }

    /// Posts one entry to the connection.
    fn post(
        &mut self,
        entry: &Entry,
        connection: ConnectionId,
        prefix: u32,
        around: &Surroundings<'_>,
    ) -> Taken {
        let mut outstanding = Outstanding {
            token: self.next_token,
            wr_id: 0,
            opcode: Opcode::Send,
            bytes: 0,
            is_signaled: true,
            produced: self.sends.consumed(),
            status: None,
        };
        match entry.work_request() {
            Ok(posted) => {
                outstanding.wr_id = posted.wr_id;
                outstanding.opcode = opcode(&posted.operation);
                outstanding.is_signaled = posted.signaled;
                let under_way = self.outstanding.iter().filter(|it| it.awaits_response());
                let under_way = under_way.count();
                let is_full = outstanding.awaits_response() && under_way >= self.requests_max;
                if is_full || posted.fence && under_way > 0 {
                    return Taken::Waits;
                }
                match self.work_request(&posted, prefix, around) {
                    Ok((request, pieces)) => {
                        outstanding.bytes = match &request {
                            WorkRequest::Read(read) => read.bytes as u32,
                            WorkRequest::Atomic(_) => Atomic::BYTES as u32,
                            other => other.bytes() as u32,
                        };
                        let post = Post {
                            connection,
                            request,
                            pieces,
                        };
                        match around.engine.post(post) {
                            Ok(()) => {}
                            Err(EngineError::Post(PostError::TooManyRequests)) => {
                                return Taken::Waits;
                            }
                            // Nothing is to be done.
                            Err(EngineError::EmptyWrite) => {
                                outstanding.status = Some(Status::Success);
                            }
                            // The connection has failed, and its event is on the way.
                            Err(EngineError::Post(PostError::Closed)) => {}
                            Err(error) => {
                                tracing::debug!(queue_pair = self.number, "not posted: {error}");
                                outstanding.status = Some(Status::LocalQueuePairOperation);
                            }
                        }
                    }
                    Err(status) => outstanding.status = Some(status),
                }
            }
            Err(error) => {
                tracing::debug!(queue_pair = self.number, "no work request: {error}");
                outstanding.status = Some(Status::LocalQueuePairOperation);
            }
        }
        self.next_token += 1;
        self.is_broken |= outstanding.status.is_some_and(|it| it != Status::Success);
        self.outstanding.push_back(outstanding);
        Taken::Yes
    }

    /// What the engine is to do, and the bytes that it sends.
    fn work_request(
        &self,
        posted: &Posted<'_>,
        prefix: u32,
        around: &Surroundings<'_>,
    ) -> Result<(WorkRequest, Vec<Piece>), Status> {
        let token = self.next_token;
        let domain = self.made.domain;
        let pieces = || match posted.payload {
            Payload::Sges(sges) => around.regions.pieces(domain, sges),
            Payload::Inline(bytes) if bytes.len() > self.made.sizes.inline_bytes as usize => {
                Err(Status::LocalQueuePairOperation)
            }
            Payload::Inline(bytes) => Ok(vec![Piece {
                source: Source::Bytes(std::sync::Arc::new(bytes.into())),
                offset: 0,
                bytes: bytes.len() as u64,
            }]),
        };
        let length = |pieces: &[Piece]| {
            let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
            match bytes <= MESSAGE_BYTES_MAX {
                true => Ok(bytes),
                false => Err(Status::LocalLength),
            }
        };
        let target = || match posted.payload {
            Payload::Sges([sge]) => {
                let (key, offset) = around.regions.target(domain, sge)?;
                Ok((key, offset, sge.bytes))
            }
            _ => Err(Status::LocalQueuePairOperation),
        };
        let atomic = |remote: weft_device::work_request::RemoteAddress, atomic| {
            let (to_key, to_offset, bytes) = target()?;
            if u64::from(bytes) != Atomic::BYTES {
                return Err(Status::LocalLength);
            }
            let change = AtomicChange {
                token,
                atomic,
                key: remote_key(prefix, remote.key),
                offset: remote.address,
                to_key,
                to_offset,
            };
            Ok((change.into(), Vec::new()))
        };
        match posted.operation {
            Operation::Send => {
                let pieces = pieces()?;
                let send = SendMessage {
                    token,
                    bytes: length(&pieces)?,
                    immediate: posted.immediate,
                };
                Ok((send.into(), pieces))
            }
            Operation::Write(remote) if posted.immediate.is_none() => {
                let pieces = pieces()?;
                let write = Write {
                    token,
                    bytes: length(&pieces)?,
                    key: remote_key(prefix, remote.key),
                    offset: remote.address,
                    immediate: None,
                };
                Ok((write.into(), pieces))
            }
            Operation::Read(remote) => {
                let (to_key, to_offset, bytes) = target()?;
                let read = Read {
                    token,
                    bytes: bytes.into(),
                    key: remote_key(prefix, remote.key),
                    offset: remote.address,
                    to_key,
                    to_offset,
                };
                Ok((read.into(), Vec::new()))
            }
            Operation::FetchAdd { remote, add } => atomic(remote, Atomic::FetchAdd { add }),
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => atomic(remote, Atomic::CompareSwap { compare, swap }),
            Operation::Write(_) | Operation::SendDatagram(_) => {
                Err(Status::LocalQueuePairOperation)
            }
        }
    }

    /// The engine has finished a work request, or the connection has failed at it.
    pub(crate) fn finish(&mut self, token: u64, status: Status) {
        let mut outstanding = self.outstanding.iter_mut();
        if let Some(found) = outstanding.find(|found| found.token == token) {
            found.status = Some(status);
        }
        self.is_broken |= status != Status::Success;
    }

    /// The connection has failed. Where no work request is the cause, the oldest bears it.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.is_broken = true;
        let is_cause = |it: &&mut Outstanding| it.status.is_some_and(|it| it != Status::Success);
        let cause = self.outstanding.iter_mut().find(is_cause);
        let cause = match cause {
            Some(cause) => Some(cause),
            None => self.outstanding.iter_mut().find(|it| it.status.is_none()),
        };
        if let Some(cause) = cause {
            cause.status = Some(status_of(failure, cause.opcode));
        }
    }

    /// A send of the peer has filled a receive.
    pub(crate) fn received(
        &mut self,
        token: u64,
        bytes: u64,
        immediate: Option<u32>,
        around: &mut Surroundings<'_>,
    ) {
        let at = self.receive_queue.iter().position(|it| it.token == token);
        if let Some(receive) = at.and_then(|at| self.receive_queue.remove(at)) {
            let completion = Completion {
                bytes: bytes as u32,
                outcome: Outcome::Success { immediate },
                ..self.of_receive(receive.wr_id, receive.produced, Status::Success)
            };
            put(around, self.made.receive_completions, &completion);
        }
    }

    /// Reports what is finished, in the order of posting. Answers whether one has failed, and with it the queue pair.
    pub(crate) fn settle(&mut self, around: &mut Surroundings<'_>) -> bool {
        while let Some(first) = self.outstanding.front()
            && let Some(status) = first.status
        {
            let has_failed = status != Status::Success;
            if first.is_signaled || has_failed {
                let completion = self.of_send(first, status);
                put(around, self.made.send_completions, &completion);
            }
            self.outstanding.pop_front();
            if has_failed {
                return true;
            }
        }
        false
    }

    /// Ends the connection. What the peer had under way may still land until the engine says that it is closed.
    pub(crate) fn disconnect(&mut self, engine: &Engine) {
        if let Some(connection) = self.connection() {
            engine.close(connection);
        }
        self.joining = Joining::No;
    }

    /// In error: everything outstanding, and everything in the rings, completes as flushed.
    pub(crate) fn flush(&mut self, around: &mut Surroundings<'_>) {
        for outstanding in std::mem::take(&mut self.outstanding) {
            let completion = self.of_send(&outstanding, Status::Flushed);
            put(around, self.made.send_completions, &completion);
        }
        for receive in std::mem::take(&mut self.receive_queue) {
            let completion = self.of_receive(receive.wr_id, receive.produced, Status::Flushed);
            put(around, self.made.receive_completions, &completion);
        }
        let mut entry = self.waiting.take().unwrap_or_default();
        // The limit: a program that writes without pause is looked at again in the next turn.
        for _ in 0..self.made.sizes.sends {
            if entry.slots().is_empty() && !matches!(entry.take(&mut self.sends), Ok(true)) {
                break;
            }
            let posted = entry.work_request().ok();
            let flushed = Outstanding {
                token: 0,
                wr_id: posted.map_or(0, |posted| posted.wr_id),
                opcode: posted.map_or(Opcode::Send, |posted| opcode(&posted.operation)),
                bytes: 0,
                is_signaled: true,
                produced: self.sends.consumed(),
                status: None,
            };
            let completion = self.of_send(&flushed, Status::Flushed);
            put(around, self.made.send_completions, &completion);
            *entry = Entry::new();
        }
        for _ in 0..self.made.sizes.receives {
            let ring = self.receives.as_mut();
            let Some((ring, Ok(true))) = ring.map(|ring| {
                let taken = entry.take(ring);
                (ring, taken)
            }) else {
                break;
            };
            let produced = ring.consumed();
            let wr_id = entry.receive().map_or(0, |receive| receive.wr_id);
            let completion = self.of_receive(wr_id, produced, Status::Flushed);
            put(around, self.made.receive_completions, &completion);
        }
    }

    /// Back to the beginning: everything is forgotten, and completes never.
    pub(crate) fn reset(&mut self, engine: &Engine) {
        self.disconnect(engine);
        self.outstanding.clear();
        self.receive_queue.clear();
        self.waiting = None;
        self.is_broken = false;
        let mut entry = Entry::new();
        while let Ok(true) = entry.take(&mut self.sends) {}
        if let Some(ring) = &mut self.receives {
            while let Ok(true) = entry.take(ring) {}
        }
    }

    /// Takes the oldest entry of the send ring, which has waited too long for the peer's end.
    pub(crate) fn give_up(&mut self) {
        let mut entry = Entry::new();
        if let Ok(true) = entry.take(&mut self.sends) {
            let posted = entry.work_request().ok();
            self.outstanding.push_back(Outstanding {
                token: self.next_token,
                wr_id: posted.map_or(0, |posted| posted.wr_id),
                opcode: posted.map_or(Opcode::Send, |posted| opcode(&posted.operation)),
                bytes: 0,
                is_signaled: true,
                produced: self.sends.consumed(),
                status: Some(Status::RetryExceeded),
            });
            self.next_token += 1;
        }
    }

    fn of_send(&self, of: &Outstanding, status: Status) -> Completion<'static> {
        Completion {
            wr_id: of.wr_id,
            outcome: outcome(status),
            opcode: of.opcode,
            bytes: if status == Status::Success {
                of.bytes
            } else {
                0
            },
            queue_pair: self.number,
            source_queue_pair: None,
            produced: of.produced,
            inline: None,
        }
    }

    fn of_receive(&self, wr_id: u64, produced: u32, status: Status) -> Completion<'static> {
        Completion {
            wr_id,
            outcome: outcome(status),
            opcode: Opcode::Receive,
            bytes: 0,
            queue_pair: self.number,
            source_queue_pair: None,
            produced,
            inline: None,
        }
    }
}

pub(crate) fn outcome(status: Status) -> Outcome {
    match status {
        Status::Success => Outcome::Success { immediate: None },
        status => Outcome::Failure {
            status,
            vendor_error: 0,
        },
    }
}

/// Puts a completion into its queue.
pub(crate) fn put(around: &mut Surroundings<'_>, queue: u32, completion: &Completion<'_>) {
    let found = around.completion_queues.get_mut(&queue);
    if !found.is_some_and(|found| found.put(completion)) {
        around.overflowed = Some(queue);
    }
}

fn opcode(operation: &Operation) -> Opcode {
    match operation {
        Operation::Send | Operation::SendDatagram(_) => Opcode::Send,
        Operation::Write(_) => Opcode::Write,
        Operation::Read(_) => Opcode::Read,
        Operation::FetchAdd { .. } => Opcode::FetchAdd,
        Operation::CompareSwap { .. } => Opcode::CompareSwap,
    }
}

/// What verbs calls the end of a connection, at the work request that it met.
fn status_of(failure: Failure, opcode: Opcode) -> Status {
    let is_send = opcode == Opcode::Send;
    match failure {
        Failure::Stalled | Failure::PeerRestarted => Status::RetryExceeded,
        Failure::KeyRefused => Status::RemoteAccess,
        Failure::BoundsRefused if is_send => Status::RemoteInvalidRequest,
        Failure::BoundsRefused => Status::RemoteAccess,
        Failure::NotArmed if is_send => Status::ReceiverNotReadyRetryExceeded,
        Failure::NotArmed => Status::RemoteOperation,
        Failure::NoPlace | Failure::SourceUnreadable => Status::LocalProtection,
        Failure::AckOfUnsent => Status::BadResponse,
        Failure::Closed => Status::Flushed,
        Failure::SourceClosed | Failure::NoCredit => Status::General,
    }
}
