//! weft: play, plan.
