//! Two ends of a connection without a network between them, for the targets that speak to one.
//!
//! A writes to B. What a target makes up arrives at either end, sealed by the other or not.

use rand_core::SeedableRng;
use siphasher::sip::SipHasher13;
use weft_core::congestion::CongestionKind;
use weft_core::connection::{Arrival, Connection, ConnectionConfig, Event, Run, Settings, Write};
use weft_core::drops::DropReason;
use weft_core::memory::{Memory, check_bounds};
use weft_core::path::{PathSet, PathSetConfig, PolicyKind};
use weft_core::units::{ConnectionId, Key, Nanos, PathId, Rng, Time};
use weft_core::wire::{CONTROL_BYTES_MAX, CONTROL_PACKET_NUMBERS, Kind, Secret, VERSION};

const SETTINGS: Settings = Settings {
    paths: 4,
    packet_payload: 1_000,
    chunk_bytes: 4 * 1_064,
    window_chunks: 4,
    wire_version: VERSION,
};
const KEY: Key = Key(0x6675_7a7a);
const A: ConnectionId = ConnectionId(0xa);
const B: ConnectionId = ConnectionId(0xb);
const SECRETS: [Secret; 2] = [Secret([0xa1; 32]), Secret([0xb2; 32])];
/// One way between the two ends.
const DELAY: Nanos = Nanos::from_micros(50);
/// Rounds that a transfer needs at most, whatever was said to it.
const ROUNDS_MAX: usize = 2_000;

struct Region(Vec<u8>);

impl Memory for Region {
    fn place(&mut self, key: Key, offset: u64, payload: &[u8]) -> Result<(), DropReason> {
        if key != KEY {
            return Err(DropReason::Key);
        }
        check_bounds(self.0.len() as u64, offset, payload.len() as u64)?;
        self.0[offset as usize..][..payload.len()].copy_from_slice(payload);
        Ok(())
    }
}

struct End {
    connection: Connection,
    paths: PathSet,
    memory: Region,
    rng: Rng,
}

impl End {
    fn new(local: ConnectionId, remote: ConnectionId, send: &Secret, receive: &Secret) -> End {
        let config = ConnectionConfig {
            settings: SETTINGS,
            local,
            remote,
            send_secret: send.clone(),
            receive_secret: receive.clone(),
            congestion: CongestionKind::EcnRtt,
            stall_timeout: Nanos::from_secs(600),
            reset_token: 0x00de_adbe_efde_adbe,
        };
        let paths = PathSetConfig {
            paths: SETTINGS.paths,
            policy: PolicyKind::Oblivious,
            rto_min: Nanos::from_micros(250),
        };
        End {
            connection: Connection::new(config, Time::ZERO),
            paths: PathSet::new(&paths),
            memory: Region(vec![0; 1 << 16]),
            rng: Rng::seed_from_u64(1),
        }
    }

    fn take(&mut self, now: Time, bytes: &[u8], segment: usize) -> Result<(), DropReason> {
        let arrival = Arrival {
            path: PathId(0),
            ce: false,
        };
        let run = Run { bytes, segment };
        self.connection
            .handle_packets(now, &mut self.paths, arrival, run, &mut self.memory)
    }
}

/// A that writes, and B.
pub struct Duo {
    now: Time,
    a: End,
    b: End,
    source: Vec<u8>,
    completed: bool,
}

impl Duo {
    /// A begins to write `bytes` bytes with an immediate.
    pub fn new(bytes: usize) -> Duo {
        let mut a = End::new(A, B, &SECRETS[0], &SECRETS[1]);
        let b = End::new(B, A, &SECRETS[1], &SECRETS[0]);
        let source: Vec<u8> = (0..bytes).map(|i| (i * 31 + i / 251) as u8 | 1).collect();
        let write = Write {
            token: 7,
            bytes: bytes as u64,
            key: KEY,
            offset: 0,
            immediate: Some(9),
        };
        a.connection
            .post_write(write)
            .expect("a new connection takes a write");
        Duo {
            now: Time::ZERO,
            a,
            b,
            source,
            completed: false,
        }
    }

