//! A pair that writes as fast as it can: what the core costs per chunk, both ends together, and that it allocates
//! nothing once it runs. Real header bytes, real trailers, real copies.

use rand_core::Rng as _;
use weft_core::congestion::CongestionKind;
use weft_core::connection::{Connection, Event, Settings, Write};
use weft_core::memory::DomainId;
use weft_core::path::PolicyKind;
use weft_core::units::{Nanos, Rng, Time};
use weft_core::wire::{Integrity, Kind, OVERHEAD_BYTES, VERSION, peek};

use crate::host::Datagrams;
use crate::pair::{Pair, PairConfig, Wire, id};

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct LoadConfig {
    /// Payload bytes of a packet.
    pub payload: u16,
    /// Packets of a chunk.
    pub packets: u32,
    /// Paths.
    pub paths: u16,
    /// Chunks lost, per million.
    pub lost: u32,
    /// Chunks that arrive a turn later than the others, per million: later than the chunks of one turn, sooner
    /// than a timeout.
    pub reordered: u32,
    /// What protects the packets.
    pub integrity: Integrity,
    /// Draws the losses and the paths.
    pub seed: u64,
}

/// Bytes of one write.
const WRITE_BYTES: u64 = 256 << 10;
/// Writes posted at a time.
const WRITES: u64 = 8;
/// Chunks sent per turn: what a worker sends before it looks at its sockets again.
const CHUNKS_PER_TURN: u32 = 32;
/// How long a turn takes, and a packet from one end to the other.
const TURN: Nanos = Nanos::from_micros(20);

/// Loses and delays chunks.
#[derive(Debug)]
struct LossyWire {
    rng: Rng,
    lost: u32,
    reordered: u32,
    /// Every write's content: they overlap in the receiver's region.
    source: Vec<u8>,
    spare: Vec<Vec<u8>>,
}

impl Wire for LossyWire {
    fn carry(
        &mut self,
        now: Time,
        datagrams: Datagrams,
        arrives: &mut impl FnMut(Time, Datagrams),
    ) {
        let mut at = now + TURN;
        if peek(&datagrams.bytes).is_ok_and(|peek| peek.kind == Kind::Data) {
            let draw = self.rng.next_u32() % 1_000_000;
            if draw < self.lost {
                return self.recycle(datagrams.bytes);
            }
            if draw < self.lost + self.reordered {
                at = at + TURN;
            }
        }
        arrives(at, datagrams);
    }

    fn content(&self, _token: u64, offset: u64) -> &[u8] {
        &self.source[offset as usize..]
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn recycle(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.spare.push(bytes);
    }
}

/// Host 0 writes, host 1 receives.
#[derive(Debug)]
pub struct Load {
    pair: Pair<LossyWire>,
    posted: u64,
    completed: u64,
    immediates: u64,
}

impl Load {
    /// A connection on which nothing was sent.
    pub fn new(config: LoadConfig) -> Load {
        let settings = Settings {
            paths: config.paths,
            packet_payload: config.payload,
            chunk_bytes: config.packets * (u32::from(config.payload) + OVERHEAD_BYTES as u32),
            window_chunks: 512,
            wire_version: VERSION,
            integrity: config.integrity,
        };
        let mut pair = PairConfig::new(settings);
        pair.turn = TURN;
        pair.region_bytes = WRITE_BYTES as usize;
        pair.endpoint.policy = PolicyKind::TwoChoices;
        pair.endpoint.congestion = CongestionKind::Fixed {
            bytes: settings.chunk_bytes * 128,
        };
        pair.endpoint.rto_min = Nanos::from_millis(5);
        pair.chunks_per_turn = CHUNKS_PER_TURN;
        pair.endpoint.seed = config.seed;
        let wire = LossyWire {
            rng: Rng::new(u128::from(config.seed) + 1),
            lost: config.lost,
            reordered: config.reordered,
            source: (0..WRITE_BYTES).map(|i| (i * 7 + (i >> 8)) as u8).collect(),
            // More than are ever under way, each with room for a chunk or an acknowledgement.
            spare: (0..1024).map(|_| Vec::with_capacity(65_536)).collect(),
        };
        let mut pair = Pair::new(pair, wire);
        pair.connect(0, DomainId(0));
        Load {
            pair,
            posted: 0,
            completed: 0,
            immediates: 0,
        }
    }

    /// The connection's end at a host: 0 writes, 1 receives.
    ///
    /// # Panics
    /// When it was closed.
    pub fn connection(&self, host: usize) -> &Connection {
        let endpoint = &self.pair.ends[host].host.endpoint;
        let connection = endpoint.connection(id(host, 0));
        connection.expect("the connection does not fail")
    }

    /// Lets time pass in which nothing is written: both ends serve their timers.
    pub fn rest(&mut self, span: Nanos) {
        self.pair.run_for(span);
    }

    /// Closes the connection's end at a host.
    pub fn close(&mut self, host: usize) {
        self.pair.ends[host].host.endpoint.close(id(host, 0));
    }

    /// Runs until at least `chunks` more chunks were sent and acknowledged with their messages.
    ///
    /// # Panics
    /// When anything goes wrong.
    pub fn run(&mut self, chunks: u64) {
        let target = self.chunks() + chunks;
        loop {
            let more = self.chunks() < target;
            if !more && self.completed == self.posted {
                break;
            }
            while more && self.posted - self.completed < WRITES {
                let write = Write {
                    token: self.posted,
                    bytes: WRITE_BYTES,
                    key: self.pair.ends[1].memory.key,
                    offset: 0,
                    immediate: Some(self.posted as u32),
                };
                let posted = self.pair.post(0, 0, write);
                posted.expect("the connection takes writes");
                self.posted += 1;
            }
            assert!(
                self.pair.step(Time::from_nanos(u64::MAX)),
                "it stands still"
            );
            self.take_events();
        }
        assert_eq!(self.immediates, self.posted, "every immediate counts once");
        let region = &self.pair.ends[1].memory.bytes[..];
        let source = &self.pair.wire.source[..region.len()];
        assert!(region == source, "what was placed is what was sent");
    }

    fn take_events(&mut self) {
        let [sender, receiver] = &mut self.pair.ends;
        for (_, event) in sender.events.drain(..) {
            match event {
                Event::Completed { .. } => self.completed += 1,
                other => panic!("unexpected at the sender: {other:?}"),
            }
        }
        for (_, event) in receiver.events.drain(..) {
            match event {
                Event::Immediate { .. } => self.immediates += 1,
                other => panic!("unexpected at the receiver: {other:?}"),
            }
        }
    }

    /// Chunks sent, resends not counted.
    pub fn chunks(&self) -> u64 {
        self.connection(0).stats().chunks_sent - self.resent()
    }

    /// Chunks sent again.
    pub fn resent(&self) -> u64 {
        self.connection(0).stats().chunks_resent
    }
}
