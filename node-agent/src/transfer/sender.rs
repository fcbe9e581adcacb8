//! The outlet: a thread that sends one attempt's messages to this node's children.
//!
//! Carries out what [`crate::transfer::fanout`] decides. Owns the connections to the children from the moment
//! they are agreed on until the engine has confirmed their end.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, never, select, tick};
use weft_core::units::{ConnectionId, Key};
use weft_engine::{Engine, Event, Source, WriteRequest};
use weft_proto::agent::v1::Role;

use crate::fault::{Fault, Stage};
use crate::transfer::attempt::Attempt;
use crate::transfer::buffers::Pool;
use crate::transfer::fanout::{Action, ChildIndex, Fanout, Room};
use crate::transfer::message::{Held, Message};
use crate::transfer::peer::Peer;
use crate::transfer::signal::{self, FAREWELL, GIVEN_UP, PING, PING_INTERVAL};

/// What an outlet is told by others than the engine.
#[derive(Debug)]
pub(crate) enum Feed {
    /// A message: one that was asked for, or one that has just arrived.
    Built(u32, Message),
    /// Messages below this can be had.
    Ready(u32),
    /// A child has agreed on a connection, which is in the engine.
    Connected(ChildIndex, Link),
    /// A child could not be connected to.
    Refused(ChildIndex, Fault),
}

/// An end that is the engine's as long as this is here, unless somebody else takes care of it: one that comes
/// to nothing is closed, also where a call is given up half way or a message is not read.
#[derive(Debug)]
pub(crate) struct End {
    engine: Arc<Engine>,
    id: Option<ConnectionId>,
}

impl End {
    /// Of one that was allocated.
    pub(crate) fn new(engine: Arc<Engine>, id: ConnectionId) -> Self {
        Self {
            engine,
            id: Some(id),
        }
    }

    /// Whoever has it from now on closes it.
    pub(crate) fn keep(mut self) -> ConnectionId {
        self.id.take().unwrap_or_default()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.engine.close(id);
        }
    }
}

/// An agreed connection to a child.
#[derive(Debug)]
pub(crate) struct Link {
    /// In the engine.
    pub end: End,
    /// Where it receives.
    pub slots: Vec<Key>,
    /// What it has.
    pub held: Held,
}

/// What an outlet works with.
#[derive(Debug)]
pub(crate) struct OutletConfig {
    /// The transport.
    pub engine: Arc<Engine>,
    /// What it works for.
    pub attempt: Arc<Attempt>,
    /// One per child.
    pub peers: Vec<Arc<Peer>>,
    /// Where buffers go back to.
    pub pool: Arc<Pool>,
    /// Messages of the transfer.
    pub messages: u32,
    /// Messages that can be had from the start.
    pub ready: u32,
    /// Whether this node is the source: its state is then the outlet's to tell.
    pub is_source: bool,
    /// To the supply.
    pub wanted: crossbeam_channel::Sender<u32>,
    /// From the supply, the intake and the dialers.
    pub feed: Receiver<Feed>,
    /// From the engine.
    pub events: Receiver<Event>,
}

#[derive(Debug)]
struct Open {
    child: ChildIndex,
    connection: ConnectionId,
    slots: Vec<Key>,
    /// Writes whose end was not reported.
    under_way: usize,
    failed: bool,
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Outlet {
    config: OutletConfig,
    fanout: Fanout,
    open: Vec<Open>,
}

impl Outlet {
    /// For a new attempt's children.
    #[must_use]
    pub(crate) fn new(config: OutletConfig) -> Self {
        let children = config.peers.len();
        let room = Room::of(config.pool.allowance(), children);
        let fanout = Fanout::new(config.messages, children, config.ready, room);
        Self {
            config,
            fanout,
            open: Vec::new(),
        }
    }

    /// Sends until every child has everything or has failed, or until told to stop.
    pub(crate) fn run(mut self) {
        let stopped = self.config.attempt.stopped();
        let idle = tick(PING_INTERVAL);
        let (feed, mut events) = (self.config.feed.clone(), self.config.events.clone());
        let mut stopping = false;
        while !self.fanout.is_over() && !stopping {
            select! {
                recv(events) -> event => match event {
                    Ok(event) => self.event(event),
                    // No child is connected, and nobody dials any more: why, the feed still has to tell.
                    Err(_) => events = never(),
                },
                recv(feed) -> told => match told {
                    Ok(told) => self.told(told),
                    Err(_) => stopping = true,
                },
                recv(idle) -> _ => {
                    self.ping();
                    self.config.pool.settle();
                }
                recv(stopped) -> _ => stopping = true,
            }
            let allowance = self.config.pool.allowance();
            self.fanout
                .set_room(Room::of(allowance, self.config.peers.len()));
            self.act();
        }
        if stopping {
            self.farewell();
        }
        self.close();
        self.config.pool.close();
        if !stopping && self.config.is_source {
            self.conclude();
        }
    }

