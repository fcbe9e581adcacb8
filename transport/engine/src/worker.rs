//! A worker's loop: commands, receive, timers, control packets, chunks; then poll or sleep.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use mio::{Events, Poll, Token, Waker};
use weft_core::units::{ConnectionId, Nanos, Time};
use weft_core::wire::{CONTROL_BYTES_MAX, Kind, OVERHEAD_BYTES, Reset, peek};
use weft_link::{
    Batch, Frame, PortPair, PortRange, Refusal, SocketBuffers, UdpConfig, UdpLink, Unsent,
};

use crate::cap::Cap;
use crate::clock::Clock;
use crate::command::Command;
use crate::config::EngineConfig;
use crate::connections::{Connections, Stalled};
use crate::doze::Doze;
use crate::error::EngineError;
use crate::identity::{ResetKeys, reset_token};
use crate::snapshot::Snapshot;

/// The first port's token; the waker has the one that no port can have.
const PORTS: Token = Token(0);
const WAKER: Token = Token(usize::MAX);

/// Commands served in one turn at most, so that receiving never waits long; more only before a Reset, of which
/// there is one in a millisecond.
const COMMANDS_PER_TURN: usize = 256;

/// Receive calls on one port in one turn at most: 8 runs of 64 KiB each.
const BATCHES_PER_TURN: usize = 2;

/// Chunks sent in one turn at most: some 80 µs, the time that an arrived packet waits for.
const CHUNKS_PER_TURN: usize = 8;

/// Timers wait until everything received was read, but never for more turns than this.
const TURNS_WITHOUT_TIMERS: u32 = 16;

/// When the kernel had no memory, to send or to receive, it does not say when it has: tried again
/// after this.
const RETRY_AFTER: Nanos = Nanos::from_millis(1);

/// What waits for a port that could not take it.
#[derive(Default)]
struct Blocked {
    connections: VecDeque<ConnectionId>,
    retry_at: Option<Time>,
}

/// One run-to-completion loop with its ports, connections and regions.
pub(crate) struct Worker {
    index: usize,
    spin: Nanos,
    clock: Clock,
    link: UdpLink,
    poll: Poll,
    readiness: Events,
    doze: Arc<Doze>,
    commands: Receiver<Command>,
    connections: Connections,
    reset_keys: ResetKeys,
    /// Ports that may hold something received.
    readable: Vec<bool>,
    blocked: Vec<Blocked>,
    turns_without_timers: u32,
    cap: Option<Cap>,
    frame: Frame,
    control: Box<[u8; CONTROL_BYTES_MAX]>,
    /// The kernel refused a packet as too big, and it was logged.
    told_too_big: bool,
    stopped: bool,
}

impl Worker {
    pub(crate) fn new(
        index: usize,
        ports: PortRange,
        config: &EngineConfig,
        reset_keys: ResetKeys,
        commands: Receiver<Command>,
    ) -> Result<Self, EngineError> {
        let link = UdpLink::bind(UdpConfig {
            address: config.address,
            ports,
            datagram_bytes: config.datagram_bytes(),
            dscp: config.dscp,
            buffers: SocketBuffers::default(),
        })?;
        let (wanted, granted) = (SocketBuffers::default(), link.granted_buffers());
        if granted.receive < wanted.receive {
            tracing::warn!(
                granted = granted.receive,
                wanted = wanted.receive,
                "small socket buffers: grant CAP_NET_ADMIN or raise net.core.rmem_max and wmem_max"
            );
        }
        let failed =
            |call: &'static str| move |source: io::Error| EngineError::System { call, source };
        let poll = Poll::new().map_err(failed("epoll_create"))?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(failed("eventfd"))?;
        link.register(poll.registry(), PORTS)
            .map_err(failed("epoll_ctl"))?;
        let count = usize::from(ports.count);
        let clock = Clock::start();
        let part = |bps: u64| bps / config.workers() as u64;
        Ok(Self {
            index,
            spin: config.spin,
            cap: config.cap_bps.map(|bps| Cap::new(part(bps), clock.now())),
            clock,
            link,
            poll,
            readiness: Events::with_capacity(count + 1),
            doze: Arc::new(Doze::new(waker)),
            connections: Connections::new(config.clone(), index, commands.clone()),
            commands,
            reset_keys,
            readable: vec![true; count],
            blocked: std::iter::repeat_with(Blocked::default)
                .take(count)
                .collect(),
            turns_without_timers: 0,
            frame: Frame::default(),
            control: Box::new([0; CONTROL_BYTES_MAX]),
            told_too_big: false,
            stopped: false,
        })
    }

