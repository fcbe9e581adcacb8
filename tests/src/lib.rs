//! What needs more than one crate: benchmarks and the tests of whole fabrics.

pub mod bench;
pub mod bench_cluster;
pub mod cluster;
pub mod report;