    /// Lets both ends send for some rounds of 100 us.
    pub fn exchange(&mut self, rounds: usize) {
        let mut buffer = [0; CONTROL_BYTES_MAX];
        for _ in 0..rounds {
            for end in [&mut self.a, &mut self.b] {
                if end
                    .connection
                    .poll_timeout(&end.paths)
                    .is_some_and(|at| at <= self.now)
                {
                    end.connection.handle_timeout(self.now, &mut end.paths);
                }
            }
            let now = self.now;
            let End {
                connection,
                paths,
                rng,
                ..
            } = &mut self.a;
            let mut packets = Vec::new();
            while let Some(control) = connection.poll_control(now, paths, &mut buffer) {
                packets.push(buffer[..control.bytes].to_vec());
            }
            while let Some(chunk) = connection.poll_chunk(now, paths, rng, u32::MAX) {
                for i in 0..chunk.packets() {
                    let range = chunk.payload(i);
                    let payload = &self.source[range.start as usize..range.end as usize];
                    let header = chunk.header(i);
                    packets.push([&header[..], payload, &chunk.trailer(&header, payload)].concat());
                }
            }
            self.now = self.now + DELAY;
            for packet in packets {
                let _ = self.b.take(self.now, &packet, packet.len());
            }
            let mut acks = Vec::new();
            let End {
                connection, paths, ..
            } = &mut self.b;
            while let Some(control) = connection.poll_control(self.now, paths, &mut buffer) {
                acks.push(buffer[..control.bytes].to_vec());
            }
            self.now = self.now + DELAY;
            for ack in acks {
                let _ = self.a.take(self.now, &ack, ack.len());
            }
            self.events();
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.a.connection.poll_event() {
            match event {
                Event::Completed { token } => {
                    assert!(token == 7 && !self.completed, "{token} completed twice");
                    self.completed = true;
                }
                other => panic!("A was made to report {other:?}"),
            }
        }
        while let Some(event) = self.b.connection.poll_event() {
            assert_eq!(event, Event::Immediate { value: 9, key: KEY });
            assert_eq!(self.b.memory.0[..self.source.len()], self.source);
        }
    }

    /// Bytes arrive at both ends.
    pub fn arrives(&mut self, bytes: &[u8], segment: usize) {
        for end in [&mut self.a, &mut self.b] {
            let _ = end.take(self.now, bytes, segment);
        }
        self.events();
    }

    /// Makes bytes look like a data packet for B.
    pub fn address(&self, bytes: &mut [u8]) {
        if let Some(prefix) = bytes.first_chunk_mut::<8>() {
            prefix[0] = VERSION;
            prefix[4..].copy_from_slice(&B.0.to_le_bytes());
        }
    }

    /// A control packet from B to A with any body, sealed as only B can. Written from docs/wire.md,
    /// not with the core's own writer.
    pub fn seal(&self, kind: Kind, number: u64, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![VERSION | (kind as u8) << 4, 0, 0, 0];
        packet.extend_from_slice(&A.0.to_le_bytes());
        packet.extend_from_slice(&(CONTROL_PACKET_NUMBERS + number).to_le_bytes());
        packet.extend_from_slice(body);
        let key: [u8; 16] = std::array::from_fn(|i| SECRETS[1].0[i]);
        let hash = SipHasher13::new_with_key(&key).hash(&packet);
        packet.extend_from_slice(&hash.to_le_bytes());
        packet.extend_from_slice(&[0; 8]);
        packet
    }

    /// A packet from B arrives at A.
    pub fn answers(&mut self, packet: &[u8]) -> Result<(), DropReason> {
        let result = self.a.take(self.now, packet, packet.len());
        self.events();
        result
    }

    /// A is told that B does not know the connection, with a guessed token.
    pub fn resets(&mut self, token: u64) {
        assert_eq!(self.a.connection.handle_reset(token), Err(DropReason::Seal));
        self.events();
    }

    /// What B's region holds.
    pub fn placed(&self) -> Vec<u8> {
        self.b.memory.0.clone()
    }

    /// The window is conserved at A.
    pub fn check_window(&self) {
        let connection = &self.a.connection;
        assert!(connection.outstanding() <= usize::from(SETTINGS.window_chunks));
        assert!(connection.in_flight() <= u64::from(SETTINGS.chunk_bytes) * 4);
        if connection.is_idle() {
            assert_eq!((connection.outstanding(), connection.in_flight()), (0, 0));
        }
    }

    /// The transfer ends, and all of it is there.
    pub fn finish(mut self) {
        for _ in 0..ROUNDS_MAX {
            if self.completed {
                break;
            }
            self.exchange(1);
        }
        assert!(self.completed, "the transfer did not end");
        assert_eq!(self.b.memory.0[..self.source.len()], self.source);
        self.check_window();
    }
}
