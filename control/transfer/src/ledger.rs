//! What the agents have said of a job, through all its attempts, and what follows from it.

use std::{collections::BTreeMap, time::Duration};

use weft_proto::agent::v1::{PeerProgress, ProgressResponse, State};

use super::{
    Refusal, Spec,
    attempt::{Attempt, Run},
    destination::{Destinations, Standing},
    object::{is_of_access, is_of_the_store},
};

/// The reason of a destination that got other bytes than it must have.
const EXPECT_MISMATCH: &str = "ExpectMismatch";

/// The reason of a destination that somebody between it and the source has failed.
pub(super) const SENDER_LOST: &str = "SenderLost";

/// What the source sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sends {
    /// Its own files.
    Files,
    /// What it reads from a store: it is a destination, too.
    Object,
    /// A verified copy of what a store has; others have it, too.
    Copy,
}

/// Owned and written by the job.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    pub(super) destinations: Destinations,
    source_node: String,
    sends: Sends,
    source: ProgressResponse,
    /// The link in use and why, once an agent has said.
    link: (String, String),
    /// Chunks sent and resent, by node and attempt.
    chunks: BTreeMap<(String, u32), (u64, u64)>,
}

impl Ledger {
    pub(super) fn new(spec: &Spec) -> Self {
        Self {
            destinations: Destinations::new(&spec.destinations),
            source_node: spec.source.node.clone(),
            sends: if spec.object.is_some() {
                Sends::Object
            } else {
                Sends::Files
            },
            source: ProgressResponse::default(),
            link: <(String, String)>::default(),
            chunks: BTreeMap::new(),
        }
    }

    /// The source's newest report; all zero before its first of this attempt.
    pub(super) fn source(&self) -> &ProgressResponse {
        &self.source
    }

    /// The bytes come from another node now, or from elsewhere at that node.
    pub(super) fn comes_from(&mut self, node: &str, sends: Sends) {
        self.source_node = node.to_owned();
        self.sends = sends;
        self.source = ProgressResponse::default();
    }

    pub(super) fn digest(&self) -> &str {
        if self.source.digest.is_empty() {
            self.destinations.local_digest()
        } else {
            &self.source.digest
        }
    }

    pub(super) fn link(&self) -> (&str, &str) {
        (&self.link.0, &self.link.1)
    }

    /// Chunks sent, resent ones included, and of these the resent ones; all nodes and attempts.
    pub(super) fn chunks(&self) -> (u64, u64) {
        let add = |(a, b): (u64, u64), (c, d): &(u64, u64)| (a + c, b + d);
        self.chunks.values().fold((0, 0), add)
    }

    /// An attempt begins.
    pub(super) fn open(&mut self) {
        self.source = ProgressResponse::default();
    }

    /// Counts what any attempt's report says of its link.
    pub(super) fn count(&mut self, node: &str, attempt: u32, report: &ProgressResponse) {
        let chunks = (report.chunks_sent, report.chunks_resent);
        self.chunks.insert((node.to_owned(), attempt), chunks);
        if !report.link.is_empty() {
            self.link = (report.link.clone(), report.link_reason.clone());
        }
    }

    /// Keeps a report of the attempt in force, so long after the first Start.
    pub(super) fn book(&mut self, node: &str, report: ProgressResponse, since: Duration) {
        if node == self.source_node {
            self.source = report.clone();
            if self.sends != Sends::Object {
                return;
            }
        }
        if let Some(destination) = self.destinations.get_mut(node) {
            let state = report.state();
            destination.best = destination.best.max(report.bytes);
            destination.report = report;
            if state == State::Verified && !destination.standing.is_final() {
                destination.standing = Standing::Verified { after: since };
            }
        }
    }

    /// The source's own failure, where no receiver of it explains it.
    pub(super) fn source_fault(&self) -> Option<Refusal> {
        let failed = self.source.state() == State::Failed;
        let explained = self.source.peers.iter().any(|peer| peer.failed);
        let refusal = reported(&self.source_node, &self.source);
        (failed && !explained && self.is_final(&refusal)).then_some(refusal)
    }

