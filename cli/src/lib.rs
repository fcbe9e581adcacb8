//! weft: play, plan.

pub mod fabric;
pub mod plan;
pub mod quantity;
