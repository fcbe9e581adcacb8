//! A worker's turn in a run: what surrounds its endpoint, with everything seen told to the checkers.

use std::collections::BTreeMap;

use weft_core::connection::{Chunk, Event};
use weft_core::drops::{DropReason, Drops};
use weft_core::endpoint::Endpoint;
use weft_core::memory::{Access, DomainId, Memory, Place, Placed, Ticket};
use weft_core::units::{ConnectionId, Key, PathId, Time};
use weft_core::wire::{Atomic, DataHeader, Flags, Kind, Opcode, peek};

use crate::check::Checkers;
use crate::draw::Draw;
use crate::end::EndState;
use crate::host::{Datagrams, Environment, Host};
use crate::machine::{Copying, Machine, Process};
use crate::network::{Network, Packet};
use crate::observation::{Arrived, End, Observation, Received};
use crate::pattern;
use crate::scenario::Scenario;
use crate::simulation::{Agenda, Simulation, reset_token};
use crate::target::{Regions, find};

/// Packets and bytes that GRO merges at most.
const RUN_PACKETS_MAX: usize = 64;
const RUN_BYTES_MAX: usize = 65_535;
/// Turns of one host in a row in which nothing happened but a timer that is still due.
const IDLE_TURNS_MAX: u32 = 1_000;
/// What a turn takes when the next one follows at once.
const TURN_NANOS: u64 = 1_000;

impl Simulation {
    /// One turn of a host's worker.
    pub(crate) fn turn(&mut self, host: usize) {
        let Some(busy) = self.exchange(host) else {
            return;
        };
        let events = self.take_events(host);
        let mut counts: BTreeMap<End, usize> = BTreeMap::new();
        for &(end, event) in &events {
            *counts.entry(end).or_default() += 1;
            self.handle_event(end, event);
        }
        self.look(host, &counts);
        for end in counts.into_keys() {
            self.post(end);
        }
        self.post_receives(host);
        self.plan_turn(host, busy);
    }

