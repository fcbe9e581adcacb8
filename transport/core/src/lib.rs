//! The sans-IO transport core.
//!
//! Decides which chunk goes on which path and when, what was lost, and what is complete. It never
//! opens a socket, starts a thread, reads a clock or draws ambient randomness: time and a seeded
//! generator are arguments, payload is placed through [`memory::Memory`] and gathered by the link.
//! The engine's workers drive its [`endpoint::Endpoint`] over sockets, the simulator drives the same type over
//! virtual time.
//!
//! Modules, lowest first; a module uses only those above it:
//! [`units`] · [`drops`] · [`wire`] · [`memory`] · [`received`] · [`path`] · [`congestion`] · [`recovery`] ·
//! [`connection`] · [`endpoint`].

pub mod congestion;
pub mod connection;
pub mod drops;
pub mod endpoint;
pub mod memory;
pub mod path;
pub mod received;
pub mod recovery;
pub mod units;
pub mod wire;
