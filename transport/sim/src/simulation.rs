//! A run: virtual time, and everything that happens in it in order.

mod cancel;
mod stray;

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::fmt;

use weft_core::connection::Stats;
use weft_core::drops::Drops;
use weft_core::endpoint::{Endpoint, Local, Remote};
use weft_core::units::{ConnectionId, Key, Nanos};
use weft_core::wire::Secret;

use crate::check::{Checkers, Violation};
use crate::draw::Draw;
use crate::end::{EndState, Status};
use crate::host::Host;
use crate::machine::{Machine, Process};
use crate::network::{Network, Packet, Tally};
use crate::observation::{End, Excuse, Message, Observation};
use crate::scenario::{Dropped, Mishap, Scenario};
use crate::target::{REGIONS, Regions, Target};

/// Things that happen in a run at most; more is chatter without progress.
const HAPPENINGS_MAX: u64 = 20_000_000;
/// How long after everything has healed a run may last at least: probes come every second at most,
/// and resends are spaced by less.
const ENDS_WITHIN: Nanos = Nanos::from_secs(10);
/// How long two hosts need to agree on a new connection, at most.
const RECONNECT_NANOS: u64 = 5_000_000;

/// Something that will happen.
#[derive(Debug)]
enum Happening {
    Arrival(Packet),
    Turn(usize),
    Mishap(Mishap),
    LaneUp {
        from: usize,
        to: usize,
        lane: u16,
        dropped: Dropped,
    },
    SpikeOver(usize),
    Join {
        end: End,
    },
    Restore {
        host: usize,
        generation: u64,
    },
    Return {
        host: usize,
        generation: u64,
    },
    Reconnect {
        pair: usize,
    },
    CopyEnds(usize),
    /// Cancels it.
    Cancel(Message),
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
    pub(crate) fn turn(&mut self, at: u64, host: usize, state: &mut Machine) {
        let at = at.max(state.paused_until);
        if state.turn_at.is_none_or(|planned| at < planned) {
            state.turn_at = Some(at);
            self.plan(at, Happening::Turn(host));
        }
    }

    /// A host's copy will end.
    pub(crate) fn copy_ends(&mut self, at: u64, host: usize) {
        self.plan(at, Happening::CopyEnds(host));
    }

