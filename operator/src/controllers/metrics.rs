//! What the controllers count.

use prometheus_client::{
    metrics::{counter::Counter, histogram::Histogram},
    registry::Registry,
};

/// What the controllers count.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) writes: Counter,
    pub(crate) dropped: Counter,
    pub(crate) failed: Counter,
    pub(crate) reconcile_seconds: Histogram,
}

/// Bounds of the buckets. 50 ms, which 99 of 100 times keep, is one of them.
const RECONCILE_SECONDS: [f64; 17] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0,
    5.0,
];

impl Default for Metrics {
    fn default() -> Self {
        Self {
            writes: Counter::default(),
            dropped: Counter::default(),
            failed: Counter::default(),
            reconcile_seconds: Histogram::new(RECONCILE_SECONDS),
        }
    }
}

impl Metrics {
    /// Shows it.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "weft_operator_writes",
            "Requests to change something that were sent to the API server, Events and refused ones included",
            self.writes.clone(),
        );
        registry.register(
            "weft_operator_writes_dropped",
            "Writes of progress and model labels that newer ones replaced before they were sent, and Events without room",
            self.dropped.clone(),
        );
        registry.register(
            "weft_operator_writes_failed",
            "Requests that the API server refused or did not answer, without conflicts and objects that are gone; they are made again",
            self.failed.clone(),
        );
        registry.register(
            "weft_operator_step_seconds",
            "Seconds from the first event until every controller has reconciled and submitted its requests",
            self.reconcile_seconds.clone(),
        );
    }
}
