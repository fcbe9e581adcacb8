//! Both ends of a connection on one thread: real header bytes, real trailers, real copies, no
//! sockets. What the core costs per chunk, and that it allocates nothing once it runs.

use rand_core::Rng as _;
use weft_core::congestion::CongestionKind;
use weft_core::connection::{Arrival, Connection, ConnectionConfig, Event, Run, Settings, Write};
use weft_core::drops::DropReason;
use weft_core::memory::{Memory, check_bounds};
use weft_core::path::{PathSet, PathSetConfig, PathState, PolicyKind};
use weft_core::units::{ConnectionId, Key, Nanos, PathId, Rng, Time};
use weft_core::wire::{CONTROL_BYTES_MAX, OVERHEAD_BYTES, Secret, VERSION};

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct PairConfig {
    /// Payload bytes of a packet.
    pub payload: u16,
    /// Packets of a chunk.
    pub packets: u32,
    /// Paths.
    pub paths: u16,
    /// Chunks lost, per million.
    pub lost: u32,
    /// Chunks delayed by [`DELAY_TURNS`] turns, per million.
    pub reordered: u32,
    /// Draws the losses and the paths.
    pub seed: u64,
}

/// Bytes of one write.
const WRITE_BYTES: u64 = 256 << 10;
/// Writes posted at a time.
const WRITES: u64 = 8;
/// Chunks sent per turn: what a worker sends before it looks at its sockets again.
const CHUNKS_PER_TURN: usize = 32;
/// Virtual time of one turn.
const TURN: Nanos = Nanos::from_micros(20);
/// Turns by which a reordered chunk is late: later than the chunks of one turn, sooner than a
/// timeout.
pub const DELAY_TURNS: u64 = 1;

struct Region(Vec<u8>);

impl Memory for Region {
    fn place(&mut self, _key: Key, offset: u64, payload: &[u8]) -> Result<(), DropReason> {
        check_bounds(self.0.len() as u64, offset, payload.len() as u64)?;
        let at = offset as usize;
        self.0[at..at + payload.len()].copy_from_slice(payload);
        Ok(())
    }
}

/// A chunk on the way.
struct Flight {
    path: PathId,
    arrives: u64,
    length: usize,
    buffer: Vec<u8>,
}

/// Two connected ends and what lies between them.
pub struct Pair {
    config: PairConfig,
    sender: Connection,
    receiver: Connection,
    sender_paths: PathSet,
    receiver_paths: PathSet,
    rng: Rng,
    faults: Rng,
    now: Time,
    turn: u64,
    source: Vec<u8>,
    region: Region,
    flights: Vec<Flight>,
    arriving: Vec<Flight>,
    spare: Vec<Vec<u8>>,
    control: [u8; CONTROL_BYTES_MAX],
    posted: u64,
    completed: u64,
    immediates: u64,
}

impl Pair {
    /// Two ends, nothing sent.
    pub fn new(config: PairConfig) -> Pair {
        let settings = Settings {
            paths: config.paths,
            packet_payload: config.payload,
            chunk_bytes: config.packets * (u32::from(config.payload) + OVERHEAD_BYTES as u32),
            window_chunks: 512,
            wire_version: VERSION,
        };
        let end = |local: u32, remote: u32| ConnectionConfig {
            settings,
            local: ConnectionId(local),
            remote: ConnectionId(remote),
            send_secret: Secret([local as u8; 32]),
            receive_secret: Secret([remote as u8; 32]),
            congestion: CongestionKind::Fixed {
                bytes: settings.chunk_bytes * 128,
            },
            stall_timeout: Nanos::from_secs(10),
            reset_token: 0,
        };
        let paths = PathSetConfig {
            paths: config.paths,
            policy: PolicyKind::TwoChoices,
            rto_min: Nanos::from_millis(5),
        };
        let chunk = settings.chunk_bytes as usize;
        Pair {
            sender: Connection::new(end(1, 2), Time::ZERO),
            receiver: Connection::new(end(2, 1), Time::ZERO),
            sender_paths: PathSet::new(&paths),
            receiver_paths: PathSet::new(&paths),
            rng: Rng::new(u128::from(config.seed)),
            faults: Rng::new(u128::from(config.seed) + 1),
            now: Time::ZERO,
            turn: 0,
            source: (0..WRITE_BYTES).map(|i| (i * 7 + (i >> 8)) as u8).collect(),
            region: Region(vec![0; WRITE_BYTES as usize]),
            flights: Vec::with_capacity(1024),
            arriving: Vec::with_capacity(1024),
            spare: (0..1024).map(|_| vec![0; chunk]).collect(),
            control: [0; CONTROL_BYTES_MAX],
            posted: 0,
            completed: 0,
            immediates: 0,
            config,
        }
    }

