//! A run: virtual time, and everything that happens in it in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fmt;

use weft_core::connection::{Connection, ConnectionConfig};
use weft_core::drops::Drops;
use weft_core::units::{ConnectionId, Key, Nanos};
use weft_core::wire::Secret;

use crate::check::{Checkers, Violation};
use crate::draw::Draw;
use crate::endpoint::{EndState, Endpoint};
use crate::host::Host;
use crate::network::{Network, Packet, Tally};
use crate::observation::{End, Observation};
use crate::scenario::{Mishap, Scenario};
use crate::target::{REGIONS, Target};

/// Things that happen in a run at most; more is chatter without progress.
const HAPPENINGS_MAX: u64 = 20_000_000;
/// How long after everything has healed a run may last at least: probes come every second at most,
/// and resends are spaced by less.
const ENDS_WITHIN: Nanos = Nanos::from_secs(10);
/// Saved connections are weighed once in this many turns as well, not only when they are restored.
pub(crate) const WEIGHED_EVERY: u64 = 64;

/// Something that will happen.
#[derive(Debug)]
enum Happening {
    Arrival(Packet),
    Turn(usize),
    Mishap(Mishap),
    LaneUp { from: usize, to: usize, lane: u16 },
    SpikeOver(usize),
    Restore { host: usize, life: u32 },
    Return { host: usize, life: u32 },
    Reconnect { pair: usize },
    Heal,
}

/// A happening's place in time; what was planned first happens first.
#[derive(Debug)]
struct Planned {
    at: u64,
    order: u64,
    what: Happening,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Planned) -> bool {
        self.order == other.order
    }
}
impl Eq for Planned {}
impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Planned) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Planned {
    fn cmp(&self, other: &Planned) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// What is going to happen.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<Planned>>,
    planned: u64,
}

impl Agenda {
    fn plan(&mut self, at: u64, what: Happening) {
        self.planned += 1;
        self.heap.push(Reverse(Planned {
            at,
            order: self.planned,
            what,
        }));
    }

    fn next(&mut self) -> Option<(u64, Happening)> {
        let Reverse(Planned { at, what, .. }) = PeekMut::pop(self.heap.peek_mut()?);
        Some((at, what))
    }

    /// A packet will arrive.
    pub(crate) fn arrival(&mut self, at: u64, packet: Packet) {
        self.plan(at, Happening::Arrival(packet));
    }

    /// A host's worker will have a turn at `at`, unless it has one before.
    pub(crate) fn turn(&mut self, at: u64, host: usize, state: &mut Host) {
        let at = at.max(state.paused_until);
        if state.turn_at.is_none_or(|planned| at < planned) {
            state.turn_at = Some(at);
            self.plan(at, Happening::Turn(host));
        }
    }

    /// The two hosts of a pair will agree on a new connection.
    pub(crate) fn reconnect(&mut self, at: u64, pair: usize) {
        self.plan(at, Happening::Reconnect { pair });
    }
}

/// Counts over all connections of a run, or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages posted.
    pub posted: u64,
    /// Messages completed.
    pub completed: u64,
    /// Writes posted that had to be refused.
    pub strays: u64,
    /// Payload bytes of completed messages.
    pub bytes: u64,
    /// Chunks sent, resends included.
    pub chunks_sent: u64,
    /// Chunks sent again.
    pub chunks_resent: u64,
    /// Resends that were not needed.
    pub spurious: u64,
    /// Connections restored from what they had saved.
    pub restored: u64,
    /// Connections that failed, with an excuse.
    pub failed: u64,
    /// Packets that the core dropped, by reason.
    pub drops: Drops,
}

impl Totals {
    /// Adds another run's counts.
    pub fn add(&mut self, other: &Totals) {
        self.posted += other.posted;
        self.completed += other.completed;
        self.strays += other.strays;
        self.bytes += other.bytes;
        self.chunks_sent += other.chunks_sent;
        self.chunks_resent += other.chunks_resent;
        self.spurious += other.spurious;
        self.restored += other.restored;
        self.failed += other.failed;
        self.drops.add(&other.drops);
    }
}

