//! Two ends of a connection without a network between them, for the targets that speak to one.
//!
//! Host 0 writes to host 1. What a target makes up arrives at either host, sealed by the other or not.

use siphasher::sip::SipHasher13;
use weft_core::congestion::CongestionKind;
use weft_core::connection::{CancelError, Event, Settings, Write};
use weft_core::drops::{DropReason, Drops};
use weft_core::memory::DomainId;
use weft_core::path::PolicyKind;
use weft_core::units::{ConnectionId, Key, Nanos, PathId, Time};
use weft_core::wire::{
    CONTROL_PACKET_NUMBERS, DataHeader, Integrity, KeyPhase, Kind, OVERHEAD_BYTES, Reset, Revoke,
    Seal, VERSION,
};
use weft_crypto::AES_128_GCM;
use weft_device::control::Limits;
use weft_sim::host::Datagrams;
use weft_sim::pair::{Pair, PairConfig, Wire, holds, id, secret};

const SETTINGS: Settings = Settings {
    paths: 4,
    packet_payload: 1_000,
    chunk_bytes: 4 * 1_064,
    window_chunks: 4,
    wire_version: VERSION,
    integrity: Integrity::Sealed,
};
/// Of a device that programs send anything to.
pub const LIMITS: Limits = Limits {
    domains: 4,
    regions: 4,
    completion_queues: 4,
    queue_pairs: 4,
    address_handles: 4,
    completions: 4096,
    work_requests: 4096,
    sges: 32,
    inline_bytes: 1024,
    requests: 16,
    path_mtu: 5,
    ring_bytes: 1 << 20,
};
/// The key of the region at each end.
pub const KEY: Key = Key(0x6675_7a7a);
/// The connection at host 1, which is written to.
pub const B: ConnectionId = ConnectionId(2 << 16);
/// One way between the two ends.
const DELAY: Nanos = Nanos::from_micros(50);
/// Rounds that a transfer needs at most, whatever was said to it.
const ROUNDS_MAX: usize = 2_000;
const TOKEN: u64 = 7;

/// Delays everything by the same time.
struct Delay;

impl Wire for Delay {
    fn carry(&mut self, now: Time, datagrams: Datagrams, arrives: &mut impl FnMut(Time, Datagrams)) {
        arrives(now + DELAY, datagrams);
    }
}

/// Host 0, which writes, and host 1.
pub struct Duo {
    pair: Pair<Delay>,
    bytes: usize,
    completed: bool,
    /// The write is to be cancelled.
    cancelling: bool,
}

impl Duo {
    /// Host 0 begins to write `bytes` bytes with an immediate.
    pub fn new(bytes: usize) -> Duo {
        Duo::with(bytes, Integrity::Sealed)
    }

    /// The same with packets that are protected so.
    pub fn with(bytes: usize, integrity: Integrity) -> Duo {
        let mut config = PairConfig::new(Settings { integrity, ..SETTINGS });
        config.key = KEY;
        config.endpoint.policy = PolicyKind::Oblivious;
        config.endpoint.congestion = CongestionKind::ECN_RTT;
        config.endpoint.stall_timeout = Nanos::from_secs(600);
        config.region_bytes = 1 << 16;
        let key = config.key;
        let mut pair = Pair::new(config, Delay);
        assert_eq!(id(1, 0), B);
        pair.connect(0, DomainId(0));
        let write = Write {
            token: TOKEN,
            bytes: bytes as u64,
            key,
            offset: 0,
            immediate: Some(9),
        };
        pair.post(0, 0, write).expect("a new connection takes a write");
        Duo {
            pair,
            bytes,
            completed: false,
            cancelling: false,
        }
    }

    /// Host 0 cancels its write, if that has not ended.
    pub fn cancel(&mut self) {
        let cancelled = self.pair.ends[0].host.endpoint.cancel(id(0, 0), TOKEN);
        assert_eq!(cancelled, match self.completed {
            true => Err(CancelError::NotUnderWay),
            false => Ok(()),
        });
        self.cancelling = true;
        self.exchange(1);
    }

