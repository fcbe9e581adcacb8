//! What needs more than one crate: benchmarks and the tests of whole fabrics.

pub mod bench;
pub mod cluster;
pub mod report;
