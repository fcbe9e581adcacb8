//! A transfer that this process is at: a task of its own, which says how far it is.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use crate::controllers::{
    cache::Key,
    job::{
        resolve::Transfer,
        snapshot::{RateMeter, Snapshot},
    },
};
use weft_transfer::{Cleanup, ConnectionPool, Endpoint, Job, MembershipUpdate, Runner};

/// Between two looks while nothing but bytes change: agents report once a second.
const LOOK: Duration = Duration::from_secs(1);

/// Dropping it ends the task; agents are told nothing, and end the attempt themselves some time.
pub(crate) struct Work {
    key: Key,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    permits: watch::Sender<u32>,
    end: watch::Sender<Option<Cleanup>>,
    people: watch::Sender<Option<Arc<JobMembers>>>,
    met: Option<u64>,
    task: JoinHandle<()>,
}

/// Who is to have a copy, and how they are reached.
type JobMembers = (MembershipUpdate, Vec<Endpoint>);

impl Work {
    /// Begins to move bytes.
    pub(crate) fn begin(
        key: Key,
        transfer: Transfer,
        pool: &ConnectionPool,
        changed: Arc<Notify>,
    ) -> Self {
        let pool = pool.of_fabric(&transfer.fabric);
        let runner = Runner::begin(transfer.spec, pool, &transfer.endpoints);
        Self::drive(key, transfer.fabric, runner, changed)
    }

    /// Begins to tell agents that it is over.
    pub(crate) fn withdraw(
        key: Key,
        transfer: Transfer,
        cleanup: Cleanup,
        pool: &ConnectionPool,
        changed: Arc<Notify>,
    ) -> Self {
        let pool = pool.of_fabric(&transfer.fabric);
        let runner = Runner::cancelled(transfer.spec, cleanup, pool, &transfer.endpoints);
        Self::drive(key, transfer.fabric, runner, changed)
    }

    fn drive(key: Key, fabric: String, runner: Runner, changed: Arc<Notify>) -> Self {
        let (permits, permitted) = watch::channel(0);
        let (end, ended) = watch::channel(None);
        let (people, met) = watch::channel(None);
        let first = Snapshot::of(runner.job(), &fabric, 0);
        let (tell, snapshot) = watch::channel(Arc::new(first));
        let runner = Box::new(runner.with_permits(permitted));
        let task = tokio::spawn(drive(fabric, runner, (ended, met), tell, changed));
        Self {
            key,
            snapshot,
            permits,
            end,
            people,
            met: None,
            task,
        }
    }

    /// The layout of the cache that it has last been told of.
    pub(crate) fn met(&self) -> Option<u64> {
        self.met
    }

    /// The cache has another layout.
    pub(crate) fn meet(&mut self, layout: u64, who: Option<Box<JobMembers>>) {
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
    pub(crate) fn snapshot(&mut self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow_and_update())
    }

