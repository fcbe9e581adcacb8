//! A transfer that this process is at: a task of its own, which says how far it is.

use std::{sync::Arc, time::Duration};

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
    },
};
use weft_transfer::{AgentEndpoint, Cleanup, ConnectionPool, Job, MembershipUpdate, Runner};

/// Between two snapshots while nothing but bytes change: agents report once a second.
const TICK: Duration = Duration::from_secs(1);

/// Dropping it ends the task; agents are told nothing, and end the attempt themselves some time.
pub(crate) struct TransferTask {
    key: Key,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    instructions: UnboundedSender<Instruction>,
    seen_revision: Option<u64>,
    members: Option<JobMembers>,
    task: JoinHandle<()>,
}

/// Who is to have a copy, and how they are reached.
type JobMembers = (MembershipUpdate, Vec<AgentEndpoint>);

/// What a transfer is told.
enum Instruction {
    /// Attempts up to this number may begin.
    AttemptRecorded(u32),
    /// It is to end.
    Cancel(Cleanup),
    UpdateMembers(Box<JobMembers>),
}

impl TransferTask {
    /// Begins to move bytes, or to tell agents that the transfer is over and what they remove.
    pub(crate) fn new(
        key: Key,
        transfer: TransferRequest,
        cancel_with: Option<Cleanup>,
        pool: &ConnectionPool,
        changed: Arc<Notify>,
    ) -> Self {
        let TransferRequest {
            fabric,
            spec,
            endpoints,
        } = transfer;
        let pool = pool.of_fabric(&fabric);
        let runner = match cancel_with {
            None => Runner::begin(spec, pool, &endpoints),
            Some(cleanup) => Runner::cancelled(spec, cleanup, pool, &endpoints),
        };
        let (instructions, instructed) = unbounded_channel();
        let first = Snapshot::of(runner.job(), &fabric, 0);
        let (tell, snapshot) = watch::channel(Arc::new(first));
        let runner = Box::new(runner.waiting_for_records());
        let task = tokio::spawn(drive(fabric, runner, instructed, tell, changed));
        Self {
            key,
            snapshot,
            instructions,
            seen_revision: None,
            members: None,
            task,
        }
    }

    /// The node revision of the cache that it has last been told of.
    pub(crate) fn seen_revision(&self) -> Option<u64> {
        self.seen_revision
    }

    /// The nodes have changed: these are the destinations now, where that can be said.
    pub(crate) fn update_members(&mut self, revision: u64, members: Option<Box<JobMembers>>) {
        self.seen_revision = Some(revision);
        if let Some(members) = members.filter(|members| self.members.as_ref() != Some(members)) {
            self.members = Some((*members).clone());
            self.tell(Instruction::UpdateMembers(members));
        }
    }

    /// How far it is.
    pub(crate) fn snapshot(&mut self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow_and_update())
    }

    /// The same for who only asks: it stays news for whoever decides.
    pub(crate) fn peek(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    /// Its job, if there is something that nobody has asked for yet.
    pub(crate) fn unseen_change(&self) -> Option<&Key> {
        // The task has ended: that is news for whoever looks whether it is lost.
        let is_new = self.snapshot.has_changed().unwrap_or(true);
        is_new.then_some(&self.key)
    }

    /// Its job.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// It ended without saying how: a bug.
    pub(crate) fn is_lost(&self) -> bool {
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

/// What is told at once when it changes. The rest is told once a second.
fn urgent_fields(job: &Job) -> impl PartialEq + use<> {
    (
        job.phase(),
        job.unrecorded_attempt(),
        job.attempt(),
        job.end(),
    )
}

async fn drive(
    fabric: String,
    mut runner: Box<Runner>,
    mut instructions: UnboundedReceiver<Instruction>,
    tell: watch::Sender<Arc<Snapshot>>,
    changed: Arc<Notify>,
) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut meter, mut rate) = (RateMeter::default(), 0);
    let mut told = None;
    loop {
        let mut is_due = false;
        tokio::select! {
            () = runner.turn() => {}
            // A rate falls with time, though nothing is heard.
            _ = ticks.tick() => {
                is_due = true;
                rate = meter.mark(runner.now(), runner.job().bytes_moved());
            }
            Some(instruction) = instructions.recv() => match instruction {
                Instruction::AttemptRecorded(attempt) => runner.attempt_recorded(attempt),
                Instruction::Cancel(cleanup) => runner.cancel(cleanup),
                Instruction::UpdateMembers(members) => runner.update_members(members.0, &members.1),
            }
        }
        let job = runner.job();
        let urgent = Some(urgent_fields(job));
        if is_due || told != urgent {
            told = urgent;
            let snapshot = Snapshot::of(job, &fabric, rate);
            let is_new = tell.send_if_modified(|old| {
                let is_other = **old != snapshot;
                if is_other {
                    *old = Arc::new(snapshot);
                }
                is_other
            });
            if is_new {
                changed.notify_one();
            }
        }
        if job.is_over() {
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
        let mut work = TransferTask::new(scenario::minilm(), transfer, None, &pool, wake);
        assert_eq!(work.peek().phase, TransferPhase::Listing);
        let begun = Instant::now();
        changed.notified().await;
        assert_eq!(work.snapshot().phase, TransferPhase::Waiting);
        assert!(begun.elapsed() < TICK);
        // Stat is tried again after a second, then after two more, and fails at once.
        let until = begun + 6 * TICK;
        while tokio::time::timeout_at(until, changed.notified())
            .await
            .is_ok()
        {
            assert_ne!(work.snapshot().phase, TransferPhase::Running);
        }
        assert_eq!(work.unseen_change(), None);
    }
}