    /// A host's process, if it runs, with its clock, what has arrived, and what surrounds its endpoint.
    fn at_work(&mut self, host: usize) -> Option<AtWork<'_>> {
        let Simulation {
            scenario,
            now,
            agenda,
            machines,
            ends,
            network,
            checkers,
            work,
            totals,
            ..
        } = self;
        let machine = &mut machines[host];
        let clock = machine.clock(*now);
        let Machine {
            process: Process::Running(running),
            regions,
            words,
            copies,
            away_until,
            link_full_until,
            inbox,
            ends: by_id,
            drops,
            ..
        } = machine
        else {
            return None;
        };
        let tampered: Vec<bool> = inbox.iter().map(|packet| packet.tampered).collect();
        Some(AtWork {
            clock,
            running,
            inbox,
            surroundings: Surroundings {
                scenario,
                now: *now,
                host,
                regions,
                words,
                copies,
                armed: *away_until <= *now,
                link_full_until,
                by_id,
                ends,
                agenda,
                network,
                checkers,
                work,
                dropped: &mut totals.drops,
                drops,
                tampered: tampered.into_iter(),
                placed: Vec::new(),
                sent: false,
            },
        })
    }

    /// The part of a turn that receives and sends. Returns whether it did any of it; nothing when the host's
    /// process does not run.
    pub(crate) fn exchange(&mut self, host: usize) -> Option<bool> {
        let AtWork {
            clock,
            running,
            inbox,
            mut surroundings,
        } = self.at_work(host)?;
        let coalesce = surroundings.scenario.coalesce;
        let mut runs = merge(inbox, coalesce, surroundings.network);
        running.exchange(clock, &mut runs, &mut surroundings);
        let busy = !runs.is_empty() || surroundings.sent;
        for datagrams in runs {
            surroundings.network.recycle(datagrams.bytes);
        }
        Some(busy)
    }

    /// Ends the copies of a host that are due, and reports them. Those that begin by it are not due.
    pub(crate) fn end_copies(&mut self, host: usize, due: u64) {
        let machine = &mut self.machines[host];
        let ended = machine.copies.extract_if(.., |copy| copy.ends_at <= due);
        for copy in ended.collect::<Vec<_>>() {
            let Copying {
                ticket,
                place,
                payload,
                ..
            } = copy;
            let machine = &mut self.machines[host];
            let found = find(&mut machine.regions, &place);
            if let Ok((reader, region)) = found {
                let placed = Observation::Placed {
                    reader,
                    message: self.ends[reader.0].target.message_at(region, place.offset),
                    key: place.key,
                    offset: place.offset,
                    payload: &payload,
                };
                self.checkers.observe(self.now, &placed);
            }
            let Some(mut at_work) = self.at_work(host) else {
                continue;
            };
            let (clock, result) = (at_work.clock, found.map(|_| ()));
            let (endpoint, surroundings) =
                (&mut at_work.running.endpoint, &mut at_work.surroundings);
            if !endpoint.placed(clock, ticket, result, surroundings) {
                let text = format!("host {host}: no connection waits for {ticket:?}");
                self.checkers
                    .violated("copies are waited for", self.now, text);
            }
        }
        self.wake(host);
    }

    fn take_events(&mut self, host: usize) -> Vec<(End, Event)> {
        let machine = &mut self.machines[host];
        let mut events = Vec::new();
        let Process::Running(running) = &mut machine.process else {
            return events;
        };
        running.take_events(|id, event| match machine.ends.get(&id) {
            Some(&end) => events.push((end, event)),
            None if event == Event::Closed => {}
            None => {
                let text = format!("host {host}: {event:?} of {id}, which is closed");
                self.checkers.violated("everything ends", self.now, text);
            }
        });
        // A connection that is over has left its counts to the endpoint.
        machine.drops = running.endpoint.counters().drops;
        events
    }

    /// The message that the core names of a connection that has failed.
    fn failed_request(&self, end: End) -> Option<u64> {
        let mut machines = self.machines.iter();
        machines.find_map(|machine| {
            let (id, _) = machine.ends.iter().find(|(_, other)| **other == end)?;
            let Process::Running(running) = &machine.process else {
                return None;
            };
            running.endpoint.failed_request(*id)
        })
    }

    fn handle_event(&mut self, end: End, event: Event) {
        match event {
            Event::Completed { token } => {
                self.checkers
                    .observe(self.now, &Observation::Completed { writer: end, token });
                self.totals.completed += 1;
                self.totals.cancelled_late += u64::from(self.cancelling.remove(&token));
                self.worked = self.now;
                self.ends[end.0].open = self.ends[end.0].open.saturating_sub(1);
                for end in [end, end.peer()] {
                    self.ends[end.0].target.release(token);
                }
            }
            Event::Cancelled { token } => {
                self.checkers
                    .observe(self.now, &Observation::Cancelled { writer: end, token });
                self.totals.cancelled += 1;
                self.cancelling.remove(&token);
                self.worked = self.now;
                self.ends[end.0].open = self.ends[end.0].open.saturating_sub(1);
                for end in [end, end.peer()] {
                    self.ends[end.0].target.release(token);
                }
            }
            Event::Refused { token, .. } => {
                self.checkers
                    .observe(self.now, &Observation::Refused { writer: end, token });
                self.totals.refused += 1;
                self.cancelling.remove(&token);
                self.worked = self.now;
                self.ends[end.0].open = self.ends[end.0].open.saturating_sub(1);
                for end in [end, end.peer()] {
                    self.ends[end.0].target.release(token);
                }
            }
            Event::Immediate { value, key } => {
                let what = Observation::Signalled {
                    reader: end,
                    value,
                    key,
                };
                self.checkers.observe(self.now, &what);
            }
            Event::Failed(failure) => {
                if let Some(token) = self.failed_request(end) {
                    let what = Observation::RequestFailed { writer: end, token };
                    self.checkers.observe(self.now, &what);
                }
                self.fail(end, failure.reason());
            }
            Event::Received {
                token,
                bytes,
                immediate,
                is_write: _,
            } => {
                let what = Observation::Delivered {
                    reader: end,
                    token,
                    bytes,
                    immediate,
                };
                self.checkers.observe(self.now, &what);
            }
            // A closed end is not known any more.
            Event::Closed => {}
        }
    }

    /// The turn is over: how its connections stand, and whether one of them could send and is forgotten.
    fn look(&mut self, host: usize, events: &BTreeMap<End, usize>) {
        let machine = &mut self.machines[host];
        let clock = machine.clock(self.now);
        let Process::Running(running) = &mut machine.process else {
            return;
        };
        for (connection, _) in running.endpoint.connections() {
            if let Some(&end) = machine.ends.get(&connection.id()) {
                let events = events.get(&end).copied().unwrap_or(0);
                let what = Observation::Turned {
                    end,
                    connection,
                    events,
                };
                self.checkers.observe(self.now, &what);
            }
            if connection.has_event() {
                let text = format!(
                    "host {host}: no turn reports an event of {}",
                    connection.id()
                );
                self.checkers.violated("everything ends", self.now, text);
            }
        }
        // A chunk that comes out here is never sent, but then the run is over.
        if let Some(id) = running.endpoint.find_forgotten(clock) {
            let text = format!("host {host}: {id} could send, and its worker rests");
            self.checkers
                .violated("nobody waits for nothing", self.now, text);
        }
    }

    /// Plans the host's next turn: when the endpoint asks for it.
    fn plan_turn(&mut self, host: usize, busy: bool) {
        let machine = &mut self.machines[host];
        let clock = machine.clock(self.now);
        let Process::Running(running) = &mut machine.process else {
            return;
        };
        let link_is_full = machine.link_full_until > self.now;
        let mut next = running.endpoint.poll_timeout(!link_is_full);
        let at_once = next.is_some_and(|at| at <= clock);
        if !at_once && self.scenario.flushes_acks && running.endpoint.flush_acks() {
            next = running.endpoint.poll_timeout(!link_is_full);
        }
        machine.idle_turns = if at_once && !busy {
            machine.idle_turns + 1
        } else {
            0
        };
        if machine.idle_turns > IDLE_TURNS_MAX {
            let text =
                format!("host {host}: a turn is due time after time, and nothing happens in it");
            self.checkers.violated("everything ends", self.now, text);
        }
        if link_is_full {
            let at = machine.link_full_until;
            self.agenda.turn(at, host, machine);
        }
        let machine = &mut self.machines[host];
        let Some(next) = next else {
            return;
        };
        let at = if next <= clock {
            self.now + TURN_NANOS
        } else {
            // A worker that sleeps is woken a little late.
            let late = self.work.within(0, self.scenario.turn_delay.get() / 4);
            machine.run_time(next) + late
        };
        self.agenda.turn(at, host, machine);
    }
}

