//! A host: the worker's state that a restart loses, and the packets that wait for its turn.

use std::collections::{BTreeMap, BTreeSet};

use weft_core::path::{PathSet, PathSetConfig};
use weft_core::units::{ConnectionId, Nanos, Rng, Time};

use crate::network::Packet;
use crate::observation::End;

/// One host with one worker.
#[derive(Debug)]
pub struct Host {
    /// Whether its process runs.
    pub up: bool,
    /// Whether it will ever run again.
    pub gone: bool,
    /// Its worker has no turn before this.
    pub paused_until: u64,
    /// Its regions take nothing before this: their buffers are with their owners.
    pub away_until: u64,
    /// The worker's next turn that is in the heap, if any.
    pub turn_at: Option<u64>,
    /// What has arrived since the last turn.
    pub inbox: Vec<Packet>,
    /// One per other host.
    pub paths: Vec<PathSet>,
    /// The ends of its connections, by the id that their packets name.
    pub ends: BTreeMap<ConnectionId, End>,
    /// The same, by the id that they send to: how a reset finds its connection.
    pub ends_by_remote: BTreeMap<ConnectionId, End>,
    /// The ends with something to look at in the next turn. As in the engine, the others are not
    /// looked at: what wakes them has to be named.
    pub touched: BTreeSet<End>,
    /// Turns in a row in which nothing happened though a timer was due.
    pub idle_turns: u32,
    /// What the core draws from.
    pub rng: Rng,
    /// Its clock's start: local time 0, in virtual nanoseconds before the run's start.
    clock_start: i128,
}

impl Host {
    /// A host that runs, with connections to none; its clock shows `clock` at the run's start.
    pub fn new(hosts: usize, paths: &PathSetConfig, rng: Rng, clock: u64) -> Host {
        Host {
            up: true,
            gone: false,
            paused_until: 0,
            away_until: 0,
            turn_at: None,
            inbox: Vec::new(),
            paths: (0..hosts).map(|_| PathSet::new(paths)).collect(),
            ends: BTreeMap::new(),
            ends_by_remote: BTreeMap::new(),
            touched: BTreeSet::new(),
            idle_turns: 0,
            rng,
            clock_start: -i128::from(clock),
        }
    }

    /// The host's clock at `now` of the run.
    pub fn clock(&self, now: u64) -> Time {
        let local = i128::from(now) - self.clock_start;
        Time::from_nanos(u64::try_from(local).unwrap_or(0))
    }

    /// The moment of the run at which the host's clock shows `local`.
    pub fn run_time(&self, local: Time) -> u64 {
        let run = i128::from(local.as_nanos()) + self.clock_start;
        u64::try_from(run.max(0)).unwrap_or(u64::MAX)
    }

    /// A new process has a new clock, which starts now.
    pub fn restart_clock(&mut self, now: u64) {
        self.clock_start = i128::from(now);
    }

    /// A new process knows no paths.
    pub fn forget_paths(&mut self, paths: &PathSetConfig) {
        self.paths
            .iter_mut()
            .for_each(|set| *set = PathSet::new(paths));
    }

    /// The worker does not run for `takes`.
    pub fn pause(&mut self, now: u64, takes: Nanos) {
        self.paused_until = self.paused_until.max(now + takes.get());
    }
}
