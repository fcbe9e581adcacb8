//! weft: play, plan.

pub mod plan;
pub mod quantity;