/// What arrived, as the kernel hands it over: adjacent datagrams of a path merged where the run says so,
/// whatever connections they are of.
fn merge(inbox: &mut Vec<Packet>, coalesce: bool, network: &mut Network) -> Vec<Datagrams> {
    let mut runs: Vec<Datagrams> = Vec::new();
    let mut packets = 0;
    for packet in inbox.drain(..) {
        let Packet {
            from,
            to,
            path,
            ce,
            bytes,
            ..
        } = packet;
        if coalesce
            && !bytes.is_empty()
            && let Some(run) = runs.last_mut()
            && (run.from, run.path.0, run.ce) == (from, path, ce)
            && run.bytes.len() == packets * run.segment
            && bytes.len() <= run.segment
            && packets < RUN_PACKETS_MAX
            && run.bytes.len() + bytes.len() <= RUN_BYTES_MAX
        {
            run.bytes.extend_from_slice(&bytes);
            network.recycle(bytes);
            packets += 1;
            continue;
        }
        packets = 1;
        runs.push(Datagrams {
            from,
            to,
            path: PathId(path),
            ce,
            segment: bytes.len().max(1),
            bytes,
        });
    }
    runs
}

/// A process that runs.
struct AtWork<'a> {
    clock: Time,
    running: &'a mut Host,
    /// What has arrived since the last turn.
    inbox: &'a mut Vec<Packet>,
    surroundings: Surroundings<'a>,
}

