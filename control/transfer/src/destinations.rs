//! What the agents have reported of a transfer, through all its attempts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weft_proto::agent::v1::{ProgressResponse, State};

use crate::{
    failure::Failure,
    spec::{NodeLocation, is_local},
};

/// The phase of a destination in the transfer as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DestinationPhase {
    /// In an attempt, or before the first.
    InProgress,
    /// Between two attempts, for this reason.
    Retrying(Failure),
    /// Everything is there, checked and durable.
    Verified {
        /// Time since the first Start.
        since_start: Duration,
    },
    /// Given up.
    Failed(Failure),
}

impl DestinationPhase {
    fn is_final(&self) -> bool {
        matches!(self, Self::Verified { .. } | Self::Failed(_))
    }
}

/// One destination.
#[derive(Debug, Clone)]
pub struct Destination {
    /// Where the data goes.
    pub location: NodeLocation,
    /// Its phase.
    pub phase: DestinationPhase,
    /// The newest progress, of any attempt; all zero before the first.
    pub progress: ProgressResponse,
    /// Most bytes that it ever had verified.
    pub bytes: u64,
    /// Of the bytes that it has verified: those that it did not have before, of all attempts. A node's copy for
    /// itself writes them; every other destination gets them over the network.
    pub received: u64,
}

impl Destination {
    pub(crate) fn is_verified(&self) -> bool {
        matches!(self.phase, DestinationPhase::Verified { .. })
    }

    /// It has the whole copy, and had it before the transfer began.
    pub fn was_there(&self) -> bool {
        self.is_verified() && self.received == 0 && self.bytes > 0
    }
}

/// All destinations, and what is summed over them. Owned and written by the transfer.
#[derive(Debug, Clone, Default)]
pub(crate) struct DestinationStates {
    /// By node. Boxed: a map has room for eleven at least, and most transfers have one or two.
    all: BTreeMap<String, Box<Destination>>,
    /// The source's newest progress; all zero before its first of this attempt.
    pub(crate) source: ProgressResponse,
    /// The link in use and why, as an agent has reported it last.
    link: (String, String),
    /// By node and attempt.
    counts: BTreeMap<(String, u32), AttemptCounters>,
}

/// What a node has reported of one attempt.
#[derive(Debug, Clone, Copy, Default)]
struct AttemptCounters {
    chunks_sent: u64,
    /// Of these.
    chunks_resent: u64,
    /// Most bytes that it had got.
    received: u64,
}

impl DestinationStates {
    /// One more; false where the node is a destination already.
    pub(crate) fn add(&mut self, location: &NodeLocation) -> bool {
        if self.all.contains_key(&location.node) {
            return false;
        }
        let destination = Destination {
            location: location.clone(),
            phase: DestinationPhase::InProgress,
            progress: ProgressResponse::default(),
            bytes: 0,
            received: 0,
        };
        self.all
            .insert(location.node.clone(), Box::new(destination));
        true
    }

    /// One less; the bytes that it had.
    pub(crate) fn remove(&mut self, node: &str) -> u64 {
        self.all
            .remove(node)
            .map_or(0, |destination| destination.bytes)
    }

    pub(crate) fn get(&self, node: &str) -> Option<&Destination> {
        self.all.get(node).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, node: &str) -> Option<&mut Destination> {
        self.all.get_mut(node).map(Box::as_mut)
    }

    pub(crate) fn are_verified(&self) -> bool {
        self.all
            .values()
            .all(|destination| destination.is_verified())
    }

    /// Those that are neither Verified nor given up.
    pub(crate) fn remaining(&self) -> BTreeSet<String> {
        let remaining = self.all.iter().filter(|(_, d)| !d.phase.is_final());
        remaining.map(|(node, _)| node.clone()).collect()
    }

    /// Those that are given up, each with the reason.
    pub(crate) fn failed(&self) -> impl Iterator<Item = (&str, &Failure)> {
        self.all.iter().filter_map(|(node, d)| match &d.phase {
            DestinationPhase::Failed(failure) => Some((node.as_str(), failure)),
            _ => None,
        })
    }

    /// Why the last attempt did not finish at a destination.
    pub(crate) fn retrying(&self, node: &str) -> Option<&Failure> {
        match &self.all.get(node)?.phase {
            DestinationPhase::Retrying(failure) => Some(failure),
            _ => None,
        }
    }

    /// The digest of everything, as the source reports it; where it sends nothing, as its own copy says.
    pub(crate) fn digest(&self) -> &str {
        if !self.source.digest.is_empty() {
            return &self.source.digest;
        }
        let mut own = self.all.iter().filter(|(name, _)| is_local(name));
        let own = own.find(|(_, destination)| destination.is_verified());
        own.map_or("", |(_, destination)| &destination.progress.digest)
    }

    /// Bytes verified, over all destinations.
    pub(crate) fn bytes(&self) -> u64 {
        self.all.values().map(|d| d.bytes).sum()
    }

