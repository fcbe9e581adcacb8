//! The operator: what decides about transfers, issues certificates and signs tickets.
//!
//! [`transfer`] knows nothing of Kubernetes: `weft play` carries out its jobs with the same code.

pub mod authority;
pub mod transfer;