/// What surrounds an endpoint of the run in a turn.
struct Surroundings<'a> {
    scenario: &'a Scenario,
    now: u64,
    host: usize,
    regions: &'a mut Regions,
    words: &'a mut BTreeMap<(Key, u64), u64>,
    copies: &'a mut Vec<Copying>,
    /// Whether its regions take anything now.
    armed: bool,
    link_full_until: &'a mut u64,
    by_id: &'a BTreeMap<ConnectionId, End>,
    ends: &'a mut [EndState],
    agenda: &'a mut Agenda,
    network: &'a mut Network,
    checkers: &'a mut Checkers,
    work: &'a mut Draw,
    /// The run's counts.
    dropped: &'a mut Drops,
    /// What the endpoint had dropped so far.
    drops: &'a mut Drops,
    /// Of each packet in the inbox, in order.
    tampered: std::vec::IntoIter<bool>,
    /// What was placed since the last datagrams.
    placed: Vec<Ticket>,
    sent: bool,
}

impl Memory for Surroundings<'_> {
    fn place(
        &mut self,
        ticket: Ticket,
        domain: DomainId,
        key: Key,
        offset: u64,
        payload: &[u8],
    ) -> Result<Placed, DropReason> {
        let place = Place {
            domain,
            key,
            offset,
            bytes: payload.len() as u64,
        };
        let (reader, region) = find(self.regions, &place)?;
        if !self.armed {
            return Err(DropReason::NotArmed);
        }
        self.placed.push(ticket);
        let (copied, longest) = self.scenario.copies;
        if self.work.chance(copied) {
            let ends_at = self.now + self.work.within(1, longest.get());
            self.copies.push(Copying {
                ends_at,
                ticket,
                place,
                payload: payload.to_vec(),
            });
            self.agenda.copy_ends(ends_at, self.host);
            return Ok(Placed::Pending);
        }
        let placed = Observation::Placed {
            reader,
            message: self.ends[reader.0].target.message_at(region, offset),
            key,
            offset,
            payload,
        };
        self.checkers.observe(self.now, &placed);
        Ok(Placed::Now)
    }

    fn check(&mut self, place: &Place, _access: Access) -> Result<(), DropReason> {
        find(self.regions, place)?;
        match self.armed {
            true => Ok(()),
            false => Err(DropReason::NotArmed),
        }
    }

    fn atomic(
        &mut self,
        domain: DomainId,
        key: Key,
        offset: u64,
        atomic: Atomic,
    ) -> Result<u64, DropReason> {
        let place = Place {
            domain,
            key,
            offset,
            bytes: Atomic::BYTES,
        };
        self.check(&place, Access::ATOMIC)?;
        let Atomic::FetchAdd { add } = atomic else {
            return Err(DropReason::Malformed);
        };
        let word = self.words.entry((key, offset)).or_default();
        let before = std::mem::replace(word, atomic.apply(*word));
        let token = add - 1;
        self.checkers
            .observe(self.now, &Observation::Added { token, before });
        Ok(before)
    }
}

