//! A worker's turn: the order of calls that the core asks for, with everything seen told to the
//! checkers.

use weft_core::connection::{Arrival, Connection, Event, PostError, Run, Write};
use weft_core::drops::DropReason;
use weft_core::units::PathId;
use weft_core::wire::{self, CONTROL_BYTES_MAX, Kind, OVERHEAD_BYTES, Reset};

use crate::endpoint::EndState;
use crate::network::Packet;
use crate::observation::{End, Excuse, Message, Observation};
use crate::pattern;
use crate::simulation::{Simulation, WEIGHED_EVERY, reset_token};
use crate::target::Watched;

/// Packets that GRO merges at most (64 KiB of the smallest that the scenarios draw).
const RUN_PACKETS_MAX: usize = 64;
/// Control packets that one connection sends in one turn at most: an acknowledgement for every 32
/// echoes, a probe for every path twice over.
const CONTROLS_PER_TURN_MAX: usize = 600;
/// Turns of one host in a row in which nothing happened but a timer that is still due.
const IDLE_TURNS_MAX: u32 = 1_000;
/// How long two hosts need to agree on a new connection, at most.
const RECONNECT_NANOS: u64 = 5_000_000;

impl Simulation {
    /// One turn of a host's worker: as the engine's, it looks at the connections that something has
    /// arrived for or whose timer is due, and at no other.
    pub(crate) fn turn(&mut self, host: usize) {
        self.turns += 1;
        let received = self.receive(host);
        self.touch_due(host);
        let mut sent = 0;
        let mut more = false;
        for end in std::mem::take(&mut self.hosts[host].touched) {
            let events = self.take_events(end);
            self.serve_timers(end);
            let EndState::Open(_) = self.ends[end.0].state else {
                continue;
            };
            self.post(end);
            sent += self.send_control(host, end);
            let (chunks, cut_short) = self.send_chunks(host, end);
            sent += chunks;
            let late = self.take_events(end);
            if cut_short || late > 0 {
                more = true;
                self.hosts[host].touched.insert(end);
            }
            self.rest(host, end);
            let EndState::Open(connection) = &self.ends[end.0].state else {
                continue;
            };
            let connection: &Connection = connection;
            self.checkers.observe(
                self.now,
                &Observation::Turned {
                    end,
                    connection,
                    events: events + late,
                },
            );
            if self.turns.is_multiple_of(WEIGHED_EVERY) {
                let bytes = connection.save().len();
                self.checkers
                    .observe(self.now, &Observation::Saved { end, bytes });
            }
        }
        self.nobody_waits(host);
        self.plan_turn(host, received + sent > 0, more);
    }

    /// The ends whose timers are due are looked at.
    fn touch_due(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        let clock = host.clock(self.now);
        for &end in host.ends.values() {
            let timer = &mut self.ends[end.0].timer;
            if timer.is_some_and(|at| at <= clock) {
                *timer = None;
                host.touched.insert(end);
            }
        }
    }

    /// Ends an end's turn: it is looked at again when its timer is due. As in the engine, an earlier
    /// timer stays, whatever the connection wants by now.
    fn rest(&mut self, host: usize, end: End) {
        let host = &self.hosts[host];
        let endpoint = &mut self.ends[end.0];
        if let EndState::Open(connection) = &endpoint.state {
            let wants = connection.poll_timeout(&host.paths[endpoint.peer_host]);
            endpoint.timer = endpoint.timer.into_iter().chain(wants).min();
        }
    }

    /// A connection that could send and that nothing will look at waits for no reason.
    fn nobody_waits(&mut self, host: usize) {
        let Simulation {
            ends,
            hosts,
            checkers,
            scenario,
            now,
            ..
        } = self;
        let worker = &mut hosts[host];
        let clock = worker.clock(*now);
        for end in worker.ends.values() {
            let endpoint = &mut ends[end.0];
            if worker.touched.contains(end) {
                continue;
            }
            let EndState::Open(connection) = &mut endpoint.state else {
                continue;
            };
            let (paths, room) = (
                &mut worker.paths[endpoint.peer_host],
                scenario.settings.chunk_bytes,
            );
            // A chunk that comes out here is never sent, but then the run is over.
            if connection
                .poll_chunk(clock, paths, &mut worker.rng, room)
                .is_some()
            {
                let text = format!("{end:?} could send, and its worker rests");
                checkers.violated("nobody waits for nothing", *now, text);
            }
        }
    }

