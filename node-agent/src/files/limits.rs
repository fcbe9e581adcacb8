//! Limits of one manifest.

/// Most files and directories in one manifest: 1,000,000 files and the directories that they are in. An
/// entry takes 16 B and its path, and 8 B more where it was listed.
pub const MAX_ENTRIES: usize = 1 << 20;

/// Most bytes of all paths of one manifest: 128 for each entry. Places in them fit `u32`.
pub const MAX_PATHS_BYTES: usize = 128 << 20;

/// Most blocks of all files of one manifest: 256 TiB. Message numbers then fit `u32` (a message has
/// a block or a digest at least), and their places in memory 2 GiB.
pub const MAX_BLOCKS: u64 = 1 << 28;

/// Deepest nesting of directories below the source.
pub const MAX_DEPTH: usize = 64;
