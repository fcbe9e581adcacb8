//! The sender: a thread that sends one attempt's messages to this node's children.
//!
//! [`crate::transfer::fanout`] decides what to send; the sender does it. It owns the connections to the
//! children from the moment they are agreed on until the engine has confirmed their end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never, select, tick};
use weft_core::units::{ConnectionId, Key};
use weft_engine::{Engine, Event, WriteRequest};

use crate::fault::Fault;
use crate::links::Links;
use crate::transfer::attempt::Attempt;
use crate::transfer::buffers::{Buffer, BufferPool};
use crate::transfer::fanout::{Action, ChildIndex, Fanout, SendLimits};
use crate::transfer::message::Message;
use crate::transfer::peer::Peer;
use crate::transfer::sender_event::SenderEvent;
use crate::transfer::signal::{self, ABORT_NOTICE_TIMEOUT, ABORTED, PING, PING_INTERVAL};

/// A sender without any buffer looks this often whether another sender has given one up.
const BUFFER_INTERVAL: Duration = Duration::from_millis(10);

/// What a sender works with.
#[derive(Debug)]
pub(crate) struct SenderConfig {
    /// The transport.
    pub links: Arc<Links>,
    /// What it works for.
    pub attempt: Arc<Attempt>,
    /// One per child.
    pub peers: Vec<Arc<Peer>>,
    /// The buffers of its messages.
    pub pool: BufferPool,
    /// Messages of the transfer.
    pub messages: u32,
    /// Messages below this number can be read from the start.
    pub readable_until: u32,
    /// Whether this node is the source: the sender then decides the attempt's end.
    pub is_source: bool,
    /// To the block reader: which message it builds in which buffer.
    pub build_requests_tx: crossbeam_channel::Sender<(u32, Buffer)>,
    /// From the block reader, the receiver and the dialers.
    pub sender_events: Receiver<SenderEvent>,
    /// From the engine.
    pub engine_events: Receiver<Event>,
}

/// A connection that is in the engine.
#[derive(Debug)]
struct OpenConnection {
    child: ChildIndex,
    connection: ConnectionId,
    engine: Arc<Engine>,
    slots: Vec<Key>,
    /// Writes whose end was not reported.
    in_flight: usize,
    failed: bool,
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Sender {
    config: SenderConfig,
    fanout: Fanout,
    /// Messages that need a buffer.
    unbuilt: VecDeque<u32>,
    open: Vec<OpenConnection>,
}

impl Sender {
    /// For a new attempt's children.
    pub(crate) fn new(mut config: SenderConfig) -> Self {
        let children = config.peers.len();
        let limits = SendLimits::of(config.pool.shrink(), children);
        let fanout = Fanout::new(config.messages, children, config.readable_until, limits);
        Self {
            config,
            fanout,
            unbuilt: VecDeque::new(),
            open: Vec::new(),
        }
    }

    /// Sends until every child has everything or has failed, or until the attempt is stopped.
    pub(crate) fn run(mut self) {
        let stopped = self.config.attempt.stop_channel();
        let idle = tick(PING_INTERVAL);
        let sender_events = self.config.sender_events.clone();
        let mut engine_events = self.config.engine_events.clone();
        let mut stopping = false;
        while !self.fanout.is_over() && !stopping {
            let is_starved = !self.unbuilt.is_empty() && !self.config.pool.has_taken();
            let buffer = match is_starved {
                true => after(BUFFER_INTERVAL),
                false => never(),
            };
            select! {
                recv(engine_events) -> event => match event {
                    Ok(event) => self.handle_engine_event(&event),
                    // No child is connected and no dialer is left: the reasons are still in `sender_events`.
                    Err(_) => engine_events = never(),
                },
                recv(sender_events) -> event => match event {
                    Ok(event) => self.handle_sender_event(event),
                    Err(_) => stopping = true,
                },
                recv(idle) -> _ => self.ping(),
                recv(buffer) -> _ => {}
                recv(stopped) -> _ => stopping = true,
            }
            let limits = SendLimits::of(self.config.pool.shrink(), self.config.peers.len());
            self.fanout.set_limits(limits);
            self.act();
            // What the new limits have freed goes to other senders at once.
            self.config.pool.shrink();
        }
        if stopping {
            self.give_up();
        }
        self.close();
        if !stopping && self.config.is_source {
            self.conclude();
        }
    }

    /// The source's own end: verified when every child is.
    fn conclude(&self) {
        let attempt = &self.config.attempt;
        match self.config.peers.iter().find_map(|peer| peer.fault()) {
            Some(fault) => attempt.fail(fault),
            None => attempt.set_published(None),
        }
    }

