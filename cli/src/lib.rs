//! weft: play, plan.

pub mod authority;
pub mod fabric;
pub mod operator;
pub mod plan;
pub mod play;
pub mod quantity;
pub mod stage;