    /// The same for who only asks: it stays news for whoever decides.
    pub(crate) fn look(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    /// Its job, if there is something that nobody has asked for yet.
    pub(crate) fn news(&self) -> Option<&Key> {
        // The task has ended: that is news for whoever looks whether it is lost.
        let is_new = self.snapshot.has_changed().unwrap_or(true);
        is_new.then_some(&self.key)
    }

    /// Its job.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// It ended without an outcome: a bug.
    pub(crate) fn is_lost(&self) -> bool {
        self.task.is_finished() && self.snapshot.borrow().outcome.is_none()
    }

    /// Attempts up to this number may begin.
    pub(crate) fn permit(&self, attempt: u32) {
        self.permits
            .send_if_modified(|permit| std::mem::replace(permit, attempt) != attempt);
    }

    /// It is to end. Also when it was told so before: it may have been in a phase that ends by itself, and
    /// have gone on.
    pub(crate) fn stop(&self, cleanup: Cleanup) {
        self.end.send_replace(Some(cleanup));
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// When it is told how far a transfer is, and how fast it goes by then.
#[derive(Debug)]
struct SnapshotSchedule<M> {
    rate_meter: RateMeter,
    told: Option<(Duration, M)>,
    rate: u64,
}

impl<M> Default for SnapshotSchedule<M> {
    fn default() -> Self {
        Self {
            rate_meter: RateMeter::default(),
            told: None,
            rate: 0,
        }
    }
}

impl<M: PartialEq> SnapshotSchedule<M> {
    /// Bytes per second, if it is to be told now.
    fn rate(&mut self, now: Duration, mark: M, bytes: u64) -> Option<u64> {
        let is_due =
            (self.told.as_ref()).is_none_or(|(at, before)| *before != mark || now >= *at + LOOK);
        is_due.then(|| {
            self.told = Some((now, mark));
            self.rate = self.rate_meter.mark(now, bytes);
            self.rate
        })
    }

    /// When it is to be told again though nothing is heard: a rate falls with time, too.
    fn due(&self) -> Option<Duration> {
        let (at, _) = self.told.as_ref()?;
        (self.rate > 0).then(|| *at + LOOK)
    }
}

/// What is told at once when it changes.
fn mark(job: &Job) -> impl PartialEq + use<> {
    (job.phase(), job.claims(), job.attempt(), job.end())
}

async fn passed(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

async fn drive(
    fabric: String,
    mut runner: Box<Runner>,
    (mut end, mut people): (
        watch::Receiver<Option<Cleanup>>,
        watch::Receiver<Option<Arc<JobMembers>>>,
    ),
    tell: watch::Sender<Arc<Snapshot>>,
    changed: Arc<Notify>,
) {
    let mut telling = SnapshotSchedule::default();
    loop {
        let (job, now) = (runner.job(), runner.now());
        let mark = mark(job);
        if let Some(rate) = telling.rate(now, mark, job.bytes_moved()) {
            tell.send_replace(Arc::new(Snapshot::of(job, &fabric, rate)));
            changed.notify_one();
        }
        if runner.job().is_over() {
            return;
        }
        let due = telling.due().map(|at| at.saturating_sub(runner.now()));
        tokio::select! {
            () = runner.turn() => {}
            () = passed(due) => {}
            Ok(()) = end.changed() => {
                let cleanup = *end.borrow_and_update();
                if let Some(cleanup) = cleanup {
                    runner.cancel(cleanup);
                }
            }
            Ok(()) = people.changed() => {
                let people = people.borrow_and_update().clone();
                if let Some(people) = people {
                    runner.update_members(people.0.clone(), &people.1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_transfer_that_nothing_is_heard_of_falls_to_nothing() {
        let mut telling = SnapshotSchedule::default();
        let mut now = Duration::ZERO;
        for step in 0..=20 {
            now = step * LOOK;
            telling.rate(now, (), 1000 * u64::from(step));
        }
        assert_eq!(telling.rate, 1000);
        let mut before = telling.rate;
        while let Some(due) = telling.due() {
            assert_eq!(due, now + LOOK);
            now = due;
            let rate = telling.rate(now, (), 20_000);
            assert!(rate.is_some_and(|rate| rate < before), "{rate:?}");
            before = telling.rate;
        }
        assert_eq!(now, 30 * LOOK);
    }

    #[test]
    fn what_changes_is_told_at_once_and_bytes_once_a_second() {
        let mut telling = SnapshotSchedule::default();
        assert_eq!(telling.rate(Duration::ZERO, 1, 0), Some(0));
        // Nothing moves: nobody need be woken.
        assert_eq!(telling.due(), None);
        assert_eq!(telling.rate(LOOK / 2, 1, 500), None);
        assert!(telling.rate(LOOK / 2, 2, 500).is_some());
        assert!(telling.rate(LOOK, 2, 1000).is_none());
        assert!(telling.rate(2 * LOOK, 2, 1000).is_some());
    }
}
