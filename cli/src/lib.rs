//! weft: play, plan.

pub mod fabric;
pub mod plan;
pub mod play;
pub mod quantity;
pub mod stage;
