//! The shape of a run, drawn from its seed: who talks to whom, over what, and what goes wrong.

use std::fmt;

use weft_core::congestion::CongestionKind;
use weft_core::connection::Settings;
use weft_core::endpoint::EndpointConfig;
use weft_core::memory::DomainId;
use weft_core::path::PolicyKind;
use weft_core::units::{ChunkNumber, Nanos};
use weft_core::wire::{HEADER_BYTES, Integrity, OVERHEAD_BYTES, VERSION};
use weft_crypto::{AES_128_GCM, Aes128Gcm};

use crate::draw::Draw;
use crate::stray::Stray;

/// The most bytes of datagrams that one chunk may hold (one GSO send).
const CHUNK_DATAGRAM_BYTES: u64 = 65_507;
/// The most packets of one chunk (one bit each in a packet map).
const CHUNK_PACKETS: u64 = 64;
/// The most payload bytes that a run writes in all: keeps a run within tens of milliseconds.
const RUN_BYTES: u64 = 24 << 20;
/// The most packets that a run writes in all, for the same reason.
const RUN_PACKETS: u64 = 4_000;
/// The longest time with faults; stalls are declared after [`Scenario::stall_timeout`] only, so
/// that a connection between two live nodes never has a reason to fail.
const FAULTY_MAX: Nanos = Nanos::from_secs(2);
/// The longest that a region's buffer is with its owner: several of the waits that double.
const AWAY_MAX: Nanos = Nanos::from_millis(300);
/// No connection whose peer lives may stall: longer than any fault plus the slowest probe (1 s) and
/// the longest time between two resends.
const STALL_TIMEOUT_MIN: Nanos = Nanos::from_secs(6);
/// Bytes of the IPv4 and UDP headers.
const LINK_HEADER_BYTES: u32 = 28;
/// The least rate cap: a run's bytes in a quarter of a second, so that no run takes much longer for it.
const RATE_CAP_MIN_BPS: u64 = RUN_BYTES * 8 * 4;
/// The longest time between the two ends' connecting.
const JOIN_DELAY_MAX: Nanos = Nanos::from_micros(500);
/// The longest from a packet's arrival to its worker's turn.
const TURN_DELAY_MAX: Nanos = Nanos::from_micros(100);
/// The longest that the link does not take a chunk.
const BLOCKED_MAX: Nanos = Nanos::from_millis(5);

/// Chances of what the network does to one packet, in millionths, and how long it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Lost without a trace.
    pub loss: u32,
    /// Delivered twice, the copy up to `straggle` later.
    pub duplicate: u32,
    /// Held back for up to `straggle`.
    pub reorder: u32,
    /// A few bits flipped, or cut short, somewhere in header, payload or trailer.
    pub corrupt: u32,
    /// Marked congestion-experienced for no reason.
    pub mark: u32,
    /// Kept and delivered again much later: a replay.
    pub replay: u32,
    /// Accompanied by a datagram that someone made up for the same connection.
    pub forge: u32,
    /// The longest that a packet is held back.
    pub straggle: Nanos,
}

impl Weather {
    /// A network that loses and changes nothing.
    pub const FAIR: Weather = Weather {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        corrupt: 0,
        mark: 0,
        replay: 0,
        forge: 0,
        straggle: Nanos::ZERO,
    };
}

/// The network between every two hosts: `lanes` disjoint lanes that the paths hash onto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Disjoint ways between two hosts (spines).
    pub lanes: u16,
    /// Nanoseconds that one lane needs for one byte, in 1/1024.
    pub byte_time_1024: u64,
    /// Propagation delay of a lane, one way.
    pub delay: Nanos,
    /// How much longer the slowest lane's delay is.
    pub delay_spread: Nanos,
    /// How many times as long lane l needs for a byte: the entry l mod 4.
    pub slowdowns: [u64; 4],
    /// What a lane queues before it drops, in bytes.
    pub queue_bytes: u64,
    /// The queue length from which on a lane marks.
    pub mark_bytes: u64,
}

