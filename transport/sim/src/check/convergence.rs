//! Everything ends: complete when its peer lives, failed when not.

use std::collections::{BTreeMap, BTreeSet};

use weft_core::connection::Connection;

use super::Checker;
use crate::observation::{End, Excuse, Observation};

/// Once the network is fair and all hosts run, some byte of a writer that has work arrives at least
/// this often: probes come every second at most, resends while nothing comes back more often.
const PROGRESS_WITHIN_NANOS: u64 = 5_000_000_000;

/// Between two hosts that keep their state no connection fails, but one with a write that must be
/// refused does. When a run is over every accepted
/// message has completed, or its connection has failed with an excuse, or its own host was lost.
#[derive(Default)]
pub(super) struct EverythingEnds {
    /// Messages under way, by writer.
    open: BTreeMap<u64, End>,
    /// Ends whose peer's host is gone for good.
    orphans: BTreeSet<End>,
    failed: BTreeSet<End>,
    healed_at: Option<u64>,
    /// When something of a writer's messages last arrived or ended.
    progress: BTreeMap<End, u64>,
    /// Ends that ask: their responses wait for what the peer writes itself.
    asking: BTreeSet<End>,
    /// Packets that have arrived at ends that wait for the responses to cancelled reads.
    arrived: BTreeMap<End, u64>,
}

impl EverythingEnds {
    fn progresses(&mut self, now: u64, end: End, connection: &Connection) -> Result<(), String> {
        let (Some(healed), Some(progress)) = (self.healed_at, self.progress.get_mut(&end)) else {
            return Ok(());
        };
        if !connection.is_sending() {
            // One that only acknowledges what the peer sends waits for nothing, however long.
            *progress = now;
        }
        if connection.cancelled_reads() > 0 {
            // What still comes of them is placed nowhere.
            let arrived = connection.stats().packets_placed;
            if self.arrived.insert(end, arrived) != Some(arrived) {
                *progress = now;
            }
        }
        let waits = now.saturating_sub(healed.max(*progress));
        if self.orphans.contains(&end) || waits < PROGRESS_WITHIN_NANOS {
            return Ok(());
        }
        Err(format!(
            "nothing of {end:?} has arrived for {waits} ns of fair weather"
        ))
    }
}

impl Checker for EverythingEnds {
    fn name(&self) -> &'static str {
        "everything ends"
    }

    fn observe(&mut self, now: u64, what: &Observation<'_>) -> Result<(), String> {
        match *what {
            Observation::Posted { message } => {
                if message.reader() == message.writer {
                    self.asking.insert(message.writer);
                }
                self.open.insert(message.id, message.writer);
                self.progress.entry(message.writer).or_insert(now);
            }
            Observation::Strayed { writer, token } => {
                self.open.insert(token, writer);
                self.progress.entry(writer).or_insert(now);
            }
            Observation::Completed { writer, token }
            | Observation::Cancelled { writer, token }
            | Observation::Refused { writer, token } => {
                self.open.remove(&token);
                self.progress.insert(writer, now);
            }
            Observation::Orphaned { end } => {
                self.orphans.insert(end);
            }
            Observation::Lost { end } => {
                self.open.retain(|_, writer| *writer != end);
            }
            Observation::Failed {
                end,
                excuse,
                reason,
            } => {
                if excuse == Excuse::None {
                    return Err(format!("{end:?} failed ({reason}) although its peer lives"));
                }
                if !self.failed.insert(end) {
                    return Err(format!("{end:?} failed twice"));
                }
                self.open.retain(|_, writer| *writer != end);
            }
            Observation::Placed {
                reader, message, ..
            } => {
                let writer = message.map_or(reader.peer(), |message| message.writer);
                self.progress.insert(writer, now);
                // The writer of a read is its reader, too: then the bytes are of the peer.
                self.progress.insert(reader.peer(), now);
                if self.asking.contains(&reader) {
                    self.progress.insert(reader, now);
                }
            }
            Observation::Healed => self.healed_at = Some(now),
            Observation::Turned {
                end, connection, ..
            } => return self.progresses(now, end, connection),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _now: u64) -> Result<(), String> {
        let Some((message, writer)) = self.open.first_key_value() else {
            return Ok(());
        };
        let open = self.open.len();
        if self.orphans.contains(writer) {
            return Err(format!(
                "{writer:?} neither failed nor completed {open} messages though its peer is gone"
            ));
        }
        Err(format!(
            "message {message} of {writer:?} and {} more never ended",
            open - 1
        ))
    }
}
