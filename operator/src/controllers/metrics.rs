//! What the controllers count.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use weft_metrics::{register, table};

/// What the controllers count.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(crate) writes: Counter,
    pub(crate) dropped: Counter,
    pub(crate) failed: Counter,
    pub(crate) waiting: Gauge,
    pub(crate) nodes_not_ready: Gauge,
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
            waiting: Gauge::default(),
            nodes_not_ready: Gauge::default(),
            reconcile_seconds: Histogram::new(RECONCILE_SECONDS),
        }
    }
}

impl Metrics {
    /// Shows it.
    pub fn register(&self, registry: &mut Registry) {
        register(registry, &table::OPERATOR_WRITES, self.writes.clone());
        let dropped = self.dropped.clone();
        register(registry, &table::OPERATOR_WRITES_DROPPED, dropped);
        let failed = self.failed.clone();
        register(registry, &table::OPERATOR_WRITES_FAILED, failed);
        let waiting = self.waiting.clone();
        register(registry, &table::OPERATOR_WRITES_WAITING, waiting);
        let not_ready = self.nodes_not_ready.clone();
        register(registry, &table::OPERATOR_NODES_NOT_READY, not_ready);
        let seconds = self.reconcile_seconds.clone();
        register(registry, &table::OPERATOR_STEP_SECONDS, seconds);
    }
}