    /// The source's own end: verified when every child is.
    fn conclude(&self) {
        let attempt = &self.config.attempt;
        match self.config.peers.iter().find_map(|peer| peer.fault()) {
            Some(fault) => attempt.fail(fault),
            None => attempt.published(None),
        }
    }

    fn told(&mut self, told: Feed) {
        match told {
            Feed::Built(number, message) => self.fanout.built(number, message),
            Feed::Ready(ready) => self.fanout.ready(ready),
            Feed::Connected(child, link) => {
                // The child's answer was checked to have at most 64 slots.
                let slots = link.slots.len() as u16;
                self.open.push(Open {
                    child,
                    connection: link.end.keep(),
                    slots: link.slots,
                    under_way: 0,
                    failed: false,
                });
                self.fanout.connected(child, slots, link.held);
            }
            Feed::Refused(child, fault) => self.fail(child, fault),
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Written {
                connection, source, ..
            } => {
                if let Some(open) = self.of(connection) {
                    open.under_way -= 1;
                }
                self.release(source);
            }
            Event::Signal {
                connection,
                immediate,
            } => self.signal(connection, immediate),
            Event::Failed {
                connection,
                failure,
            } => {
                let Some(open) = self.of(connection) else {
                    return;
                };
                open.failed = true;
                let child = open.child;
                let stage = self.stage(child);
                let node = self.config.peers[child].node.clone();
                self.fail(child, Fault::lost(node, stage, &failure));
            }
            Event::Delivered { connection, .. } => {
                // This end has no regions: the engine places nothing for it.
                if let Some(open) = self.of(connection) {
                    let child = open.child;
                    self.faulty(child, "bytes to a node that only sends".to_owned());
                }
            }
            // This end posts writes only, and no receives.
            Event::Completed { .. } | Event::Received { .. } | Event::Closed { .. } => {}
        }
    }

