//! `AttemptHandle`: an attempt with what the commands on it have made.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use weft_engine::DomainId;
use weft_proto::Message;
use weft_proto::agent::v1::{AttemptRef, ConnectResponse, JobName, Location, PrepareResponse};

use crate::config::SLOTS_MIN;
use crate::fail_fast;
use crate::fault::Fault;
use crate::files::Leftover;
use crate::transfer::attempt::{Attempt, WorkGuard};
use crate::transfer::buffers::{BufferReservation, MemoryBudget};
use crate::transfer::destination_blocks::DestinationBlocks;
use crate::transfer::state::{Event, Transition};

/// Owned by [`AttemptRegistry`](crate::control::attempt_registry::AttemptRegistry), and shared with the commands on the attempt.
#[derive(Debug)]
pub struct AttemptHandle {
    /// Its state.
    pub attempt: Arc<Attempt>,
    /// The job's name, as a command has given it.
    name: OnceLock<JobName>,
    /// Prepare or Start has come.
    is_begun: AtomicBool,
    /// Its regions and connections in the engine.
    pub(crate) domain: DomainId,
    /// What all attempts of its job may have left.
    leftover: Arc<Mutex<Leftover>>,
    resources: Mutex<AttemptResources>,
}

/// What the commands on an attempt have made.
#[derive(Debug, Default)]
pub(crate) struct AttemptResources {
    /// By call: the hash of the first request.
    requests: HashMap<&'static str, blake3::Hash>,
    /// Until the attempt is over: it holds the destination's lock.
    pub(crate) prepared: Option<Arc<Prepared>>,
    pub(crate) prepare_response: Option<PrepareResponse>,
    /// The part of the memory budget that Prepare has taken, until the attempt receives.
    pub(crate) buffers: Option<BufferReservation>,
    /// The connection that was agreed on with the parent.
    pub(crate) connected: Option<ConnectResponse>,
}

/// A prepared destination.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) blocks: Arc<DestinationBlocks>,
    pub(crate) location: Location,
}

impl AttemptResources {
    /// The buffers to receive with.
    pub(crate) fn take_buffers(
        &mut self,
        memory: &Arc<MemoryBudget>,
    ) -> Result<BufferReservation, Fault> {
        let buffers = self.buffers.take();
        buffers.map_or_else(|| memory.reserve(usize::from(SLOTS_MIN)), Ok)
    }
}

impl AttemptHandle {
    pub(crate) fn new(
        attempt_ref: &AttemptRef,
        domain: DomainId,
        leftover: Arc<Mutex<Leftover>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            attempt: Attempt::new(attempt_ref.clone()),
            name: OnceLock::new(),
            is_begun: AtomicBool::new(false),
            domain,
            leftover,
            resources: Mutex::default(),
        })
    }

    /// Prepare or Start has come. Takes the job's name from it, if it has one; a later command changes nothing.
    pub(crate) fn begin(&self, name: Option<JobName>) {
        self.is_begun.store(true, Ordering::Relaxed);
        if let Some(name) = name {
            let _ = self.name.set(name);
        }
    }

    /// The job's name, or its UID in no namespace.
    pub(crate) fn name(&self) -> JobName {
        let uid = || JobName {
            name: self.attempt.attempt_ref.uid.clone(),
            ..JobName::default()
        };
        self.name.get().cloned().unwrap_or_else(uid)
    }

    /// Whether Prepare or Start has come: of an attempt that Cancel alone has made known, nothing ever ran here.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::Relaxed)
    }

    pub(crate) fn resources(&self) -> MutexGuard<'_, AttemptResources> {
        fail_fast::lock(&self.resources)
    }

    /// Locked until the files are removed, so only threads that may block call this.
    pub(crate) fn leftover(&self) -> MutexGuard<'_, Leftover> {
        fail_fast::lock(&self.leftover)
    }

    /// Registers a request; returns whether it is the first of its kind. A repetition must be the same request.
    pub(crate) fn register_request(
        &self,
        call: &'static str,
        request: &impl Message,
    ) -> Result<bool, Fault> {
        let hash = blake3::hash(&request.encode_to_vec());
        let attempt_ref = &self.attempt.attempt_ref;
        match self.resources().requests.entry(call) {
            Entry::Vacant(first) => {
                first.insert(hash);
                Ok(true)
            }
            Entry::Occupied(first) if *first.get() == hash => Ok(false),
            Entry::Occupied(_) => Err(Fault::Conflicting {
                call,
                uid: attempt_ref.uid.clone(),
                attempt: attempt_ref.number,
            }),
        }
    }

    /// Counts one more worker of the attempt, unless the attempt refuses workers.
    pub(crate) fn begin_work(&self) -> Result<WorkGuard, Fault> {
        let worker = self.attempt.begin_work();
        worker.ok_or_else(|| self.not_ready("prepare the next attempt"))
    }

    /// The prepared destination.
    pub(crate) fn prepared(&self) -> Result<Arc<Prepared>, Fault> {
        let prepared = self.resources().prepared.clone();
        prepared.ok_or_else(|| self.not_ready("prepare it first"))
    }

    /// Begins to receive into the prepared destination.
    pub(crate) fn start_destination(&self) -> Result<(WorkGuard, Arc<DestinationBlocks>), Fault> {
        // Before the state changes: a Cancel that comes now waits for this worker.
        let worker = self.begin_work()?;
        let prepared = self.prepared()?;
        self.apply(Event::StartDestination)?;
        Ok((worker, prepared.blocks.clone()))
    }

    /// Applies an event, or says why the attempt is in no state for it.
    pub(crate) fn apply(&self, event: Event) -> Result<(), Fault> {
        match self.attempt.apply(event) {
            Transition::Refuse => Err(self.not_ready("prepare the next attempt")),
            Transition::To(_) | Transition::Stay => Ok(()),
        }
    }

    /// Why the attempt is in no state for a call.
    pub(crate) fn not_ready(&self, remedy: &'static str) -> Fault {
        let status = self.attempt.status();
        let attempt_ref = &self.attempt.attempt_ref;
        status.fault.unwrap_or_else(|| Fault::NotReady {
            uid: attempt_ref.uid.clone(),
            attempt: attempt_ref.number,
            state: status.state.to_string(),
            remedy,
        })
    }
}
