//! A transfer that this process runs: a task of its own, which says how far it is.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use opentelemetry_sdk::trace::SdkTracer;
use tokio::{
    sync::{
        Notify,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        watch,
    },
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use crate::controllers::{
    cache::Key,
    job::{
        resolve::TransferRequest,
        snapshot::{RateMeter, Snapshot},
        trace::JobTrace,
    },
};
use weft_transfer::{AgentEndpoint, Cleanup, ConnectionPool, DestinationsUpdate, Runner, Transfer};

/// Between two snapshots while nothing but bytes change: agents report once a second.
const TICK: Duration = Duration::from_secs(1);

/// Dropping it ends the task. The agents are not called: they end the attempt when its lease runs out.
pub(crate) struct TransferTask {
    key: Key,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    instructions: UnboundedSender<Instruction>,
    applied_node_revision: Option<u64>,
    destinations: Option<DestinationsAndEndpoints>,
    task: JoinHandle<()>,
}

/// Who is to have a copy, and how they are reached.
type DestinationsAndEndpoints = (DestinationsUpdate, Vec<AgentEndpoint>);

/// What the task is asked to do.
enum Instruction {
    /// Attempts up to this number may begin.
    AttemptRecorded(u32),
    /// It is to end.
    Cancel(Cleanup),
    UpdateDestinations(Box<DestinationsAndEndpoints>),
}

impl TransferTask {
    /// Begins to move bytes, or to tell agents that the transfer is over and what they remove. With a tracer, what moves
    /// bytes is traced.
    pub(crate) fn new(
        key: Key,
        transfer: TransferRequest,
        cancel_with: Option<Cleanup>,
        pool: &ConnectionPool,
        tracer: Option<&SdkTracer>,
        changed: Arc<Notify>,
    ) -> Self {
        let TransferRequest {
            fabric,
            spec,
            endpoints,
        } = transfer;
        let pool = pool.of_fabric(&fabric);
        let tracer = tracer.filter(|_| cancel_with.is_none()).cloned();
        let trace = tracer.map(|it| JobTrace::begin(it, &key, &fabric, SystemTime::now()));
        let runner = match cancel_with {
            None => Runner::begin(spec, pool, &endpoints),
            Some(cleanup) => Runner::cancelled(spec, cleanup, pool, &endpoints),
        };
        let (instructions, receiver) = unbounded_channel();
        let first = Snapshot::of(runner.transfer(), &fabric, 0);
        let (publisher, snapshot) = watch::channel(Arc::new(first));
        let runner = Box::new(runner.requiring_recorded_attempts());
        let task = tokio::spawn(drive(fabric, runner, trace, receiver, publisher, changed));
        Self {
            key,
            snapshot,
            instructions,
            applied_node_revision: None,
            destinations: None,
            task,
        }
    }

    /// The node revision of the cache that it was last updated from.
    pub(crate) fn applied_node_revision(&self) -> Option<u64> {
        self.applied_node_revision
    }

    /// The nodes have changed: these are the destinations now, where that can be said.
    pub(crate) fn update_destinations(
        &mut self,
        revision: u64,
        update: Option<Box<DestinationsAndEndpoints>>,
    ) {
        self.applied_node_revision = Some(revision);
        if let Some(update) = update.filter(|update| self.destinations.as_ref() != Some(update)) {
            self.destinations = Some((*update).clone());
            self.tell(Instruction::UpdateDestinations(update));
        }
    }

    /// How far it is.
    pub(crate) fn snapshot(&mut self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow_and_update())
    }

    /// Reads the snapshot without marking it as read.
    pub(crate) fn peek(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    /// Whether there is a snapshot that the controller has not read yet.
    pub(crate) fn has_new_snapshot(&self) -> bool {
        // A finished task counts as a change: the controller checks whether it crashed.
        self.snapshot.has_changed().unwrap_or(true)
    }

    /// Its job.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Whether it ended without an outcome, which is a bug.
    pub(crate) fn has_crashed(&self) -> bool {
        self.task.is_finished() && self.snapshot.borrow().end.is_none()
    }

    /// Attempts up to this number may begin.
    pub(crate) fn attempt_recorded(&self, attempt: u32) {
        self.tell(Instruction::AttemptRecorded(attempt));
    }

    /// Cancels the transfer. May be repeated: one that was about to end by itself ignores a cancel, and may
    /// then go on.
    pub(crate) fn cancel(&self, cleanup: Cleanup) {
        self.tell(Instruction::Cancel(cleanup));
    }

    fn tell(&self, instruction: Instruction) {
        // A task that has ended needs no instruction.
        let _ = self.instructions.send(instruction);
    }
}

impl Drop for TransferTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is published at once when it changes. Everything else is published once a second.
fn urgent_fields(transfer: &Transfer) -> impl PartialEq + use<> {
    (
        transfer.phase(),
        transfer.unrecorded_attempt(),
        transfer.attempt(),
        transfer.end(),
    )
}

async fn drive(
    fabric: String,
    mut runner: Box<Runner>,
    mut trace: Option<JobTrace>,
    mut instructions: UnboundedReceiver<Instruction>,
    publisher: watch::Sender<Arc<Snapshot>>,
    changed: Arc<Notify>,
) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut meter, mut rate) = (RateMeter::default(), 0);
    let mut published = None;
    loop {
        let mut is_due = false;
        tokio::select! {
            () = runner.run_once() => {}
            // A rate falls with time, though nothing is heard.
            _ = ticks.tick() => {
                is_due = true;
                rate = meter.sample(runner.now(), runner.transfer().bytes_received());
            }
            Some(instruction) = instructions.recv() => match instruction {
                Instruction::AttemptRecorded(attempt) => runner.attempt_recorded(attempt),
                Instruction::Cancel(cleanup) => runner.cancel(cleanup),
                Instruction::UpdateDestinations(update) => runner.update_destinations(update.0, &update.1),
            }
        }
        let transfer = runner.transfer();
        if let Some(trace) = &mut trace {
            trace.observe(transfer, SystemTime::now());
        }
        let urgent = Some(urgent_fields(transfer));
        if is_due || published != urgent {
            published = urgent;
            let snapshot = Snapshot::of(transfer, &fabric, rate);
            let is_new = publisher.send_if_modified(|old| {
                let differs = **old != snapshot;
                if differs {
                    *old = Arc::new(snapshot);
                }
                differs
            });
            if is_new {
                changed.notify_one();
            }
        }
        if transfer.is_over() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use weft_identity::authority::Authority;
    use weft_transfer::TransferPhase;

    use super::*;
    use crate::controllers::{job::resolve::resolve, membership::Membership, tests::scenario};

    #[tokio::test(start_paused = true)]
    async fn another_phase_is_told_at_once_and_what_stands_still_wakes_nobody() {
        let cache = scenario::cache(2);
        let job = scenario::job("minilm");
        let transfer = resolve(&job, &cache, &Membership::of(&cache), 1).unwrap();
        // Nobody can be called.
        let transfer = TransferRequest {
            endpoints: Vec::new(),
            ..transfer
        };
        let pool = ConnectionPool::new(Arc::new(Authority::new("weft").unwrap()));
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        let mut task = TransferTask::new(scenario::minilm(), transfer, None, &pool, None, wake);
        assert_eq!(task.peek().phase, TransferPhase::Listing);
        let begun = Instant::now();
        changed.notified().await;
        assert_eq!(task.snapshot().phase, TransferPhase::BetweenAttempts);
        assert!(begun.elapsed() < TICK);
        // Stat is tried again after a second, then after two more, and fails at once.
        let until = begun + 6 * TICK;
        while tokio::time::timeout_at(until, changed.notified())
            .await
            .is_ok()
        {
            assert_ne!(task.snapshot().phase, TransferPhase::Running);
        }
        assert!(!task.has_new_snapshot());
    }
}
