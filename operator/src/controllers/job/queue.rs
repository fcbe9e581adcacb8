//! Which of the jobs that could begin may begin: a pure function of the jobs running and of those that wait
//! for nothing but other jobs.
//!
//! One job at a time writes to a path of a root, and to those above and below it: a job that is running
//! there, else the oldest. A job has one destination path, so two jobs never wait for each other.
//!
//! A namespace has at most `operator.jobsPerNamespace` jobs that run or wait for a turn at a node: a tenant who makes
//! a thousand jobs takes neither the operator's memory nor the agents' from the others. The oldest begin.
//!
//! On a fabric with a cap, jobs also take turns at nodes. They share the cap evenly, so a hundred that begin
//! at once all end at the end; in turn, most of them end long before. The rules, and why they are these, are
//! in docs/decisions/0019:
//!
//! * a node has [`JOBS_PER_NODE_MAX`] job slots and takes part in no more jobs, unless more were running before
//!   there was a cap;
//! * namespaces take turns: first the oldest job of each namespace, then the second oldest, and so on;
//! * a job that is first in line at every full node that it waits for reserves a job slot at all its nodes, so
//!   that it cannot starve.
//!
//! It is not stored: a new leader computes it again from the jobs' statuses. Owned by the controllers' task,
//! which tells it of every job that it decides.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    iter,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use weft_crds::{DestinationState, TransferJob};
use weft_transfer::{is_local, node_of};

use crate::controllers::{
    cache::Key,
    fabric::decide::is_ready,
    job::{
        job_side,
        obstacle::{Obstacle, temporary},
        resolve::TransferRequest,
        snapshot::Snapshot,
    },
    kinds::Cache,
};

/// Jobs that a node takes part in at one time: while one is prepared, or hashes and syncs what it has
/// written, the other's bytes use the link. A third would only make both slower.
pub(crate) const JOBS_PER_NODE_MAX: usize = 2;

/// The job slots that a job asks for, on a fabric with a cap: one at each of these nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotRequest {
    /// The node that sends: the source's, the reader of an object, or one that sends its verified copy instead.
    pub(crate) source: String,
    /// The other nodes that bytes go to: those that are ready. Of a job that runs, without those that have a verified
    /// copy; of one that waits this is not known.
    pub(crate) receivers: BTreeSet<String>,
}

impl SlotRequest {
    /// Of a job that could begin. Nothing where its jobs do not take turns: on a fabric without a cap,
    /// and where nothing is sent to another node.
    pub(crate) fn of(transfer: &TransferRequest, cache: &Cache) -> Option<Self> {
        let spec = &transfer.spec;
        Self::at(&transfer.fabric, &spec.source.node, spec.receivers(), cache)
    }

    /// Of a job that this process runs.
    pub(crate) fn of_transfer(snapshot: &Snapshot, cache: &Cache) -> Option<Self> {
        let destinations = snapshot.destinations.iter();
        let unverified = destinations.filter(|one| one.state != DestinationState::Verified);
        let names = unverified.map(|destination| destination.node.as_str());
        Self::at(&snapshot.fabric, &snapshot.sender, names, cache)
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
            // A node that is not ready takes no slot and delays no job.
            .filter(|name| is_ready(cache, name, fabric))
            .map(str::to_owned)
            .collect();
        (!receivers.is_empty()).then(|| Self {
            source: node_of(source).to_owned(),
            receivers,
        })
    }

    fn nodes(&self) -> impl Iterator<Item = &str> {
        iter::once(self.source.as_str()).chain(self.receivers.iter().map(String::as_str))
    }
}

/// A job that is running, or waits for nothing but other jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    /// The job.
    pub(crate) key: Key,
    /// The oldest comes first.
    pub(crate) created_at: Option<Time>,
    /// It has begun; it keeps its path and its slots until its agents have been told of its end.
    pub(crate) is_running: bool,
    /// The fabric.
    pub(crate) fabric: String,
    /// The root that it writes to, and the names of the path below it.
    pub(crate) root: String,
    pub(crate) path: Vec<String>,
    /// The job slots that it asks for, if jobs take turns.
    pub(crate) slots: Option<SlotRequest>,
}