    /// Runs until at least `chunks` more chunks were sent and acknowledged with their messages.
    pub fn run(&mut self, chunks: u64) {
        let target = self.sender.stats().chunks_sent + chunks;
        while self.sender.stats().chunks_sent < target || self.completed < self.posted {
            let more = self.sender.stats().chunks_sent < target;
            while more && self.posted - self.completed < WRITES {
                let write = Write {
                    token: self.posted,
                    bytes: WRITE_BYTES,
                    key: Key(1),
                    offset: 0,
                    immediate: Some(self.posted as u32),
                };
                self.sender
                    .post_write(write)
                    .expect("fewer writes than the queue holds");
                self.posted += 1;
            }
            self.send();
            self.now = self.now + TURN;
            self.turn += 1;
            self.receive();
        }
        assert_eq!(self.immediates, self.posted, "every immediate counts once");
        assert!(
            self.region.0 == self.source,
            "what was placed is what was sent"
        );
    }

    fn send(&mut self) {
        for _ in 0..CHUNKS_PER_TURN {
            let paths = &mut self.sender_paths;
            let chunk = self
                .sender
                .poll_chunk(self.now, paths, &mut self.rng, u32::MAX);
            let Some(chunk) = chunk else { return };
            let mut buffer = self
                .spare
                .pop()
                .expect("as many buffers as the window has chunks");
            let mut at = 0;
            for i in 0..chunk.packets() {
                let range = chunk.payload(i);
                let payload = &self.source[range.start as usize..range.end as usize];
                let header = chunk.header(i);
                let trailer = chunk.trailer(&header, payload);
                for part in [&header[..], payload, &trailer[..]] {
                    buffer[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
            }
            let draw = self.faults.next_u32() % 1_000_000;
            if draw < self.config.lost {
                self.spare.push(buffer);
                continue;
            }
            let late = draw < self.config.lost + self.config.reordered;
            let arrives = self.turn + if late { DELAY_TURNS } else { 0 };
            self.flights.push(Flight {
                path: chunk.path,
                arrives,
                length: at,
                buffer,
            });
        }
    }

    fn receive(&mut self) {
        let segment = usize::from(self.config.payload) + OVERHEAD_BYTES;
        std::mem::swap(&mut self.flights, &mut self.arriving);
        for flight in self.arriving.drain(..) {
            if flight.arrives >= self.turn {
                self.flights.push(flight);
                continue;
            }
            let arrival = Arrival {
                path: flight.path,
                ce: false,
            };
            let run = Run {
                bytes: &flight.buffer[..flight.length],
                segment,
            };
            let (paths, region) = (&mut self.receiver_paths, &mut self.region);
            match self
                .receiver
                .handle_packets(self.now, paths, arrival, run, region)
            {
                Ok(()) | Err(DropReason::Duplicate) => {}
                Err(reason) => panic!("dropped: {reason}"),
            }
            self.spare.push(flight.buffer);
        }
        while let Some(event) = self.receiver.poll_event() {
            match event {
                Event::Immediate { .. } => self.immediates += 1,
                other => panic!("unexpected at the receiver: {other:?}"),
            }
        }
        let (now, region) = (self.now, &mut self.region);
        while let Some(packet) =
            self.receiver
                .poll_control(now, &mut self.receiver_paths, &mut self.control)
        {
            deliver(
                &mut self.sender,
                now,
                &mut self.sender_paths,
                region,
                &self.control,
                packet,
            );
        }
        while let Some(event) = self.sender.poll_event() {
            match event {
                Event::Completed { .. } => self.completed += 1,
                other => panic!("unexpected at the sender: {other:?}"),
            }
        }
        if self
            .sender
            .poll_timeout(&self.sender_paths)
            .is_some_and(|due| due <= now)
        {
            self.sender.handle_timeout(now, &mut self.sender_paths);
        }
        while let Some(packet) =
            self.sender
                .poll_control(now, &mut self.sender_paths, &mut self.control)
        {
            let paths = &mut self.receiver_paths;
            deliver(
                &mut self.receiver,
                now,
                paths,
                region,
                &self.control,
                packet,
            );
        }
    }

    /// Chunks sent, resends not counted.
    pub fn chunks(&self) -> u64 {
        self.sender.stats().chunks_sent
    }

    /// Chunks sent again.
    pub fn resent(&self) -> u64 {
        self.sender.stats().chunks_resent
    }

    /// Paths that are given data.
    pub fn live_paths(&self) -> usize {
        self.sender_paths
            .report()
            .filter(|path| path.state == PathState::Live)
            .count()
    }
}

fn deliver(
    to: &mut Connection,
    now: Time,
    paths: &mut PathSet,
    region: &mut Region,
    bytes: &[u8],
    packet: weft_core::connection::ControlPacket,
) {
    let arrival = Arrival {
        path: packet.path,
        ce: false,
    };
    let run = Run {
        bytes: &bytes[..packet.bytes],
        segment: packet.bytes,
    };
    to.handle_packets(now, paths, arrival, run, region)
        .expect("a control packet is taken");
}
