//! weft: play and plan, without a cluster. `kubectl weft` prints with the same tables and quantities.

pub mod columns;
pub mod fabric;
pub mod plan;
pub mod play;
pub mod quantity;
pub mod stage;