impl QueueEntry {
    /// Of a job in this fabric.
    pub(crate) fn new(
        job: &TransferJob,
        fabric: &str,
        is_running: bool,
        slots: Option<SlotRequest>,
    ) -> Self {
        let (root, path) = job_side::destination_path(job);
        let names = path.split('/').filter(|name| !name.is_empty());
        Self {
            key: Key::of(&job.metadata),
            created_at: job.creation_timestamp(),
            is_running,
            fabric: fabric.to_owned(),
            root,
            path: names.map(str::to_owned).collect(),
            slots,
        }
    }

    fn nodes(&self) -> impl Iterator<Item = &str> {
        self.slots.iter().flat_map(SlotRequest::nodes)
    }
}

/// What a job that could begin may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Begin.
    Begins,
    /// Wait for a job that is running at a path of its root, or comes first there.
    PathInUse {
        /// That job.
        holder: Key,
        /// Where that job writes.
        path: String,
    },
    /// Wait for another job of its namespace to end.
    NamespaceFull {
        /// Jobs that a namespace may have running.
        most: usize,
    },
    /// Wait for its turn.
    Queued {
        /// A node that takes part in as many jobs as it may, or is kept for jobs before this one.
        node: String,
        /// Jobs of its fabric that wait and come before it.
        ahead: usize,
    },
}

impl Admission {
    /// Why the job of this entry waits. Says nothing that changes while it does: it is written.
    pub(crate) fn obstacle(&self, entry: &QueueEntry) -> Option<Obstacle> {
        let QueueEntry { fabric, root, .. } = entry;
        match self {
            Self::Begins => None,
            Self::PathInUse { holder, path } => {
                let Key { namespace, name } = holder;
                let text = format!(
                    "spec.destinations.path: TransferJob {namespace}/{name} comes first at {path} of root {root}; \
                     this job begins once that one is over",
                );
                Some(temporary("PathInUse", text))
            }
            Self::NamespaceFull { most } => {
                let Key { namespace, .. } = &entry.key;
                let text = format!(
                    "namespace {namespace} has {most} jobs that run or come before this one, which is as many as may run at \
                     a time (the chart's operator.jobsPerNamespace); this job begins once one of them is over",
                );
                Some(temporary("NamespaceFull", text))
            }
            Self::Queued { node, .. } => {
                let text = format!(
                    "node {node} takes part in {JOBS_PER_NODE_MAX} jobs at a time, since fabric {fabric} has \
                     spec.transport.capMbps, and others come first: namespaces take turns, each with its oldest \
                     job; it begins by itself; see how far the others are: kubectl weft status -A"
                );
                Some(temporary("Queued", text))
            }
        }
    }

    /// Whether the obstacle is another: the number of jobs ahead is not written.
    fn differs(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Queued { node, .. }, Self::Queued { node: other, .. }) => node != other,
            (one, other) => one != other,
        }
    }
}

/// All jobs that are running or could begin, by their UIDs.
#[derive(Debug)]
pub(crate) struct AdmissionQueue {
    /// Jobs of one namespace that may run, or wait for a turn at a node.
    namespace_most: usize,
    entries: BTreeMap<String, QueueEntry>,
    /// Of those that could begin.
    admissions: BTreeMap<String, Admission>,
    /// Entries have come, gone or changed since they were computed.
    is_stale: bool,
}

impl AdmissionQueue {
    /// No job is known yet. So many of a namespace may run.
    pub(crate) fn new(namespace_most: usize) -> Self {
        Self {
            namespace_most,
            entries: BTreeMap::new(),
            admissions: BTreeMap::new(),
            is_stale: false,
        }
    }

    /// Replaces the job's entry; `None` when it neither is running nor could begin.
    pub(crate) fn update_entry(&mut self, uid: &str, entry: Option<QueueEntry>) {
        if self.entries.get(uid) == entry.as_ref() {
            return;
        }
        match entry {
            Some(entry) => self.entries.insert(uid.to_owned(), entry),
            None => self.entries.remove(uid),
        };
        self.is_stale = true;
    }

    /// Removes all other jobs.
    pub(crate) fn retain(&mut self, uids: &BTreeSet<String>) {
        let before = self.entries.len();
        self.entries.retain(|uid, _| uids.contains(uid));
        self.is_stale |= self.entries.len() != before;
    }