    /// A message will be cancelled.
    pub(crate) fn cancel(&mut self, at: u64, message: Message) {
        self.plan(at, Happening::Cancel(message));
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
    /// Those that are not plain writes.
    pub operations: u64,
    /// Messages completed.
    pub completed: u64,
    /// Messages cancelled.
    pub cancelled: u64,
    /// Those that were to be cancelled and had arrived before.
    pub cancelled_late: u64,
    /// Messages that the peer refused, of connections that went on.
    pub refused: u64,
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
    fn count(&mut self, stats: &Stats) {
        self.chunks_sent += stats.chunks_sent;
        self.chunks_resent += stats.chunks_resent;
        self.spurious += stats.spurious;
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Totals) {
        self.posted += other.posted;
        self.operations += other.operations;
        self.completed += other.completed;
        self.cancelled += other.cancelled;
        self.cancelled_late += other.cancelled_late;
        self.refused += other.refused;
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
            "{} messages of {} posted were completed, {} cancelled, {} had arrived when they were, {} MB posted, {} were no plain writes, {} were refused alone, {} had to be refused\n{} chunks, {} resent, {} spurious\n\
             {} connections restored, {} failed with an excuse\ndropped:",
            self.completed,
            self.posted,
            self.cancelled,
            self.cancelled_late,
            self.bytes / 1_000_000,
            self.operations,
            self.refused,
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
    pub(crate) machines: Vec<Machine>,
    pub(crate) ends: Vec<EndState>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) network: Network,
    pub(crate) checkers: Checkers,
    pub(crate) work: Draw,
    pub(crate) operations: Draw,
    pub(crate) cancels: Draw,
    /// Messages that are to be cancelled.
    pub(crate) cancelling: BTreeSet<u64>,
    setup: Draw,
    pub(crate) totals: Totals,
    /// When the last message was complete.
    pub(crate) worked: u64,
    healed: bool,
}

impl Simulation {
    /// The run of a scenario, before anything has happened.
    pub fn new(scenario: Scenario) -> Simulation {
        let seed = scenario.seed;
        let mut setup = Draw::new(seed, 1);
        let machines = (0..scenario.hosts)
            .map(|_| {
                // Some clocks are about to wrap the wire's 32 bits of 64 ns (275 s).
                let clock = setup.pick(&[0, 1_000_000_000, (1 << 38) - 5_000_000, 1 << 50]);
                Machine::new(clock)
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
            machines,
            ends: Vec::new(),
            pairs: Vec::new(),
            network,
            checkers: Checkers::new(&scenario),
            work: Draw::new(seed, 3),
            operations: Draw::new(seed, 10),
            cancels: Draw::new(seed, 13),
            cancelling: BTreeSet::new(),
            setup,
            totals: Totals::default(),
            worked: 0,
            healed: false,
            scenario,
        };
        simulation.begin();
        simulation
    }

    fn begin(&mut self) {
        for host in 0..self.scenario.hosts {
            self.start(host);
        }
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
        for host in 0..self.scenario.hosts {
            self.stop(host);
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
                let gone = |host: usize| self.machines[host].gone;
                let over = !end.alive() && (gone(end.host) || gone(end.peer_host));
                ended || over
            })
        })
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrival(packet) => self.arrive(packet),
            Happening::Turn(host) => {
                let machine = &mut self.machines[host];
                if machine.turn_at != Some(self.now) {
                    return;
                }
                machine.turn_at = None;
                if machine.paused_until > self.now {
                    self.agenda.turn(self.now, host, machine);
                    return;
                }
                self.turn(host);
            }
            Happening::Mishap(mishap) => self.befall(mishap),
            Happening::LaneUp {
                from,
                to,
                lane,
                dropped,
            } => self.network.end_drops(from, to, lane, dropped),
            Happening::SpikeOver(host) => self.network.set_slow(host, Nanos::ZERO),
            Happening::Join { end } => self.join(end),
            Happening::Restore { host, generation } => {
                if self.machines[host].generation == generation {
                    self.restore(host);
                }
            }
            Happening::Return { host, generation } => {
                if self.machines[host].generation == generation {
                    self.come_back(host);
                }
            }
            Happening::Reconnect { pair } => {
                let ends = self.pairs[pair].ends;
                let up = |end: End| self.machines[self.ends[end.0].host].is_up();
                let whole = ends.iter().all(|end| self.ends[end.0].alive());
                if ends.into_iter().all(up) && !whole {
                    self.connect(pair);
                }
            }
            Happening::CopyEnds(host) => self.end_copies(host, self.now),
            Happening::Cancel(message) => self.cancel(&message),
            Happening::Heal => {
                self.network.heal();
                self.healed = true;
                self.checkers.observe(self.now, &Observation::Healed);
            }
        }
    }

    fn arrive(&mut self, packet: Packet) {
        let host = packet.to;
        let machine = &mut self.machines[host];
        if !machine.is_up() {
            self.network.recycle(packet.bytes);
            return;
        }
        machine.inbox.push(packet);
        if machine.turn_at.is_none_or(|at| at > self.now) {
            let delay = self.work.within(0, self.scenario.turn_delay.get());
            self.agenda.turn(self.now + delay, host, machine);
        }
    }

    fn befall(&mut self, mishap: Mishap) {
        match mishap {
            Mishap::LaneDown {
                from,
                to,
                lane,
                dropped,
                both_ways,
                heals_after,
            } => {
                self.lane_down(from, to, lane, dropped, heals_after);
                if both_ways {
                    self.lane_down(to, from, lane, dropped, heals_after);
                }
            }
            Mishap::Blackout {
                from,
                to,
                heals_after,
            } => {
                for lane in 0..self.scenario.fabric.lanes {
                    self.lane_down(from, to, lane, Dropped::All, heals_after);
                    self.lane_down(to, from, lane, Dropped::All, heals_after);
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
                self.machines[host].away_until = self.now + takes.get();
                self.checkers.observe(self.now, &Observation::Away);
            }
            Mishap::Deregister { pair, side } => self.deregister(pair, side),
            Mishap::Pause { host, takes } => self.machines[host].pause(self.now, takes),
            Mishap::Death {
                host,
                returns_after,
            } => self.die(host, returns_after),
            Mishap::Upgrade { host, takes } => self.upgrade(host, takes),
        }
    }

    fn lane_down(
        &mut self,
        from: usize,
        to: usize,
        lane: u16,
        dropped: Dropped,
        heals_after: Nanos,
    ) {
        self.network.begin_drops(from, to, lane, dropped);
        let up = Happening::LaneUp {
            from,
            to,
            lane,
            dropped,
        };
        self.agenda.plan(self.now + heals_after.get(), up);
    }

    /// A process starts, without connections.
    fn start(&mut self, host: usize) {
        let seed = self.setup.bits();
        let machine = &mut self.machines[host];
        let config = self.scenario.endpoint(seed);
        let endpoint = Endpoint::new(config, machine.clock(self.now));
        machine.drops = Drops::default();
        machine.process = Process::Running(Box::new(Host::new(host, endpoint)));
    }

    /// A process ends; what it has counted is kept.
    fn stop(&mut self, host: usize) -> Process {
        let process = std::mem::replace(&mut self.machines[host].process, Process::Dead);
        if let Process::Running(running) = &process {
            self.totals.count(&running.endpoint.counters().ended);
            for (connection, _) in running.endpoint.connections() {
                self.totals.count(connection.stats());
            }
        }
        process
    }

    /// A host loses all it knows. Its peers are not told.
    fn die(&mut self, host: usize, returns_after: Option<Nanos>) {
        if self.machines[host].gone {
            return;
        }
        self.stop(host);
        let machine = &mut self.machines[host];
        machine.generation += 1;
        machine.gone = returns_after.is_none();
        machine.inbox.clear();
        machine.copies.clear();
        machine.regions = Regions::default();
        let generation = machine.generation;
        for index in 0..self.ends.len() {
            let end = &self.ends[index];
            if end.host == host && end.alive() {
                self.lose(End(index));
            } else if end.peer_host == host && end.alive() && returns_after.is_none() {
                let end = End(index);
                self.checkers
                    .observe(self.now, &Observation::Orphaned { end });
            }
        }
        if let Some(after) = returns_after {
            self.agenda.plan(
                self.now + after.get(),
                Happening::Return { host, generation },
            );
        }
    }

    /// An end is gone with what its host knew; its peer is not told.
    fn lose(&mut self, end: End) {
        self.close(end);
        self.checkers.observe(self.now, &Observation::Lost { end });
        self.ends[end.peer().0].peer_died = true;
    }

    fn come_back(&mut self, host: usize) {
        self.start(host);
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
    fn upgrade(&mut self, host: usize, takes: Nanos) {
        if !self.machines[host].is_up() {
            return;
        }
        if self.work.coin() {
            // What it has received in its last turn it has told nobody of.
            self.exchange(host);
        }
        // An id that is not joined yet is not saved: the hosts agree on another one.
        for index in 0..self.ends.len() {
            let end = &self.ends[index];
            if end.host == host && matches!(end.status, Status::Allocated(_)) {
                let pair = end.pair;
                self.lose(End(index));
                self.agenda.reconnect(self.now + RECONNECT_NANOS, pair);
            }
        }
        while !self.machines[host].copies.is_empty() {
            self.end_copies(host, u64::MAX);
        }
        let machine = &mut self.machines[host];
        for packet in machine.inbox.drain(..) {
            self.network.recycle(packet.bytes);
        }
        let Process::Running(running) = std::mem::replace(&mut machine.process, Process::Dead)
        else {
            return;
        };
        self.totals.count(&running.endpoint.counters().ended);
        let Ok(saved) = running.endpoint.save() else {
            let text = format!("host {host} is not saved");
            return self.checkers.violated("save and restore", self.now, text);
        };
        machine.process = Process::Replaced(saved);
        let generation = machine.generation;
        self.agenda.plan(
            self.now + takes.get(),
            Happening::Restore { host, generation },
        );
    }

    fn restore(&mut self, host: usize) {
        let machine = &mut self.machines[host];
        let Process::Replaced(saved) = std::mem::replace(&mut machine.process, Process::Dead)
        else {
            return;
        };
        self.start(host);
        let machine = &mut self.machines[host];
        let clock = machine.clock(self.now);
        for saved in saved {
            let Some(running) = machine.running() else {
                return;
            };
            match running.endpoint.restore(clock, saved) {
                Ok(_) => self.totals.restored += 1,
                Err(error) => {
                    let text = format!("a connection of host {host} is not restored: {error}");
                    self.checkers.violated("save and restore", self.now, text);
                }
            }
        }
        self.wake(host);
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
        let domain = self.scenario.domains[pair];
        for side in 0..2 {
            let (host, peer_host) = if side == 0 { (from, to) } else { (to, from) };
            let remote = Remote {
                peer: peer_host,
                generation: self.machines[peer_host].generation,
                id: ids[1 - side],
                send_secret: secrets[side].clone(),
                reset_tokens: Box::new([reset_token(
                    self.scenario.seed,
                    peer_host,
                    ids[1 - side],
                    host,
                )]),
            };
            let keys = [(); REGIONS].map(|()| Key(self.setup.bits()));
            let Scenario { workload, .. } = &self.scenario;
            let target = Target::new(keys, workload.slots, workload.message_bytes);
            let machine = &mut self.machines[host];
            target.register(&mut machine.regions, domain, ends[side]);
            if let Some(running) = machine.running() {
                let local = Local {
                    domain,
                    receive_secret: secrets[1 - side].clone(),
                    in_order: self.scenario.in_order,
                };
                running.endpoint.allocate(ids[side], local);
            }
            self.ends.push(EndState {
                host,
                peer_host,
                pair,
                id: ids[side],
                domain,
                status: Status::Allocated(remote),
                target,
                receives: VecDeque::new(),
                requests: Vec::new(),
                cancelled_reads: BTreeSet::new(),
                strayed: false,
                peer_died: false,
                drops: Drops::default(),
                open: 0,
            });
        }
        self.pairs[pair].ends = ends;
        self.checkers
            .observe(self.now, &Observation::Connected { ends });
        let [early, late] = if self.setup.coin() { [0, 1] } else { [1, 0] };
        self.join(ends[early]);
        let after = self.setup.within(0, self.scenario.join_delay.get());
        let end = ends[late];
        self.agenda.plan(self.now + after, Happening::Join { end });
    }

    /// A host joins its end to the other one, unless either is gone meanwhile.
    fn join(&mut self, end: End) {
        let state = &mut self.ends[end.0];
        let Status::Allocated(remote) = &state.status else {
            return;
        };
        let (host, id, remote) = (state.host, state.id, remote.clone());
        if !self.ends[end.peer().0].alive() {
            self.lose(end);
            return;
        }
        let machine = &mut self.machines[host];
        let clock = machine.clock(self.now);
        if let Some(running) = machine.running() {
            running.endpoint.connect(clock, id, remote);
            let survives = self.scenario.survives_refusals;
            // It is open.
            let _ = running.endpoint.set_survives_refusals(id, survives);
            machine.ends.insert(id, end);
            self.ends[end.0].status = Status::Open;
            self.post(end);
            self.wake(host);
        }
    }

    /// The core has given a connection up: its hosts will agree on a new one if both still can.
    pub(crate) fn fail(&mut self, end: End, reason: &'static str) {
        let state = &self.ends[end.0];
        let refused = ["KeyRefused", "BoundsRefused", "NoPlace"].contains(&reason);
        let excuse = match (state.peer_died, state.strayed && refused) {
            (_, true) => Excuse::Strayed,
            (true, false) => Excuse::PeerDied,
            (false, false) => Excuse::None,
        };
        self.checkers.observe(
            self.now,
            &Observation::Failed {
                end,
                excuse,
                reason,
            },
        );
        self.totals.failed += 1;
        let pair = state.pair;
        // It may hear of it by a Reset.
        self.ends[end.peer().0].peer_died = true;
        self.close(end);
        let after = self.work.within(1, RECONNECT_NANOS);
        self.agenda.reconnect(self.now + after, pair);
    }

    /// Ends a connection at one end.
    pub(crate) fn close(&mut self, end: End) {
        let state = &mut self.ends[end.0];
        let machine = &mut self.machines[state.host];
        state.status = Status::Closed;
        state.open = 0;
        state.target.deregister(&mut machine.regions);
        machine.ends.remove(&state.id);
        if let Process::Running(running) = &mut machine.process {
            running.endpoint.close(state.id);
            // Its counts are the endpoint's now.
            machine.drops = running.endpoint.counters().drops;
        }
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
