//! A transfer that this process is at: a task of its own, which says how far it is.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use super::{
    resolve::Transfer,
    snapshot::{Pace, Snapshot},
};
use crate::{
    authority::Authority,
    transfer::{Course, End, Runner, RunnerError},
};

/// Between two looks while nothing but bytes change: agents report once a second.
const LOOK: Duration = Duration::from_millis(250);

/// Dropping it ends the task; agents are told nothing, and end the attempt themselves some time.
pub(super) struct Work {
    snapshot: watch::Receiver<Snapshot>,
    permits: watch::Sender<u32>,
    stop: watch::Sender<Option<bool>>,
    task: JoinHandle<()>,
}

impl Work {
    /// Begins to move bytes.
    pub(super) fn begin(
        transfer: Transfer,
        authority: Arc<Authority>,
        changed: Arc<Notify>,
    ) -> Result<Self, RunnerError> {
        let runner = Runner::begin(transfer.spec, authority, &transfer.contacts)?;
        Ok(Self::drive(runner, changed))
    }

    /// Begins to tell agents that it is over.
    pub(super) fn withdraw(
        transfer: Transfer,
        discard: bool,
        authority: Arc<Authority>,
        changed: Arc<Notify>,
    ) -> Result<Self, RunnerError> {
        let runner = Runner::withdraw(transfer.spec, discard, authority, &transfer.contacts)?;
        Ok(Self::drive(runner, changed))
    }

    fn drive(runner: Runner, changed: Arc<Notify>) -> Self {
        let (permits, permitted) = watch::channel(0);
        let (stop, stopped) = watch::channel(None);
        let (tell, snapshot) = watch::channel(Snapshot::of(runner.job(), 0));
        let runner = runner.heeding(permitted);
        let task = tokio::spawn(drive(runner, stopped, tell, changed));
        Self {
            snapshot,
            permits,
            stop,
            task,
        }
    }

    /// How far it is.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.snapshot.borrow().clone()
    }

    /// It ended without an outcome: a bug.
    pub(super) fn is_lost(&self) -> bool {
        self.task.is_finished() && self.snapshot.borrow().outcome.is_none()
    }

    /// Attempts up to this number may begin.
    pub(super) fn permit(&self, attempt: u32) {
        self.permits
            .send_if_modified(|permit| std::mem::replace(permit, attempt) != attempt);
    }

    /// It is to end.
    pub(super) fn stop(&self, discard: bool) {
        self.stop
            .send_if_modified(|stop| stop.replace(discard) != Some(discard));
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is told at once when it changes.
type Mark = (Course, Option<u32>, u32, Option<End>);

async fn drive(
    mut runner: Runner,
    mut stop: watch::Receiver<Option<bool>>,
    tell: watch::Sender<Snapshot>,
    changed: Arc<Notify>,
) {
    let mut pace = Pace::default();
    let mut told: Option<(Duration, Mark)> = None;
    loop {
        let (job, now) = (runner.job(), runner.now());
        let mark = (job.course(), job.claims(), job.attempt(), job.end());
        if told.is_none_or(|(at, before)| before != mark || now >= at + LOOK) {
            let rate = pace.mark(now, job.bytes_moved());
            tell.send_replace(Snapshot::of(job, rate));
            changed.notify_one();
            told = Some((now, mark));
        }
        if runner.job().is_over() {
            return;
        }
        tokio::select! {
            () = runner.turn() => {}
            Ok(()) = stop.changed() => {
                let discard = *stop.borrow_and_update();
                if let Some(discard) = discard {
                    runner.stop(discard);
                }
            }
        }
    }
}