    /// Computes all of them again. Returns the jobs whose admission is another since, or that wait for something else.
    pub(crate) fn recompute_admissions(&mut self) -> Vec<Key> {
        if !std::mem::take(&mut self.is_stale) {
            return Vec::new();
        }
        let admissions = admissions(self.entries.iter(), &self.admissions, self.namespace_most);
        let differs = |(uid, admission): &(&String, &Admission)| {
            let before = self.admissions.get(*uid);
            before.is_none_or(|before| before.differs(admission))
        };
        let others = admissions.iter().filter(differs);
        let others = others.filter_map(|(uid, _)| Some(self.entries.get(uid)?.key.clone()));
        let others = others.collect();
        self.admissions = admissions;
        others
    }

    /// Whether the job is running, or waited for nothing but other jobs when it was last decided.
    pub(crate) fn has_entry(&self, uid: &str) -> bool {
        self.entries.contains_key(uid)
    }

    /// What the job of this entry may do; `None` while nobody has decided that.
    pub(crate) fn admission(&self, uid: &str, entry: &QueueEntry) -> Option<&Admission> {
        let is_known = self.entries.get(uid) == Some(entry);
        is_known.then(|| self.admissions.get(uid))?
    }

    /// How many that wait for their turn come before a job that does.
    pub(crate) fn ahead(&self, uid: &str) -> Option<usize> {
        match self.admissions.get(uid)? {
            Admission::Queued { ahead, .. } => Some(*ahead),
            Admission::Begins | Admission::PathInUse { .. } | Admission::NamespaceFull { .. } => {
                None
            }
        }
    }

    /// The admission that this entry would get if it were in the queue.
    pub(crate) fn preview(&self, entry: &QueueEntry) -> Admission {
        // No UID is empty.
        let uid = String::new();
        let others = self.entries.iter();
        let others = others.filter(|(_, other)| other.key != entry.key);
        let all = others.chain([(&uid, entry)]);
        admissions(all, &self.admissions, self.namespace_most)
            .remove(&uid)
            .unwrap_or(Admission::Begins)
    }
}

/// The jobs of a root, by path, each with its position in the order. At each path the first.
type Paths<'a> = BTreeMap<&'a [String], (usize, &'a QueueEntry)>;

/// The first of these jobs that writes to this path, or above or below it.
fn first_at<'a>(paths: &Paths<'a>, path: &[String]) -> Option<&'a QueueEntry> {
    let above = (0..path.len()).filter_map(|names| paths.get(&path[..names]));
    let below = paths.range(path..);
    let below = below.take_while(|(below, _)| below.starts_with(path));
    let all = above.chain(below.map(|(_, first)| first));
    let (_, first) = all.min_by_key(|(position, _)| *position)?;
    Some(first)
}

/// Computes all admissions. A queued job keeps the node it names while that node is still full, so its status
/// does not change.
fn admissions<'a>(
    entries: impl Iterator<Item = (&'a String, &'a QueueEntry)>,
    before: &BTreeMap<String, Admission>,
    namespace_most: usize,
) -> BTreeMap<String, Admission> {
    let mut entries: Vec<_> = entries.collect();
    entries
        .sort_by_cached_key(|(_, entry)| (!entry.is_running, entry.created_at.clone(), &entry.key));
    let mut admissions = BTreeMap::new();
    let mut roots: BTreeMap<(&str, &str), Paths<'_>> = BTreeMap::new();
    let mut queues: BTreeMap<&str, FabricQueue<'_>> = BTreeMap::new();
    let mut of_namespaces: BTreeMap<&str, usize> = BTreeMap::new();
    for (position, (uid, entry)) in entries.into_iter().enumerate() {
        let paths = roots.entry((&entry.fabric, &entry.root)).or_default();
        let first = first_at(paths, &entry.path);
        paths.entry(&entry.path).or_insert((position, entry));
        let in_the_way = first.filter(|_| !entry.is_running);
        if in_the_way.is_none() {
            let of_namespace = of_namespaces.entry(&entry.key.namespace).or_default();
            *of_namespace += 1;
            if *of_namespace > namespace_most && !entry.is_running {
                let most = namespace_most;
                admissions.insert(uid.clone(), Admission::NamespaceFull { most });
                continue;
            }
        }
        match in_the_way {
            Some(first) => {
                let admission = Admission::PathInUse {
                    holder: first.key.clone(),
                    path: first.path.join("/"),
                };
                admissions.insert(uid.clone(), admission);
            }
            _ if entry.slots.is_some() => {
                queues.entry(&entry.fabric).or_default().add(uid, entry);
            }
            _ if entry.is_running => {}
            _ => drop(admissions.insert(uid.clone(), Admission::Begins)),
        }
    }
    admissions.extend(
        queues
            .into_values()
            .flat_map(|queue| queue.admissions(before)),
    );
    admissions
}

