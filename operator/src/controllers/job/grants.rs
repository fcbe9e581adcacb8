//! Which job may write to which path of a root.
//!
//! One job at a time writes to a path of a fabric's root, and to those above and below it. A job has one
//! destination path, so a grant is of all that it needs, and two jobs never wait for each other. Of those
//! that wait, the oldest comes first. Nothing of it is written down: which jobs are at work their status
//! says, so a successor comes to the same.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use weft_crds::TransferJob;

use crate::controllers::{
    cache::Key,
    job::{
        obstacle::{Obstacle, wait},
        place,
    },
};

/// A path that a job writes to, or wants to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The job.
    pub(crate) job: Key,
    /// When it was made: the oldest comes first.
    pub(crate) made: Option<Time>,
    /// It has begun; it keeps its grant until its agents have been told of its end.
    pub(crate) is_at_work: bool,
    /// The fabric and the root.
    pub(crate) root: (String, String),
    /// The names of the path below the root.
    pub(crate) path: Vec<String>,
}

impl Claim {
    /// Of a job in this fabric.
    pub(crate) fn of(job: &TransferJob, fabric: &str, is_at_work: bool) -> Self {
        let (root, path) = place::destination_path(job);
        let names = path.split('/').filter(|name| !name.is_empty());
        Self {
            job: Key::of(&job.metadata),
            made: job.creation_timestamp(),
            is_at_work,
            root: (fabric.to_owned(), root),
            path: names.map(str::to_owned).collect(),
        }
    }

    fn conflicts_with(&self, other: &Self) -> bool {
        let is_inside = self.path.starts_with(&other.path) || other.path.starts_with(&self.path);
        self.root == other.root && is_inside
    }

    /// Whether this one is granted before the other.
    fn is_before(&self, other: &Self) -> bool {
        let rank = |claim: &Self| (!claim.is_at_work, claim.made.clone(), claim.job.clone());
        rank(self) < rank(other)
    }
}

/// The claims of all jobs that are at work or wait for nothing else, by the jobs' UIDs.
#[derive(Debug, Default)]
pub(crate) struct PathLocks {
    claims: BTreeMap<String, Claim>,
    /// The UIDs by root.
    roots: BTreeMap<(String, String), BTreeSet<String>>,
    /// Jobs to decide again: they are new here, or one that was in their way has changed.
    changed: BTreeSet<Key>,
}

impl PathLocks {
    /// Sets what a job claims; `None` once it is not at work and could not begin.
    pub(crate) fn update(&mut self, uid: &str, claim: Option<Claim>) {
        let before = self.claims.get(uid);
        if before == claim.as_ref() {
            return;
        }
        let (is_new, is_at_work) = (
            before.is_none(),
            claim.as_ref().is_some_and(|claim| claim.is_at_work),
        );
        if let Some(before) = self.claims.remove(uid) {
            if let Some(there) = self.roots.get_mut(&before.root) {
                there.remove(uid);
            }
            // Those that it was in the way of.
            let waiting = self.in_conflict(&before).map(|claim| claim.job.clone());
            let waiting: Vec<Key> = waiting.collect();
            self.changed.extend(waiting);
        }
        if let Some(claim) = claim {
            if is_new && !is_at_work {
                self.changed.insert(claim.job.clone());
            }
            let there = self.roots.entry(claim.root.clone()).or_default();
            there.insert(uid.to_owned());
            self.claims.insert(uid.to_owned(), claim);
        }
    }

    /// Forgets all other jobs.
    pub(crate) fn keep(&mut self, uids: &BTreeSet<String>) {
        let gone = self.claims.keys().filter(|uid| !uids.contains(*uid));
        for uid in gone.cloned().collect::<Vec<_>>() {
            self.update(&uid, None);
        }
    }

    /// Jobs to decide again.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.changed)
    }

    /// Whether the job's claim is known. A job begins a round later, when all others' claims are known, too.
    pub(crate) fn has_seen(&self, uid: &str) -> bool {
        self.claims.contains_key(uid)
    }

    fn in_conflict(&self, claim: &Claim) -> impl Iterator<Item = &Claim> {
        let there = self.roots.get(&claim.root).into_iter().flatten();
        let others = there.filter_map(|uid| self.claims.get(uid));
        others.filter(move |other| other.job != claim.job && other.conflicts_with(claim))
    }

    /// What is in the way of a claim: another job that is at work there, or that comes first.
    pub(crate) fn obstacle(&self, claim: &Claim) -> Option<Obstacle> {
        let before = self.in_conflict(claim);
        let before = before.filter(|other| other.is_before(claim));
        let first = before.min_by(|one, other| match one.is_before(other) {
            true => std::cmp::Ordering::Less,
            false => std::cmp::Ordering::Greater,
        })?;
        let Key { namespace, name } = &first.job;
        let (_, root) = &first.root;
        Some(wait(
            "PathInUse",
            format!(
                "spec.destinations.path: TransferJob {namespace}/{name} comes first at {} of root {root}; this \
                 job begins once that one is over",
                first.path.join("/"),
            ),
        ))
    }
}

#[cfg(test)]
mod tests;
