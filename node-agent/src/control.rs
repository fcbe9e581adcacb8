//! The control API: who may call, what a command does, and the jobs of this node.

pub(crate) mod authorization;
pub(crate) mod diagnose;
pub(crate) mod fence;
pub mod jobs;
pub(crate) mod link;
pub(crate) mod listener;
pub(crate) mod manifest_fetch;
pub(crate) mod manifests;
pub(crate) mod misuse;
pub(crate) mod service;
