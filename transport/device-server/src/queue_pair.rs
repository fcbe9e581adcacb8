//! One connected queue pair: its send queue, what of that is outstanding, and its connection, which is reliable also where
//! the queue pair need not be.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_device::completion::{Completion, Opcode, Outcome, Status};
use weft_device::control::QueuePair as Made;
use weft_device::entry::Entry;
use weft_device::ring::{Consumer, RING_SLOTS_MAX};
use weft_device::state::{QueuePairType, State};
use weft_device::work_request::{Operation, Payload, RemoteAddress, WorkRequest as Posted};
use weft_engine::{
    Atomic, AtomicChange, ConnectionId, Engine, EngineError, Failure, Key, Piece, Post, PostError,
    Read, ReportWrite, SendMessage, Source, Words, WorkRequest, Write,
};

use crate::channel::CompletionQueue;
use crate::offer::{Offer, OfferBackoff};
use crate::operation_rate::Operations;
use crate::receive_queue::{BadReceive, ReceiveQueue, SharedReceiveQueue};
use crate::regions::{Regions, Target, remote_key};
use crate::under_way::{CountOfDevice, UnderWay};

mod saved;

pub(crate) use saved::{SavedEnd, SavedQueuePair};

/// The longest message of an RC queue pair (InfiniBand Architecture Specification, volume 1, section 9.7.6).
const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// What a queue pair needs of its context while it moves work requests.
pub(crate) struct Surroundings<'c> {
    pub(crate) engine: &'c Engine,
    pub(crate) regions: &'c mut Regions,
    pub(crate) shared_receive_queues: &'c mut BTreeMap<u32, SharedReceiveQueue>,
    pub(crate) completion_queues: &'c mut BTreeMap<u32, CompletionQueue>,
    pub(crate) operations: &'c mut Operations,
    /// This completion queue was full, or its ring is broken: the whole context fails.
    pub(crate) overflowed: Option<u32>,
    /// A queue pair fails, and no completion says why.
    pub(crate) is_unreported: bool,
}

/// How far a queue pair is to being one end of a connection.
#[derive(Debug)]
pub(crate) enum Joining {
    /// No end is allocated.
    No,
    /// The offer of this end is sent again and again, since this time.
    Offered {
        offer: Box<Offer>,
        since: Duration,
        backoff: OfferBackoff,
    },
    /// Connected. The offer, which now names the peer's end, is sent again where the peer shows that it has not come.
    Joined { offer: Box<Offer>, peer_prefix: u32 },
}

/// A work request of the send queue that is not complete.
#[derive(Serialize, Deserialize)]
struct Outstanding {
    token: u64,
    /// Of a write with an immediate: the write's own name. The other one is that of its report.
    write_token: Option<u64>,
    wr_id: u64,
    opcode: Opcode,
    /// It takes a receive of the peer.
    takes_receive: bool,
    /// Where the bytes of a read go, if it is more than one entry.
    target: Option<Key>,
    bytes: u32,
    is_signaled: bool,
    /// Slots produced by the end of its entry.
    produced: u32,
    /// Once it is known. It is reported when all before it are.
    status: Option<Status>,
}

impl Outstanding {
    fn awaits_response(&self) -> bool {
        self.opcode.awaits_response() && self.status.is_none()
    }

    /// It has ended in this way. Answers whether a response was awaited until now.
    fn end(&mut self, status: Status) -> bool {
        let was_awaited = self.awaits_response();
        self.status = Some(status);
        was_awaited
    }
}

pub(crate) struct QueuePair {
    pub(crate) number: u32,
    pub(crate) made: Made,
    pub(crate) joining: Joining,
    /// Reads and atomics that may be under way (`max_rd_atomic`).
    pub(crate) requests_max: usize,
    sends: Consumer<Words>,
    /// None where it takes receives from a shared one.
    receives: Option<ReceiveQueue>,
    outstanding: UnderWay<Outstanding>,
    /// How many of them await a response.
    responses_awaited: usize,
    /// The entry that was taken last from the send ring. Nothing is allocated for one.
    entry: Box<Entry>,
    /// Whether `entry` waits for reads before it.
    is_waiting: bool,
    next_token: u64,
    /// Nothing more is posted: a work request of the send queue has failed.
    is_broken: bool,
}

