//! The intake: a thread that receives one attempt's messages from this node's parent.
//!
//! Checks each block against its hash, writes it, hands the message to the outlet if this node has
//! children, and only then returns the slot's credit. Owns the connection to the parent and its
//! regions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crossbeam_channel::{Receiver, select, tick};
use weft_core::units::{ConnectionId, Key};
use weft_engine::{Engine, Event};

use crate::arrivals::Arrivals;
use crate::attempt::Attempt;
use crate::fault::{Fault, Stage};
use crate::files::{Algorithm, BlockDigest, DestinationFile, Digest};
use crate::layout::Item;
use crate::message::Message;
use crate::outlet::Feed;
use crate::peer::Peer;
use crate::pool::{Buffer, Share};
use crate::record::{HEADER_BYTES, Record, Records, padded};
use crate::shelf::Shelf;
use crate::signal::{self, FAREWELL, GIVEN_UP, PING, PING_INTERVAL};
use crate::state;

/// What an intake works with.
#[derive(Debug)]
pub(crate) struct IntakeConfig {
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
    /// The slots' part of the memory account.
    pub share: Share,
    /// What it fills.
    pub shelf: Arc<Shelf>,
    /// How blocks are checked.
    pub algorithm: Algorithm,
    /// From the engine.
    pub events: Receiver<Event>,
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Intake {
    config: IntakeConfig,
    /// Files of which something is missing: few, since messages come at most so far ahead.
    open: HashMap<u32, Arc<DestinationFile>>,
    arrivals: Arrivals,
    /// The slot of the last message, whose credit says that all is published here.
    end: Option<u32>,
    /// Writes whose end was not reported.
    under_way: usize,
    over: bool,
}

/// What a message had in it.
struct Contents {
    number: u32,
    /// Of the message, in bytes.
    bytes: usize,
    /// It is the message as the source builds it: no block was left out.
    whole: bool,
}

impl Intake {
    /// For a connection that is in the engine.
    #[must_use]
    pub(crate) fn new(config: IntakeConfig) -> Self {
        Self {
            config,
            open: HashMap::new(),
            arrivals: Arrivals::default(),
            end: None,
            under_way: 0,
            over: false,
        }
    }

