//! One queue pair for datagrams: its two rings, and the datagrams that wait for receives.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_device::completion::{Completion, Opcode, Outcome, Status};
use weft_device::control::QueuePair as Made;
use weft_device::entry::{Entry, EntryError};
use weft_device::objects::{Objects, QueuePairState};
use weft_device::ring::{Consumer, RING_SLOTS_MAX, Slot};
use weft_device::state::State;
use weft_device::work_request::{Operation, Payload, WorkRequest};
use weft_engine::Words;

use crate::datagram::{Datagram, Header, PAYLOAD_MAX};
use crate::datagrams::{DatagramDrops, Datagrams};
use crate::kept_bytes::{KeptBytes, KeptShare};
use crate::offer::QueuePairName;
use crate::queue_pair::{Surroundings, outcome, put};

/// Datagrams that a queue pair keeps until receives are posted, as a UDP socket does.
const KEPT_MAX: usize = 1024;
/// Their bytes.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Sends that are taken of one queue pair before another's turn.
const SENDS_PER_TURN: u32 = 256;
/// A Q_Key of a work request with this bit stands for that of the sending queue pair, as verbs has it.
const OWN_Q_KEY: u32 = 1 << 31;

/// What failed by an entry of a ring, or by a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A send: the others are flushed, and receives go on.
    OfSend,
    /// A receive, or a ring.
    OfQueuePair,
}

/// Where sends go.
pub(crate) struct Outbound<'d> {
    pub(crate) from: QueuePairName,
    pub(crate) now: Duration,
    pub(crate) datagrams: &'d mut Datagrams,
}

/// A datagram as a receive gets it.
struct Kept {
    source: u32,
    immediate: Option<u32>,
    /// The routing header and the payload.
    bytes: Vec<u8>,
}

/// A queue pair for datagrams on its way to the next engine. What it kept is lost, as datagrams may be.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedDatagramQueuePair {
    made: Made,
    sent: u32,
    /// None once the ring is broken.
    received: Option<u32>,
    /// An entry that was taken and waits for room on the way to its peer.
    waiting: Option<Vec<Slot>>,
}

impl SavedDatagramQueuePair {
    /// Slots of the two rings that were consumed.
    pub(crate) fn consumed(&self) -> (u32, Option<u32>) {
        (self.sent, self.received)
    }

    pub(crate) fn restore(
        self,
        number: u32,
        sends: Consumer<Words>,
        receives: Option<Consumer<Words>>,
    ) -> DatagramQueuePair {
        let waiting = self.waiting.as_deref().and_then(Entry::of_slots);
        DatagramQueuePair {
            is_waiting: waiting.is_some(),
            send: Box::new(waiting.unwrap_or_default()),
            ..DatagramQueuePair::new(number, self.made, sends, receives)
        }
    }
}

/// What came of a datagram.
enum Filled {
    Yes,
    /// No receive is posted.
    No,
    /// The receive was bad, or the ring is.
    Failed,
}

/// An entry of the send ring, as far as its completion goes.
struct Posted {
    wr_id: u64,
    is_signaled: bool,
    /// How it has ended, and bytes that were sent; none while it waits for room on the way to its peer.
    sent: Option<Result<u32, Status>>,
}

pub(crate) struct DatagramQueuePair {
    pub(crate) number: u32,
    made: Made,
    sends: Consumer<Words>,
    /// None once the ring is broken.
    receives: Option<Consumer<Words>>,
    /// The entry that was taken last from each ring. Nothing is allocated for one.
    send: Box<Entry>,
    receive: Box<Entry>,
    /// Whether `send` waits for room on the way to its peer.
    is_waiting: bool,
    /// Each with its share of what all queue pairs keep.
    kept: VecDeque<(Kept, KeptShare)>,
    kept_bytes: usize,
    /// As many entries as may be were taken at once, and there may be others.
    has_more: bool,
}