/// Another thread takes at most this long for a copy.
const COPY_MAX: Nanos = Nanos::from_millis(2);

/// From this seed on scenarios have sends, reads, atomics, pages and copies. Those before are what they were when they failed.
pub const OPERATIONS_FROM: u64 = 1 << 40;

/// From this seed on scenarios have work requests that are cancelled.
pub const CANCELS_FROM: u64 = 1 << 41;

/// From this seed on scenarios have connections that go on when the peer refuses a work request.
pub const REFUSALS_FROM: u64 = 1 << 42;

/// The longest from a message's post to its cancel, but for a drawn few that are posted and cancelled at once.
const CANCEL_WITHIN_MAX: Nanos = Nanos::from_millis(20);

/// What one end writes to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Messages per direction.
    pub messages: u64,
    /// The longest message, in bytes.
    pub message_bytes: u64,
    /// How many of a million messages are of that length; the others are of any magnitude below.
    pub longest: u32,
    /// Messages in flight at a time: slots of the receiver's region.
    pub slots: u16,
    /// How many of a million messages carry an immediate.
    pub immediate: u32,
    /// How many of a million messages are empty (and carry an immediate).
    pub empty: u32,
    /// Whether the second end writes as well.
    pub both_ways: bool,
    /// How many of a million messages are no plain writes.
    pub operations: u32,
    /// How many of a million messages are cancelled, and how long after their post at most.
    pub cancels: (u32, Nanos),
}

/// What a lane drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Everything.
    All,
    /// Packets of more bytes: its MTU is smaller than what is sent.
    Longer(u16),
    /// Packets that are marked congestion-experienced.
    Marked,
}

/// Something that happens to a part of the run at a drawn time.
#[expect(missing_docs, reason = "each variant's text says what its fields are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// One lane between two hosts drops packets, both ways or one way, carrier up.
    LaneDown {
        from: usize,
        to: usize,
        lane: u16,
        dropped: Dropped,
        both_ways: bool,
        heals_after: Nanos,
    },
    /// Every lane between two hosts drops everything.
    Blackout {
        from: usize,
        to: usize,
        heals_after: Nanos,
    },
    /// All lanes of a host are slower by this much.
    Spike {
        host: usize,
        extra: Nanos,
        heals_after: Nanos,
    },
    /// A host loses all of its state; it comes back, or never does.
    Death {
        host: usize,
        returns_after: Option<Nanos>,
    },
    /// A host's process is replaced: connections are saved, and restored after a while, without memory of
    /// the paths.
    Upgrade { host: usize, takes: Nanos },
    /// One end of a pair's connection (its first or second) posts a write that must be refused.
    Stray {
        pair: usize,
        side: usize,
        stray: Stray,
    },
    /// The first or second end of a pair deregisters a region that the other one writes to.
    Deregister { pair: usize, side: usize },
    /// A host's regions refuse for a while: their buffers are with their owners.
    Away { host: usize, takes: Nanos },
    /// A host does not run for a while: its timers are served late.
    Pause { host: usize, takes: Nanos },
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The seed it was drawn from.
    pub seed: u64,
    /// Hosts, each with one core.
    pub hosts: usize,
    /// The pairs of hosts that have a connection; a pair may come several times.
    pub pairs: Vec<(usize, usize)>,
    /// The tenant of each pair's connection.
    pub domains: Vec<DomainId>,
    /// What both ends of every connection share.
    pub settings: Settings,
    /// What encrypts them, if the settings say so.
    pub cipher: &'static Aes128Gcm,
    /// How paths are chosen.
    pub policy: PolicyKind,
    /// The least retransmission timeout.
    pub rto_min: Nanos,
    /// The window's algorithm.
    pub congestion: CongestionKind,
    /// When a connection without progress fails.
    pub stall_timeout: Nanos,
    /// The network's form.
    pub fabric: Fabric,
    /// What it does to packets until it heals.
    pub weather: Weather,
    /// What the ends write.
    pub workload: Workload,
    /// How many of a million payloads another thread copies, and for how long at most.
    pub copies: (u32, Nanos),
    /// What happens when, in order of time.
    pub mishaps: Vec<(Nanos, Mishap)>,
    /// When the weather turns fair and everything that can heal has healed.
    pub heals_at: Nanos,
    /// How long a host needs from a packet's arrival to its worker's turn, at most.
    pub turn_delay: Nanos,
    /// Whether adjacent datagrams of a connection and path are handed over as one run (GRO).
    pub coalesce: bool,
    /// Chunks that a worker may send in one turn.
    pub chunks_per_turn: u32,
    /// The most that a host sends, bits per second.
    pub rate_cap_bps: Option<u64>,
    /// How many of a million chunks the link does not take whole, and for how long at most.
    pub link_fills: (u32, Nanos),
    /// How much later the second host of a pair joins its end to the first at most: the control channel's way.
    pub join_delay: Nanos,
    /// Whether workers send the acknowledgements that they owe before they sleep.
    pub flushes_acks: bool,
    /// The number of the first chunk of every connection, both ways.
    pub first_chunk: ChunkNumber,
    /// Whether immediates are reported in the order of their messages.
    pub in_order: bool,
    /// Whether hosts believe that their peers are where they are said to be.
    pub peers_validated: bool,
    /// Whether connections go on when the peer refuses a write, a read or an atomic for good.
    pub survives_refusals: bool,
}