    /// Receives until everything is published, or until something fails or it is told to stop.
    pub(crate) fn run(mut self) {
        let stopped = self.config.attempt.stopped();
        let idle = tick(PING_INTERVAL);
        let events = self.config.events.clone();
        let ended = loop {
            let result = select! {
                recv(events) -> event => match event {
                    Ok(event) => self.event(event),
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
            Ok(()) => self.farewell(),
            Err(fault) => {
                let lost = matches!(fault, Fault::PeerLost { .. } | Fault::PeerGaveUp { .. });
                self.config.peer.failed(fault.clone());
                self.config.attempt.fail(fault);
                if !lost {
                    self.farewell();
                }
            }
        }
        self.close();
    }

    fn event(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Delivered {
                immediate,
                key,
                buffer,
                ..
            } => self.deliver(immediate, key, buffer),
            Event::Signal {
                immediate: PING, ..
            }
            | Event::Closed { .. } => Ok(()),
            Event::Signal {
                immediate: GIVEN_UP,
                ..
            } => Err(Fault::PeerGaveUp {
                node: self.config.peer.node.clone(),
            }),
            Event::Signal { immediate, .. } => Err(self.faulty(format!("signal {immediate}"))),
            Event::Written { .. } => {
                self.under_way -= 1;
                Ok(())
            }
            Event::Failed { failure, .. } => {
                let node = self.config.peer.node.clone();
                Err(Fault::lost(node, Stage::Moving, &failure))
            }
        }
    }

    fn deliver(&mut self, slot: u32, key: Key, buffer: Buffer) -> Result<(), Fault> {
        if self.config.slots.get(slot as usize) != Some(&key) {
            return Err(self.faulty(format!("a message for slot {slot} in another")));
        }
        let contents = self.place(&buffer)?;
        self.rearm(key, buffer, &contents);
        self.arrivals.take(contents.number);
        self.config.shelf.set_ready(self.arrivals.ready());
        if contents.number + 1 == self.config.shelf.layout.messages() {
            self.end = Some(slot);
        } else {
            self.credit(slot);
        }
        if self.arrivals.ready() == self.config.shelf.layout.messages() {
            self.publish()?;
        }
        Ok(())
    }

    /// Makes the slot ready for another message. Where a child may want this one, the buffer goes to
    /// the outlet and a spare one into the slot; without a spare, the child will read it from disk.
    fn rearm(&self, key: Key, buffer: Buffer, contents: &Contents) {
        let shelf = &self.config.shelf;
        let spare = if contents.whole { shelf.spare() } else { None };
        let Some(spare) = spare else {
            self.config.engine.arm(key, buffer);
            return;
        };
        self.config.engine.arm(key, spare);
        let message = Message {
            buffer: Arc::new(buffer),
            bytes: contents.bytes,
        };
        shelf.tell(Feed::Built(contents.number, message));
    }

    /// Checks and writes a message's blocks. They must be those that the layout says.
    fn place(&mut self, buffer: &[u8]) -> Result<Contents, Fault> {
        let shelf = self.config.shelf.clone();
        let mut items: Option<Box<dyn Iterator<Item = Item> + '_>> = None;
        let mut contents = Contents {
            number: 0,
            bytes: 0,
            whole: true,
        };
        for record in Records::new(buffer) {
            let record = record.map_err(|error| self.faulty(error.to_string()))?;
            let item = self.item(&record)?;
            let expected = match &mut items {
                Some(items) => items.next(),
                None => {
                    contents.number = shelf
                        .layout
                        .message_of(item)
                        .ok_or_else(|| self.faulty("a block there is not".to_owned()))?;
                    self.arrivals
                        .check(contents.number)
                        .map_err(|wrong| self.faulty(wrong.to_string()))?;
                    items
                        .insert(Box::new(shelf.layout.items(contents.number)))
                        .next()
                }
            };
            if expected != Some(item) {
                return Err(self.faulty(format!("message {} in another order", contents.number)));
            }
            contents.bytes += HEADER_BYTES;
            match record {
                Record::Block {
                    file,
                    block,
                    value,
                    data,
                } => {
                    contents.bytes += padded(data.len());
                    self.block(file, block, value, data)?;
                }
                Record::Held { file, block, value } => {
                    contents.whole = false;
                    self.held(file, block, value)?;
                }
                Record::FileDigest { file, value } => self.digest(file, &value)?,
                Record::End => {}
            }
        }
        match items.map(|mut items| items.next()) {
            Some(None) => {}
            _ => return Err(self.faulty("a message that is not whole".to_owned())),
        }
        contents.bytes = (contents.bytes + HEADER_BYTES).min(buffer.len());
        Ok(contents)
    }

    /// The item that a record claims to be.
    fn item(&self, record: &Record<'_>) -> Result<Item, Fault> {
        Ok(match *record {
            Record::Block {
                file, block, data, ..
            } => Item::Block {
                file,
                block,
                bytes: data.len(),
            },
            Record::Held { file, block, .. } => {
                let blocks = self.config.shelf.layout.file(file);
                let blocks = blocks.filter(|blocks| block < blocks.count());
                let bytes = blocks
                    .map(|blocks| blocks.len(block))
                    .ok_or_else(|| self.faulty("a block there is not".to_owned()))?;
                Item::Block { file, block, bytes }
            }
            Record::FileDigest { file, .. } => Item::FileDigest { file },
            Record::End => Item::End,
        })
    }

    fn block(&mut self, index: u32, block: u32, value: [u8; 32], data: &[u8]) -> Result<(), Fault> {
        let file = self.file(index)?;
        let verified = file
            .blocks()
            .verify(block, data, &BlockDigest(value))
            .map_err(|cause| Fault::BlockRefused {
                node: self.config.peer.node.clone(),
                path: self.path(index),
                cause,
            })?;
        self.config.peer.moved(data.len() as u64);
        if file.write_block(&verified)? {
            self.config
                .attempt
                .counters
                .bytes
                .fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        self.finish(index, &file)
    }

    fn held(&mut self, index: u32, block: u32, value: [u8; 32]) -> Result<(), Fault> {
        let file = self.file(index)?;
        let digest = BlockDigest(value);
        let fresh = file.missing();
        let mut confirmed = file.confirm(block, &digest)?;
        if !confirmed {
            // Too many files to have kept them all open since they were hashed.
            let mut buffer = vec![0; file.blocks().len(0)];
            file.rehash(&mut buffer)?;
            confirmed = file.confirm(block, &digest)?;
        }
        if !confirmed {
            let path = self.path(index);
            return Err(self.faulty(format!(
                "block {block} of {path} as held here, and it is not"
            )));
        }
        if file.missing() < fresh {
            let bytes = file.blocks().len(block) as u64;
            let counters = &self.config.attempt.counters;
            counters.bytes.fetch_add(bytes, Ordering::Relaxed);
            counters.bytes_resumed.fetch_add(bytes, Ordering::Relaxed);
        }
        self.finish(index, &file)
    }

    fn digest(&mut self, index: u32, value: &[u8; 32]) -> Result<(), Fault> {
        let algorithm = self.config.algorithm;
        let (said, zeros) = value.split_at(algorithm.digest_bytes());
        let digest = Digest::from_bytes(algorithm, said)
            .filter(|_| zeros.iter().all(|byte| *byte == 0))
            .ok_or_else(|| self.faulty("a digest of another length".to_owned()))?;
        self.config.shelf.set_digest(index, digest);
        let file = self.file(index)?;
        self.finish(index, &file)
    }

    /// Takes a file as whole once it is, and once the source has said what it is.
    fn finish(&mut self, index: u32, file: &Arc<DestinationFile>) -> Result<(), Fault> {
        if file.missing() > 0 {
            return Ok(());
        }
        if let Some(digest) = self.config.shelf.digest(index) {
            self.config.shelf.destination.finish(file, &digest)?;
            self.open.remove(&index);
        }
        Ok(())
    }

    fn file(&mut self, index: u32) -> Result<Arc<DestinationFile>, Fault> {
        if let Some(file) = self.open.get(&index) {
            return Ok(file.clone());
        }
        let file = self.config.shelf.file(index)?;
        self.open.insert(index, file.clone());
        Ok(file)
    }

    fn path(&self, index: u32) -> String {
        let entries = self.config.shelf.destination.manifest().entries();
        entries
            .get(index as usize)
            .map(|entry| entry.path.clone())
            .unwrap_or_default()
    }

    fn publish(&mut self) -> Result<(), Fault> {
        let shelf = &self.config.shelf;
        self.config.attempt.all_blocks(shelf.destination.digest());
        // A cancel that came before this line wins; one that comes later finds the files published.
        if self.config.attempt.state() != state::State::Verifying {
            return Ok(());
        }
        let digest = shelf.destination.complete()?;
        self.config.attempt.published(digest);
        self.over = true;
        Ok(())
    }

    fn credit(&mut self, slot: u32) {
        // A connection that is over refuses, and says so by an event of its own.
        if signal::send(&self.config.engine, self.config.connection, slot) {
            self.under_way += 1;
        }
    }

    fn ping(&mut self) {
        if self.under_way == 0 {
            self.credit(PING);
        }
    }

    fn faulty(&self, problem: String) -> Fault {
        Fault::PeerFaulty {
            node: self.config.peer.node.clone(),
            problem,
        }
    }

    /// Tells the parent that all is published. Should that be lost, so is the parent.
    fn last_credit(&mut self) {
        if let Some(slot) = self.end.take() {
            self.credit(slot);
        }
        while self.under_way > 0 {
            match self.config.events.recv() {
                Ok(Event::Written { .. }) => self.under_way -= 1,
                Ok(Event::Failed { .. }) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Tells the parent that nothing more is wanted, and waits a little until it knows.
    fn farewell(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        self.credit(GIVEN_UP);
        while self.under_way > 0 {
            match self.config.events.recv_deadline(deadline) {
                Ok(Event::Written { .. }) => self.under_way -= 1,
                Ok(Event::Failed { .. }) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Ends the connection; once the engine has confirmed it, no byte lands.
    fn close(self) {
        let IntakeConfig {
            engine, connection, ..
        } = &self.config;
        self.config.peer.closed(&engine.snapshot());
        engine.close(*connection);
        while let Ok(event) = self.config.events.recv() {
            if matches!(event, Event::Closed { .. }) {
                break;
            }
        }
        for key in &self.config.slots {
            engine.deregister(*key);
        }
        drop(self.config.share);
    }
}
