//! No packet dropped for a reason that this run does not give.

use std::collections::BTreeSet;

use weft_core::drops::DropReason;

use super::Checker;
use crate::observation::{End, Observation};

/// An untouched packet is dropped as a duplicate only, because its connection is closed, or because
/// its receiver must or may refuse it.
#[derive(Default)]
pub(super) struct ExpectedDropsOnly {
    /// Ends that were given a write that their peer must refuse.
    strayed: BTreeSet<End>,
    /// Some host's regions were away.
    away: bool,
}

impl Checker for ExpectedDropsOnly {
    fn name(&self) -> &'static str {
        "no unexpected drop"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        let (end, reason, tampered) = match *what {
            Observation::Dropped {
                end,
                reason,
                tampered,
            } => (end, reason, tampered),
            Observation::Strayed { writer, .. } => {
                self.strayed.insert(writer);
                return Ok(());
            }
            Observation::Away => {
                self.away = true;
                return Ok(());
            }
            _ => return Ok(()),
        };
        let expected = match reason {
            DropReason::Duplicate | DropReason::Closed => true,
            DropReason::Truncated
            | DropReason::Version
            | DropReason::Kind
            | DropReason::Malformed
            | DropReason::UnknownConnection
            | DropReason::Seal
            | DropReason::Checksum => tampered,
            DropReason::Key | DropReason::Bounds => {
                end.is_some_and(|end| self.strayed.contains(&end.peer()))
            }
            DropReason::NotArmed => self.away,
            DropReason::BeyondWindow | DropReason::AckOfUnsent => false,
        };
        if expected {
            return Ok(());
        }
        Err(format!(
            "{end:?} dropped an {} packet: {reason:?}",
            if tampered { "altered" } else { "intact" }
        ))
    }
}
