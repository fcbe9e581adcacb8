//! A transfer that this process is at: a task of its own, which says how far it is.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use super::{
    resolve::Transfer,
    snapshot::{Pace, Snapshot},
    world::Key,
};
use crate::transfer::{Channels, Contact, Course, End, Removal, Roster, Runner};

/// Between two looks while nothing but bytes change: agents report once a second.
const LOOK: Duration = Duration::from_secs(1);

/// Dropping it ends the task; agents are told nothing, and end the attempt themselves some time.
pub(super) struct Work {
    key: Key,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    permits: watch::Sender<u32>,
    stop: watch::Sender<Option<Stop>>,
    people: watch::Sender<Option<Arc<People>>>,
    met: Option<u64>,
    task: JoinHandle<()>,
}

/// Whether partial files go, and which verified copies.
type Stop = (bool, Vec<Removal>);

/// Who is to have a copy, and how they are reached.
type People = (Roster, Vec<Contact>);

impl Work {
    /// Begins to move bytes.
    pub(super) fn begin(
        key: Key,
        transfer: Transfer,
        channels: &Channels,
        changed: Arc<Notify>,
    ) -> Self {
        let channels = channels.of_fabric(&transfer.fabric);
        let runner = Runner::begin(transfer.spec, channels, &transfer.contacts);
        Self::drive(key, transfer.fabric, runner, changed)
    }

    /// Begins to tell agents that it is over.
    pub(super) fn withdraw(
        key: Key,
        transfer: Transfer,
        end: Stop,
        channels: &Channels,
        changed: Arc<Notify>,
    ) -> Self {
        let channels = channels.of_fabric(&transfer.fabric);
        let runner = Runner::withdraw(transfer.spec, end, channels, &transfer.contacts);
        Self::drive(key, transfer.fabric, runner, changed)
    }

    fn drive(key: Key, fabric: String, runner: Runner, changed: Arc<Notify>) -> Self {
        let (permits, permitted) = watch::channel(0);
        let (stop, stopped) = watch::channel(None);
        let (people, met) = watch::channel(None);
        let first = Snapshot::of(runner.job(), &fabric, 0);
        let (tell, snapshot) = watch::channel(Arc::new(first));
        let runner = runner.heeding(permitted);
        let task = tokio::spawn(drive(fabric, runner, (stopped, met), tell, changed));
        Self {
            key,
            snapshot,
            permits,
            stop,
            people,
            met: None,
            task,
        }
    }

    /// The layout of the world that it has last been told of.
    pub(super) fn met(&self) -> Option<u64> {
        self.met
    }

    /// The world has another layout.
    pub(super) fn meet(&mut self, layout: u64, who: Option<Box<People>>) {
        self.met = Some(layout);
        if let Some(who) = who {
            self.people.send_if_modified(|old| {
                let is_other = old.as_deref() != Some(&*who);
                if is_other {
                    *old = Some(Arc::from(who));
                }
                is_other
            });
        }
    }

    /// How far it is.
    pub(super) fn snapshot(&mut self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow_and_update())
    }

    /// The same for who only asks: it stays news for whoever decides.
    pub(super) fn look(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    /// Its job, if there is something that nobody has asked for yet.
    pub(super) fn news(&self) -> Option<&Key> {
        // The task has ended: that is news for whoever looks whether it is lost.
        let is_new = self.snapshot.has_changed().unwrap_or(true);
        is_new.then_some(&self.key)
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
    pub(super) fn stop(&self, discard: bool, remove: Vec<Removal>) {
        let end = Some((discard, remove));
        self.stop.send_if_modified(|stop| {
            let is_other = *stop != end;
            if is_other {
                *stop = end;
            }
            is_other
        });
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
    fabric: String,
    mut runner: Runner,
    (mut stop, mut people): (
        watch::Receiver<Option<Stop>>,
        watch::Receiver<Option<Arc<People>>>,
    ),
    tell: watch::Sender<Arc<Snapshot>>,
    changed: Arc<Notify>,
) {
    let mut pace = Pace::default();
    let mut told: Option<(Duration, Mark)> = None;
    loop {
        let (job, now) = (runner.job(), runner.now());
        let mark = (job.course(), job.claims(), job.attempt(), job.end());
        if told.is_none_or(|(at, before)| before != mark || now >= at + LOOK) {
            let rate = pace.mark(now, job.bytes_moved());
            tell.send_replace(Arc::new(Snapshot::of(job, &fabric, rate)));
            changed.notify_one();
            told = Some((now, mark));
        }
        if runner.job().is_over() {
            return;
        }
        tokio::select! {
            () = runner.turn() => {}
            Ok(()) = stop.changed() => {
                let end = stop.borrow_and_update().clone();
                if let Some((discard, remove)) = end {
                    runner.stop(discard, remove);
                }
            }
            Ok(()) = people.changed() => {
                let people = people.borrow_and_update().clone();
                if let Some(people) = people {
                    runner.meet(people.0.clone(), &people.1);
                }
            }
        }
    }
}