    fn handle_sender_event(&mut self, event: SenderEvent) {
        match event {
            SenderEvent::Built(number, buffer, bytes) => {
                let buffer = self.config.pool.share(buffer);
                self.fanout.built(number, Message { buffer, bytes });
            }
            SenderEvent::ReadableUntil(message) => self.fanout.set_readable_until(message),
            SenderEvent::Connected(child, agreed) => {
                // The child's answer was checked to have at most 64 slots.
                let slots = agreed.slots.len() as u16;
                let (connection, engine) = agreed.guard.into_parts();
                // Engines draw their ids by themselves, and events name nothing else.
                if self.open.iter().any(|open| open.connection == connection) {
                    engine.close(connection);
                    let problem = "two engines gave one id: the next attempt gets others";
                    return self.fail(child, Fault::engine(problem));
                }
                self.open.push(OpenConnection {
                    child,
                    connection,
                    engine,
                    slots: agreed.slots,
                    in_flight: 0,
                    failed: false,
                });
                self.fanout.connected(child, slots, agreed.present);
            }
            SenderEvent::Refused(child, fault) => self.fail(child, fault),
        }
    }

    fn handle_engine_event(&mut self, event: &Event) {
        match *event {
            Event::Written { connection, .. } => {
                if let Some(open) = self.open_connection(connection) {
                    open.in_flight -= 1;
                }
            }
            Event::Signal {
                connection,
                immediate,
            } => self.signal(connection, immediate),
            Event::Failed {
                connection,
                ref failure,
            } => {
                let Some(open) = self.open_connection(connection) else {
                    return;
                };
                open.failed = true;
                let child = open.child;
                let stage = match self.fanout.is_finishing(child) {
                    true => "while it verified and published",
                    false => "while moving blocks",
                };
                let node = self.config.peers[child].node.clone();
                // Its link may be why.
                self.config.links.results.forget(&node);
                self.fail(child, Fault::lost(node, stage, failure));
            }
            // This end posts writes only, and it has no regions: the engine places nothing for it.
            Event::Delivered { .. }
            | Event::Completed { .. }
            | Event::Cancelled { .. }
            | Event::Refused { .. }
            | Event::Received { .. }
            | Event::RequestFailed { .. }
            | Event::Closed { .. } => {}
        }
    }