    /// What the source says would be no other the next time. A reader's own troubles are its own, and a
    /// copy's that copy's: another destination reads or sends then.
    fn is_final(&self, refusal: &Refusal) -> bool {
        let is_everybodys = match self.sends {
            Sends::Files => true,
            Sends::Object => is_of_the_store(&refusal.reason),
            Sends::Copy => false,
        };
        is_everybodys && !refusal.retriable && !is_ours(refusal)
    }

    /// What this destination says of itself is the sender's fault: from another one it may get the bytes.
    fn is_of_the_sender(&self, node: &str, refusal: &Refusal) -> bool {
        match self.sends {
            Sends::Files => false,
            Sends::Object => node == self.source_node && is_of_access(&refusal.reason),
            Sends::Copy => refusal.reason == EXPECT_MISMATCH,
        }
    }

    /// Whoever sent in an ended attempt could not, by no fault of its receivers, and another one may.
    fn has_failed_to_send(&self, attempt: &Attempt) -> bool {
        let explained = self.source.peers.iter().any(|peer| peer.failed);
        match attempt.run(&self.source_node) {
            Some(Run::Stopped(refusal)) if !is_ours(refusal) => match self.sends {
                Sends::Files => false,
                Sends::Object => is_of_access(&refusal.reason),
                Sends::Copy => !explained,
            },
            _ => false,
        }
    }

    /// Books what an ended attempt left; whether another one should send the next time.
    #[must_use]
    pub(super) fn close(&mut self, attempt: &Attempt) -> bool {
        let mut is_the_senders = self.has_failed_to_send(attempt);
        for node in self.destinations.remaining() {
            match attempt.run(&node) {
                Some(Run::Stopped(refusal) | Run::CutOff(refusal)) => {
                    let is_of_the_sender = self.is_of_the_sender(&node, refusal);
                    is_the_senders |= is_of_the_sender;
                    let refusal = Refusal {
                        retriable: refusal.retriable || is_of_the_sender,
                        ..refusal.clone()
                    };
                    self.destinations.refuse(&node, refusal);
                }
                Some(_) => {
                    let sender = match attempt.run(attempt.source()) {
                        Some(Run::Stopped(refusal)) => refusal.message.clone(),
                        _ => "a node between it and the source failed".to_owned(),
                    };
                    self.destinations.refuse(
                        &node,
                        Refusal {
                            node: node.clone(),
                            reason: SENDER_LOST.to_owned(),
                            message: format!("node {node} has nobody to receive from: {sender}"),
                            retriable: true,
                        },
                    );
                }
                // It was late.
                None => {}
            }
        }
        if let Some(fault) = self.source_fault() {
            self.destinations.fail_remaining(&fault);
        }
        if let Some(Run::Stopped(refusal)) = attempt.run(attempt.source())
            && self.source.state() != State::Failed
            && self.is_final(refusal)
        {
            self.destinations.fail_remaining(&refusal.clone());
        }
        is_the_senders
    }

    /// The last word on what says that it is Verified.
    pub(super) fn compare_digests(&mut self) {
        let right = self.source.digest.clone();
        for destination in self.destinations.iter_mut() {
            let theirs = &destination.report.digest;
            let is_verified = matches!(destination.standing, Standing::Verified { .. });
            if is_verified && !right.is_empty() && !theirs.is_empty() && *theirs != right {
                let node = destination.place.node.clone();
                let message = format!(
                    "node {node} has digest {theirs} and the source {right}: run the same release \
                     of weft-agent on both nodes, and report this as a bug"
                );
                destination.standing = Standing::Failed(Refusal {
                    node,
                    reason: "DigestMismatch".to_owned(),
                    message,
                    retriable: false,
                });
            }
        }
    }
}

/// How a stop that was asked for, or overtaken, is reported.
pub(super) fn is_ours(refusal: &Refusal) -> bool {
    matches!(refusal.reason.as_str(), "Cancelled" | "Superseded")
}

/// What a node says of itself.
pub(super) fn reported(node: &str, report: &ProgressResponse) -> Refusal {
    Refusal {
        node: node.to_owned(),
        reason: report.reason.clone(),
        message: report.message.clone(),
        retriable: report.retriable,
    }
}

/// What a sender says of its receiver.
pub(super) fn cut_off(peer: &PeerProgress) -> Refusal {
    Refusal {
        node: peer.node.clone(),
        reason: peer.reason.clone(),
        message: peer.message.clone(),
        retriable: peer.retriable,
    }
}
