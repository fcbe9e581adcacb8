//! The lanes, and the flows over them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rand_core::SeedableRng;
use weft_core::congestion::{
    AckSample, Congestion, CongestionControl, CongestionKind, Limits, Permit,
};
use weft_core::path::{PathPolicy, PathSample, PathSet, PathSetConfig, Policy, PolicyKind};
use weft_core::units::{Nanos, OneWay, PathId, Rng, Time};

/// Bytes of every packet.
pub(crate) const PACKET: u64 = 1_500;
/// Packets of a full chunk.
const CHUNK_PACKETS: u64 = 43;
/// A lane that has lost a whole chunk is asked for it again after this.
const LOST_AFTER: Nanos = Nanos::from_millis(5);

/// One way from the sender to the receiver.
#[derive(Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) mbps: u64,
    /// One way.
    pub(crate) delay: Nanos,
    /// Bytes that wait at most; what comes on top is dropped.
    pub(crate) queue: u64,
}

struct Link {
    lane: Lane,
    busy_until: u64,
}

impl Link {
    fn packet_time(&self) -> u64 {
        PACKET * 8_000 / self.lane.mbps
    }

    /// Takes as many of `packets` as fit; returns their count, and when the last one arrives.
    fn send(&mut self, now: u64, packets: u64) -> (u64, u64) {
        let backlog = self.busy_until.saturating_sub(now) / self.packet_time();
        let room = (self.lane.queue / PACKET).saturating_sub(backlog);
        let taken = packets.min(room);
        self.busy_until = self.busy_until.max(now) + taken * self.packet_time();
        (taken, self.busy_until + self.lane.delay.get())
    }
}

/// A connection's algorithms.
pub(crate) struct Flow {
    pub(crate) policy: Policy,
    pub(crate) congestion: Congestion,
    paths: PathSet,
    in_flight: Vec<u32>,
    rng: Rng,
    wakes_at: u64,
    /// Bytes that wait to be sent; `None`: without end.
    posted: Option<u64>,
    /// Every chunk, if asked for.
    pub(crate) chunks: Option<Vec<Sent>>,
    /// When the first probe was sent.
    pub(crate) first_probe: Option<u64>,
}

/// A chunk's way.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) at: u64,
    pub(crate) path: PathId,
    /// When its first packet arrives, and its last.
    pub(crate) arrives: (u64, u64),
}

/// TCP with selective acknowledgements and no delayed ones: slow start, one packet a round trip, half at a
/// loss (RFC 5681).
struct Reno {
    window: f64,
    threshold: f64,
    in_flight: u64,
    next: u64,
    /// Losses before this packet are of the last decrease.
    recover: u64,
}

enum Sender {
    Ours(Box<Flow>),
    Reno(Reno),
}

impl Sender {
    fn in_flight(&self) -> u64 {
        match self {
            Sender::Ours(flow) => flow.total(),
            Sender::Reno(reno) => reno.in_flight * PACKET,
        }
    }
}

struct Answer {
    flow: usize,
    sent_at: u64,
    arrived: u64,
    /// Bytes of the flow in flight when it was sent, with its own.
    tx_in_flight: u64,
    packets: u64,
    lost: u64,
    what: What,
}

enum What {
    Chunk(PathId),
    Probe(PathId),
    Packet(u64),
    Wake,
}

pub(crate) struct Network {
    links: Vec<Link>,
    senders: Vec<Sender>,
    /// Packets that arrived, by flow.
    pub(crate) delivered: Vec<u64>,
    answers: BTreeMap<u64, Answer>,
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    planned: u64,
    now: u64,
}

impl Network {
    pub(crate) fn new(lanes: &[Lane]) -> Network {
        let link = |&lane: &Lane| Link {
            lane,
            busy_until: 0,
        };
        Network {
            links: lanes.iter().map(link).collect(),
            senders: Vec::new(),
            delivered: Vec::new(),
            answers: BTreeMap::new(),
            heap: BinaryHeap::new(),
            planned: 0,
            now: 0,
        }
    }