    pub(crate) fn doze(&self) -> Arc<Doze> {
        Arc::clone(&self.doze)
    }

    /// The thread's body.
    pub(crate) fn run(mut self) {
        let guard = AbortOnPanic {
            worker: self.index,
            config: self.link.config().clone(),
        };
        let mut idle_since: Option<Time> = None;
        while !self.stopped {
            let result = match self.turn() {
                Ok(true) => {
                    idle_since = None;
                    continue;
                }
                Ok(false) => {
                    let now = self.clock.now();
                    if now - *idle_since.get_or_insert(now) < self.spin {
                        std::hint::spin_loop();
                        continue;
                    }
                    idle_since = None;
                    self.wait(None)
                }
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                // Without readiness a worker can only hang in silence.
                panic!("waiting for sockets failed: {error}");
            }
        }
        drop(guard);
    }

    /// The inline worker: a turn, and when there was nothing to do in it, another one after waiting for at
    /// most `wait`.
    pub(crate) fn poll(&mut self, wait: Duration) -> io::Result<bool> {
        let mut busy = self.turn()?;
        if !busy && !wait.is_zero() {
            self.wait(Some(wait))?;
            busy = self.turn()?;
        }
        // When the next call comes only its caller knows.
        self.pay_acks();
        Ok(busy)
    }

    /// One round. Answers whether anything was done.
    fn turn(&mut self) -> io::Result<bool> {
        let mut busy = self.serve_commands(COMMANDS_PER_TURN);
        self.note_readiness()?;
        let now = self.clock.now();
        busy |= self.retry_blocked(now);
        busy |= self.receive(now);
        let read_all = !self.readable.contains(&true);
        self.turns_without_timers += 1;
        if read_all || self.turns_without_timers >= TURNS_WITHOUT_TIMERS {
            self.turns_without_timers = 0;
            busy |= self.connections.serve_timers(now);
        }
        let touched = self.connections.take_touched();
        for &id in &touched {
            self.connections.tell(id);
            self.send_controls(id);
        }
        self.send_resets();
        let sent = self.send_chunks();
        for &id in &touched {
            self.connections.rest(id);
        }
        self.connections.give_back(touched);
        Ok(busy | sent)
    }

    fn serve_commands(&mut self, most: usize) -> bool {
        let mut served = false;
        for _ in 0..most {
            let Ok(command) = self.commands.try_recv() else {
                break;
            };
            served = true;
            match command {
                Command::Allocate {
                    id,
                    domain,
                    receive_secret,
                } => {
                    self.connections.allocate(id, domain, receive_secret);
                }
                Command::Connect { id, remote, events } => {
                    self.connections
                        .connect(self.clock.now(), id, *remote, events);
                }
                Command::Register {
                    key,
                    domain,
                    buffer,
                } => {
                    self.connections.regions.table.register(key, domain, buffer);
                }
                Command::Arm { key, buffer } => self.connections.regions.table.arm(key, buffer),
                Command::Deregister { key } => self.connections.regions.table.deregister(key),
                Command::Write { id, write } => self.connections.write(id, write),
                Command::Close { id } => self.connections.close(id),
                Command::Snapshot { answer } => {
                    // Who asked may have gone.
                    let _ = answer.send(self.snapshot());
                }
                Command::Stop => self.stopped = true,
            }
        }
        served
    }

