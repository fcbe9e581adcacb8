//! Files: roots, manifests, digests, and how a file leaves one node and appears on another.
//!
//! Blocking I/O only, and nothing else: no runtime, no transport, no control API. The transfer
//! code calls it from threads that may block. Nothing here trusts a path, a manifest or a block
//! that came from another node, and no half-written file, nor half of a new directory, ever stands
//! under its final name.
//!
//! ```text
//! source       Manifest::scan -> Source::open -> read_block -> Blocks::digest -> FileTree
//! destination  Destination::prepare -> open -> (rehash, confirm) -> Blocks::verify
//!              -> write_block -> finish -> complete -> record
//! ```

mod claim;
pub mod copies;
mod copy_record;
mod destination;
mod digest;
mod discard;
mod error;
mod filling;
mod gate;
mod manifest;
mod occupancy;
mod partial;
mod read_record;
mod reservation;
mod root;
mod source;
mod space;
mod staging;
mod sweep;
mod tree;

#[cfg(test)]
mod tests;

pub use claim::JobUid;
pub use destination::{Destination, DestinationConfig, Overwrite, Partials};
pub use digest::{
    Algorithm, BLOCK_BYTES, BlockDigest, BlockFault, Blocks, Digest, DigestParseError,
    MAX_FILE_BYTES, VerifiedBlock, directory_digest,
};
pub use discard::Leftover;
pub(crate) use error::errno;
pub use error::{FileError, Place};
pub use manifest::{
    Entry, EntryKind, Identity, MAX_BLOCKS, MAX_DEPTH, MAX_ENTRIES, MAX_PATHS_BYTES, Manifest,
    ManifestBuilder, ObjectVersion, Shape,
};
pub use partial::DestinationFile;
pub use read_record::{ReadRecord, VersionId};
pub use root::{Access, Root, RootPath};
pub use source::{Source, SourceFile};
pub use space::{MinFree, RootLimits};
pub use sweep::sweep;
pub use tree::FileTree;