impl Environment for Surroundings<'_> {
    fn buffer(&mut self) -> Vec<u8> {
        self.network.buffer()
    }

    fn region(&self, key: Key, offset: u64) -> Option<&[u8]> {
        Some(pattern::from(key.0, offset))
    }

    fn reset_token(&self, to: usize, connection: ConnectionId) -> u64 {
        reset_token(self.scenario.seed, self.host, connection, to)
    }

    fn chunks(&self) -> u32 {
        match *self.link_full_until > self.now {
            true => 0,
            false => self.scenario.chunks_per_turn,
        }
    }

    fn takes_more(&mut self, connection: ConnectionId, chunk: &Chunk) -> bool {
        if let Some(&writer) = self.by_id.get(&connection) {
            let sent = Observation::Sent { writer, chunk };
            self.checkers.observe(self.now, &sent);
        }
        self.sent = true;
        let (fills, longest) = self.scenario.link_fills;
        let full = self.work.chance(fills);
        if full {
            *self.link_full_until = self.now + self.work.within(1, longest.get().max(1));
        }
        !full
    }

    fn send(&mut self, datagrams: Datagrams) {
        self.sent = true;
        let Datagrams {
            from,
            to,
            path,
            segment,
            bytes: run,
            ..
        } = datagrams;
        for datagram in run.chunks(segment) {
            let transmitted = Observation::Transmitted { packet: datagram };
            self.checkers.observe(self.now, &transmitted);
            let mut bytes = self.network.buffer();
            bytes.extend_from_slice(datagram);
            let packet = Packet {
                from,
                to,
                path: path.0,
                ce: false,
                tampered: false,
                bytes,
            };
            let agenda = &mut *self.agenda;
            self.network
                .send(self.now, packet, |at, packet| agenda.arrival(at, packet));
        }
        self.network.recycle(run);
    }

    fn received(&mut self, datagrams: &Datagrams, endpoint: &Endpoint<usize>) {
        let arrived = |bytes, tampered| {
            let named = peek(bytes).ok().filter(|peek| peek.kind != Kind::Reset);
            Arrived {
                end: named.and_then(|peek| self.by_id.get(&peek.connection).copied()),
                tampered,
                bytes,
            }
        };
        // One that was cut short to nothing is a datagram, too.
        let count = datagrams.bytes.len().div_ceil(datagrams.segment).max(1);
        let tampered = self.tampered.by_ref().take(count);
        let mut datagrams = datagrams.bytes.chunks(datagrams.segment);
        let packets: Vec<Arrived<'_>> = tampered
            .map(|tampered| arrived(datagrams.next().unwrap_or(&[]), tampered))
            .collect();
        let in_order = self.scenario.in_order;
        let cancels = self.scenario.workload.cancels.0 > 0;
        for arrived in packets
            .iter()
            .filter(|arrived| (in_order || cancels) && !arrived.tampered)
        {
            let end = arrived.end.map(|end| &self.ends[end.0]);
            // What ends a message is here before it is placed, and what comes of a cancelled read is here and not placed.
            let is_here = |end: &EndState, header: &DataHeader| {
                let is_response = header.opcode == Opcode::Response;
                in_order && header.flags.contains(Flags::LAST)
                    || is_response && end.cancelled_reads.contains(&header.key.0)
            };
            if let (Some(end), Ok(header)) = (end, DataHeader::parse(arrived.bytes))
                && is_here(end, &header)
                && let Some(connection) = endpoint.connection(end.id)
                && connection.has(&header)
            {
                self.placed.push(Ticket::of(&header));
            }
        }
        let mut dropped = Vec::new();
        let mut note = |end, before: &mut Drops, after: &Drops| {
            for &reason in DropReason::ALL {
                let count = after.get(reason) - before.get(reason);
                if count > 0 {
                    dropped.push((end, reason, count));
                }
            }
            before.clone_from(after);
        };
        note(None, self.drops, &endpoint.counters().drops);
        let mut named: Vec<End> = packets.iter().filter_map(|arrived| arrived.end).collect();
        named.dedup();
        for end in named {
            let state = &mut self.ends[end.0];
            if let Some(connection) = endpoint.connection(state.id) {
                note(Some(end), &mut state.drops, connection.drops());
            }
        }
        for &(_, reason, count) in &dropped {
            for _ in 0..count {
                self.dropped.count(reason);
            }
        }
        let received = Received {
            packets,
            placed: &self.placed,
            dropped,
        };
        let what = Observation::Received {
            received: &received,
        };
        self.checkers.observe(self.now, &what);
        self.placed.clear();
    }
}
