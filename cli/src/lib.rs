//! weft: play, plan, and what `kubectl weft` asks of a cluster.

pub mod cluster;
mod columns;
pub mod doctor;
pub mod fabric;
pub mod plan;
pub mod play;
pub mod quantity;
pub mod stage;
pub mod status;