/// The jobs of one fabric that take turns, and that no path keeps from beginning.
#[derive(Default)]
struct FabricQueue<'a> {
    /// Job slots in use at each node: by jobs running, and by those that were admitted already.
    used_slots: HashMap<&'a str, usize>,
    /// Those running by namespace, the oldest first.
    running: BTreeMap<&'a str, Vec<Age<'a>>>,
    /// The oldest first.
    ready: Vec<(&'a String, &'a QueueEntry)>,
}

/// Older ones are less; of those that were made in the same second the first by namespace and name.
type Age<'a> = (Option<&'a Time>, &'a Key);

fn age(entry: &QueueEntry) -> Age<'_> {
    (entry.created_at.as_ref(), &entry.key)
}

impl<'a> FabricQueue<'a> {
    fn add(&mut self, uid: &'a String, entry: &'a QueueEntry) {
        if entry.is_running {
            let namespace = self.running.entry(&entry.key.namespace).or_default();
            namespace.push(age(entry));
            self.take_slots(entry);
        } else {
            self.ready.push((uid, entry));
        }
    }

    fn take_slots(&mut self, entry: &'a QueueEntry) {
        for node in entry.nodes() {
            *self.used_slots.entry(node).or_default() += 1;
        }
    }

    /// Those that wait, in their order: by how many jobs of its namespace are older, then by age. Younger
    /// jobs do not count, so a job does not lose its rank when younger ones start first.
    fn order(&mut self) -> Vec<(&'a String, &'a QueueEntry)> {
        let mut older: BTreeMap<&str, usize> = BTreeMap::new();
        let ready = std::mem::take(&mut self.ready).into_iter();
        let ranked = ready.map(|(uid, entry)| {
            let namespace = entry.key.namespace.as_str();
            let running = self.running.get(namespace).map_or(&[][..], Vec::as_slice);
            let running = running.partition_point(|older| *older < age(entry));
            let waiting = older.entry(namespace).or_default();
            *waiting += 1;
            (running + *waiting, uid, entry)
        });
        let mut ranked: Vec<_> = ranked.collect();
        // Of equal ranks the oldest stays first.
        ranked.sort_by_key(|(rank, ..)| *rank);
        ranked
            .into_iter()
            .map(|(_, uid, entry)| (uid, entry))
            .collect()
    }

    fn admissions(mut self, before: &BTreeMap<String, Admission>) -> Vec<(String, Admission)> {
        // Nodes that somebody waits for.
        let mut awaited: HashSet<&str> = HashSet::new();
        let mut admissions = Vec::new();
        let mut waiting = 0;
        for (uid, entry) in self.order() {
            let is_full = |node: &&str| {
                self.used_slots
                    .get(node)
                    .is_some_and(|count| *count >= JOBS_PER_NODE_MAX)
            };
            let full: Vec<&str> = entry.nodes().filter(is_full).collect();
            let admission = match full.first() {
                Some(first) => {
                    let known = match before.get(uid) {
                        Some(Admission::Queued { node, .. }) => {
                            full.iter().find(|full| **full == node)
                        }
                        _ => None,
                    };
                    let node = (*known.unwrap_or(first)).to_owned();
                    let ahead = waiting;
                    waiting += 1;
                    Admission::Queued { node, ahead }
                }
                None => Admission::Begins,
            };
            admissions.push((uid.clone(), admission));
            let is_next = full.iter().all(|node| !awaited.contains(node));
            awaited.extend(full);
            if is_next {
                self.take_slots(entry);
            }
        }
        admissions
    }
}

#[cfg(test)]
mod tests;
