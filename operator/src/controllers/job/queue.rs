//! Whose turn it is on a fabric with a cap: a pure function of the jobs at work and of those that could
//! begin.
//!
//! Jobs share a cap evenly, so a hundred that begin at once all end at the end; in turn, most of them
//! end long before. The rules, and why they are these, are in docs/decisions/0019:
//!
//! * a node takes part in at most [`AT_ONCE`] jobs, unless more were at work before there was a cap;
//! * namespaces take turns: the namespace with the fewest older running jobs goes first; among equals, the
//!   oldest job;
//! * a job that is next at the nodes that it waits for keeps a place at each of its nodes, so nobody
//!   overtakes it through another of them for ever.
//!
//! Nothing of it is written down: what is at work says the jobs' status, so a successor comes to the
//! same. Owned by the controllers' task, which tells it of every job that it decides.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    iter,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use weft_crds::{DestinationState, Phase, TransferJob, TransferJobStatus};
use weft_transfer::{is_local, node_of};

use crate::controllers::{
    cache::Key,
    fabric::decide::is_ready,
    job::{
        obstacle::{Obstacle, wait},
        resolve::Transfer,
        snapshot::Snapshot,
    },
    kinds::Cache,
};

/// Jobs that a node takes part in at one time: while one is prepared, or hashes and syncs what it has
/// written, the other's bytes use the link. A third would only make both slower.
pub(crate) const AT_ONCE: usize = 2;

/// Where a job takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Demand {
    /// The fabric, which has a cap.
    pub(crate) fabric: String,
    /// The node that has the bytes.
    pub(crate) source: String,
    /// The other nodes that bytes go to: those that are ready and have no verified copy yet.
    pub(crate) receivers: BTreeSet<String>,
}

impl Demand {
    /// Of a job that could begin. Nothing where its jobs do not take turns: on a fabric without a cap,
    /// and where nothing is sent to another node.
    pub(crate) fn of(transfer: &Transfer, cache: &Cache) -> Option<Self> {
        let spec = &transfer.spec;
        Self::at(&transfer.fabric, &spec.source.node, spec.receivers(), cache)
    }

    /// Of a job that this process is at.
    pub(crate) fn of_work(job: &TransferJob, work: &Snapshot, cache: &Cache) -> Option<Self> {
        let file = job.spec.source.file.as_ref().map(|file| &file.node);
        let source = file.or(work.reader.as_ref())?;
        let left = work.destinations.iter();
        let left = left.filter(|there| there.state != DestinationState::Verified);
        let names = left.map(|there| there.node.as_str());
        Self::at(&work.fabric, source, names, cache)
    }

    fn at<'a>(
        fabric: &str,
        source: &str,
        names: impl Iterator<Item = &'a str>,
        cache: &Cache,
    ) -> Option<Self> {
        cache.fabrics.named(fabric)?.spec.transport.cap_mbps?;
        let receivers: BTreeSet<String> = names
            .filter(|name| !is_local(name) && *name != source)
            // Nobody is held up at a node that is silent, nor for it.
            .filter(|name| is_ready(cache, name, fabric))
            .map(str::to_owned)
            .collect();
        (!receivers.is_empty()).then(|| Self {
            fabric: fabric.to_owned(),
            source: node_of(source).to_owned(),
            receivers,
        })
    }

    fn nodes(&self) -> impl Iterator<Item = &str> {
        iter::once(self.source.as_str()).chain(self.receivers.iter().map(String::as_str))
    }
}

/// A job that is at work, or could begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    /// The job.
    pub(crate) key: Key,
    /// When it was made: the oldest comes first.
    pub(crate) made: Option<Time>,
    /// It has begun; it keeps its places until its work ends.
    pub(crate) is_at_work: bool,
    /// Where.
    pub(crate) demand: Demand,
}

impl QueueEntry {
    /// Of a job.
    pub(crate) fn new(job: &TransferJob, is_at_work: bool, demand: Demand) -> Self {
        Self {
            key: Key::of(&job.metadata),
            made: job.creation_timestamp(),
            is_at_work,
            demand,
        }
    }

    fn age(&self) -> Age<'_> {
        (self.made.as_ref(), &self.key)
    }
}

