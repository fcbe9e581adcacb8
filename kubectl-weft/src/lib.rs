//! kubectl weft: what a user asks of a cluster with their kubeconfig.
//!
//! kubectl finds the program `kubectl-weft` by its name. What needs no cluster is in `weft` (`cli/`),
//! whose tables and quantities these commands print, too.

pub mod cluster;
pub mod copies;
pub mod devices;
pub mod doctor;
pub mod output;
pub mod plan;
pub mod roots;
pub mod status;
pub mod support_bundle;
pub mod top;
pub mod ui;
pub mod version;
