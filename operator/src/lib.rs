//! The operator: what decides about transfers, issues certificates and signs tickets.
//!
//! `weft_transfer` carries out each transfer and `weft_identity` issues certificates; neither knows
//! Kubernetes, and `weft play` uses both. This crate is what a cluster needs besides: [`process`] is the
//! program's life, from candidate to leader; [`control`] is what agents call; [`controllers`] decide;
//! [`home`] holds the operator's own objects, [`rotation`] lets one authority follow another; [`live`]
//! answers `kubectl weft`. [`uninstall`], [`upgrade`] and [`check`] are what `helm uninstall`, `helm upgrade` and `helm test` run.

mod api;
pub mod check;
mod claims;
mod consumable_capacity;
pub mod control;
pub mod controllers;
mod enrollment_limit;
mod fault;
pub mod home;
pub mod in_use;
pub mod lease;
pub mod live;
mod pod_jobs;
pub mod process;
mod refused_attempts;
pub mod reports;
mod review;
pub mod rotation;
mod traces;
pub mod uninstall;
pub mod upgrade;
pub mod web;

/// What the operator calls itself: its Deployment, Service, Lease, and the manager of fields it writes.
pub const NAME: &str = "weft-operator";