/// Older ones are less; of those that were made in the same second the first by namespace and name.
type Age<'a> = (Option<&'a Time>, &'a Key);

/// By what is written: a leader before this one had begun it, and nobody has ended it.
pub(crate) fn is_at_work(status: &TransferJobStatus) -> bool {
    matches!(
        status.phase,
        Phase::Planning | Phase::Preparing | Phase::Transferring
    )
}

/// What a job may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Begin.
    Begins,
    /// Wait.
    Waits {
        /// A node that takes part in as many jobs as it may, or is kept for jobs before this one.
        node: String,
        /// Jobs of its fabric that wait and come before it.
        ahead: usize,
    },
}

/// Why a job waits. Says nothing that changes while it does: it is written.
pub(crate) fn queued(node: &str, fabric: &str) -> Obstacle {
    let text = format!(
        "node {node} takes part in {AT_ONCE} jobs at a time, since fabric {fabric} has \
         spec.transport.capMbps, and others come first: namespaces take turns, each with its oldest \
         job; it begins by itself; see how far the others are: kubectl weft status -A"
    );
    wait(QUEUED, text)
}

/// The reason of a job that waits for its turn.
pub(crate) const QUEUED: &str = "Queued";

/// All jobs that are at work or could begin, by their UIDs.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: BTreeMap<String, QueueEntry>,
    /// Of those that could begin.
    turns: BTreeMap<String, Turn>,
    /// Parties have come, gone or changed since the turns were given.
    is_stale: bool,
}

impl Queue {
    /// A job is this by now; `None` when it neither is at work nor could begin.
    pub(crate) fn see(&mut self, uid: &str, entry: Option<QueueEntry>) {
        if self.entries.get(uid) == entry.as_ref() {
            return;
        }
        match entry {
            Some(entry) => self.entries.insert(uid.to_owned(), entry),
            None => self.entries.remove(uid),
        };
        self.is_stale = true;
    }

    /// Forgets all other jobs.
    pub(crate) fn keep(&mut self, uids: &BTreeSet<String>) {
        let before = self.entries.len();
        self.entries.retain(|uid, _| uids.contains(uid));
        self.is_stale |= self.entries.len() != before;
    }

    /// Gives the turns anew; those that have another one since, or wait for another node.
    pub(crate) fn settle(&mut self) -> Vec<Key> {
        if !std::mem::take(&mut self.is_stale) {
            return Vec::new();
        }
        let turns = turns(self.entries.iter(), &self.turns);
        let is_other = |uid: &String, turn: &Turn| match (self.turns.get(uid), turn) {
            (Some(Turn::Begins), Turn::Begins) => false,
            (Some(Turn::Waits { node: before, .. }), Turn::Waits { node, .. }) => before != node,
            _ => true,
        };
        let others = turns.iter().filter(|(uid, turn)| is_other(uid, turn));
        let others = others.filter_map(|(uid, _)| Some(self.entries.get(uid)?.key.clone()));
        let others = others.collect();
        self.turns = turns;
        others
    }

    /// What a job may do that has this demand; `None` while nobody has decided that.
    pub(crate) fn turn(&self, uid: &str, demand: &Demand) -> Option<&Turn> {
        let entry = self.entries.get(uid)?;
        (entry.demand == *demand).then(|| self.turns.get(uid))?
    }

    /// How many that wait come before a job that waits.
    pub(crate) fn ahead(&self, uid: &str) -> Option<usize> {
        match self.turns.get(uid)? {
            Turn::Waits { ahead, .. } => Some(*ahead),
            Turn::Begins => None,
        }
    }

    /// What a job could do that is not there yet.
    pub(crate) fn asked(&self, entry: &QueueEntry) -> Turn {
        // No UID is empty.
        let uid = String::new();
        let all = self.entries.iter().chain([(&uid, entry)]);
        turns(all, &self.turns).remove(&uid).unwrap_or(Turn::Begins)
    }
}

/// Gives each that could begin its turn. A job that waited for a node goes on to wait for that one as
/// long as it is among those that it waits for: what is written of it shall not change.
fn turns<'a>(
    entries: impl Iterator<Item = (&'a String, &'a QueueEntry)>,
    before: &BTreeMap<String, Turn>,
) -> BTreeMap<String, Turn> {
    let mut lines: BTreeMap<&str, Line<'_>> = BTreeMap::new();
    for (uid, entry) in entries {
        let line = lines.entry(entry.demand.fabric.as_str()).or_default();
        line.add(uid, entry);
    }
    let turns = lines.into_values().flat_map(|line| line.turns(before));
    turns.collect()
}

