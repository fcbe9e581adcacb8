//! When an acknowledgement goes out, and when a sender asks for one.

use weft_core::congestion::CongestionKind;
use weft_core::connection::IDLE_AFTER;
use weft_core::drops::DropReason;
use weft_core::recovery::{ACK_DELAY, ACK_RUNS};
use weft_core::units::{ChunkNumber, Nanos, PathId, Time};
use weft_core::wire::{CONTROL_BYTES_MAX, CONTROL_PACKET_NUMBERS, DataHeader, Flags, Probe, Seal};

use crate::pair::{KEY, Pair, Side, id, micros, secret};

/// B with what the test hands it by hand; A hears nothing of it.
struct Receiver {
    pair: Pair,
    ce: bool,
    next: u64,
}

impl Receiver {
    fn new() -> Receiver {
        let mut pair = Pair::new();
        pair.drop_all(|p| p.is_ack());
        Receiver {
            pair,
            ce: false,
            next: 0,
        }
    }

    /// Packet `packet` of `packets` of a chunk, the newest of all.
    fn packet(&mut self, chunk: u32, packet: u8, packets: u8, flags: Flags) {
        self.next += 10;
        self.numbered(self.next, chunk, packet, packets, flags);
    }

    fn numbered(&mut self, packet_number: u64, chunk: u32, packet: u8, packets: u8, flags: Flags) {
        let header = DataHeader {
            opcode: weft_core::wire::Opcode::Write,
            path: PathId(0),
            packet,
            packets,
            connection: id(Side::B),
            packet_number,
            sent_at: 0,
            chunk: ChunkNumber(chunk),
            chunk_index: 0,
            flags,
            immediate: 0,
            key: KEY,
            offset: 0,
        };
        let bytes = self.pair.sealed_data(header, &[1; 8]);
        self.arrive(&bytes);
    }

    /// A chunk of one packet.
    fn chunk(&mut self, chunk: u32) {
        self.packet(chunk, 0, 1, Flags::NONE);
    }

    fn arrive(&mut self, bytes: &[u8]) {
        // What was dropped is looked at when the test ends.
        let _ = self.pair.inject_run(Side::B, bytes, bytes.len(), self.ce);
    }

    fn poll_timeout(&self) -> Option<Time> {
        let paths = self.pair.paths(Side::B);
        self.pair.connection(Side::B).poll_timeout(paths)
    }

    /// Acknowledgements that went out by now.
    fn acks(&mut self) -> u64 {
        self.pair.run_for(Nanos::ZERO);
        self.pair.connection(Side::B).stats().acks_sent
    }
}

#[test]
fn a_chunk_alone_is_acknowledged_after_the_delay_and_not_before() {
    let mut receiver = Receiver::new();
    receiver.chunk(0);
    assert_eq!(receiver.acks(), 0);
    let due = receiver.pair.now + ACK_DELAY;
    assert_eq!(receiver.poll_timeout(), Some(due));
    receiver.pair.run_for(micros(60));
    // One that comes later does not put it off.
    receiver.chunk(1);
    receiver.pair.run_for(micros(39));
    assert_eq!(receiver.acks(), 0);
    receiver.pair.run_for(micros(1));
    assert_eq!(receiver.acks(), 1);
    assert!(receiver.pair.connection(Side::B).is_idle());
    // Nothing is due but giving memory back, and then nothing at all.
    assert_eq!(receiver.poll_timeout(), Some(Time::ZERO + IDLE_AFTER));
    receiver.pair.run_for(IDLE_AFTER.times(2));
    assert_eq!(receiver.poll_timeout(), None);
}

#[test]
fn every_fourth_run_is_acknowledged_at_once() {
    let mut receiver = Receiver::new();
    for chunk in 0..4 * ACK_RUNS {
        receiver.chunk(chunk);
        assert_eq!(receiver.acks(), u64::from((chunk + 1) / ACK_RUNS));
    }
    // Parts of a chunk, too.
    let mut receiver = Receiver::new();
    for packet in 0..40 {
        receiver.packet(0, packet, 50, Flags::NONE);
        assert_eq!(receiver.acks(), u64::from(packet + 1) / u64::from(ACK_RUNS));
    }
}

