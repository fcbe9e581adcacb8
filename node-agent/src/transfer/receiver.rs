//! The receiver: a thread that receives one attempt's messages from this node's parent.
//!
//! It writes each message, and only then returns the slot's credit. It owns the connection to the parent and the
//! regions of that connection.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{select, tick};
use weft_core::units::{ConnectionId, Key};
use weft_engine::{Engine, Event, Region};

use crate::fault::Fault;
use crate::transfer::attempt::Attempt;
use crate::transfer::block_writer::BlockWriter;
use crate::transfer::buffers::{Buffer, BufferReservation};
use crate::transfer::destination_blocks::DestinationBlocks;
use crate::transfer::peer::Peer;
use crate::transfer::signal::{self, ABORT_NOTICE_TIMEOUT, ABORTED, PING, PING_INTERVAL};

/// What a receiver works with.
#[derive(Debug)]
pub(crate) struct ReceiverConfig {
    /// The transport.
    pub engine: Arc<Engine>,
    /// What it works for.
    pub attempt: Arc<Attempt>,
    /// The parent.
    pub peer: Arc<Peer>,
    /// In the engine.
    pub connection: ConnectionId,
    /// Where it receives; a slot's number is its index.
    pub slots: Vec<Key>,
    /// The slots' part of the memory budget.
    pub buffers: BufferReservation,
    /// What it fills.
    pub blocks: Arc<DestinationBlocks>,
    /// From the engine.
    pub events: crossbeam_channel::Receiver<Event>,
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Receiver {
    config: ReceiverConfig,
    block_writer: BlockWriter,
    /// The slot of the last message. Its credit says that all is published here.
    last_slot: Option<u32>,
    /// Writes whose end was not reported.
    in_flight: usize,
    over: bool,
}

impl Receiver {
    /// For a connection that is in the engine.
    pub(crate) fn new(config: ReceiverConfig) -> Self {
        let block_writer = BlockWriter::new(
            config.attempt.clone(),
            config.blocks.clone(),
            config.peer.node.clone(),
        );
        Self {
            config,
            block_writer,
            last_slot: None,
            in_flight: 0,
            over: false,
        }
    }

    /// Receives until everything is published, or until the attempt fails or is stopped.
    pub(crate) fn run(mut self) {
        let stopped = self.config.attempt.stop_channel();
        let idle = tick(PING_INTERVAL);
        let events = self.config.events.clone();
        let ended = loop {
            let result = select! {
                recv(events) -> event => match event {
                    Ok(event) => self.handle_event(&event),
                    Err(_) => break Ok(()),
                },
                recv(idle) -> _ => {
                    self.ping();
                    Ok(())
                },
                recv(stopped) -> _ => break Ok(()),
            };
            if result.is_err() || self.over {
                break result;
            }
        };
        match ended {
            Ok(()) if self.over => self.last_credit(),
            Ok(()) => self.give_up(),
            Err(fault) => {
                let lost = matches!(fault, Fault::PeerLost { .. } | Fault::PeerGaveUp { .. });
                self.config.peer.record_failed(fault.clone());
                self.config.attempt.fail(fault);
                if !lost {
                    self.give_up();
                }
            }
        }
        self.close();
    }

    fn handle_event(&mut self, event: &Event) -> Result<(), Fault> {
        match event {
            Event::Delivered { immediate, key, .. } => self.deliver(*immediate, *key),
            Event::Signal {
                immediate: PING, ..
            }
            // This end posts writes only, and no receives.
            | Event::Completed { .. }
            | Event::Cancelled { .. }
            | Event::Refused { .. }
            | Event::Received { .. }
            | Event::RequestFailed { .. }
            | Event::Closed { .. } => Ok(()),
            Event::Signal {
                immediate: ABORTED,
                ..
            } => Err(Fault::PeerGaveUp {
                node: self.config.peer.node.clone(),
            }),
            Event::Signal { immediate, .. } => Err(self.faulty(format!("signal {immediate}"))),
            Event::Written { .. } => {
                self.in_flight -= 1;
                Ok(())
            }
            Event::Failed { failure, .. } => {
                let node = self.config.peer.node.clone();
                Err(Fault::lost(node, "while moving blocks", failure))
            }
        }
    }

    fn deliver(&mut self, slot: u32, key: Key) -> Result<(), Fault> {
        if self.config.slots.get(slot as usize) != Some(&key) {
            return Err(self.faulty(format!("a message for slot {slot} in another")));
        }
        let buffer = self.take(key)?;
        let contents = self.block_writer.write_message(&buffer)?;
        self.config.peer.moved(contents.data);
        self.config.engine.arm(key, Region::share(buffer));
        if contents.number + 1 == self.config.blocks.layout.messages() {
            self.last_slot = Some(slot);
        } else {
            self.send_signal(slot);
        }
        if contents.is_all {
            self.over = self.block_writer.publish()?;
        }
        Ok(())
    }

    /// Takes a slot's buffer: from here on the parent cannot change its bytes.
    fn take(&self, key: Key) -> Result<Buffer, Fault> {
        let region = self.config.engine.take(key);
        region
            .and_then(|region| Region::into_box(region).ok())
            .ok_or_else(|| Fault::engine("a slot's buffer is not there"))
    }

    fn send_signal(&mut self, signal: u32) {
        // A connection that is over refuses the write, and its own event says why.
        if signal::send(&self.config.engine, self.config.connection, signal) {
            self.in_flight += 1;
        }
    }

    fn ping(&mut self) {
        if self.in_flight == 0 {
            self.send_signal(PING);
        }
    }

    fn faulty(&self, problem: String) -> Fault {
        Fault::faulty(&self.config.peer.node, problem)
    }

    /// Tells the parent that all is published.
    fn last_credit(&mut self) {
        if let Some(slot) = self.last_slot.take() {
            self.send_signal(slot);
        }
        self.wait_for_writes(None);
    }

    /// Tells the parent that nothing more is wanted, and waits a moment until it knows.
    fn give_up(&mut self) {
        self.send_signal(ABORTED);
        self.wait_for_writes(Some(Instant::now() + ABORT_NOTICE_TIMEOUT));
    }

    /// Waits until all writes have ended, or the connection has failed.
    fn wait_for_writes(&mut self, deadline: Option<Instant>) {
        let events = &self.config.events;
        while self.in_flight > 0 {
            let event = match deadline {
                Some(deadline) => events.recv_deadline(deadline).ok(),
                None => events.recv().ok(),
            };
            match event {
                Some(Event::Written { .. }) => self.in_flight -= 1,
                Some(Event::Failed { .. }) | None => return,
                Some(_) => {}
            }
        }
    }

    /// Ends the connection. Once the engine has confirmed that, no byte of it arrives any more.
    fn close(self) {
        let ReceiverConfig {
            engine, connection, ..
        } = &self.config;
        self.config.peer.record_closed(&engine.snapshot());
        engine.close(*connection);
        while let Ok(event) = self.config.events.recv() {
            if matches!(event, Event::Closed { .. }) {
                break;
            }
        }
        for key in &self.config.slots {
            engine.deregister(*key);
        }
        drop(self.config.buffers);
    }
}
