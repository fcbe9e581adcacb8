//! The node agent: control API, files, certificates, metrics; embeds the transport.
//!
//! An operator, or `weft play`, tells it what to do over mutually authenticated gRPC
//! (`service`); what it then does for one attempt at a job is [`attempt`]: a source reads and
//! hashes (`supply`) and sends (`outlet`, `fanout`), a destination receives, checks and writes
//! (`intake`, `placing`, `shelf`), and a relay does both; what is copied on one node never
//! leaves it (`local`). Where the source is an object of a store, one destination reads it (`object`,
//! `fetch`) in place of an intake. It knows nothing of Kubernetes.
//!
//! Control runs on a small runtime; whatever may block (files, hashing, waiting for the engine) runs
//! on threads of its own, joined by channels.

mod account;
pub mod agent;
mod arrivals;
pub mod attempt;
pub mod config;
pub mod config_values;
mod control;
mod convert;
mod copies;
mod diagnose;
mod dial;
mod door;
pub mod enroll;
mod fanout;
pub mod fault;
mod fence;
mod fetch;
pub mod files;
mod guard;
pub mod identity;
mod intake;
pub mod jobs;
mod layout;
mod link;
mod local;
mod manifest_fetch;
mod manifests;
mod message;
mod metrics;
mod misuse;
mod node_key;
pub mod object;
mod opener;
mod outlet;
mod peer;
mod placing;
mod pool;
pub mod record;
mod recorder;
mod service;
mod shelf;
mod signal;
pub mod state;
mod supply;
pub mod tls;
mod web;