#[test]
fn what_the_sender_waits_for_is_acknowledged_at_once() {
    type Case = (&'static str, fn(&mut Receiver));
    let cases: [Case; 11] = [
        ("a chunk that asks", |r| r.packet(0, 0, 1, Flags::ACK_NOW)),
        ("the end of a message with an immediate", |r| {
            r.packet(0, 0, 1, Flags::LAST.with(Flags::IMMEDIATE));
        }),
        ("a mark", |r| {
            r.ce = true;
            r.chunk(0);
        }),
        ("a gap in a chunk", |r| {
            r.packet(0, 0, 4, Flags::NONE);
            assert_eq!(r.acks(), 0);
            r.packet(0, 2, 4, Flags::NONE);
        }),
        ("a chunk that four have overtaken", |r| {
            r.chunk(2);
            r.chunk(3);
            assert_eq!(r.acks(), 0);
            r.chunk(4);
        }),
        ("a chunk whose end another one has overtaken", |r| {
            r.packet(0, 0, 4, Flags::NONE);
            assert_eq!(r.acks(), 0);
            r.chunk(1);
        }),
        ("a part behind a gap", |r| {
            r.chunk(1);
            assert_eq!(r.acks(), 0);
            r.packet(2, 0, 4, Flags::NONE);
        }),
        ("a duplicate", |r| {
            r.pair.expect_drop(DropReason::Duplicate);
            r.numbered(5, 0, 0, 1, Flags::NONE);
            assert_eq!(r.acks(), 0);
            r.numbered(5, 0, 0, 1, Flags::NONE);
        }),
        ("a refusal", |r| {
            r.pair.expect_drop(DropReason::NotArmed);
            r.pair.memory_mut(Side::B).armed = false;
            r.chunk(0);
        }),
        ("a probe", |r| {
            let mut out = [0; CONTROL_BYTES_MAX];
            let seal = Seal::new(&secret(Side::A));
            let probe = Probe { sent_at: 0 };
            let number = CONTROL_PACKET_NUMBERS;
            let length = probe.emit(0, &mut out, &seal, PathId(0), id(Side::B), number);
            r.arrive(&out[..length]);
        }),
        ("what is about to sleep", |r| {
            r.chunk(0);
            assert_eq!(r.acks(), 0);
            assert!(r.pair.ends[1].host.endpoint.flush_acks());
        }),
    ];
    for (name, case) in cases {
        let mut receiver = Receiver::new();
        case(&mut receiver);
        assert_eq!(receiver.acks(), 1, "{name}");
    }
}

#[test]
fn a_chunk_older_than_what_the_sender_knows_of_is_acknowledged_at_once() {
    let mut receiver = Receiver::new();
    receiver.packet(1, 0, 1, Flags::ACK_NOW);
    assert_eq!(receiver.acks(), 1);
    receiver.chunk(2);
    assert_eq!(receiver.acks(), 1, "newer, and nobody waits");
    receiver.numbered(3, 0, 0, 1, Flags::NONE);
    assert_eq!(receiver.acks(), 2, "sent before what it was told of");
}

/// The data packets that ask, of what A has sent since the trace began.
fn asking(pair: &Pair) -> Vec<&str> {
    let lines = pair.trace().lines();
    lines.filter(|line| line.contains(" asks")).collect()
}

/// A pair whose paths have all been measured.
fn measured(change: impl FnOnce(&mut crate::pair::Setup)) -> Pair {
    let mut pair = Pair::with(change);
    pair.write(16_000);
    pair.run();
    pair.start_trace();
    pair
}

#[test]
fn of_a_long_write_the_last_chunk_asks() {
    let mut pair = measured(|_| ());
    pair.write(80_000);
    pair.run();
    let asking = asking(&pair);
    assert_eq!(asking.len(), 4, "{asking:?}");
    assert!(asking.iter().all(|line| line.contains("data 23.")));
}

#[test]
fn a_path_that_was_never_measured_is_asked_about() {
    let mut pair = Pair::new();
    pair.start_trace();
    // Three of four paths, then all of them.
    pair.write(12_000);
    pair.run();
    pair.write(20_000);
    pair.run();
    let asking = asking(&pair);
    assert!(
        asking
            .iter()
            .any(|line| line.contains("data 3.0/4 asks on 3"))
    );
    // Chunks of four packets: those three, the one on the fourth path, and the last.
    assert_eq!(asking.len(), 5 * 4, "{asking:?}");
}

#[test]
fn what_is_sent_again_asks() {
    let mut pair = measured(|_| ());
    pair.drop_next(|p| p.is_chunk(9) && p.header().packet == 1);
    pair.write(80_000);
    pair.run();
    let again = |line: &&&str| line.contains("again");
    assert_eq!(asking(&pair).iter().filter(again).count(), 1);
    assert_eq!(pair.connection(Side::A).stats().chunks_resent, 1);
}

#[test]
fn a_window_of_a_few_chunks_is_asked_for_by_the_chunk() {
    let window = 8 * 4 * 1_064;
    let mut pair = measured(|setup| setup.congestion = CongestionKind::Fixed { bytes: window });
    pair.write(400_000);
    // The first window: half of it may be sent in silence.
    pair.run_for(micros(1));
    assert_eq!(asking(&pair).len(), 4 * 4, "{}", pair.trace());
    pair.run();
}