impl DatagramQueuePair {
    pub(crate) fn new(
        number: u32,
        made: Made,
        sends: Consumer<Words>,
        receives: Option<Consumer<Words>>,
    ) -> Self {
        Self {
            number,
            made,
            sends,
            receives,
            send: Box::default(),
            receive: Box::default(),
            is_waiting: false,
            kept: VecDeque::new(),
            kept_bytes: 0,
            has_more: false,
        }
    }

    pub(crate) fn save(self) -> SavedDatagramQueuePair {
        SavedDatagramQueuePair {
            made: self.made,
            sent: self.sends.consumed(),
            received: self.receives.map(|ring| ring.consumed()),
            waiting: self.is_waiting.then(|| self.send.slots().to_vec()),
        }
    }

    /// Whether datagrams are received in a state.
    pub(crate) fn receives_in(state: State) -> bool {
        !matches!(state, State::Reset | State::Init | State::Error)
    }

    /// Whether it is to be looked at again though nothing new has come.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Takes what is new in both rings, as the state allows.
    pub(crate) fn take(
        &mut self,
        found: &QueuePairState,
        objects: &Objects,
        around: &mut Surroundings<'_>,
        outbound: &mut Outbound<'_>,
    ) -> Fault {
        self.has_more = false;
        if Self::receives_in(found.state)
            && let fault @ Fault::OfQueuePair = self.receive_kept(around)
        {
            return fault;
        }
        match found.state {
            State::ReadyToSend => return self.take_sends(found, objects, around, outbound),
            State::SendQueueError => self.flush_sends(around),
            State::Error => self.flush(around),
            _ => {}
        }
        Fault::None
    }

    fn take_sends(
        &mut self,
        found: &QueuePairState,
        objects: &Objects,
        around: &mut Surroundings<'_>,
        outbound: &mut Outbound<'_>,
    ) -> Fault {
        for _ in 0..self.made.sizes.sends.min(SENDS_PER_TURN) {
            let is_next = !self.is_waiting;
            if is_next && !around.operations.may_begin(self.number) {
                return Fault::None;
            }
            match self.next_send() {
                Ok(true) if is_next => around.operations.begun(),
                Ok(true) => {}
                Ok(false) => return Fault::None,
                Err(error) => {
                    tracing::debug!(queue_pair = self.number, "a send ring is broken: {error}");
                    around.is_unreported = true;
                    return Fault::OfQueuePair;
                }
            }
            let posted = self.send(found, objects, around, outbound);
            let Some(sent) = posted.sent else {
                self.is_waiting = true;
                return Fault::None;
            };
            if sent.is_err() || posted.is_signaled {
                self.complete_send(posted.wr_id, sent, around);
            }
            if sent.is_err() {
                return Fault::OfSend;
            }
        }
        self.has_more = true;
        Fault::None
    }

    /// The entry that waits, or the next one of the ring. Answers whether there is one.
    fn next_send(&mut self) -> Result<bool, EntryError> {
        match std::mem::take(&mut self.is_waiting) {
            true => Ok(true),
            false => self.send.take(&mut self.sends),
        }
    }

    /// Sends the entry that was taken, if there is room.
    fn send(
        &self,
        found: &QueuePairState,
        objects: &Objects,
        around: &Surroundings<'_>,
        outbound: &mut Outbound<'_>,
    ) -> Posted {
        match self.send.work_request() {
            Ok(posted) => Posted {
                wr_id: posted.wr_id,
                is_signaled: posted.signaled,
                sent: self
                    .send_posted(&posted, found, objects, around, outbound)
                    .transpose(),
            },
            Err(error) => {
                tracing::debug!(queue_pair = self.number, "no work request: {error}");
                Posted {
                    wr_id: 0,
                    is_signaled: true,
                    sent: Some(Err(Status::LocalQueuePairOperation)),
                }
            }
        }
    }