/// What a campaign has covered, in a few lines.
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} messages of {} posted were completed, {} MB posted, {} writes had to be refused\n{} chunks, {} resent, {} spurious\n\
             {} connections restored, {} failed with an excuse\ndropped:",
            self.completed,
            self.posted,
            self.bytes / 1_000_000,
            self.strays,
            self.chunks_sent,
            self.chunks_resent,
            self.spurious,
            self.restored,
            self.failed,
        )?;
        self.drops
            .iter()
            .try_for_each(|(reason, count)| write!(f, " {} {count}", reason.reason()))
    }
}

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Virtual nanoseconds until everything had ended.
    pub lasted: u64,
    /// Virtual nanoseconds until the last message was complete.
    pub worked: u64,
    /// Things that happened.
    pub happenings: u64,
    /// What the network did.
    pub tally: Tally,
    /// What the connections did.
    pub totals: Totals,
}

/// A pair of hosts with a connection, through all its incarnations.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) ends: [End; 2],
    /// Messages still to be posted, per direction.
    pub(crate) left: [u64; 2],
}

/// A run under way.
pub struct Simulation {
    pub(crate) scenario: Scenario,
    pub(crate) now: u64,
    pub(crate) agenda: Agenda,
    pub(crate) hosts: Vec<Host>,
    lives: Vec<u32>,
    pub(crate) ends: Vec<Endpoint>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) network: Network,
    pub(crate) checkers: Checkers,
    pub(crate) work: Draw,
    setup: Draw,
    pub(crate) totals: Totals,
    /// When the last message was complete.
    pub(crate) worked: u64,
    healed: bool,
    pub(crate) turns: u64,
    /// Emptied between uses.
    pub(crate) run: Vec<u8>,
}

impl Simulation {
    /// The run of a scenario, before anything has happened.
    pub fn new(scenario: Scenario) -> Simulation {
        let seed = scenario.seed;
        let mut setup = Draw::new(seed, 1);
        let paths = scenario.path_set();
        let hosts: Vec<Host> = (0..scenario.hosts)
            .map(|_| {
                // Some clocks are about to wrap the wire's 32 bits of 64 ns (275 s).
                let clock = setup.pick(&[0, 1_000_000_000, (1 << 38) - 5_000_000, 1 << 50]);
                Host::new(scenario.hosts, &paths, setup.rng(), clock)
            })
            .collect();
        let network = Network::new(
            scenario.hosts,
            scenario.fabric,
            scenario.weather,
            Draw::new(seed, 2),
        );
        let mut simulation = Simulation {
            now: 0,
            agenda: Agenda::default(),
            lives: vec![0; scenario.hosts],
            hosts,
            ends: Vec::new(),
            pairs: Vec::new(),
            network,
            checkers: Checkers::new(&scenario),
            work: Draw::new(seed, 3),
            setup,
            totals: Totals::default(),
            worked: 0,
            healed: false,
            turns: 0,
            run: Vec::new(),
            scenario,
        };
        simulation.begin();
        simulation
    }

    fn begin(&mut self) {
        let work = self.scenario.workload;
        for pair in 0..self.scenario.pairs.len() {
            let back = if work.both_ways { work.messages } else { 0 };
            self.pairs.push(Pair {
                ends: [End(0), End(1)],
                left: [work.messages, back],
            });
            self.connect(pair);
        }
        for (at, mishap) in self.scenario.mishaps.clone() {
            self.agenda.plan(at.get(), Happening::Mishap(mishap));
        }
        self.agenda
            .plan(self.scenario.heals_at.get(), Happening::Heal);
    }

