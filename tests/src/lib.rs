//! What needs more than one crate: faults, benchmarks.
