//! weft: play, plan and device, without a cluster. `kubectl weft` prints with the same tables and quantities.

pub mod columns;
pub mod device;
pub mod plan;
pub mod play;
pub mod printable;
pub mod stage;

/// The release, and the commit where the build knows it.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("WEFT_COMMIT_SUFFIX"));
