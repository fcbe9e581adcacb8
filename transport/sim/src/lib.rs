//! An in-memory multi-path network that drives the core, to find its bugs from seeds.