/// The cipher with keys that change after few packets, and as in the product.
static CIPHERS: [Aes128Gcm; 4] = [
    Aes128Gcm {
        key_phase_packets: 16,
    },
    Aes128Gcm {
        key_phase_packets: 200,
    },
    Aes128Gcm {
        key_phase_packets: 3_000,
    },
    AES_128_GCM,
];

impl Scenario {
    /// Draws the scenario of `seed`.
    pub fn draw(seed: u64) -> Scenario {
        let mut draw = Draw::new(seed, 0);
        // A stream of its own, so that a seed's run is otherwise what it was before there was this.
        let mut numbers = Draw::new(seed, 7);
        let hosts = draw.pick(&[2, 2, 2, 3, 3, 4, 5, 8]);
        let pairs = draw_pairs(&mut draw, hosts);
        let mut settings = draw_settings(&mut draw);
        // From a stream of its own, as the refusals below.
        let mut protection = Draw::new(seed, 6);
        settings.integrity = protection.pick(&[Integrity::Sealed, Integrity::Aead]);
        // The algorithms, and what tells them apart, from one more.
        let mut algorithms = Draw::new(seed, 9);
        let mut fabric = draw_fabric(&mut draw, &settings);
        if algorithms.chance(250_000) {
            fabric.slowdowns = [(); 4].map(|()| algorithms.magnitude(1, 20));
            // The slowest lane has the rate that was drawn: work and queues are measured by it.
            let slowest = fabric.slowdowns.into_iter().max().unwrap_or(1);
            fabric.byte_time_1024 = (fabric.byte_time_1024 / slowest).max(1);
        }
        let mut workload = draw_workload(&mut draw, &settings, pairs.len() as u64);
        let mut copies = (0, Nanos::ZERO);
        if seed >= OPERATIONS_FROM {
            let mut operations = Draw::new(seed, 11);
            workload.operations = operations.pick(&[0, 300_000, 1_000_000]);
            let longest = Nanos::new(operations.magnitude(100, COPY_MAX.get()));
            copies = (operations.pick(&[0, 0, 20_000, 500_000]), longest);
        }
        if seed >= CANCELS_FROM {
            let mut cancels = Draw::new(seed, 12);
            let share = cancels.pick(&[0, 50_000, 300_000, 1_000_000]);
            let within = cancels.magnitude(1, CANCEL_WITHIN_MAX.get());
            workload.cancels = (share, Nanos::new(within));
        }
        let heals_at = draw_heals_at(&mut draw, &workload, &fabric);
        let weather = draw_weather(&mut draw, &fabric);
        let mut mishaps = draw_mishaps(&mut draw, hosts, &pairs, fabric.lanes, heals_at);
        mishaps.extend(draw_refusals(seed, hosts, pairs.len(), heals_at));
        // What came into the scenarios later draws from a stream of its own, for the same reason.
        let mut later = Draw::new(seed, 5);
        mishaps.extend(draw_deregistrations(&mut later, pairs.len(), heals_at));
        let mut filters = Draw::new(seed, 8);
        mishaps.extend(draw_filters(
            &mut filters,
            &pairs,
            &fabric,
            &settings,
            heals_at,
        ));
        mishaps.sort_by_key(|(at, _)| *at);
        let domains = pairs
            .iter()
            .map(|_| DomainId(1 + later.within(0, 1) as u32));
        let policy = algorithms.pick(PolicyKind::ALL);
        let congestion = match draw_congestion(&mut algorithms, &settings, &fabric) {
            // The last draw of its stream, so that other runs are what they were before there were credits.
            _ if algorithms.chance(200_000) => draw_credits(&mut algorithms),
            other => other,
        };
        Scenario {
            seed,
            hosts,
            domains: domains.collect(),
            pairs,
            settings,
            cipher: &CIPHERS[protection.within(0, CIPHERS.len() as u64 - 1) as usize],
            policy,
            rto_min: Nanos::from_micros(draw.pick(&[250, 1_000, 5_000])),
            congestion,
            stall_timeout: STALL_TIMEOUT_MIN + Nanos::from_secs(draw.within(0, 10)),
            fabric,
            weather,
            workload,
            copies,
            mishaps,
            heals_at,
            turn_delay: Nanos::new(draw.magnitude(1, TURN_DELAY_MAX.get())),
            coalesce: draw.coin(),
            chunks_per_turn: draw.magnitude(1, 64) as u32,
            rate_cap_bps: later
                .chance(200_000)
                .then(|| later.magnitude(RATE_CAP_MIN_BPS, RATE_CAP_MIN_BPS * 100)),
            link_fills: (
                later.rate(200_000),
                Nanos::new(later.magnitude(100, BLOCKED_MAX.get())),
            ),
            join_delay: Nanos::new(later.magnitude(1, JOIN_DELAY_MAX.get())),
            flushes_acks: later.coin(),
            first_chunk: draw_first_chunk(&mut numbers),
            in_order: numbers.chance(250_000),
            peers_validated: numbers.coin(),
            survives_refusals: seed >= REFUSALS_FROM && Draw::new(seed, 14).coin(),
        }
    }