    /// Runs until everything has ended.
    ///
    /// # Errors
    /// The first promise of the core that was broken.
    pub fn run(mut self) -> Result<Outcome, Violation> {
        let deadline = self.deadline();
        let mut happenings = 0;
        while let Some((at, what)) = self.agenda.next() {
            debug_assert!(at >= self.now);
            self.now = at;
            happenings += 1;
            self.happen(what);
            if self.checkers.violation().is_some() || (self.healed && self.everything_ended()) {
                break;
            }
            if self.now > deadline {
                break;
            }
            if happenings > HAPPENINGS_MAX {
                let text = format!("{happenings} things happened and the run has not ended");
                self.checkers.violated("everything ends", self.now, text);
                break;
            }
        }
        for end in 0..self.ends.len() {
            self.close(End(end));
        }
        let outcome = Outcome {
            lasted: self.now,
            worked: self.worked,
            happenings,
            tally: self.network.tally(),
            totals: self.totals,
        };
        self.checkers.finish(self.now).map(|()| outcome)
    }

    /// When a run must be over: as if each chunk took a round trip of its own, after the last fault.
    fn deadline(&self) -> u64 {
        let Scenario {
            settings,
            fabric,
            workload,
            pairs,
            ..
        } = &self.scenario;
        let chunk = u64::from(settings.chunk_bytes);
        let chunks = workload.message_bytes.div_ceil(chunk) * workload.messages;
        let serialise = chunk * 2 * fabric.byte_time_1024 / 1024;
        let turn = self.scenario.turn_delay.get();
        let round_trip = 2 * (fabric.delay.get() + fabric.delay_spread.get() + turn) + serialise;
        let work = chunks * round_trip * 2 * pairs.len() as u64;
        let stall = self.scenario.stall_timeout.get();
        self.scenario.heals_at.get() + ENDS_WITHIN.get() + stall + work
    }

