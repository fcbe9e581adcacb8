//! A host of a run: its process, its memory and its clock.

use std::collections::BTreeMap;

use weft_core::drops::Drops;
use weft_core::endpoint::SavedConnection;
use weft_core::memory::{Place, Ticket};
use weft_core::units::{ConnectionId, Key, Nanos, Time};

use crate::host::Host;
use crate::network::Packet;
use crate::observation::End;
use crate::target::Regions;

/// What runs on it.
#[derive(Debug)]
pub enum Process {
    /// A worker with its endpoint.
    Running(Box<Host>),
    /// Nothing: the process is being replaced, and these are the connections that it has saved.
    Replaced(Vec<SavedConnection<usize>>),
    /// Nothing, and everything is lost.
    Dead,
}

/// A payload that another thread is copying.
#[derive(Debug)]
pub struct Copying {
    /// When it is there.
    pub ends_at: u64,
    /// The placement.
    pub ticket: Ticket,
    /// Where it goes.
    pub place: Place,
    /// The payload.
    pub payload: Vec<u8>,
}

/// One host.
#[derive(Debug)]
pub struct Machine {
    /// What runs on it.
    pub process: Process,
    /// Tells its lives apart.
    pub generation: u64,
    /// Whether it will never run again.
    pub gone: bool,
    /// What its connections may write to.
    pub regions: Regions,
    /// What lies in words that were added to.
    pub words: BTreeMap<(Key, u64), u64>,
    /// Payloads that another thread is copying.
    pub copies: Vec<Copying>,
    /// Its worker has no turn before this.
    pub paused_until: u64,
    /// Its regions take nothing before this: their buffers are with their owners.
    pub away_until: u64,
    /// Its link takes no chunk before this.
    pub link_full_until: u64,
    /// The worker's next turn that is in the heap, if any.
    pub turn_at: Option<u64>,
    /// What has arrived since the last turn.
    pub inbox: Vec<Packet>,
    /// Its ends that are open, by the id that their packets name.
    pub ends: BTreeMap<ConnectionId, End>,
    /// What its endpoint had dropped, beside its connections, when it was last looked at.
    pub drops: Drops,
    /// Turns in a row in which nothing happened though a timer was due.
    pub idle_turns: u32,
    /// Its clock's start: local time 0, in virtual nanoseconds before the run's start.
    clock_start: i128,
}

impl Machine {
    /// A host on which nothing runs yet; its clock shows `clock` at the run's start.
    pub fn new(clock: u64) -> Machine {
        Machine {
            process: Process::Dead,
            generation: 1,
            gone: false,
            regions: Regions::default(),
            words: BTreeMap::new(),
            copies: Vec::new(),
            paused_until: 0,
            away_until: 0,
            link_full_until: 0,
            turn_at: None,
            inbox: Vec::new(),
            ends: BTreeMap::new(),
            drops: Drops::default(),
            idle_turns: 0,
            clock_start: -i128::from(clock),
        }
    }

    /// Its process, if it runs.
    pub fn running(&mut self) -> Option<&mut Host> {
        match &mut self.process {
            Process::Running(host) => Some(host),
            Process::Replaced(_) | Process::Dead => None,
        }
    }

    /// Whether its process runs.
    pub fn is_up(&self) -> bool {
        matches!(self.process, Process::Running(_))
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

    /// The worker does not run for `takes`.
    pub fn pause(&mut self, now: u64, takes: Nanos) {
        self.paused_until = self.paused_until.max(now + takes.get());
    }
}