/// The jobs of one fabric.
#[derive(Default)]
struct Line<'a> {
    /// Places that are taken: by jobs at work, and by those that have had their turn already.
    taken: HashMap<&'a str, usize>,
    namespaces: BTreeMap<&'a str, Namespace<'a>>,
}

/// The jobs of one namespace on a fabric.
#[derive(Default)]
struct Namespace<'a> {
    at_work: BTreeSet<Age<'a>>,
    ready: Vec<(&'a String, &'a QueueEntry)>,
}

impl<'a> Line<'a> {
    fn add(&mut self, uid: &'a String, entry: &'a QueueEntry) {
        let namespace = self.namespaces.entry(&entry.key.namespace).or_default();
        if entry.is_at_work {
            namespace.at_work.insert(entry.age());
            for node in entry.demand.nodes() {
                *self.taken.entry(node).or_default() += 1;
            }
        } else {
            namespace.ready.push((uid, entry));
        }
    }

    fn turns(self, before: &BTreeMap<String, Turn>) -> Vec<(String, Turn)> {
        let Self {
            mut taken,
            namespaces,
        } = self;
        let mut shares: BTreeMap<&str, Share<'a>> = BTreeMap::new();
        let mut heads = BTreeSet::new();
        for (name, namespace) in namespaces {
            let share = shares.entry(name).or_insert_with(|| Share::of(namespace));
            heads.extend(share.head().map(|head| (head, name)));
        }
        // Nodes that somebody waits for.
        let mut awaited: HashSet<&str> = HashSet::new();
        let mut turns = Vec::new();
        let mut waiting = 0;
        while let Some((_, name)) = heads.pop_first() {
            let Some(share) = shares.get_mut(name) else {
                continue;
            };
            let Some((uid, entry)) = share.ready.pop_front() else {
                continue;
            };
            let is_full = |node: &&str| taken.get(node).is_some_and(|count| *count >= AT_ONCE);
            let full: Vec<&str> = entry.demand.nodes().filter(is_full).collect();
            if let Some(first) = full.first() {
                let known = match before.get(uid) {
                    Some(Turn::Waits { node, .. }) => full.iter().find(|full| **full == node),
                    _ => None,
                };
                let node = (*known.unwrap_or(first)).to_owned();
                let ahead = waiting;
                turns.push((uid.clone(), Turn::Waits { node, ahead }));
                waiting += 1;
            } else {
                turns.push((uid.clone(), Turn::Begins));
                share.begun += 1;
            }
            let is_next = full.iter().all(|node| !awaited.contains(node));
            awaited.extend(full);
            if is_next {
                for node in entry.demand.nodes() {
                    *taken.entry(node).or_default() += 1;
                }
            }
            heads.extend(share.head().map(|head| (head, name)));
        }
        turns
    }
}

/// A namespace while turns are given.
struct Share<'a> {
    at_work: VecDeque<Age<'a>>,
    /// Of those at work, how many are older than the head.
    older: usize,
    /// How many have been let begin.
    begun: usize,
    /// The oldest first.
    ready: VecDeque<(&'a String, &'a QueueEntry)>,
}

impl<'a> Share<'a> {
    fn of(mut namespace: Namespace<'a>) -> Self {
        namespace.ready.sort_by_key(|(_, entry)| entry.age());
        Self {
            at_work: namespace.at_work.into_iter().collect(),
            older: 0,
            begun: 0,
            ready: namespace.ready.into(),
        }
    }

    /// Its oldest job that has had no turn yet, with what it stands in line by. Younger ones at work
    /// do not count: who was overtaken shall not be put back for it.
    fn head(&mut self) -> Option<(usize, Age<'a>)> {
        let age = self.ready.front()?.1.age();
        while self.at_work.front().is_some_and(|older| *older < age) {
            self.at_work.pop_front();
            self.older += 1;
        }
        Some((self.older + self.begun, age))
    }
}

#[cfg(test)]
mod tests;
