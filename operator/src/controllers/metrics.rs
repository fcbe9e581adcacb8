//! What the controllers count.

use prometheus_client::{
    metrics::{
        counter::Counter,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// What the controllers count.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) writes: Counter,
    pub(crate) dropped: Counter,
    pub(crate) failed: Counter,
    pub(crate) steps: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            writes: Counter::default(),
            dropped: Counter::default(),
            failed: Counter::default(),
            // From 1 ms to 3 s, finer than the bound of 50 ms.
            steps: Histogram::new(exponential_buckets(0.001, 1.5, 20)),
        }
    }
}

impl Metrics {
    /// Shows it.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "weft_operator_writes",
            "Requests to the API server that changed something, Events included",
            self.writes.clone(),
        );
        registry.register(
            "weft_operator_writes_dropped",
            "Progress and Events that were not written because of the limit on writes in a second",
            self.dropped.clone(),
        );
        registry.register(
            "weft_operator_writes_failed",
            "Requests that the API server refused or did not answer; they are made again",
            self.failed.clone(),
        );
        registry.register(
            "weft_operator_step_seconds",
            "From hearing of a change to having decided everything anew and asked for what follows",
            self.steps.clone(),
        );
    }
}