impl QueuePair {
    pub(crate) fn new(
        number: u32,
        made: Made,
        sends: Consumer<Words>,
        receives: Option<ReceiveQueue>,
        of_device: CountOfDevice,
    ) -> Self {
        Self {
            number,
            made,
            joining: Joining::No,
            requests_max: 0,
            sends,
            receives,
            outstanding: UnderWay::new(VecDeque::new(), of_device),
            responses_awaited: 0,
            entry: Box::default(),
            is_waiting: false,
            next_token: 0,
            is_broken: false,
        }
    }

    /// Whether it is of the kind that reads and has atomics.
    fn is_reliable(&self) -> bool {
        self.made.kind == QueuePairType::ReliableConnected
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
            // A connection that failed meanwhile says so by an event.
            for buffer in self.receives.iter().flat_map(ReceiveQueue::buffers) {
                let _ = around.engine.post_receive(offer.end.id, buffer);
            }
            let shared = self.made.shared_receive_queue;
            if let Some(shared) = shared.and_then(|it| around.shared_receive_queues.get(&it)) {
                let buffers = Arc::clone(&shared.buffers);
                let _ = around.engine.share_receives(offer.end.id, buffers);
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
        let Some(receives) = &mut self.receives else {
            return false;
        };
        loop {
            match receives.take(around.regions, around.engine) {
                Ok(Some(buffer)) => {
                    if let Joining::Joined { offer, .. } = &self.joining {
                        // A connection that failed meanwhile says so by an event.
                        let _ = around.engine.post_receive(offer.end.id, buffer);
                    }
                }
                Ok(None) => return false,
                Err(BadReceive::Ring) => {
                    around.is_unreported = true;
                    return true;
                }
                Err(BadReceive::Entry {
                    wr_id,
                    produced,
                    status,
                }) => {
                    let completion = self.of_receive(wr_id, produced, status);
                    put(around, self.made.receive_completions, &completion);
                    return true;
                }
            }
        }
    }

    fn take_sends(&mut self, around: &mut Surroundings<'_>) -> bool {
        let Joining::Joined { offer, peer_prefix } = &self.joining else {
            return false;
        };
        let (connection, prefix) = (offer.end.id, *peer_prefix);
        while !self.is_broken && self.outstanding.has_room(self.made.sizes.sends as usize) {
            if !self.is_waiting {
                if !around.operations.may_begin(self.number) {
                    return false;
                }
                match self.entry.take(&mut self.sends) {
                    Ok(true) => around.operations.begun(),
                    Ok(false) => return false,
                    Err(error) => {
                        tracing::debug!(queue_pair = self.number, "a send ring is broken: {error}");
                        self.is_broken = true;
                        around.is_unreported = true;
                        return true;
                    }
                }
            }
            let posted = self.post(connection, prefix, around);
            self.is_waiting = posted.is_none();
            let Some(outstanding) = posted else {
                return false;
            };
            self.is_broken |= outstanding.status.is_some_and(|it| it != Status::Success);
            self.add(outstanding);
        }
        false
    }

    /// A work request of the send queue is under way, or has ended already.
    fn add(&mut self, outstanding: Outstanding) {
        self.next_token = outstanding.token + 1;
        self.responses_awaited += usize::from(outstanding.awaits_response());
        self.outstanding.push(outstanding);
    }

    /// Posts the entry that was taken to the connection. Nothing is posted where it waits for reads before it.
    fn post(
        &self,
        connection: ConnectionId,
        prefix: u32,
        around: &mut Surroundings<'_>,
    ) -> Option<Outstanding> {
        let mut outstanding = self.unposted();
        match self.entry.work_request() {
            Ok(posted) => {
                let is_request = self.is_reliable() && outstanding.awaits_response();
                let is_full = is_request && self.responses_awaited >= self.requests_max;
                if is_full || posted.fence && self.responses_awaited > 0 {
                    return None;
                }
                match self.work_request(&posted, prefix, around) {
                    Ok((request, pieces)) => {
                        outstanding.target = match &request {
                            WorkRequest::Read(read) => Some(read.to_key),
                            _ => None,
                        };
                        outstanding.bytes = match &request {
                            WorkRequest::Read(read) => read.bytes as u32,
                            WorkRequest::Atomic(_) => Atomic::BYTES as u32,
                            other => other.bytes() as u32,
                        };
                        let written = request.bytes();
                        let report = match (&request, posted.immediate) {
                            (WorkRequest::Write(_), Some(immediate)) => {
                                outstanding.write_token = Some(outstanding.token);
                                outstanding.token += 1;
                                Some(ReportWrite {
                                    token: outstanding.token,
                                    written,
                                    immediate,
                                })
                            }
                            _ => None,
                        };
                        let post = |request: WorkRequest, pieces| {
                            around.engine.post(Post {
                                connection,
                                request,
                                pieces,
                            })
                        };
                        let mut result = post(request, pieces);
                        if let (Some(report), Ok(()) | Err(EngineError::EmptyWrite)) =
                            (report, &result)
                        {
                            result = post(report.into(), Vec::new());
                        }
                        match result {
                            Ok(()) => {}
                            Err(EngineError::Post(PostError::TooManyRequests)) => {
                                if let Some(target) = outstanding.target {
                                    around.regions.forget(around.engine, target);
                                }
                                return None;
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
        Some(outstanding)
    }

    /// The entry of the send ring that was taken, of which nothing is posted yet.
    fn unposted(&self) -> Outstanding {
        let posted = self.entry.work_request().ok();
        let opcode = posted.map_or(Opcode::Send, |posted| opcode(&posted.operation));
        Outstanding {
            token: self.next_token,
            write_token: None,
            wr_id: posted.map_or(0, |posted| posted.wr_id),
            opcode,
            takes_receive: opcode == Opcode::Send
                || posted.is_some_and(|posted| posted.immediate.is_some()),
            target: None,
            bytes: 0,
            is_signaled: posted.is_none_or(|posted| posted.signaled),
            produced: self.sends.consumed(),
            status: None,
        }
    }

    /// What the engine is to do, and the bytes that it sends. Of a write with an immediate this is the write.
    fn work_request(
        &self,
        posted: &Posted<'_>,
        prefix: u32,
        around: &mut Surroundings<'_>,
    ) -> Result<(WorkRequest, Vec<Piece>), Status> {
        let token = self.next_token;
        if !self.is_reliable() && opcode(&posted.operation).awaits_response() {
            return Err(Status::LocalQueuePairOperation);
        }
        match posted.operation {
            Operation::Send => {
                let (pieces, bytes) = self.pieces(posted, around)?;
                let send = SendMessage {
                    token,
                    bytes,
                    immediate: posted.immediate,
                };
                Ok((send.into(), pieces))
            }
            Operation::Write(remote) => {
                let (pieces, bytes) = self.pieces(posted, around)?;
                let write = Write {
                    token,
                    bytes,
                    key: remote_key(prefix, remote.key),
                    offset: remote.address,
                    immediate: None,
                };
                Ok((write.into(), pieces))
            }
            Operation::Read(remote) => {
                let target = self.target(posted, around)?;
                if target.bytes > MESSAGE_BYTES_MAX {
                    return Err(Status::LocalLength);
                }
                let read = Read {
                    token,
                    bytes: target.bytes,
                    key: remote_key(prefix, remote.key),
                    offset: remote.address,
                    to_key: target.key,
                    to_offset: target.offset,
                };
                Ok((read.into(), Vec::new()))
            }
            Operation::FetchAdd { remote, add } => {
                self.atomic(posted, remote, Atomic::FetchAdd { add }, prefix, around)
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                let change = Atomic::CompareSwap { compare, swap };
                self.atomic(posted, remote, change, prefix, around)
            }
            Operation::SendDatagram(_) => Err(Status::LocalQueuePairOperation),
        }
    }

    fn atomic(
        &self,
        posted: &Posted<'_>,
        remote: RemoteAddress,
        atomic: Atomic,
        prefix: u32,
        around: &mut Surroundings<'_>,
    ) -> Result<(WorkRequest, Vec<Piece>), Status> {
        let Payload::Sges([_]) = posted.payload else {
            return Err(Status::LocalQueuePairOperation);
        };
        let target = self.target(posted, around)?;
        if target.bytes != Atomic::BYTES {
            return Err(Status::LocalLength);
        }
        let change = AtomicChange {
            token: self.next_token,
            atomic,
            key: remote_key(prefix, remote.key),
            offset: remote.address,
            to_key: target.key,
            to_offset: target.offset,
        };
        Ok((change.into(), Vec::new()))
    }

    /// The bytes of a send or write, and how many they are.
    fn pieces(
        &self,
        posted: &Posted<'_>,
        around: &Surroundings<'_>,
    ) -> Result<(Vec<Piece>, u64), Status> {
        let pieces = match posted.payload {
            Payload::Sges(sges) => around.regions.pieces(self.made.domain, sges)?,
            Payload::Inline(bytes) if bytes.len() > self.made.sizes.inline_bytes as usize => {
                return Err(Status::LocalQueuePairOperation);
            }
            Payload::Inline(bytes) => vec![Piece {
                source: Source::Bytes(Arc::new(bytes.into())),
                offset: 0,
                bytes: bytes.len() as u64,
            }],
        };
        let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        match bytes <= MESSAGE_BYTES_MAX {
            true => Ok((pieces, bytes)),
            false => Err(Status::LocalLength),
        }
    }

    /// Where the bytes of a read or an atomic go.
    fn target(&self, posted: &Posted<'_>, around: &mut Surroundings<'_>) -> Result<Target, Status> {
        match posted.payload {
            Payload::Sges(sges) => around.regions.target(around.engine, self.made.domain, sges),
            Payload::Inline(_) => Err(Status::LocalQueuePairOperation),
        }
    }

    /// The engine has finished a work request, or the connection has failed at it.
    pub(crate) fn finish(&mut self, token: u64, status: Status) {
        let has_failed = status != Status::Success;
        let is_named = |it: &&mut Outstanding| {
            // A write that succeeds is not done before its report is.
            it.token == token || has_failed && it.write_token == Some(token)
        };
        if let Some(found) = self.outstanding.iter_mut().find(is_named) {
            self.responses_awaited -= usize::from(found.end(status));
        }
        self.is_broken |= has_failed;
    }

    /// The connection has failed. Where no work request is the cause, the oldest bears it. Answers the status that it has.
    fn fail(&mut self, failure: Failure) -> Option<Status> {
        self.is_broken = true;
        let is_cause = |it: &&mut Outstanding| it.status.is_some_and(|it| it != Status::Success);
        let cause = self.outstanding.iter_mut().find(is_cause);
        let cause = match cause {
            Some(cause) => Some(cause),
            None => self.outstanding.iter_mut().find(|it| it.status.is_none()),
        };
        let cause = cause?;
        let status = status_of(failure, cause);
        self.responses_awaited -= usize::from(cause.end(status));
        Some(status)
    }

    /// A message of the peer has taken a receive.
    pub(crate) fn received(
        &mut self,
        token: u64,
        (bytes, immediate, is_write): (u64, Option<u32>, bool),
        around: &mut Surroundings<'_>,
    ) {
        let (regions, engine) = (&mut *around.regions, around.engine);
        let shared = self.made.shared_receive_queue;
        let shared = shared.and_then(|it| around.shared_receive_queues.get_mut(&it));
        let filled = match (shared, &mut self.receives) {
            (Some(shared), _) => {
                let filled = shared.queue.filled(token, regions, engine);
                // There is room for another one.
                shared.take(regions, engine);
                filled
            }
            (None, Some(own)) => own.filled(token, regions, engine),
            (None, None) => None,
        };
        if let Some(receive) = filled {
            let opcode = match is_write {
                true => Opcode::ReceiveWithImmediate,
                false => Opcode::Receive,
            };
            let completion = Completion {
                bytes: bytes as u32,
                opcode,
                outcome: Outcome::Success { immediate },
                ..self.of_receive(receive.wr_id, receive.produced, Status::Success)
            };
            put(around, self.made.receive_completions, &completion);
        }
    }

    /// The connection has failed, or the peer has closed it. Reports the work request that bears the failure. Answers whether that
    /// asked for memory of the peer that it may not reach.
    pub(crate) fn end(&mut self, failure: Failure, around: &mut Surroundings<'_>) -> bool {
        let status = self.fail(failure);
        // A peer that closes its end has done nothing wrong. That it is gone may be known before its close has come.
        let is_gone = matches!(failure, Failure::Closed | Failure::PeerRestarted);
        around.is_unreported = !self.settle(around) && !is_gone;
        status == Some(Status::RemoteAccess)
    }

    /// Whether nothing is outstanding.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Reports what is finished, in the order of posting. Answers whether one has failed, and with it the queue pair.
    pub(crate) fn settle(&mut self, around: &mut Surroundings<'_>) -> bool {
        while let Some(first) = self.outstanding.first()
            && let Some(status) = first.status
        {
            let has_failed = status != Status::Success;
            if first.is_signaled || has_failed {
                let completion = self.of_send(first, status);
                put(around, self.made.send_completions, &completion);
            }
            if let Some(target) = first.target {
                around.regions.forget(around.engine, target);
            }
            self.outstanding.pop();
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
        for outstanding in self.outstanding.take_all() {
            if let Some(target) = outstanding.target {
                around.regions.forget(around.engine, target);
            }
            let completion = self.of_send(&outstanding, Status::Flushed);
            put(around, self.made.send_completions, &completion);
        }
        self.responses_awaited = 0;
        let receives = self.receives.as_mut();
        let flushed = receives.map(|it| it.flush(around.regions, around.engine));
        for (wr_id, produced) in flushed.unwrap_or_default() {
            let completion = self.of_receive(wr_id, produced, Status::Flushed);
            put(around, self.made.receive_completions, &completion);
        }
        // The limit: a program that writes without pause is looked at again in the next turn.
        for _ in 0..self.made.sizes.sends {
            let is_taken = std::mem::take(&mut self.is_waiting)
                || matches!(self.entry.take(&mut self.sends), Ok(true));
            if !is_taken {
                break;
            }
            let completion = self.of_send(&self.unposted(), Status::Flushed);
            put(around, self.made.send_completions, &completion);
        }
    }

    /// Back to the beginning: everything is forgotten, and completes never.
    pub(crate) fn reset(&mut self, regions: &mut Regions, engine: &Engine) {
        self.disconnect(engine);
        let forgotten = self.outstanding.take_all();
        for target in forgotten.into_iter().filter_map(|it| it.target) {
            regions.forget(engine, target);
        }
        self.responses_awaited = 0;
        self.is_waiting = false;
        self.is_broken = false;
        // A program that goes on writing meanwhile may have posted more than the ring holds.
        for _ in 0..RING_SLOTS_MAX {
            if !matches!(self.entry.take(&mut self.sends), Ok(true)) {
                break;
            }
        }
        if let Some(receives) = &mut self.receives {
            receives.forget(regions, engine);
        }
    }

    /// Takes the oldest entry of the send ring, which has waited too long for the peer's end.
    pub(crate) fn give_up(&mut self) {
        // Nothing waits in an end that is not connected.
        if let Ok(true) = self.entry.take(&mut self.sends) {
            let outstanding = Outstanding {
                status: Some(Status::RetryExceeded),
                ..self.unposted()
            };
            self.add(outstanding);
        }
    }

    fn of_send(&self, of: &Outstanding, status: Status) -> Completion {
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
        }
    }

    fn of_receive(&self, wr_id: u64, produced: u32, status: Status) -> Completion {
        Completion {
            wr_id,
            outcome: outcome(status),
            opcode: Opcode::Receive,
            bytes: 0,
            queue_pair: self.number,
            source_queue_pair: None,
            produced,
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
pub(crate) fn put(around: &mut Surroundings<'_>, queue: u32, completion: &Completion) {
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
fn status_of(failure: Failure, cause: &Outstanding) -> Status {
    let is_send = cause.opcode == Opcode::Send;
    match failure {
        Failure::Stalled | Failure::PeerRestarted => Status::RetryExceeded,
        // It met a receive of the peer whose region is gone.
        Failure::KeyRefused if is_send => Status::RemoteOperation,
        Failure::KeyRefused => Status::RemoteAccess,
        Failure::BoundsRefused if is_send => Status::RemoteInvalidRequest,
        Failure::BoundsRefused => Status::RemoteAccess,
        Failure::NotArmed if cause.takes_receive => Status::ReceiverNotReadyRetryExceeded,
        Failure::NotArmed => Status::RemoteOperation,
        Failure::NoPlace | Failure::SourceUnreadable => Status::LocalProtection,
        Failure::AckOfUnsent => Status::BadResponse,
        Failure::Closed => Status::Flushed,
        Failure::SourceClosed | Failure::NoCredit => Status::General,
    }
}