    fn everything_ended(&self) -> bool {
        self.pairs.iter().all(|pair| {
            pair.ends.iter().zip(pair.left).all(|(end, left)| {
                let end = &self.ends[end.0];
                let ended = end.open == 0 && left == 0;
                let over =
                    !end.alive() && (self.hosts[end.host].gone || self.hosts[end.peer_host].gone);
                ended || over
            })
        })
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrival(packet) => self.arrive(packet),
            Happening::Turn(host) => {
                if self.hosts[host].turn_at != Some(self.now) {
                    return;
                }
                self.hosts[host].turn_at = None;
                if !self.hosts[host].up {
                    return;
                }
                if self.hosts[host].paused_until > self.now {
                    self.agenda.turn(self.now, host, &mut self.hosts[host]);
                    return;
                }
                self.turn(host);
            }
            Happening::Mishap(mishap) => self.befall(mishap),
            Happening::LaneUp { from, to, lane } => self.network.set_lane(from, to, lane, false),
            Happening::SpikeOver(host) => self.network.set_slow(host, Nanos::ZERO),
            Happening::Restore { host, life } => {
                if self.lives[host] == life {
                    self.restore(host);
                }
            }
            Happening::Return { host, life } => {
                if self.lives[host] == life {
                    self.come_back(host);
                }
            }
            Happening::Reconnect { pair } => {
                let ends = self.pairs[pair].ends;
                let up = |end: End| self.hosts[self.ends[end.0].host].up;
                let whole = ends.iter().all(|end| self.ends[end.0].alive());
                if ends.into_iter().all(up) && !whole {
                    self.connect(pair);
                }
            }
            Happening::Heal => {
                self.network.heal();
                self.healed = true;
                self.checkers.observe(self.now, &Observation::Healed);
            }
        }
    }

    fn arrive(&mut self, packet: Packet) {
        let host = packet.to;
        if !self.hosts[host].up {
            self.network.recycle(packet.bytes);
            return;
        }
        self.hosts[host].inbox.push(packet);
        if self.hosts[host].turn_at.is_none_or(|at| at > self.now) {
            let delay = self.work.within(0, self.scenario.turn_delay.get());
            self.agenda
                .turn(self.now + delay, host, &mut self.hosts[host]);
        }
    }

    fn befall(&mut self, mishap: Mishap) {
        match mishap {
            Mishap::LaneDown {
                from,
                to,
                lane,
                both_ways,
                heals_after,
            } => {
                self.lane_down(from, to, lane, heals_after);
                if both_ways {
                    self.lane_down(to, from, lane, heals_after);
                }
            }
            Mishap::Blackout {
                from,
                to,
                heals_after,
            } => {
                for lane in 0..self.scenario.fabric.lanes {
                    self.lane_down(from, to, lane, heals_after);
                    self.lane_down(to, from, lane, heals_after);
                }
            }
            Mishap::Spike {
                host,
                extra,
                heals_after,
            } => {
                self.network.set_slow(host, extra);
                self.agenda
                    .plan(self.now + heals_after.get(), Happening::SpikeOver(host));
            }
            Mishap::Stray { pair, side, stray } => self.post_stray(pair, side, stray),
            Mishap::Away { host, takes } => {
                self.hosts[host].away_until = self.now + takes.get();
                self.checkers.observe(self.now, &Observation::Away);
            }
            Mishap::Pause { host, takes } => self.hosts[host].pause(self.now, takes),
            Mishap::Death {
                host,
                returns_after,
            } => self.die(host, returns_after),
            Mishap::Upgrade {
                host,
                takes,
                new_process,
            } => self.upgrade(host, takes, new_process),
        }
    }

    fn lane_down(&mut self, from: usize, to: usize, lane: u16, heals_after: Nanos) {
        self.network.set_lane(from, to, lane, true);
        self.agenda.plan(
            self.now + heals_after.get(),
            Happening::LaneUp { from, to, lane },
        );
    }

    /// A host loses all it knows. Its peers are not told.
    fn die(&mut self, host: usize, returns_after: Option<Nanos>) {
        if self.hosts[host].gone {
            return;
        }
        self.lives[host] += 1;
        self.hosts[host].up = false;
        self.hosts[host].inbox.clear();
        for index in 0..self.ends.len() {
            let (end, peer) = (End(index), End(index).peer());
            if self.ends[index].host != host || !self.ends[index].alive() {
                continue;
            }
            self.close(end);
            self.checkers.observe(self.now, &Observation::Lost { end });
            self.ends[peer.0].peer_died = true;
        }
        match returns_after {
            Some(after) => {
                let life = self.lives[host];
                self.agenda
                    .plan(self.now + after.get(), Happening::Return { host, life });
            }
            None => {
                self.hosts[host].gone = true;
                for index in 0..self.ends.len() {
                    if self.ends[index].peer_host == host && self.ends[index].alive() {
                        self.checkers
                            .observe(self.now, &Observation::Orphaned { end: End(index) });
                    }
                }
            }
        }
    }

    fn come_back(&mut self, host: usize) {
        self.hosts[host].up = true;
        self.hosts[host].restart_clock(self.now);
        self.hosts[host].forget_paths(&self.scenario.path_set());
        for pair in 0..self.pairs.len() {
            let (from, to) = self.scenario.pairs[pair];
            if from == host || to == host {
                // Long enough for the peer to learn of it by a reset, or not.
                let after = self.setup.magnitude(10_000, 500_000_000);
                self.agenda.reconnect(self.now + after, pair);
            }
        }
    }

    /// A host's process is replaced: its connections are saved, and packets are lost meanwhile.
    fn upgrade(&mut self, host: usize, takes: Nanos, new_process: bool) {
        if !self.hosts[host].up {
            return;
        }
        self.hosts[host].up = false;
        self.hosts[host].inbox.clear();
        for index in 0..self.ends.len() {
            if self.ends[index].host != host {
                continue;
            }
            if let EndState::Open(connection) = &self.ends[index].state {
                let saved = connection.save();
                let what = Observation::Saved {
                    end: End(index),
                    bytes: saved.len(),
                };
                self.checkers.observe(self.now, &what);
                self.ends[index].state = EndState::Saved(saved);
            }
        }
        if new_process {
            self.hosts[host].restart_clock(self.now);
            self.hosts[host].forget_paths(&self.scenario.path_set());
        }
        let life = self.lives[host];
        self.agenda
            .plan(self.now + takes.get(), Happening::Restore { host, life });
    }

    fn restore(&mut self, host: usize) {
        self.hosts[host].up = true;
        let clock = self.hosts[host].clock(self.now);
        for index in 0..self.ends.len() {
            if self.ends[index].host != host {
                continue;
            }
            if let EndState::Saved(saved) = &self.ends[index].state {
                match Connection::restore(saved, clock) {
                    Ok(connection) => {
                        self.totals.restored += 1;
                        self.ends[index].state = EndState::Open(Box::new(connection));
                        self.ends[index].timer = None;
                        self.hosts[host].touched.insert(End(index));
                    }
                    Err(error) => {
                        let text = format!("{:?} is not restored: {error}", End(index));
                        self.checkers.violated("save and restore", self.now, text);
                    }
                }
            }
        }
        self.agenda.turn(self.now, host, &mut self.hosts[host]);
    }

    /// Makes a new connection between the hosts of a pair; what was left of the old one is closed.
    fn connect(&mut self, pair: usize) {
        let first = self.ends.len();
        let ends = [End(first), End(first + 1)];
        if first > 0 {
            for end in self.pairs[pair].ends {
                if self.ends[end.0].pair == pair && self.ends[end.0].alive() {
                    self.close(end);
                    self.checkers.observe(self.now, &Observation::Lost { end });
                }
            }
        }
        let (from, to) = self.scenario.pairs[pair];
        let ids =
            [first as u32, first as u32 + 1].map(|n| ConnectionId(n.wrapping_mul(0x9e37_79b1)));
        let secrets = [Secret(self.setup.secret()), Secret(self.setup.secret())];
        for side in 0..2 {
            let (host, peer_host) = if side == 0 { (from, to) } else { (to, from) };
            let clock = self.hosts[host].clock(self.now);
            let config = ConnectionConfig {
                settings: self.scenario.settings,
                local: ids[side],
                remote: ids[1 - side],
                send_secret: secrets[side].clone(),
                receive_secret: secrets[1 - side].clone(),
                congestion: self.scenario.congestion,
                stall_timeout: self.scenario.stall_timeout,
                reset_token: reset_token(self.scenario.seed, peer_host, ids[1 - side], host),
            };
            let keys = [(); REGIONS].map(|()| Key(self.setup.bits()));
            let Scenario { workload, .. } = &self.scenario;
            self.ends.push(Endpoint {
                host,
                peer_host,
                pair,
                state: EndState::Open(Box::new(Connection::new(config, clock))),
                target: Target::new(keys, workload.slots, workload.message_bytes),
                strayed: false,
                peer_died: false,
                timer: None,
                open: 0,
            });
            self.hosts[host].touched.insert(ends[side]);
            self.hosts[host].ends.insert(ids[side], ends[side]);
            self.hosts[host]
                .ends_by_remote
                .insert(ids[1 - side], ends[side]);
            self.agenda.turn(self.now, host, &mut self.hosts[host]);
        }
        self.pairs[pair].ends = ends;
        self.checkers
            .observe(self.now, &Observation::Connected { ends });
    }

    /// Ends a connection at one end.
    pub(crate) fn close(&mut self, end: End) {
        if let EndState::Open(connection) = &self.ends[end.0].state {
            let stats = connection.stats();
            self.totals.chunks_sent += stats.chunks_sent;
            self.totals.chunks_resent += stats.chunks_resent;
            self.totals.spurious += stats.spurious;
        }
        self.ends[end.0].state = EndState::Closed;
        self.ends[end.0].open = 0;
        let host = &mut self.hosts[self.ends[end.0].host];
        host.ends.retain(|_, open| *open != end);
        host.ends_by_remote.retain(|_, open| *open != end);
        host.touched.remove(&end);
    }
}

/// In the real house an HMAC under the node's key: what only the host that gave the id out can make,
/// for one peer.
pub(crate) fn reset_token(seed: u64, host: usize, id: ConnectionId, peer: usize) -> u64 {
    Draw::new(
        seed ^ (host as u64) << 32 ^ (peer as u64) << 40,
        u64::from(id.0),
    )
    .bits()
}