    /// Adds a connection over `paths` paths, which take the lanes in turn.
    pub(crate) fn connect(
        &mut self,
        paths: u16,
        policy: PolicyKind,
        congestion: CongestionKind,
        seed: u64,
    ) -> usize {
        let limits = Limits {
            packet: PACKET,
            chunk: PACKET * CHUNK_PACKETS,
            max: PACKET * CHUNK_PACKETS * 256,
            paths,
        };
        self.add(Sender::Ours(Box::new(Flow {
            policy: policy.build(congestion),
            congestion: congestion.build(limits),
            paths: PathSet::new(&PathSetConfig {
                paths,
                rto_min: LOST_AFTER,
                reliable: false,
                validated: true,
            }),
            in_flight: vec![0; paths.into()],
            rng: Rng::seed_from_u64(seed),
            wakes_at: 0,
            posted: None,
            chunks: None,
            first_probe: None,
        })))
    }

    /// Posts `bytes` more on a connection; it sends no more than was posted.
    pub(crate) fn post(&mut self, flow: usize, bytes: u64) {
        let posted = &mut self.flow(flow).posted;
        *posted = Some(posted.unwrap_or(0) + bytes);
        self.plan(self.now, Answer::wake(flow));
    }

    /// Adds a TCP flow on the first lane.
    pub(crate) fn tcp(&mut self) -> usize {
        self.add(Sender::Reno(Reno {
            window: 10.0,
            threshold: f64::MAX,
            in_flight: 0,
            next: 0,
            recover: 0,
        }))
    }

    fn add(&mut self, sender: Sender) -> usize {
        self.senders.push(sender);
        self.delivered.push(0);
        let flow = self.senders.len() - 1;
        self.plan(self.now, Answer::wake(flow));
        flow
    }

    pub(crate) fn flow(&mut self, flow: usize) -> &mut Flow {
        match &mut self.senders[flow] {
            Sender::Ours(flow) => flow,
            Sender::Reno(_) => panic!("a TCP flow"),
        }
    }

    fn plan(&mut self, at: u64, answer: Answer) {
        self.planned += 1;
        self.answers.insert(self.planned, answer);
        self.heap.push(Reverse((at, self.planned)));
    }

    /// Runs for `span`; returns what each flow delivered meanwhile, in Mbit/s.
    pub(crate) fn run(&mut self, span: Nanos) -> Vec<u64> {
        let before = self.delivered.clone();
        let until = self.now + span.get();
        while let Some(&Reverse((at, key))) = self.heap.peek() {
            if at > until {
                break;
            }
            self.heap.pop();
            self.now = at;
            if let Some(answer) = self.answers.remove(&key) {
                let flow = answer.flow;
                self.take(&answer);
                self.send(flow);
            }
        }
        self.now = until;
        let mbps = |(after, before): (&u64, u64)| (after - before) * PACKET * 8_000 / span.get();
        self.delivered.iter().zip(before).map(mbps).collect()
    }

    fn take(&mut self, answer: &Answer) {
        let now = Time::from_nanos(self.now);
        match &mut self.senders[answer.flow] {
            Sender::Ours(flow) => flow.take(now, answer),
            Sender::Reno(reno) => reno.take(answer),
        }
    }

    fn send(&mut self, index: usize) {
        let now = self.now;
        loop {
            let lanes = self.links.len();
            let (link, packets, what) = match &mut self.senders[index] {
                Sender::Ours(flow) => match flow.next(now) {
                    Next::Chunk(path, packets) => {
                        (usize::from(path.0) % lanes, packets, What::Chunk(path))
                    }
                    Next::Probe(path) => (usize::from(path.0) % lanes, 1, What::Probe(path)),
                    Next::At(at) => {
                        if flow.wakes_at <= now {
                            flow.wakes_at = at;
                            self.plan(at, Answer::wake(index));
                        }
                        return;
                    }
                    Next::Nothing => return,
                },
                Sender::Reno(reno) => {
                    if reno.in_flight as f64 >= reno.window {
                        return;
                    }
                    reno.in_flight += 1;
                    reno.next += 1;
                    (0, 1, What::Packet(reno.next - 1))
                }
            };
            let (taken, arrives) = self.links[link].send(now, packets);
            if !matches!(what, What::Probe(_)) {
                self.delivered[index] += taken;
            }
            if let (Sender::Ours(flow), What::Chunk(path)) = (&mut self.senders[index], &what)
                && let Some(chunks) = &mut flow.chunks
            {
                let first = arrives - taken.saturating_sub(1) * self.links[link].packet_time();
                chunks.push(Sent {
                    at: now,
                    path: *path,
                    arrives: (first, arrives),
                });
            }
            let lost_all = taken == 0 && matches!(what, What::Chunk(_));
            let back = arrives + self.links[link].lane.delay.get();
            let at = back + if lost_all { LOST_AFTER.get() } else { 0 };
            let answer = Answer {
                flow: index,
                sent_at: now,
                arrived: arrives,
                tx_in_flight: self.senders[index].in_flight(),
                packets: taken,
                lost: packets - taken,
                what,
            };
            self.plan(at, answer);
        }
    }
}