    fn send_posted(
        &self,
        posted: &WorkRequest<'_>,
        found: &QueuePairState,
        objects: &Objects,
        around: &Surroundings<'_>,
        outbound: &mut Outbound<'_>,
    ) -> Result<Option<u32>, Status> {
        let bad = Status::LocalQueuePairOperation;
        let Operation::SendDatagram(to) = posted.operation else {
            return Err(bad);
        };
        let domain = self.made.domain;
        let handle = objects.address_handle(to.address_handle);
        let handle = handle.filter(|handle| handle.domain == domain);
        let handle = handle.ok_or_else(|| {
            around.regions.count_refused();
            bad
        })?;
        let bytes: u64 = match posted.payload {
            Payload::Sges(sges) => sges.iter().map(|sge| u64::from(sge.bytes)).sum(),
            Payload::Inline(bytes) if bytes.len() > self.made.sizes.inline_bytes as usize => {
                return Err(bad);
            }
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        if bytes > PAYLOAD_MAX as u64 {
            return Err(Status::LocalLength);
        }
        let peer = handle.address.gid;
        if !outbound.datagrams.has_room(outbound.from, peer) {
            return Ok(None);
        }
        let header = Header {
            source: self.number,
            destination: to.queue_pair,
            q_key: match to.q_key & OWN_Q_KEY {
                0 => to.q_key,
                _ => found.attributes.q_key,
            },
        };
        let mut message = header.begin(bytes as usize);
        match posted.payload {
            Payload::Sges(sges) => around.regions.gather(domain, sges, &mut message)?,
            Payload::Inline(bytes) => message.extend_from_slice(bytes),
        }
        let ends = (outbound.from.gid, peer);
        let message = message.into_boxed_slice();
        outbound
            .datagrams
            .send(ends, message, posted.immediate, outbound.now, around.engine);
        Ok(Some(bytes as u32))
    }

    /// A datagram has come: it goes into the next receive, or is kept until there is one.
    pub(crate) fn deliver(
        &mut self,
        found: &QueuePairState,
        datagram: &Datagram<'_>,
        around: &mut Surroundings<'_>,
        all_kept: &KeptBytes,
        drops: &mut DatagramDrops,
    ) -> Fault {
        if !Self::receives_in(found.state) {
            drops.no_queue_pair += 1;
            return Fault::None;
        }
        if datagram.header.q_key != found.attributes.q_key {
            drops.q_key += 1;
            return Fault::None;
        }
        // Those that came before it come first.
        if let fault @ Fault::OfQueuePair = self.receive_kept(around) {
            return fault;
        }
        let datagram = Kept {
            source: datagram.header.source,
            immediate: datagram.immediate,
            bytes: [&datagram.routing_header()[..], datagram.payload].concat(),
        };
        if self.kept.is_empty() {
            match self.fill(&datagram, around) {
                Filled::Yes => return Fault::None,
                Filled::No => {}
                Filled::Failed => return Fault::OfQueuePair,
            }
        }
        let bytes = datagram.bytes.len();
        let has_room = self.kept.len() < KEPT_MAX && self.kept_bytes + bytes <= KEPT_BYTES_MAX;
        let share = has_room.then(|| all_kept.take(bytes + size_of::<(Kept, KeptShare)>()));
        match share.flatten() {
            Some(share) => {
                self.kept_bytes += bytes;
                self.kept.push_back((datagram, share));
            }
            None => drops.no_receive += 1,
        }
        Fault::None
    }

    /// Puts what is kept into the receives that are posted.
    fn receive_kept(&mut self, around: &mut Surroundings<'_>) -> Fault {
        while let Some((kept, share)) = self.kept.pop_front() {
            match self.fill(&kept, around) {
                Filled::Yes => self.kept_bytes -= kept.bytes.len(),
                Filled::No => {
                    self.kept.push_front((kept, share));
                    break;
                }
                Filled::Failed => return Fault::OfQueuePair,
            }
        }
        Fault::None
    }

    /// Puts a datagram into the next receive.
    fn fill(&mut self, kept: &Kept, around: &mut Surroundings<'_>) -> Filled {
        let Some(ring) = &mut self.receives else {
            return Filled::Failed;
        };
        match self.receive.take(ring) {
            Ok(true) => {}
            Ok(false) => return Filled::No,
            Err(error) => {
                tracing::debug!(
                    queue_pair = self.number,
                    "a receive ring is broken: {error}"
                );
                self.receives = None;
                around.is_unreported = true;
                return Filled::Failed;
            }
        }
        let produced = ring.consumed();
        let (wr_id, placed) = match self.receive.receive() {
            Ok(receive) => {
                let sges = receive.sges;
                let placed = around.regions.scatter(self.made.domain, sges, &kept.bytes);
                (receive.wr_id, placed)
            }
            Err(_) => (0, Err(Status::LocalQueuePairOperation)),
        };
        let mut completion = self.of_receive(wr_id, produced);
        match placed {
            Ok(()) => {
                completion.bytes = kept.bytes.len() as u32;
                completion.source_queue_pair = Some(kept.source);
                completion.outcome = Outcome::Success {
                    immediate: kept.immediate,
                };
            }
            Err(status) => completion.outcome = outcome(status),
        }
        put(around, self.made.receive_completions, &completion);
        match placed {
            Ok(()) => Filled::Yes,
            Err(_) => Filled::Failed,
        }
    }

    /// In error: what is in the send ring completes as flushed.
    pub(crate) fn flush_sends(&mut self, around: &mut Surroundings<'_>) {
        for _ in 0..self.made.sizes.sends {
            if !matches!(self.next_send(), Ok(true)) {
                return;
            }
            let wr_id = self.send.work_request().map_or(0, |posted| posted.wr_id);
            self.complete_send(wr_id, Err(Status::Flushed), around);
        }
        self.has_more = true;
    }

    /// In error: everything in the rings completes as flushed, and what is kept is gone.
    pub(crate) fn flush(&mut self, around: &mut Surroundings<'_>) {
        self.forget();
        self.flush_sends(around);
        for _ in 0..self.made.sizes.receives {
            let Some(ring) = &mut self.receives else {
                return;
            };
            if !matches!(self.receive.take(ring), Ok(true)) {
                return;
            }
            let produced = ring.consumed();
            let wr_id = self.receive.receive().map_or(0, |receive| receive.wr_id);
            let flushed = self.of_receive(wr_id, produced);
            put(around, self.made.receive_completions, &flushed);
        }
        self.has_more = true;
    }

    /// Back to the beginning: everything is forgotten, and completes never.
    pub(crate) fn reset(&mut self) {
        self.forget();
        self.is_waiting = false;
        // A ring holds no more than that; a program may fill it again meanwhile.
        for _ in 0..RING_SLOTS_MAX {
            let is_sent = matches!(self.send.take(&mut self.sends), Ok(true));
            let ring = self.receives.as_mut();
            let is_received = ring.is_some_and(|ring| matches!(self.receive.take(ring), Ok(true)));
            if !is_sent && !is_received {
                break;
            }
        }
    }

    fn forget(&mut self) {
        self.kept.clear();
        self.kept_bytes = 0;
    }

    /// Reports the end of the entry that was taken from the send ring.
    fn complete_send(&self, wr_id: u64, sent: Result<u32, Status>, around: &mut Surroundings<'_>) {
        let completion = Completion {
            opcode: Opcode::Send,
            bytes: sent.unwrap_or(0),
            outcome: outcome(sent.err().unwrap_or(Status::Success)),
            ..self.of_receive(wr_id, self.sends.consumed())
        };
        put(around, self.made.send_completions, &completion);
    }

    /// The completion of a receive that is flushed.
    fn of_receive(&self, wr_id: u64, produced: u32) -> Completion {
        Completion {
            wr_id,
            outcome: outcome(Status::Flushed),
            opcode: Opcode::Receive,
            bytes: 0,
            queue_pair: self.number,
            source_queue_pair: None,
            produced,
        }
    }
}
