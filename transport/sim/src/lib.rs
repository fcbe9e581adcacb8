//! An in-memory multi-path network that drives the core over virtual time, to find its bugs from
//! seeds.
//!
//! A seed draws a whole run ([`scenario::Scenario`]): hosts, connections, paths, work, and what goes
//! wrong. [`simulation::Simulation`] plays it; [`check`] watches. First everything that a network
//! and its hosts can do happens, then the network heals and everything must end. The same seed is
//! the same run; `vopr` is the program that tries many.

pub mod campaign;
pub mod check;
pub mod draw;
pub mod endpoint;
pub mod host;
pub mod network;
pub mod observation;
pub mod pair;
pub mod pattern;
pub mod scenario;
pub mod simulation;
pub mod stray;
pub mod target;
mod worker;