    /// Plans the host's next turn: for the earliest timer, or at once for what did not fit in.
    fn plan_turn(&mut self, host: usize, busy: bool, more: bool) {
        let ends = self.hosts[host].ends.values();
        let next = ends.filter_map(|end| self.ends[end.0].timer).min();
        let clock = self.hosts[host].clock(self.now);
        if !busy && next.is_some_and(|at| at <= clock) {
            self.hosts[host].idle_turns += 1;
            if self.hosts[host].idle_turns > IDLE_TURNS_MAX {
                let text =
                    format!("host {host}: a timer is due in turn after turn, and nothing happens");
                self.checkers.violated("everything ends", self.now, text);
            }
        } else {
            self.hosts[host].idle_turns = 0;
        }
        if more {
            self.agenda
                .turn(self.now + 1_000, host, &mut self.hosts[host]);
        } else if let Some(at) = next {
            let at = self.hosts[host].run_time(at).max(self.now + 1);
            // A worker that sleeps is woken a little late.
            let late = self.work.within(0, self.scenario.turn_delay.get() / 4);
            self.agenda.turn(at + late, host, &mut self.hosts[host]);
        }
    }

    /// Hands everything that has arrived to its connection. Returns how many packets.
    fn receive(&mut self, host: usize) -> usize {
        let mut inbox = std::mem::take(&mut self.hosts[host].inbox);
        let count = inbox.len();
        let mut at = 0;
        while at < count {
            at += self.receive_run(host, &inbox[at..]);
        }
        for packet in inbox.drain(..) {
            self.network.recycle(packet.bytes);
        }
        if self.hosts[host].inbox.is_empty() {
            self.hosts[host].inbox = inbox;
        }
        count
    }

    /// Takes as many of `packets` as make one run. Returns how many.
    fn receive_run(&mut self, host: usize, packets: &[Packet]) -> usize {
        let first = &packets[0];
        let peek = match wire::peek(&first.bytes) {
            Ok(peek) => peek,
            Err(reason) => {
                let what = Observation::Dropped {
                    end: None,
                    reason,
                    tampered: first.tampered,
                };
                self.checkers.observe(self.now, &what);
                return 1;
            }
        };
        if peek.kind == Kind::Reset {
            self.receive_reset(host, first);
            return 1;
        }
        let Some(&end) = self.hosts[host].ends.get(&peek.connection) else {
            let token = reset_token(self.scenario.seed, host, peek.connection, first.from);
            let reset = Reset {
                path: peek.path,
                connection: peek.connection,
                token,
            };
            self.send(host, first.from, peek.path, &reset.emit());
            return 1;
        };
        let segment = first.bytes.len();
        let mut run = std::mem::take(&mut self.run);
        run.clear();
        run.extend_from_slice(&first.bytes);
        let mut tampered = first.tampered;
        let mut taken = 1;
        if self.scenario.coalesce && peek.kind == Kind::Data {
            for packet in packets[1..].iter().take(RUN_PACKETS_MAX - 1) {
                let alike = packet.from == first.from
                    && packet.path == first.path
                    && packet.ce == first.ce
                    && packet.bytes.len() <= segment
                    && wire::peek(&packet.bytes)
                        .is_ok_and(|p| p.kind == Kind::Data && p.connection == peek.connection);
                if !alike {
                    break;
                }
                run.extend_from_slice(&packet.bytes);
                tampered |= packet.tampered;
                taken += 1;
                if packet.bytes.len() < segment {
                    break;
                }
            }
        }
        self.hand_over(host, end, first, &run, segment, tampered);
        self.run = run;
        taken
    }

