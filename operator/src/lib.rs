//! The operator: what decides about transfers, issues certificates and signs tickets.
//!
//! [`transfer`] knows nothing of Kubernetes: `weft play` carries out its jobs with
//! the same code. The rest is what a cluster needs: [`process`] is the program's life, from candidate
//! to leader; [`control`] is what agents call; [`controllers`] decide; [`home`] holds the operator's own
//! objects, [`rotation`] lets one authority follow another; [`live`] answers `kubectl weft`. [`uninstall`]
//! and [`check`] are what `helm uninstall` and
//! `helm test` run.

mod caller;
pub mod check;
pub mod control;
pub mod controllers;
mod fault;
pub mod home;
pub mod lease;
pub mod live;
mod patience;
pub mod process;
pub mod reports;
pub mod review;
pub mod rotation;
pub mod transfer;
pub mod uninstall;
pub mod web;

/// What the operator calls itself: its Deployment, Service, Lease, and the manager of fields it writes.
pub const NAME: &str = "weft-operator";