    /// Lets both ends send for some rounds of 100 us.
    pub fn exchange(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.pair.run_for(DELAY + DELAY);
            self.events();
        }
    }

    fn events(&mut self) {
        let [a, b] = &mut self.pair.ends;
        for (_, event) in a.events.drain(..) {
            match event {
                Event::Completed { token } => {
                    assert!(token == TOKEN && !self.completed, "{token} completed twice");
                    self.completed = true;
                }
                Event::Cancelled { token } => {
                    assert!(token == TOKEN && self.cancelling && !self.completed);
                    self.completed = true;
                }
                other => panic!("the writer was made to report {other:?}"),
            }
        }
        let key = b.memory.key;
        for (_, event) in b.events.drain(..) {
            assert_eq!(event, Event::Immediate { value: 9, key });
            assert!(holds(&b.memory.bytes, 0, TOKEN, self.bytes));
        }
    }

    fn arrives_at(&mut self, to: usize, bytes: &[u8], segment: usize) {
        self.inject(to, bytes, segment);
        self.events();
    }

    fn inject(&mut self, to: usize, bytes: &[u8], segment: usize) {
        self.pair.inject(Datagrams {
            from: 1 - to,
            to,
            path: PathId(0),
            ce: false,
            segment: segment.max(1),
            bytes: bytes.to_vec(),
        });
    }

    /// Bytes arrive at both ends.
    pub fn arrives(&mut self, bytes: &[u8], segment: usize) {
        self.arrives_at(0, bytes, segment);
        self.arrives_at(1, bytes, segment);
    }

    /// Makes bytes look like a data packet for host 1.
    pub fn address(&self, bytes: &mut [u8]) {
        if let Some(prefix) = bytes.first_chunk_mut::<8>() {
            prefix[0] = VERSION;
            prefix[4..].copy_from_slice(&id(1, 0).0.to_le_bytes());
        }
    }

    /// A control packet from host 1 to host 0 with any body, sealed as only host 1 can. Written from docs/wire.md,
    /// not with the core's own writer.
    pub fn seal(&self, kind: Kind, number: u64, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![VERSION | (kind as u8) << 4, 0, 0, 0];
        packet.extend_from_slice(&id(0, 0).0.to_le_bytes());
        packet.extend_from_slice(&(CONTROL_PACKET_NUMBERS + number).to_le_bytes());
        packet.extend_from_slice(body);
        let secret = secret(1, 0);
        let key: [u8; 16] = std::array::from_fn(|i| secret.0[i]);
        let hash = SipHasher13::new_with_key(&key).hash(&packet);
        packet.extend_from_slice(&hash.to_le_bytes());
        packet.extend_from_slice(&[0; 8]);
        packet
    }

    /// A data packet from host 0, sealed as only host 0 can.
    pub fn seal_data(&self, header: &DataHeader, payload: &[u8]) -> Vec<u8> {
        let integrity = self.pair.ends[0].host.endpoint.config().settings.integrity;
        let seal = Seal::with(integrity, &secret(0, 0), KeyPhase::FIRST, &AES_128_GCM);
        let mut packet = vec![0; payload.len() + OVERHEAD_BYTES];
        seal.seal_data(header, payload, &mut packet);
        packet
    }

    /// A revocation from host 0, sealed as only host 0 can, arrives at host 1. Answers why it was dropped.
    pub fn revokes(&mut self, number: u64, revoke: &Revoke) -> Result<(), DropReason> {
        let integrity = self.pair.ends[0].host.endpoint.config().settings.integrity;
        let seal = Seal::with(integrity, &secret(0, 0), KeyPhase::FIRST, &AES_128_GCM);
        let mut packet = [0; Revoke::BYTES];
        let number = CONTROL_PACKET_NUMBERS + number;
        revoke.emit(&mut packet, &seal, PathId(0), B, number);
        self.writes(&packet)
    }

    fn drops(&self, host: usize) -> Drops {
        let endpoint = &self.pair.ends[host].host.endpoint;
        let mut drops = endpoint.counters().drops;
        for (connection, _) in endpoint.connections() {
            drops.add(connection.drops());
        }
        drops
    }

    fn dropped(&self, host: usize, before: &Drops) -> Result<(), DropReason> {
        let after = self.drops(host);
        let dropped = |reason: &&DropReason| after.get(**reason) > before.get(**reason);
        DropReason::ALL.iter().find(dropped).map_or(Ok(()), |reason| Err(*reason))
    }

    /// A packet from host 1 arrives at host 0. Answers why it was dropped.
    pub fn answers(&mut self, packet: &[u8]) -> Result<(), DropReason> {
        let before = self.drops(0);
        self.arrives_at(0, packet, packet.len());
        self.dropped(0, &before)
    }

    /// A packet from host 0, which lies, arrives at host 1. What host 1 reports of it is host 0's business.
    pub fn writes(&mut self, packet: &[u8]) -> Result<(), DropReason> {
        let before = self.drops(1);
        self.inject(1, packet, packet.len());
        self.pair.ends[1].events.clear();
        self.dropped(1, &before)
    }

    /// Host 0 is told that host 1 does not know the connection, with a guessed token.
    pub fn resets(&mut self, token: u64) {
        let (path, connection) = (PathId(0), id(1, 0));
        let reset = Reset { path, connection, token }.emit();
        assert_eq!(self.answers(&reset), Err(DropReason::UnknownConnection));
    }

    /// What host 1's region holds.
    pub fn placed(&self) -> Vec<u8> {
        self.pair.ends[1].memory.bytes.clone()
    }

    /// The window is conserved at host 0.
    pub fn check_window(&self) {
        let connection = self.pair.ends[0].host.endpoint.connection(id(0, 0));
        let connection = connection.expect("the connection does not fail");
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
        assert!(holds(&self.pair.ends[1].memory.bytes, 0, TOKEN, self.bytes));
        self.check_window();
    }
}