    fn hand_over(
        &mut self,
        host: usize,
        end: End,
        first: &Packet,
        run: &[u8],
        segment: usize,
        tampered: bool,
    ) {
        let Simulation {
            ends,
            hosts,
            checkers,
            totals,
            now,
            ..
        } = self;
        let endpoint = &mut ends[end.0];
        let EndState::Open(connection) = &mut endpoint.state else {
            return;
        };
        let peer_host = endpoint.peer_host;
        let worker = &mut hosts[host];
        let clock = worker.clock(*now);
        let paths = &mut worker.paths[peer_host];
        let dark = paths.is_dark();
        let before = connection.drops().clone();
        let mut memory = Watched {
            now: *now,
            reader: end,
            target: &mut endpoint.target,
            armed: worker.away_until <= *now,
            checkers,
        };
        let arrival = Arrival {
            path: PathId(first.path),
            ce: first.ce,
        };
        let result = connection.handle_packets(
            clock,
            paths,
            arrival,
            Run {
                bytes: run,
                segment,
            },
            &mut memory,
        );
        let after = connection.drops().clone();
        worker.touched.insert(end);
        if dark && !paths.is_dark() {
            // The outage is over: whoever waited for it may send.
            let others = worker.ends.values().copied();
            let others = others.filter(|other| ends[other.0].peer_host == peer_host);
            worker.touched.extend(others);
        }
        if result.is_ok() && after == before {
            return;
        }
        for &reason in DropReason::ALL {
            for _ in before.get(reason)..after.get(reason) {
                let what = Observation::Dropped {
                    end: Some(end),
                    reason,
                    tampered,
                };
                totals.drops.count(reason);
                checkers.observe(*now, &what);
            }
        }
    }

    fn receive_reset(&mut self, host: usize, packet: &Packet) {
        let reset = match Reset::parse(&packet.bytes) {
            Ok(reset) => reset,
            Err(reason) => {
                let what = Observation::Dropped {
                    end: None,
                    reason,
                    tampered: packet.tampered,
                };
                self.checkers.observe(self.now, &what);
                return;
            }
        };
        let Some(&end) = self.hosts[host].ends_by_remote.get(&reset.connection) else {
            return;
        };
        let EndState::Open(connection) = &mut self.ends[end.0].state else {
            return;
        };
        self.hosts[host].touched.insert(end);
        if let Err(reason) = connection.handle_reset(reset.token) {
            let what = Observation::Dropped {
                end: Some(end),
                reason,
                tampered: packet.tampered,
            };
            self.checkers.observe(self.now, &what);
        }
    }

    /// Serves the end's timers and takes its events. Returns how many events there were.
    fn take_events(&mut self, end: End) -> usize {
        let mut count = 0;
        loop {
            let endpoint = &mut self.ends[end.0];
            let EndState::Open(connection) = &mut endpoint.state else {
                return count;
            };
            let Some(event) = connection.poll_event() else {
                break;
            };
            count += 1;
            match event {
                Event::Completed { token } => {
                    self.checkers
                        .observe(self.now, &Observation::Completed { writer: end, token });
                    self.totals.completed += 1;
                    self.worked = self.now;
                    self.ends[end.0].open = self.ends[end.0].open.saturating_sub(1);
                    self.ends[end.peer().0].target.release(token);
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
                    self.fail(end, failure.reason());
                    return count;
                }
            }
        }
        count
    }

    /// Serves the end's timers that are due: after everything received, before anything is sent.
    fn serve_timers(&mut self, end: End) {
        let Simulation {
            ends, hosts, now, ..
        } = self;
        let endpoint = &mut ends[end.0];
        if let EndState::Open(connection) = &mut endpoint.state {
            let host = &mut hosts[endpoint.host];
            let clock = host.clock(*now);
            let paths = &mut host.paths[endpoint.peer_host];
            if connection.poll_timeout(paths).is_some_and(|at| at <= clock) {
                connection.handle_timeout(clock, paths);
            }
        }
    }

