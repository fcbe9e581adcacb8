//! Whether a row has ended as it must: the job's word, every disk, and what the fault cost.

use std::{collections::BTreeMap, fs, path::Path};

use weft_planner::BLOCK_BYTES;
use weft_proto::agent::v1::{Role, State};
use weft_transfer::{DestinationPhase, Failure, Transfer};

use super::{AtDestination, End, Fault, Play, REMEDY_BYTES, Strike, standings};
use crate::{
    stage::{NODES, name},
    tree::partials_below,
};

/// Of the bytes, what a resumed transfer may send twice, besides one segment.
const RESENT_SHARE: u64 = 20;
/// 64 KiB in packets of 9000 bytes.
const CHUNK_PACKETS: u64 = 8;
/// Two chunks that were sent again only because the machine was busy.
const SPURIOUS_PACKETS: u64 = 2 * CHUNK_PACKETS;

impl Play<'_> {
    /// The final state, of the job and of every disk.
    pub(super) fn judge(&mut self, job: &Transfer) {
        let all = standings(job);
        let failing = match self.row.end {
            End::Verified => &[],
            End::Failed { nodes, .. } => nodes,
        };
        assert_eq!(job.is_complete(), failing.is_empty(), "{all}");
        for (view, &node) in job.destinations().zip(self.row.to) {
            let path = self.stage.root(node).join(&self.destination);
            match (&view.phase, self.row.end) {
                (DestinationPhase::Verified { .. }, _) if !failing.contains(&node) => {
                    self.tree.assert_arrived(&path);
                }
                (DestinationPhase::Failed(failure), End::Failed { reasons, says, .. })
                    if failing.contains(&node) =>
                {
                    // Who says so: the source of its own files, and of every other thing the node.
                    let at_source = failure.reason.starts_with("Source")
                        || matches!(self.row.fault, Fault::Source(_));
                    assert_refusal(failure, if at_source { 0 } else { node }, reasons, says);
                    self.assert_kept(&path);
                }
                _ => panic!("{all}"),
            }
        }
        self.judge_fault(job, &all);
        for node in 1..NODES {
            // What cannot be reached cannot be told to clean up.
            if self.row.fault != Fault::Within(node, Strike::Unreachable(node)) {
                let left = partials_below(self.stage.root(node));
                assert!(left.is_empty(), "partial files are left: {left:?}");
            }
        }
        if let Fault::Within(_, Strike::Unreachable(node)) = self.row.fault {
            self.stage.kill(node).unwrap();
        }
    }

    /// Nothing of the source is where it should not be, and what was there before still is.
    fn assert_kept(&self, path: &Path) {
        match self.row.fault {
            Fault::Destination(AtDestination::DirectoryInTheWay) => {
                assert!(path.join("model.bin/kept").is_dir());
            }
            Fault::Destination(AtDestination::Absolute | AtDestination::Parent) => {
                assert!(fs::read_dir(self.stage.root(3)).unwrap().next().is_none());
            }
            Fault::Destination(AtDestination::Symlink) => {
                assert!(fs::read_dir(self.stage.root(3)).unwrap().next().is_none());
            }
            Fault::Within(_, Strike::ChangeSource | Strike::ReplaceSource)
            | Fault::Within(_, Strike::TruncateSource | Strike::RemoveSource) => {
                self.tree.assert_not_published(path);
            }
            _ => self.tree.assert_nothing_wrong(path),
        }
    }

    /// That the fault was felt, and cost no more than it may.
    fn judge_fault(&self, job: &Transfer, all: &str) {
        let Fault::Within(node, strike) = self.row.fault else {
            return;
        };
        match strike {
            Strike::Restart(_) | Strike::RestartWithOtherClock(_) => {
                assert!(job.attempt() > 1, "the kill was not felt: {all}");
                self.assert_resumed(job);
            }
            Strike::BlackHole | Strike::LongPackets(_) | Strike::Outage => {
                assert_eq!(job.attempt(), 1, "the transport gave up: {all}");
                assert!(job.chunks().1 > 0, "nothing was lost");
            }
            Strike::Loss(_) => {
                assert_eq!(job.attempt(), 1, "the transport gave up: {all}");
                assert!(job.chunks().1 > 0, "nothing was lost");
            }
            Strike::Corruption(_) => {
                assert_eq!(job.attempt(), 1, "the transport gave up: {all}");
                let found = self.dropped(node, &["Checksum", "Seal"]);
                assert!(found > 0, "no packet was found to be altered");
                assert!(
                    job.chunks().1 > 0,
                    "{found} packets were altered and nothing was sent again"
                );
                // Each packet came alone, and of most chunks one was missing: sent again as a
                // whole, the others would have arrived twice.
                let twice = self.dropped(node, &["Duplicate"]);
                let whole = found * (CHUNK_PACKETS - 1);
                assert!(
                    twice < whole + SPURIOUS_PACKETS,
                    "{twice} packets arrived twice, for {found} that were altered"
                );
            }
            Strike::Attack => {
                assert_eq!(job.attempt(), 1, "the transport gave up: {all}");
                for (reason, sent) in self.attack.as_ref().unwrap().expected() {
                    let found = self.dropped(node, &[reason]);
                    // They pass the same full queues as the transfer itself, which drop some.
                    assert!(
                        found >= sent / 2,
                        "{reason}: {found} of {sent} were dropped"
                    );
                }
            }
            _ => {}
        }
    }

    /// Packets that a node has dropped for these reasons since the fault struck.
    fn dropped(&self, node: usize, reasons: &[&str]) -> u64 {
        let now = self.stage.drops(node);
        let count = |drops: &BTreeMap<String, u64>, reason: &str| {
            drops.get(reason).copied().unwrap_or_default()
        };
        let since = |reason: &&str| count(&now, reason) - count(&self.drops, reason);
        reasons.iter().map(since).sum()
    }

    /// Of what a node had when the fault struck, hardly anything was sent again.
    fn assert_resumed(&self, job: &Transfer) {
        let total = self.tree.bytes();
        for (view, node) in job.destinations().zip(self.row.to) {
            let report = &view.progress;
            let attempt = report.attempt.as_ref().map_or(0, |job| job.number);
            if attempt < 2 {
                continue;
            }
            let received: u64 = report
                .peers
                .iter()
                .filter(|peer| peer.role() == Role::Parent)
                .map(|peer| peer.bytes)
                .sum();
            let lacking = total - self.struck[node];
            let allowed = lacking + total / RESENT_SHARE + BLOCK_BYTES;
            assert_eq!(report.state(), State::Verified);
            assert!(
                received <= allowed,
                "{}: {received} bytes were sent and it lacked {lacking}",
                name(*node)
            );
            assert_eq!(received + report.bytes_resumed, total, "{}", name(*node));
        }
    }
}

/// The reason is expected; the text names the node, the subject, and a remedy at its end.
pub(crate) fn assert_refusal(failure: &Failure, node: usize, reasons: &[&str], says: &[&str]) {
    assert!(reasons.contains(&failure.reason.as_str()), "{failure:?}");
    let message = &failure.message;
    assert!(
        message.contains(&format!("node {}", name(node))),
        "{failure:?}"
    );
    for words in says {
        assert!(message.contains(words), "{words:?} is not in: {message}");
    }
    let remedy = message
        .rsplit_once([':', ';'])
        .map_or("", |(_, remedy)| remedy.trim());
    assert!(remedy.len() >= REMEDY_BYTES, "no remedy: {message}");
}
