//! Completion once, and only when all was placed.

use std::collections::{BTreeMap, BTreeSet};

use super::Checker;
use crate::observation::{End, Observation};

/// Every accepted message completes at most once, at the end that wrote it, after exactly its bytes
/// were placed.
#[derive(Default)]
pub(super) struct CompleteWhenPlaced {
    open: BTreeMap<u64, (End, u64)>,
    /// Ends that have failed or were lost: nothing may complete there, while what they sent may
    /// still arrive.
    over: BTreeSet<End>,
}

impl Checker for CompleteWhenPlaced {
    fn name(&self) -> &'static str {
        "completion once and only when placed"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        match *what {
            Observation::Posted { message } => {
                self.open
                    .insert(message.id, (message.writer, message.bytes));
            }
            Observation::Placed {
                message: Some(message),
                payload,
                ..
            } => {
                let Some((_, missing)) = self.open.get_mut(&message.id) else {
                    return Err(format!(
                        "message {} was placed after completion",
                        message.id
                    ));
                };
                // A chunk that is cut anew is placed anew: what is missing is known byte by byte elsewhere.
                *missing = missing.saturating_sub(payload.len() as u64);
            }
            Observation::Completed { writer, .. } if self.over.contains(&writer) => {
                return Err(format!("{writer:?} completed a message after its end"));
            }
            Observation::Completed { writer, token } => match self.open.remove(&token) {
                None => return Err(format!("{token} completed twice or was never posted")),
                Some((owner, _)) if owner != writer => {
                    return Err(format!("{token} of {owner:?} completed at {writer:?}"));
                }
                Some((_, missing)) if missing > 0 => {
                    return Err(format!("{token} completed with {missing} B not placed"));
                }
                Some(_) => {}
            },
            Observation::Cancelled { token, .. } | Observation::Refused { token, .. } => {
                self.open.remove(&token);
            }
            Observation::Failed { end, .. } | Observation::Lost { end } => {
                self.over.insert(end);
            }
            _ => {}
        }
        Ok(())
    }
}