    /// What the endpoint of a host is made from.
    pub fn endpoint(&self, seed: u64) -> EndpointConfig {
        EndpointConfig {
            settings: self.settings,
            policy: self.policy,
            congestion: self.congestion,
            rto_min: self.rto_min,
            stall_timeout: self.stall_timeout,
            first_chunk: self.first_chunk,
            peers_validated: self.peers_validated,
            reliable: false,
            rate_cap_bps: self.rate_cap_bps,
            link_header_bytes: LINK_HEADER_BYTES,
            link_segment_bytes: u32::MAX,
            cipher: self.cipher,
            seed,
        }
    }
}

/// Half of them a few chunks before the numbers wrap.
fn draw_first_chunk(draw: &mut Draw) -> ChunkNumber {
    match draw.coin() {
        true => ChunkNumber(0).minus(draw.magnitude(1, 1_000) as u32),
        false => ChunkNumber(0),
    }
}

fn draw_congestion(draw: &mut Draw, settings: &Settings, fabric: &Fabric) -> CongestionKind {
    let chunk = u64::from(settings.chunk_bytes);
    // Swift leaves one packet in a hundred round trips to a connection whose round trips are always above the target:
    // no run would end. So the target holds a packet's time on the slowest lane, and the hosts' turns.
    let packet_time = u64::from(settings.packet_bytes()) * fabric.byte_time_1024 / 1_024;
    let slowest = fabric.slowdowns.into_iter().max().unwrap_or(1);
    let target_min = Nanos::new(packet_time * slowest) + TURN_DELAY_MAX.times(2);
    match draw.within(0, 3) {
        0 => CongestionKind::ECN_RTT,
        1 => CongestionKind::EcnRtt {
            target_queueing: Nanos::new(draw.magnitude(1_000, 10_000_000)),
        },
        2 => CongestionKind::Swift {
            base_target: target_min.times(draw.magnitude(1, 100)),
        },
        _ => CongestionKind::Fixed {
            bytes: draw.magnitude(chunk, chunk * 256) as u32,
        },
    }
}

