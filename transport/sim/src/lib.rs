//! An in-memory multi-path network that drives the core over virtual time, to find its bugs from
//! seeds.
//!
//! A seed draws a whole run ([`scenario::Scenario`]): hosts, connections, paths, work, and what goes
//! wrong. [`simulation::Simulation`] plays it; [`check`] watches. First everything that a network
//! and its hosts can do happens, then the network heals and everything must end. The same seed is
//! the same run; `vopr` is the program that tries many.
//!
//! Every endpoint is driven by [`host::Host`], in a run as between the two ends of a [`pair::Pair`], which tests,
//! benchmarks and fuzz targets use.

pub mod campaign;
pub mod check;
pub mod draw;
pub mod end;
pub mod host;
pub mod load;
pub mod machine;
pub mod network;
pub mod observation;
pub mod pair;
pub mod pattern;
mod post;
pub mod scenario;
pub mod simulation;
pub mod stray;
pub mod target;
mod worker;
