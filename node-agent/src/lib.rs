//! The node agent: control API, files, certificates, metrics; embeds the transport.
//!
//! An operator, or `weft play`, tells it what to do over mutually authenticated gRPC
//! ([`control`]). What the agent then does for one attempt at a job is [`transfer`]: a source reads and
//! hashes blocks (`block_reader`) and sends them (`sender`, `fanout`), a destination receives, checks
//! and writes them (`receiver`, `block_writer`, `destination_blocks`), and a relay does both. A copy within one
//! node does not use the transport (`local`). Where the source is an object of a store, one destination
//! reads it ([`object`], `object_receiver`). The agent knows nothing of Kubernetes.
//!
//! Control runs on a small runtime; whatever may block (files, hashing, waiting for the engine) runs
//! on threads of its own, joined by channels.

pub mod agent;
pub mod config;
pub mod control;
mod convert;
mod copy_watcher;
mod devices;
pub mod enroll;
mod fail_fast;
pub mod fault;
pub mod files;
pub mod identity;
mod links;
pub mod metrics;
mod nic_state;
mod node_key;
pub mod object;
mod private_file;
mod root_opener;
mod root_space;
pub mod tls;
pub mod transfer;
mod volumes;
mod web;
