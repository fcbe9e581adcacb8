//! The destinations of a job: where each stands, through all attempts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weft_proto::agent::v1::ProgressResponse;

use super::{Place, Refusal, is_local};

/// Where a destination stands in the job as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// In an attempt, or before the first.
    Waiting,
    /// Between two attempts, for this reason.
    Troubled(Refusal),
    /// Everything is there, checked and durable, so long after the first Start.
    Verified {
        /// Since the first Start.
        after: Duration,
    },
    /// Given up.
    Failed(Refusal),
}

impl Standing {
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Verified { .. } | Self::Failed(_))
    }
}

/// One of them. Written by the job only.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    pub(super) place: Place,
    pub(super) standing: Standing,
    /// The newest report, of whichever attempt.
    pub(super) report: ProgressResponse,
    /// Most bytes that it ever had verified.
    pub(super) best: u64,
}

/// What a reader may see of a destination.
#[derive(Debug, Clone, Copy)]
pub struct DestinationView<'a> {
    /// Where the data goes.
    pub place: &'a Place,
    /// Where it stands.
    pub standing: &'a Standing,
    /// The newest report; all zero before the first.
    pub report: &'a ProgressResponse,
    /// Most bytes that it ever had verified.
    pub bytes: u64,
}

/// All of them, by node. Boxed: a map has room for eleven at least, and most jobs have one or two.
#[derive(Debug, Clone)]
pub(super) struct Destinations {
    all: BTreeMap<String, Box<Destination>>,
}

impl Destinations {
    pub(super) fn new(places: &[Place]) -> Self {
        let mut destinations = Self {
            all: BTreeMap::new(),
        };
        for place in places {
            destinations.add(place);
        }
        destinations
    }

    /// One more; false where the node is one already.
    pub(super) fn add(&mut self, place: &Place) -> bool {
        if self.all.contains_key(&place.node) {
            return false;
        }
        let destination = Destination {
            place: place.clone(),
            standing: Standing::Waiting,
            report: ProgressResponse::default(),
            best: 0,
        };
        self.all.insert(place.node.clone(), Box::new(destination));
        true
    }

    pub(super) fn get(&self, node: &str) -> Option<&Destination> {
        self.all.get(node).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, node: &str) -> Option<&mut Destination> {
        self.all.get_mut(node).map(Box::as_mut)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Destination> {
        self.all.values_mut().map(Box::as_mut)
    }

    pub(super) fn are_verified(&self) -> bool {
        let verified = |standing: &Standing| matches!(standing, Standing::Verified { .. });
        self.all.values().all(|d| verified(&d.standing))
    }

    /// Those that are neither Verified nor given up.
    pub(super) fn remaining(&self) -> BTreeSet<String> {
        self.which(|standing| !standing.is_final())
    }

    /// Those that are given up.
    pub(super) fn failed(&self) -> BTreeSet<String> {
        self.which(|standing| matches!(standing, Standing::Failed(_)))
    }

    fn which(&self, is_meant: impl Fn(&Standing) -> bool) -> BTreeSet<String> {
        let meant = self.all.iter().filter(|(_, d)| is_meant(&d.standing));
        meant.map(|(node, _)| node.clone()).collect()
    }

    /// The digest of the copy that the source's node has made for itself.
    pub(super) fn local_digest(&self) -> &str {
        let local = self
            .all
            .iter()
            .find(|(name, d)| is_local(name) && matches!(d.standing, Standing::Verified { .. }));
        local.map_or("", |(_, d)| &d.report.digest)
    }

    /// Bytes verified, over all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.all.values().map(|d| d.best).sum()
    }

    /// Grows with every byte and with every destination that is through.
    pub(super) fn gained(&self) -> u64 {
        let through = self.all.values().filter(|d| d.standing.is_final()).count();
        self.bytes() + through as u64
    }

    /// It cannot go on now, or not at all.
    pub(super) fn refuse(&mut self, node: &str, refusal: Refusal) {
        if let Some(destination) = self.all.get_mut(node)
            && !destination.standing.is_final()
        {
            destination.standing = if refusal.retriable {
                Standing::Troubled(refusal)
            } else {
                Standing::Failed(refusal)
            };
        }
    }

    /// None of those that are left can go on.
    pub(super) fn fail_remaining(&mut self, refusal: &Refusal) {
        for destination in self.all.values_mut().filter(|d| !d.standing.is_final()) {
            destination.standing = Standing::Failed(refusal.clone());
        }
    }

    /// Troubles become failures.
    pub(super) fn give_up(&mut self) {
        for destination in self.all.values_mut() {
            if let Standing::Troubled(refusal) = &destination.standing {
                destination.standing = Standing::Failed(refusal.clone());
            }
        }
    }
}