    /// Bytes that destinations have got over the network.
    pub(crate) fn received(&self) -> u64 {
        let remote = self.all.iter().filter(|(name, _)| !is_local(name));
        remote.map(|(_, d)| d.received).sum()
    }

    /// Grows with every byte and with every destination that is Verified or given up.
    pub(crate) fn progress_mark(&self) -> u64 {
        let ended = self.all.values().filter(|d| d.phase.is_final()).count();
        self.bytes() + ended as u64
    }

    /// Chunks sent, resent ones included, and of these the resent ones; all nodes and attempts.
    pub(crate) fn chunks(&self) -> (u64, u64) {
        let add = |(sent, resent): (u64, u64), counts: &AttemptCounters| {
            (sent + counts.chunks_sent, resent + counts.chunks_resent)
        };
        self.counts.values().fold((0, 0), add)
    }

    /// Counts what any attempt's progress says of its link and of bytes. What a node that only sends has read is received
    /// by nobody.
    pub(crate) fn count(
        &mut self,
        node: &str,
        attempt: u32,
        progress: &ProgressResponse,
        only_sends: bool,
    ) {
        let counts = self.counts.entry((node.to_owned(), attempt)).or_default();
        counts.chunks_sent = progress.chunks_sent;
        counts.chunks_resent = progress.chunks_resent;
        let received = match only_sends {
            true => 0,
            false => progress.bytes.saturating_sub(progress.bytes_resumed),
        };
        let more = received.saturating_sub(counts.received);
        counts.received += more;
        if let Some(destination) = self.get_mut(node) {
            destination.received += more;
        }
        if !progress.link.is_empty() {
            self.link = (progress.link.clone(), progress.link_reason.clone());
        }
    }

    /// The link in use and why; empty before an agent has said. Nodes that receive over different ones are named.
    pub(crate) fn link(&self) -> (String, String) {
        let mut by_link: BTreeMap<&str, (&str, &str, usize)> = BTreeMap::new();
        for (node, destination) in &self.all {
            let ProgressResponse {
                link, link_reason, ..
            } = &destination.progress;
            if !link.is_empty() {
                let first = (node.as_str(), link_reason.as_str(), 0);
                by_link.entry(link).or_insert(first).2 += 1;
            }
        }
        if by_link.len() <= 1 {
            let only = by_link.into_iter().next();
            let only = only.map(|(link, (_, reason, _))| (link.to_owned(), reason.to_owned()));
            return only.unwrap_or_else(|| self.link.clone());
        }
        let say = |(link, (node, reason, count)): (&&str, &(&str, &str, usize))| match count {
            1 => format!("{link} to {node}: {reason}"),
            _ => format!("{link} to {count} nodes, {node} among them: {reason}"),
        };
        let reasons: Vec<String> = by_link.iter().map(say).collect();
        let names: Vec<&str> = by_link.into_keys().collect();
        (names.join(", "), reasons.join("; "))
    }

    /// Records the progress of a destination, `since_start` after the first Start.
    pub(crate) fn record(&mut self, node: &str, progress: ProgressResponse, since_start: Duration) {
        if let Some(destination) = self.get_mut(node) {
            destination.bytes = destination.bytes.max(progress.bytes);
            if progress.state() == State::Verified && !destination.phase.is_final() {
                destination.phase = DestinationPhase::Verified { since_start };
            }
            destination.progress = progress;
        }
    }

    /// A destination cannot go on in this attempt, or not at all.
    pub(crate) fn record_failure(&mut self, node: &str, failure: Failure) {
        if let Some(destination) = self.get_mut(node)
            && !destination.phase.is_final()
        {
            destination.phase = if failure.retriable {
                DestinationPhase::Retrying(failure)
            } else {
                DestinationPhase::Failed(failure)
            };
        }
    }

    /// None of those that are left can go on.
    pub(crate) fn fail_remaining(&mut self, failure: &Failure) {
        for destination in self.all.values_mut().filter(|d| !d.phase.is_final()) {
            destination.phase = DestinationPhase::Failed(failure.clone());
        }
    }

    /// Those that wait for another attempt get none.
    pub(crate) fn give_up(&mut self) {
        for destination in self.all.values_mut() {
            if let DestinationPhase::Retrying(failure) = &destination.phase {
                destination.phase = DestinationPhase::Failed(failure.clone());
            }
        }
    }

    /// A destination that says it is Verified, with another digest than the source, is not.
    pub(crate) fn compare_digests(&mut self) {
        let right = &self.source.digest;
        for (node, destination) in &mut self.all {
            let digest = &destination.progress.digest;
            if destination.is_verified()
                && !right.is_empty()
                && !digest.is_empty()
                && digest != right
            {
                let message = format!(
                    "node {node} has digest {digest} and the source {right}: run the same release \
                     of weft-agent on both nodes, and report this as a bug"
                );
                destination.phase = DestinationPhase::Failed(Failure {
                    node: node.clone(),
                    reason: "DigestMismatch".to_owned(),
                    message,
                    retriable: false,
                });
            }
        }
    }
}