/// A pacer as fast as a rate cap may be, and a round trip that may be shorter than the fabric's.
fn draw_credits(draw: &mut Draw) -> CongestionKind {
    CongestionKind::Eqds {
        receive_bps: draw.magnitude(RATE_CAP_MIN_BPS, RATE_CAP_MIN_BPS * 100),
        round_trip: Nanos::new(draw.magnitude(1_000, 5_000_000)),
    }
}

fn draw_pairs(draw: &mut Draw, hosts: usize) -> Vec<(usize, usize)> {
    let most = draw.magnitude(1, 2 * hosts as u64);
    (0..most)
        .map(|_| {
            let from = draw.within(0, hosts as u64 - 1) as usize;
            let to = (from + draw.within(1, hosts as u64 - 1) as usize) % hosts;
            (from, to)
        })
        .collect()
}

fn draw_settings(draw: &mut Draw) -> Settings {
    let packet_payload = draw.pick(&[1_024, 1_408, 4_032, 8_192, 8_896, 1_000, 1_337]);
    let most = (CHUNK_DATAGRAM_BYTES / (packet_payload + OVERHEAD_BYTES as u64)).min(CHUNK_PACKETS);
    let packets = if draw.chance(250_000) {
        1
    } else {
        draw.within(1, most)
    };
    Settings {
        paths: if draw.chance(100_000) {
            1
        } else {
            draw.magnitude(1, 256) as u16
        },
        packet_payload: packet_payload as u16,
        chunk_bytes: (packets * (packet_payload + OVERHEAD_BYTES as u64)) as u32,
        window_chunks: draw.magnitude(1, 960) as u16,
        wire_version: VERSION,
        integrity: Integrity::Sealed,
    }
}

fn draw_fabric(draw: &mut Draw, settings: &Settings) -> Fabric {
    let chunk = u64::from(settings.chunk_bytes);
    let queue_bytes = draw.magnitude(2 * chunk, 256 * chunk);
    Fabric {
        lanes: draw.magnitude(1, 16) as u16,
        // 100 Mbit/s … 100 Gbit/s: 80 … 0.08 ns a byte.
        byte_time_1024: draw.magnitude(82, 81_920),
        delay: Nanos::new(draw.magnitude(1_000, 2_000_000)),
        delay_spread: Nanos::new(draw.magnitude(1, 500_000)),
        slowdowns: [1; 4],
        queue_bytes,
        mark_bytes: draw.magnitude(chunk, queue_bytes),
    }
}

fn draw_workload(draw: &mut Draw, settings: &Settings, pairs: u64) -> Workload {
    let both_ways = draw.coin();
    let packets = RUN_PACKETS.min(RUN_BYTES / u64::from(settings.packet_payload));
    // What one direction of one connection may write.
    let packets = (packets / pairs / if both_ways { 2 } else { 1 }).max(4);
    let packets = draw.magnitude(packets.div_ceil(50), packets);
    let total = packets * u64::from(settings.packet_payload);
    let messages = draw.magnitude(1, 200);
    Workload {
        messages,
        message_bytes: (total * 2 / messages).max(1),
        longest: 500_000,
        slots: draw.magnitude(1, 64) as u16,
        immediate: draw.pick(&[0, 500_000, 1_000_000]),
        empty: draw.pick(&[0, 0, 10_000, 200_000]),
        both_ways,
        operations: 0,
        cancels: (0, Nanos::ZERO),
    }
}