    fn signal(&mut self, connection: ConnectionId, immediate: u32) {
        let Some(child) = self.open_connection(connection).map(|open| open.child) else {
            return;
        };
        match immediate {
            PING => {}
            ABORTED => {
                let node = self.config.peers[child].node.clone();
                self.fail(child, Fault::PeerGaveUp { node });
            }
            slot => match self.fanout.credit(child, slot) {
                Ok(bytes) => self.config.peers[child].moved(bytes),
                Err(wrong) => {
                    let fault = Fault::faulty(&self.config.peers[child].node, wrong);
                    self.fail(child, fault);
                }
            },
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.fanout.poll() {
            match action {
                Action::Build(number) => self.unbuilt.push_back(number),
                Action::Send {
                    child,
                    slot,
                    message,
                } => self.send(child, slot, message),
            }
        }
        while let Some(number) = self.unbuilt.front().copied()
            && let Some(buffer) = self.config.pool.take()
        {
            self.unbuilt.pop_front();
            // A block reader that has ended has failed the attempt.
            let _ = self.config.build_requests_tx.send((number, buffer));
        }
    }

    fn send(&mut self, child: ChildIndex, slot: u16, message: Message) {
        let Some(open) = self
            .open
            .iter_mut()
            .find(|open| open.child == child && !open.failed)
        else {
            return;
        };
        let request = WriteRequest {
            connection: open.connection,
            source: message.buffer.into(),
            source_offset: 0,
            bytes: message.bytes as u64,
            key: open.slots[usize::from(slot)],
            offset: 0,
            immediate: Some(slot.into()),
            context: slot.into(),
        };
        match open.engine.write(request) {
            Ok(()) => open.in_flight += 1,
            Err(error) => self.fail(child, Fault::engine(error.to_string())),
        }
    }

    /// Pings the connections on which nothing is under way.
    fn ping(&mut self) {
        for open in &mut self.open {
            let idle = open.in_flight == 0 && !open.failed && !self.fanout.is_done(open.child);
            if idle && signal::send(&open.engine, open.connection, PING) {
                open.in_flight += 1;
            }
        }
    }

    fn fail(&mut self, child: ChildIndex, fault: Fault) {
        if self.fanout.is_done(child) {
            return;
        }
        let peer = &self.config.peers[child];
        tracing::warn!(
            job = self.config.attempt.attempt_ref.uid,
            attempt = self.config.attempt.attempt_ref.number,
            child = peer.node,
            reason = fault.reason(),
            "{fault}"
        );
        peer.record_failed(fault);
        self.fanout.failed(child);
    }

    fn open_connection(&mut self, connection: ConnectionId) -> Option<&mut OpenConnection> {
        self.open
            .iter_mut()
            .find(|open| open.connection == connection)
    }

    /// Tells the children that nothing more will come, and waits a moment until they know.
    fn give_up(&mut self) {
        let deadline = Instant::now() + ABORT_NOTICE_TIMEOUT;
        let mut left: Vec<ConnectionId> = Vec::new();
        for open in &self.open {
            let is_waiting = !open.failed && !self.fanout.is_done(open.child);
            if is_waiting && signal::send(&open.engine, open.connection, ABORTED) {
                left.push(open.connection);
            }
        }
        while !left.is_empty() {
            match self.config.engine_events.recv_deadline(deadline) {
                Ok(Event::Written {
                    connection,
                    context: signal::CONTEXT,
                    ..
                })
                | Ok(Event::Failed { connection, .. }) => left.retain(|id| *id != connection),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Ends all connections; each end is confirmed by the engine.
    fn close(&mut self) {
        let snapshot = self.config.links.snapshot();
        for open in &self.open {
            self.config.peers[open.child].record_closed(&snapshot);
            open.engine.close(open.connection);
        }
        // A connection that is agreed on meanwhile closes with its event, which is not read.
        let mut left: Vec<ConnectionId> = self.open.drain(..).map(|open| open.connection).collect();
        while !left.is_empty() {
            match self.config.engine_events.recv() {
                Ok(Event::Closed { connection }) => left.retain(|id| *id != connection),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use crossbeam_channel::unbounded;
    use weft_core::wire::Secret;
    use weft_engine::{EngineConfig, PortRange};
    use weft_proto::agent::v1::{AttemptRef, Role};

    use super::*;
    use crate::config::LinkKind;
    use crate::transfer::buffers::MemoryBudget;
    use crate::transfer::frame::SLOT_BYTES;
    use crate::transfer::message::PresentBlocks;
    use crate::transfer::sender_event::{ChildConnection, ConnectionGuard};
    use crate::transfer::state::State;

    /// With one port that no other process has.
    fn links() -> Arc<Links> {
        let first = std::process::id();
        let free = (first..first + 100).find_map(|step| {
            let ports = PortRange {
                first: 18_000 + (step % 400) as u16,
                count: 1,
            };
            let config = |_| EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
            Links::start(LinkKind::Udp, config).ok()
        });
        Arc::new(free.unwrap())
    }

    /// A source's sender with one child.
    fn sender(
        links: &Arc<Links>,
        sender_events: Receiver<SenderEvent>,
        engine_events: Receiver<Event>,
    ) -> Sender {
        let budget = MemoryBudget::new(8 * SLOT_BYTES as u64);
        Sender::new(SenderConfig {
            links: links.clone(),
            attempt: Attempt::new(AttemptRef::default()),
            peers: vec![Arc::new(Peer::new("n1".to_owned(), Role::Child))],
            pool: budget.pool(2, 4).unwrap(),
            messages: 1,
            readable_until: 0,
            is_source: true,
            build_requests_tx: unbounded().0,
            sender_events,
            engine_events,
        })
    }

    #[test]
    fn the_last_refusal_is_reported_though_no_dialer_is_left() {
        let links = links();
        // Which of two channels is read first is drawn.
        for _ in 0..20 {
            let (feed, fed) = unbounded();
            let sender = sender(&links, fed, unbounded().1);
            let attempt = sender.config.attempt.clone();
            feed.send(SenderEvent::Refused(0, Fault::ShuttingDown))
                .unwrap();
            sender.run();
            assert_eq!(attempt.state(), State::Failed);
        }
    }

    #[test]
    fn a_child_that_gives_up_is_not_reported_as_restarted() {
        let links = links();
        let engine = links.engine(weft_engine::LinkKind::Udp);
        let ((feed, fed), (happens, happened)) = (unbounded(), unbounded());
        let sender = sender(&links, fed, happened);
        let attempt = sender.config.attempt.clone();
        let connection = engine
            .allocate(weft_engine::DomainId(1), Secret([1; 32]))
            .id;
        let agreed = ChildConnection {
            guard: ConnectionGuard::new(engine.clone(), connection),
            slots: vec![Key(1)],
            present: PresentBlocks::new(Vec::new()).unwrap(),
        };
        let running = std::thread::spawn(move || sender.run());
        feed.send(SenderEvent::Connected(0, agreed)).unwrap();
        while !feed.is_empty() {
            std::thread::yield_now();
        }
        let gives_up = Event::Signal {
            connection,
            immediate: ABORTED,
        };
        happens.send(gives_up).unwrap();
        happens.send(Event::Closed { connection }).unwrap();
        running.join().unwrap();
        let fault = attempt.status().fault.unwrap();
        assert_eq!(fault.reason(), "PeerGaveUp");
    }
}
