//! The control API: who may call, what a command does, and the attempts of this node.

pub(crate) mod attempt_handle;
pub mod attempt_registry;
pub(crate) mod authorization;
pub(crate) mod cancel;
pub(crate) mod connect;
pub(crate) mod diagnose;
pub(crate) mod fence;
pub(crate) mod listener;
pub(crate) mod manifest_fetch;
pub(crate) mod manifests;
pub(crate) mod metrics_page;
pub(crate) mod misuse;
pub(crate) mod prepare;
pub(crate) mod service;
pub(crate) mod start;
pub(crate) mod stat;
pub(crate) mod supervisor;