/// About when the work is done: faults that come later than it ends would hit nothing.
fn draw_heals_at(draw: &mut Draw, workload: &Workload, fabric: &Fabric) -> Nanos {
    let bytes = workload.messages * workload.message_bytes;
    let serialise = bytes * fabric.byte_time_1024 / 1024 / u64::from(fabric.lanes);
    let round_trips = 2 * (fabric.delay + fabric.delay_spread).get() * workload.messages
        / u64::from(workload.slots);
    let most = (4 * (serialise + round_trips)).clamp(200_000, FAULTY_MAX.get());
    Nanos::new(draw.magnitude(100_000, most))
}

fn draw_weather(draw: &mut Draw, fabric: &Fabric) -> Weather {
    if draw.chance(150_000) {
        return Weather::FAIR;
    }
    Weather {
        loss: draw.rate(300_000),
        duplicate: draw.rate(200_000),
        reorder: draw.rate(500_000),
        corrupt: draw.rate(200_000),
        mark: draw.rate(500_000),
        replay: draw.rate(50_000),
        forge: draw.rate(50_000),
        straggle: Nanos::new(draw.magnitude(1_000, 20 * fabric.delay.get())),
    }
}

fn draw_mishaps(
    draw: &mut Draw,
    hosts: usize,
    pairs: &[(usize, usize)],
    lanes: u16,
    heals_at: Nanos,
) -> Vec<(Nanos, Mishap)> {
    if draw.chance(250_000) {
        return Vec::new();
    }
    let count = draw.magnitude(1, 12);
    let mut mishaps: Vec<(Nanos, Mishap)> = (0..count)
        .map(|_| {
            let at = draw.within(0, heals_at.get() - 1);
            let left = heals_at.get() - at;
            let span = Nanos::new(draw.magnitude(1, left));
            let host = draw.within(0, hosts as u64 - 1) as usize;
            let (from, to) = draw.pick(pairs);
            let (from, to) = if draw.coin() { (from, to) } else { (to, from) };
            let lane = draw.within(0, u64::from(lanes) - 1) as u16;
            let mishap = match draw.within(0, 99) {
                0..30 => Mishap::LaneDown {
                    from,
                    to,
                    lane,
                    dropped: Dropped::All,
                    both_ways: draw.coin(),
                    heals_after: span,
                },
                30..40 => Mishap::Blackout {
                    from,
                    to,
                    heals_after: span,
                },
                40..55 => Mishap::Spike {
                    host,
                    extra: Nanos::new(draw.magnitude(1_000, 50_000_000)),
                    heals_after: span,
                },
                55..60 => Mishap::Death {
                    host,
                    returns_after: None,
                },
                60..72 => Mishap::Death {
                    host,
                    returns_after: Some(span),
                },
                72..90 => Mishap::Upgrade {
                    host,
                    takes: if draw.coin() { Nanos::new(1) } else { span },
                },
                _ => Mishap::Pause {
                    host,
                    takes: Nanos::new(draw.magnitude(1_000, 50_000_000)),
                },
            };
            (Nanos::new(at), mishap)
        })
        .collect();
    mishaps.sort_by_key(|(at, _)| *at);
    mishaps
}