    fn note_readiness(&mut self) -> io::Result<()> {
        match self.poll.poll(&mut self.readiness, Some(Duration::ZERO)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        for event in &self.readiness {
            let Token(port) = event.token();
            if let Some(readable) = self.readable.get_mut(port) {
                *readable |= event.is_readable() || event.is_error();
                if event.is_writable() && !self.blocked[port].connections.is_empty() {
                    self.blocked[port].retry_at = Some(Time::ZERO);
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, now: Time) -> bool {
        let mut received = false;
        for (port, readable) in self.readable.iter_mut().enumerate() {
            for _ in 0..BATCHES_PER_TURN {
                if !*readable {
                    break;
                }
                let batch = self.link.receive(port, |run| {
                    received = true;
                    self.connections.arrive(now, run);
                });
                *readable = batch == Batch::More;
            }
        }
        // A peer knows an end as soon as it is allocated, and its packets may be quicker than that command: a
        // Reset would end what has only begun. So before any is sent all commands are served that are there.
        if self.connections.has_strangers() {
            self.serve_commands(self.commands.len());
        }
        received
    }

    fn send_controls(&mut self, id: ConnectionId) {
        let now = self.clock.now();
        let local = self.link.config().ports;
        while let Some((open, paths, _)) = self.connections.open(id) {
            let Some(packet) = open.poll_control(now, paths, &mut self.control[..]) else {
                return;
            };
            let datagram = &self.control[..packet.bytes];
            // A probe goes on a path of ours, an answer on one of the other end.
            let asks = peek(datagram).is_ok_and(|peek| peek.kind == Kind::Probe);
            let pair = if asks {
                PortPair::of_path(packet.path.0, open.ports)
            } else {
                PortPair::mirror_of_path(packet.path.0, local)
            };
            // What a full buffer swallows here is said again by the next acknowledgement or probe;
            // the link has counted it.
            let _ = self
                .link
                .send_datagram(pair, open.address, open.ports, datagram);
        }
    }

    /// Sends every acknowledgement that is owed, due or not: where nobody polls, a timer is served too late
    /// for what waits for it.
    fn pay_acks(&mut self) {
        for id in self.connections.take_owing() {
            self.send_controls(id);
            self.connections.rest(id);
        }
    }

    fn send_resets(&mut self) {
        while let Some(reset) = self.connections.next_reset() {
            let datagram = Reset {
                path: reset.path,
                connection: reset.connection,
                token: reset_token(self.reset_keys.of(reset.connection), *reset.to.ip()),
            }
            .emit();
            let pair = PortPair {
                local: reset.local,
                remote: 0,
            };
            let ports = PortRange {
                first: reset.to.port(),
                count: 1,
            };
            // One that is lost is asked for again by the next packet of that connection.
            let _ = self
                .link
                .send_datagram(pair, *reset.to.ip(), ports, &datagram);
        }
    }

    fn send_chunks(&mut self) -> bool {
        let mut left = CHUNKS_PER_TURN;
        while left > 0 && self.may_send() {
            let Some(id) = self.connections.turns.next() else {
                break;
            };
            let before = left;
            if self.send_share(id, &mut left) {
                self.connections.join_turns(id);
            }
            if left < before {
                self.connections.rest(id);
            }
        }
        left < CHUNKS_PER_TURN
    }

    fn may_send(&mut self) -> bool {
        let now = self.clock.now();
        self.cap.as_mut().is_none_or(|cap| cap.may_send(now))
    }

    /// Sends one connection's share, at most `left` chunks. Answers whether it may have more.
    fn send_share(&mut self, id: ConnectionId, left: &mut usize) -> bool {
        let Some((open, ..)) = self.connections.open(id) else {
            return false;
        };
        open.account.begin();
        if open.stalled.is_some() {
            return false;
        }
        loop {
            let Some((open, paths, rng)) = self.connections.open(id) else {
                return false;
            };
            if *left == 0 || !open.account.may_send() {
                return true;
            }
            let now = self.clock.now();
            // A turn is a chunk of full size, so whoever is stopped here has had its part.
            if self.cap.as_mut().is_some_and(|cap| !cap.may_send(now)) {
                return true;
            }
            let Some(chunk) = open.poll_chunk(now, paths, rng) else {
                return false;
            };
            *left -= 1;
            if let Some(cap) = &mut self.cap {
                let packets = u64::from(chunk.packets());
                let last = chunk.packets().saturating_sub(1);
                let payload = chunk.payload(last).end - chunk.payload(0).start;
                cap.charge(payload + packets * OVERHEAD_BYTES as u64, packets);
            }
            if !self.send_chunk(id, Stalled { chunk, next: 0 }) {
                return false;
            }
        }
    }

    /// Sends a chunk, or what is left of it. Answers false when its port is blocked.
    fn send_chunk(&mut self, id: ConnectionId, work: Stalled) -> bool {
        let Stalled { chunk, next } = work;
        let Some((open, ..)) = self.connections.open(id) else {
            return true;
        };
        let Some(source) = open.source(&chunk) else {
            return true;
        };
        self.frame.clear();
        let mut bytes = 0;
        for packet in 0..chunk.packets() {
            let range = chunk.payload(packet);
            let range = range.start as usize..range.end as usize;
            let header = chunk.header(packet);
            let payload = &source[range];
            let trailer = chunk.trailer(&header, payload);
            bytes += header.len() + payload.len() + trailer.len();
            self.frame.push(&header, payload, &trailer);
        }
        let pair = PortPair::of_path(chunk.path.0, open.ports);
        let sent = self
            .link
            .send(pair, open.address, open.ports, &self.frame, next);
        let (next, retry_at) = match sent {
            Ok(()) => {
                open.account.charge(bytes);
                return true;
            }
            Err(Unsent::Dropped(refusal)) => {
                // To recovery it is a loss; the link has counted why.
                open.account.charge(bytes);
                self.tell_refusal(refusal);
                return true;
            }
            Err(Unsent::Blocked { next }) => (next, None),
            Err(Unsent::NoBuffers { next }) => (next, Some(self.clock.now() + RETRY_AFTER)),
        };
        self.put_off(id, pair.local, Stalled { chunk, next }, retry_at);
        false
    }

    /// Keeps what a port did not take until `retry_at`, or else until the port is writable.
    fn put_off(&mut self, id: ConnectionId, port: usize, work: Stalled, retry_at: Option<Time>) {
        if let Some((open, ..)) = self.connections.open(id) {
            open.stalled = Some(work);
        }
        let blocked = &mut self.blocked[port];
        blocked.connections.push_back(id);
        blocked.retry_at = retry_at;
        if retry_at.is_none() {
            self.watch_writable(port, true);
        }
    }

    fn retry_blocked(&mut self, now: Time) -> bool {
        let mut retried = false;
        for port in 0..self.blocked.len() {
            if self.blocked[port].retry_at.is_none_or(|at| at > now) {
                continue;
            }
            self.blocked[port].retry_at = None;
            self.watch_writable(port, false);
            for _ in 0..self.blocked[port].connections.len() {
                let Some(id) = self.blocked[port].connections.pop_front() else {
                    break;
                };
                let Some((open, ..)) = self.connections.open(id) else {
                    continue;
                };
                let Some(work) = open.stalled.take() else {
                    continue;
                };
                retried = true;
                if !self.send_chunk(id, work) {
                    // The port is full again; the others keep their places.
                    break;
                }
                self.connections.join_turns(id);
            }
        }
        retried
    }

    fn watch_writable(&mut self, port: usize, watch: bool) {
        // Fails only when the descriptor is none, which it is for as long as the link lives.
        let watched = self
            .link
            .watch_writable(self.poll.registry(), PORTS, port, watch);
        debug_assert!(watched.is_ok());
    }

    fn tell_refusal(&mut self, refusal: Refusal) {
        if refusal == Refusal::TooBig && !self.told_too_big {
            self.told_too_big = true;
            tracing::error!(
                datagram_bytes = self.link.config().datagram_bytes,
                "the device's MTU has become smaller than the engine's mtu: raise it or lower mtu"
            );
        }
    }

    /// Sleeps until a socket, a command or a timer has something, at most `limit`.
    fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.pay_acks();
        let retry = self
            .blocked
            .iter()
            .filter_map(|blocked| blocked.retry_at)
            .min();
        // A port whose receive calls failed may hold something that epoll has told of already.
        let unread = self.readable.contains(&true);
        let unread = unread.then(|| self.clock.now() + RETRY_AFTER);
        // Somebody waits for the cap, if anybody waits at all: nothing else ends a turn early.
        let waits = !self.connections.turns.is_empty();
        let cap = self.cap.as_ref().filter(|_| waits).and_then(Cap::next);
        let due = [self.connections.next_timer(), retry, unread, cap]
            .into_iter()
            .flatten()
            .min();
        let until = due.map(|due| self.clock.until(due));
        let timeout = [until, limit].into_iter().flatten().min();
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Ok(());
        }
        let commands = &self.commands;
        self.doze.sleep(&self.poll, timeout, || commands.is_empty())
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            link: *self.link.counters(),
            buffers: self.link.granted_buffers(),
            ..self.connections.snapshot()
        }
    }
}

/// A worker that died would leave its connections silent for ever; the process goes with it, and
/// whoever supervises it starts it again.
struct AbortOnPanic {
    worker: usize,
    config: UdpConfig,
}

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                worker = self.worker, address = %self.config.address, ports = %self.config.ports,
                "a worker of the engine has panicked: the process ends"
            );
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests;