impl Answer {
    fn wake(flow: usize) -> Answer {
        Answer {
            flow,
            sent_at: 0,
            arrived: 0,
            tx_in_flight: 0,
            packets: 0,
            lost: 0,
            what: What::Wake,
        }
    }
}

enum Next {
    Chunk(PathId, u64),
    Probe(PathId),
    At(u64),
    Nothing,
}

impl Flow {
    fn total(&self) -> u64 {
        self.in_flight.iter().map(|&bytes| u64::from(bytes)).sum()
    }

    /// What a connection does before each chunk.
    fn next(&mut self, now: u64) -> Next {
        let time = Time::from_nanos(now);
        if let Some(path) = self.policy.poll_probe() {
            self.first_probe.get_or_insert(now);
            return Next::Probe(path);
        }
        let posted = self.posted.unwrap_or(u64::MAX);
        let packets = self.congestion.chunk_bytes().min(posted) / PACKET;
        if packets == 0 {
            return Next::Nothing;
        }
        let bytes = packets * PACKET;
        let in_flight = self.total();
        if in_flight > 0 && in_flight + bytes > self.congestion.window() {
            return Next::Nothing;
        }
        let resumes_at = self.policy.resumes_at();
        if resumes_at > time {
            return Next::At(resumes_at.as_nanos());
        }
        match self.congestion.may_send(PathId(0), bytes as u32, time) {
            Permit::Yes => {}
            Permit::At(at) => return Next::At(at.as_nanos()),
            Permit::Credit => return Next::Nothing,
        }
        self.posted = self.posted.map(|posted| posted - bytes);
        let chosen = self
            .paths
            .choose(&mut self.policy, time, &self.in_flight, &mut self.rng);
        let path = chosen.expect("no path dies here");
        self.in_flight[usize::from(path.0)] += bytes as u32;
        self.policy.on_sent(time, path, bytes as u32);
        self.congestion.on_sent(time, path, bytes as u32);
        Next::Chunk(path, packets)
    }

    fn take(&mut self, now: Time, answer: &Answer) {
        let (path, probe) = match answer.what {
            What::Chunk(path) => (path, false),
            What::Probe(path) => (path, true),
            What::Packet(_) | What::Wake => return,
        };
        let in_flight = self.total();
        let bytes = ((answer.packets + answer.lost) * PACKET) as u32;
        let bytes = if probe { 0 } else { bytes };
        let on_path = &mut self.in_flight[usize::from(path.0)];
        // As in a connection: the policy is told by what is in flight, the congestion control of data.
        let idle = *on_path == 0;
        *on_path -= bytes;
        if answer.packets > 0 {
            let rtt = now - Time::from_nanos(answer.sent_at);
            let sample = PathSample {
                path,
                rtt: Some(rtt),
                packets: answer.packets as u32,
                ce: 0,
                bytes,
            };
            self.paths.on_answer(now, &sample, u16::MAX);
            let view = self.paths.view(now, &self.in_flight);
            if idle {
                self.policy.on_probe_answer(&view, &sample);
            } else {
                self.policy.on_ack(&view, &sample);
            }
            let wire = |at: u64| Time::from_nanos(at).to_wire();
            if !probe {
                self.congestion.on_path_sample(now, &sample, in_flight);
                let all = AckSample {
                    bytes: bytes.into(),
                    in_flight,
                    tx_in_flight: Some(answer.tx_in_flight),
                    packets: answer.packets,
                    ce: 0,
                    rtt: Some(rtt),
                    one_way: Some(OneWay::new(wire(answer.sent_at), wire(answer.arrived))),
                };
                self.congestion.on_ack(now, &all);
            }
        }
        if answer.lost > 0 {
            self.policy.on_loss(now, path, answer.lost as u32);
            self.congestion.on_loss(now, answer.lost);
        }
    }
}

impl Reno {
    fn take(&mut self, answer: &Answer) {
        let What::Packet(number) = answer.what else {
            return;
        };
        self.in_flight -= 1;
        if answer.lost == 0 {
            self.window += if self.window < self.threshold {
                1.0
            } else {
                1.0 / self.window
            };
        } else if number >= self.recover {
            self.recover = self.next;
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = self.threshold;
        }
    }
}
