//! No packet dropped for a reason that this run does not give.

use weft_core::drops::DropReason;

use super::Checker;
use crate::observation::Observation;

/// An untouched packet is dropped as a duplicate only, or because its connection is closed.
pub(super) struct ExpectedDropsOnly;

impl Checker for ExpectedDropsOnly {
    fn name(&self) -> &'static str {
        "no unexpected drop"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        let Observation::Dropped {
            end,
            reason,
            tampered,
        } = *what
        else {
            return Ok(());
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
            _ => false,
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