    /// The core has given a connection up: its hosts will agree on a new one if both still can.
    fn fail(&mut self, end: End, reason: &'static str) {
        let endpoint = &self.ends[end.0];
        let refused = ["KeyRefused", "BoundsRefused"].contains(&reason);
        let excuse = match (endpoint.peer_died, endpoint.strayed && refused) {
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
        // It may hear of it by a Reset.
        self.ends[end.peer().0].peer_died = true;
        self.close(end);
        let after = self.work.within(1, RECONNECT_NANOS);
        self.agenda
            .reconnect(self.now + after, self.ends[end.0].pair);
    }

    /// Posts writes while the peer has a place for them.
    fn post(&mut self, end: End) {
        let (pair, side) = (self.ends[end.0].pair, end.0 % 2);
        let workload = self.scenario.workload;
        while self.pairs[pair].left[side] > 0 {
            let peer = end.peer();
            let Some(slot) = self.ends[peer.0].target.free_slot() else {
                return;
            };
            let id = self.totals.posted;
            let empty = self.work.chance(workload.empty);
            let most = workload.message_bytes;
            let bytes = match (empty, self.work.chance(workload.longest)) {
                (true, _) => 0,
                (false, true) => most,
                (false, false) => self.work.magnitude(1, most),
            };
            let signals = empty || self.work.chance(workload.immediate);
            let (key, start) = self.ends[peer.0].target.place_of(slot);
            let message = Message {
                id,
                writer: end,
                key,
                offset: start + self.work.within(0, workload.message_bytes - bytes),
                bytes,
                immediate: signals.then_some(id as u32),
                packet_payload: self.scenario.settings.packet_payload.into(),
            };
            let EndState::Open(connection) = &mut self.ends[end.0].state else {
                return;
            };
            let write = Write {
                token: id,
                bytes,
                key,
                offset: message.offset,
                immediate: message.immediate,
            };
            match connection.post_write(write) {
                Ok(()) => {}
                Err(PostError::QueueFull) => return,
                Err(error) => {
                    let text = format!("{end:?} refuses a write: {error}");
                    self.checkers.violated("writes are taken", self.now, text);
                    return;
                }
            }
            self.totals.posted += 1;
            self.totals.bytes += bytes;
            self.pairs[pair].left[side] -= 1;
            self.ends[end.0].open += 1;
            self.ends[peer.0].target.expect(slot, message);
            self.checkers
                .observe(self.now, &Observation::Posted { message: &message });
        }
    }

    /// Sends what the core has to acknowledge or to ask. Returns how many packets.
    fn send_control(&mut self, host: usize, end: End) -> usize {
        let mut buffer = [0; CONTROL_BYTES_MAX];
        for count in 0..CONTROLS_PER_TURN_MAX {
            let endpoint = &mut self.ends[end.0];
            let EndState::Open(connection) = &mut endpoint.state else {
                return count;
            };
            let peer_host = endpoint.peer_host;
            let clock = self.hosts[host].clock(self.now);
            let paths = &mut self.hosts[host].paths[peer_host];
            let Some(control) = connection.poll_control(clock, paths, &mut buffer) else {
                return count;
            };
            self.send(host, peer_host, control.path, &buffer[..control.bytes]);
        }
        let text =
            format!("{end:?} sends more than {CONTROLS_PER_TURN_MAX} control packets a turn");
        self.checkers.violated("bounded memory", self.now, text);
        CONTROLS_PER_TURN_MAX
    }

    /// Sends chunks while the core has any. Returns how many, and whether there may be more.
    fn send_chunks(&mut self, host: usize, end: End) -> (usize, bool) {
        let room = self.scenario.settings.chunk_bytes;
        for count in 0..self.scenario.chunks_per_turn as usize {
            let Simulation {
                ends, hosts, now, ..
            } = self;
            let endpoint = &mut ends[end.0];
            let EndState::Open(connection) = &mut endpoint.state else {
                return (count, false);
            };
            let peer_host = endpoint.peer_host;
            let worker = &mut hosts[host];
            let clock = worker.clock(*now);
            let paths = &mut worker.paths[peer_host];
            let Some(chunk) = connection.poll_chunk(clock, paths, &mut worker.rng, room) else {
                return (count, false);
            };
            for i in 0..chunk.packets() {
                let range = chunk.payload(i);
                let length = (range.end - range.start) as usize;
                let header = chunk.header(i);
                let payload = pattern::slice(chunk.token, range.start, length);
                let mut bytes = self.network.buffer();
                bytes.reserve(OVERHEAD_BYTES + length);
                bytes.extend_from_slice(&header);
                bytes.extend_from_slice(payload);
                bytes.extend_from_slice(&chunk.trailer(&header, payload));
                self.send_buffer(host, peer_host, chunk.path, bytes);
            }
        }
        (self.scenario.chunks_per_turn as usize, true)
    }

    fn send(&mut self, from: usize, to: usize, path: PathId, datagram: &[u8]) {
        let mut bytes = self.network.buffer();
        bytes.extend_from_slice(datagram);
        self.send_buffer(from, to, path, bytes);
    }

    fn send_buffer(&mut self, from: usize, to: usize, path: PathId, bytes: Vec<u8>) {
        let packet = Packet {
            from,
            to,
            path: path.0,
            ce: false,
            tampered: false,
            bytes,
        };
        let agenda = &mut self.agenda;
        self.network
            .send(self.now, packet, |at, packet| agenda.arrival(at, packet));
    }
}