/// What receivers must or may refuse. From a stream of its own, so that a seed's run is otherwise what
/// it was before there was this.
fn draw_refusals(
    seed: u64,
    hosts: usize,
    pairs: usize,
    heals_at: Nanos,
) -> impl Iterator<Item = (Nanos, Mishap)> {
    let mut draw = Draw::new(seed, 4);
    let count = if draw.chance(800_000) {
        0
    } else {
        draw.magnitude(1, 4)
    };
    (0..count).map(move |_| {
        let at = draw.within(0, heals_at.get() - 1);
        let mishap = if draw.coin() {
            Mishap::Stray {
                pair: draw.within(0, pairs as u64 - 1) as usize,
                side: draw.within(0, 1) as usize,
                stray: draw.pick(&Stray::ALL),
            }
        } else {
            Mishap::Away {
                host: draw.within(0, hosts as u64 - 1) as usize,
                takes: Nanos::new(draw.magnitude(1_000, AWAY_MAX.get())),
            }
        };
        (Nanos::new(at), mishap)
    })
}

/// Some lanes drop by length or by mark, in one run of five.
fn draw_filters(
    draw: &mut Draw,
    pairs: &[(usize, usize)],
    fabric: &Fabric,
    settings: &Settings,
    heals_at: Nanos,
) -> Vec<(Nanos, Mishap)> {
    let count = if draw.chance(800_000) {
        0
    } else {
        draw.magnitude(1, 8)
    };
    (0..count)
        .flat_map(|_| {
            let at = draw.within(0, heals_at.get() - 1);
            let (from, to) = draw.pick(pairs);
            let longest = u64::from(settings.packet_payload) + OVERHEAD_BYTES as u64;
            let dropped = match draw.chance(750_000) {
                true => Dropped::Longer(draw.within(HEADER_BYTES as u64, longest) as u16),
                false => Dropped::Marked,
            };
            // One lane, or all between the two hosts.
            let lane = draw.within(0, u64::from(fabric.lanes) - 1) as u16;
            let lanes = match draw.coin() {
                true => lane..lane + 1,
                false => 0..fabric.lanes,
            };
            let both_ways = draw.coin();
            let heals_after = Nanos::new(draw.magnitude(1, heals_at.get() - at));
            lanes.map(move |lane| {
                let mishap = Mishap::LaneDown {
                    from,
                    to,
                    lane,
                    dropped,
                    both_ways,
                    heals_after,
                };
                (Nanos::new(at), mishap)
            })
        })
        .collect()
}

/// A few regions are deregistered while they are written to, in one run of ten.
fn draw_deregistrations(draw: &mut Draw, pairs: usize, heals_at: Nanos) -> Vec<(Nanos, Mishap)> {
    let count = if draw.chance(900_000) {
        0
    } else {
        draw.magnitude(1, 4)
    };
    (0..count)
        .map(|_| {
            let at = Nanos::new(draw.within(0, heals_at.get() - 1));
            let pair = draw.within(0, pairs as u64 - 1) as usize;
            let side = draw.within(0, 1) as usize;
            (at, Mishap::Deregister { pair, side })
        })
        .collect()
}

/// One line that says what kind of run it is.
impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.settings;
        write!(
            f,
            "{} hosts, {} connections, {} paths {}, chunks of {} × {} B, {}, window {}, {:?}, {} × ≤{} B a way, \
             {} mishaps, faults for {} us",
            self.hosts,
            self.pairs.len(),
            s.paths,
            self.policy,
            s.chunk_packets(),
            s.packet_payload,
            s.integrity.name(),
            s.window_chunks,
            self.congestion,
            self.workload.messages,
            self.workload.message_bytes,
            self.mishaps.len(),
            self.heals_at.get() / 1_000,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_draws_a_scenario_within_the_limits_of_the_core() {
        for seed in 0..2_000 {
            let scenario = Scenario::draw(seed);
            assert!((2..=8).contains(&scenario.hosts));
            assert_eq!(scenario.settings.validate(), Ok(()));
            assert!(scenario.pairs.iter().all(|(from, to)| from != to));
            assert!(
                scenario
                    .mishaps
                    .iter()
                    .all(|(at, _)| *at < scenario.heals_at)
            );
        }
    }
}
