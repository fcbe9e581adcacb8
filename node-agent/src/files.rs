//! Files: roots, manifests, digests, and how a file leaves one node and appears on another.
//!
//! Blocking I/O only, and nothing else: no runtime, no transport, no control API. The transfer
//! code calls it from threads that may block. Nothing here trusts a path, a manifest or a block
//! that came from another node, and no half-written file, nor half of a new directory, ever stands
//! under its final name.
//!
//! ```text
//! source       Manifest::scan -> Source::open -> read_block -> BlockLayout::digest -> HashTree
//! destination  Destination::prepare -> open -> (rehash, confirm) -> BlockLayout::verify
//!              -> write_block -> finish -> publish -> record
//! ```

pub mod copies;
mod copy_record;
mod destination;
mod destination_config;
mod destination_file;
mod digest;
mod directory;
mod error;
mod file_state;
mod file_target;
mod gate;
mod hash_tree;
mod holes;
mod leftover;
mod limits;
mod lock;
mod manifest;
mod names;
pub mod namespace_directory;
mod not_kept;
mod object_read_log;
mod occupancy;
mod path;
mod placement;
mod progress;
mod publish;
mod reservation;
mod reserved_space;
mod root;
mod root_volumes;
mod scan;
mod source;
mod space;
mod staging;
mod sweep;
mod symlink;
pub mod volumes;

#[cfg(test)]
mod tests;

pub use destination::Destination;
pub use destination_config::{DestinationConfig, Overwrite};
pub use destination_file::DestinationFile;
pub use digest::{
    Algorithm, BLOCK_BYTES, BlockDigest, BlockFault, BlockLayout, Digest, DigestParseError,
    MAX_FILE_BYTES, VerifiedBlock, directory_digest,
};
pub(crate) use error::errno;
pub use error::{FileError, Location};
pub use hash_tree::HashTree;
pub use leftover::Leftover;
pub use limits::{MAX_BLOCKS, MAX_DEPTH, MAX_ENTRIES, MAX_PATHS_BYTES};
pub use manifest::{Entry, EntryKind, Manifest, ManifestBuilder, ObjectVersion, Shape};
pub use names::JobUid;
pub use object_read_log::{ObjectReadLog, VersionId};
pub use path::RootPath;
pub use root::{Access, Root};
pub use root_volumes::RootVolumes;
pub use source::{Source, SourceFile};
pub use space::{MinFree, RootLimits};
pub use sweep::sweep;
pub use symlink::Symlinks;
