//! Checkers: each watches a run for one promise of the core, by itself.

mod bytes;
mod cancelled;
mod completion;
mod convergence;
mod drops;
mod footprint;
mod immediates;
mod numbers;
mod order;
mod window;

use std::fmt;

use crate::observation::Observation;
use crate::scenario::Scenario;

/// Where the packet number stands in every packet (docs/wire.md).
const PACKET_NUMBER: std::ops::Range<usize> = 8..16;

fn packet_number(bytes: &[u8]) -> u64 {
    bytes[PACKET_NUMBER]
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// One promise of the core, watched over a whole run.
pub trait Checker {
    /// The promise's name, as failures print it.
    fn name(&self) -> &'static str;

    /// Takes note of what happened at `now` nanoseconds.
    ///
    /// # Errors
    /// The promise was broken; the text says how.
    fn observe(&mut self, now: u64, what: &Observation<'_>) -> Result<(), String>;

    /// The run is over.
    ///
    /// # Errors
    /// Something that had to happen did not.
    fn finish(&mut self, now: u64) -> Result<(), String> {
        let _ = now;
        Ok(())
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub checker: &'static str,
    /// When, in virtual nanoseconds.
    pub at: u64,
    /// How.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ns: {}", self.checker, self.at, self.text)
    }
}

/// All checkers of a run, and the first promise that was broken.
pub struct Checkers {
    all: Vec<Box<dyn Checker>>,
    violation: Option<Violation>,
}

impl Checkers {
    /// Every checker there is.
    pub fn new(scenario: &Scenario) -> Checkers {
        Checkers {
            all: vec![
                Box::new(cancelled::ConfirmedCancel::default()),
                Box::new(bytes::EveryByteOnce::default()),
                Box::new(completion::CompleteWhenPlaced::default()),
                Box::new(immediates::ImmediateAfterPayload::new(scenario)),
                Box::new(order::PlacedInOrder::new(scenario)),
                Box::new(window::WindowConserved::new(scenario)),
                Box::new(footprint::BoundedMemory::new(scenario)),
                Box::new(drops::ExpectedDropsOnly::new(scenario)),
                Box::new(numbers::NumbersGrow::default()),
                Box::new(convergence::EverythingEnds::default()),
            ],
            violation: None,
        }
    }

    /// Tells all checkers.
    pub fn observe(&mut self, now: u64, what: &Observation<'_>) {
        if self.violation.is_some() {
            return;
        }
        for checker in &mut self.all {
            if let Err(text) = checker.observe(now, what) {
                self.violation = Some(Violation {
                    checker: checker.name(),
                    at: now,
                    text,
                });
                return;
            }
        }
    }

    /// Notes a violation that no checker but the simulation itself sees.
    pub fn violated(&mut self, checker: &'static str, at: u64, text: String) {
        self.violation
            .get_or_insert(Violation { checker, at, text });
    }

    /// The first promise that was broken.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Ends the run.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub fn finish(mut self, now: u64) -> Result<(), Violation> {
        for checker in &mut self.all {
            if self.violation.is_some() {
                break;
            }
            if let Err(text) = checker.finish(now) {
                self.violation = Some(Violation {
                    checker: checker.name(),
                    at: now,
                    text,
                });
            }
        }
        self.violation.map_or(Ok(()), Err)
    }
}