    fn signal(&mut self, connection: ConnectionId, immediate: u32) {
        let Some(child) = self.of(connection).map(|open| open.child) else {
            return;
        };
        match immediate {
            PING => {}
            GIVEN_UP => {
                let node = self.config.peers[child].node.clone();
                self.fail(child, Fault::PeerGaveUp { node });
            }
            slot => match self.fanout.credit(child, slot) {
                Ok(bytes) => self.config.peers[child].moved(bytes),
                Err(wrong) => self.faulty(child, wrong.to_string()),
            },
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.fanout.poll() {
            match action {
                Action::Build(number) => {
                    // A supply that has gone has said why.
                    let _ = self.config.wanted.send(number);
                }
                Action::Send {
                    child,
                    slot,
                    message,
                } => self.send(child, slot, message),
            }
        }
        for buffer in self.fanout.dropped() {
            self.config.pool.release(buffer);
        }
    }

    fn send(&mut self, child: ChildIndex, slot: u16, message: Message) {
        let Some(open) = self
            .open
            .iter_mut()
            .find(|open| open.child == child && !open.failed)
        else {
            self.config.pool.release(message.buffer);
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
        match self.config.engine.write(request) {
            Ok(()) => open.under_way += 1,
            Err(error) => self.fail(
                child,
                Fault::Engine {
                    problem: error.to_string(),
                },
            ),
        }
    }

    fn release(&self, source: Source) {
        // A message is sent out of a buffer, a signal out of nothing; neither out of a region.
        if let Source::Bytes(buffer) = source {
            self.config.pool.release(buffer);
        }
    }

    /// Tries connections on which nothing is under way.
    fn ping(&mut self) {
        for open in &mut self.open {
            let idle = open.under_way == 0 && !open.failed && !self.fanout.is_done(open.child);
            if idle && signal::send(&self.config.engine, open.connection, PING) {
                open.under_way += 1;
            }
        }
    }

    fn faulty(&mut self, child: ChildIndex, problem: String) {
        let node = self.config.peers[child].node.clone();
        self.fail(child, Fault::PeerFaulty { node, problem });
    }

    fn fail(&mut self, child: ChildIndex, fault: Fault) {
        if self.fanout.is_done(child) {
            return;
        }
        let peer = &self.config.peers[child];
        tracing::warn!(
            job = self.config.attempt.job.uid,
            attempt = self.config.attempt.job.attempt,
            child = peer.node,
            reason = fault.reason(),
            "{fault}"
        );
        peer.failed(fault);
        self.fanout.failed(child);
    }

    fn stage(&self, child: ChildIndex) -> Stage {
        if self.fanout.is_finishing(child) {
            Stage::Finishing
        } else {
            Stage::Moving
        }
    }

    fn of(&mut self, connection: ConnectionId) -> Option<&mut Open> {
        self.open
            .iter_mut()
            .find(|open| open.connection == connection)
    }

    /// Tells the children that nothing more will come, and waits a little until they know.
    fn farewell(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        let mut left: Vec<ConnectionId> = Vec::new();
        for open in &self.open {
            let told = !open.failed && !self.fanout.is_done(open.child);
            if told && signal::send(&self.config.engine, open.connection, GIVEN_UP) {
                left.push(open.connection);
            }
        }
        while !left.is_empty() {
            match self.config.events.recv_deadline(deadline) {
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
        let snapshot = self.config.engine.snapshot();
        for open in &self.open {
            self.config.peers[open.child].closed(&snapshot);
            self.config.engine.close(open.connection);
        }
        // Those that are agreed on while this thread is ending close with the message that nobody reads.
        let mut left: Vec<ConnectionId> = self.open.drain(..).map(|open| open.connection).collect();
        while !left.is_empty() {
            match self.config.events.recv() {
                Ok(Event::Closed { connection }) => left.retain(|id| *id != connection),
                Ok(Event::Written { source, .. }) => self.release(source),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

/// The records of an outlet's children.
#[must_use]
pub(crate) fn peers<'a>(nodes: impl Iterator<Item = &'a str>) -> Vec<Arc<Peer>> {
    nodes
        .map(|node| Arc::new(Peer::new(node.to_owned(), Role::Child)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use crossbeam_channel::unbounded;
    use weft_core::wire::Secret;
    use weft_engine::{EngineConfig, PortRange};
    use weft_proto::agent::v1::JobRef;

    use super::*;
    use crate::transfer::memory_account::Account;
    use crate::transfer::record::SLOT_BYTES;
    use crate::transfer::state::State;

    /// On one port that no other process has.
    fn engine() -> Arc<Engine> {
        let first = std::process::id();
        let free = (first..first + 100).find_map(|step| {
            let ports = PortRange {
                first: 18_000 + (step % 400) as u16,
                count: 1,
            };
            let config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
            Engine::start(config).ok()
        });
        Arc::new(free.unwrap())
    }

    /// A source's outlet with one child.
    fn outlet(engine: &Arc<Engine>, feed: Receiver<Feed>, events: Receiver<Event>) -> Outlet {
        let account = Account::new(8 * SLOT_BYTES as u64);
        Outlet::new(OutletConfig {
            engine: engine.clone(),
            attempt: Attempt::new(JobRef::default()),
            peers: peers(["n1"].into_iter()),
            pool: Pool::new(&account, 2, 4).unwrap(),
            messages: 1,
            ready: 0,
            is_source: true,
            wanted: unbounded().0,
            feed,
            events,
        })
    }

    #[test]
    fn the_last_refusal_is_told_though_nobody_is_left_who_could_connect() {
        let engine = engine();
        // Which of two channels is read first is drawn.
        for _ in 0..20 {
            let (feed, fed) = unbounded();
            let outlet = outlet(&engine, fed, unbounded().1);
            let attempt = outlet.config.attempt.clone();
            feed.send(Feed::Refused(0, Fault::ShuttingDown)).unwrap();
            outlet.run();
            assert_eq!(attempt.state(), State::Failed);
        }
    }

    #[test]
    fn a_child_that_says_that_it_gives_up_is_not_taken_for_one_that_restarted() {
        let engine = engine();
        let ((feed, fed), (happens, happened)) = (unbounded(), unbounded());
        let outlet = outlet(&engine, fed, happened);
        let attempt = outlet.config.attempt.clone();
        let connection = engine
            .allocate(weft_engine::DomainId(1), Secret([1; 32]))
            .id;
        let link = Link {
            end: End::new(engine.clone(), connection),
            slots: vec![Key(1)],
            held: Held::new(Vec::new()).unwrap(),
        };
        let running = std::thread::spawn(move || outlet.run());
        feed.send(Feed::Connected(0, link)).unwrap();
        while !feed.is_empty() {
            std::thread::yield_now();
        }
        let gives_up = Event::Signal {
            connection,
            immediate: GIVEN_UP,
        };
        happens.send(gives_up).unwrap();
        happens.send(Event::Closed { connection }).unwrap();
        running.join().unwrap();
        let fault = attempt.status().fault.unwrap();
        assert_eq!(fault.reason(), "PeerGaveUp");
    }
}
