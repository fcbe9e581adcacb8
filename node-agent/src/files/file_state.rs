//! `FileState`: what tells one state of a file from another without reading it.

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// What tells one state of a file from another without reading it. Of one node: other nodes have no
/// use for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    /// Device number; not recorded with a copy.
    #[serde(skip)]
    pub(super) dev: u64,
    /// Inode number.
    pub(super) ino: u64,
    /// Bytes.
    pub(super) size: u64,
    /// Last change of the content, ns since 1970.
    pub(super) mtime_ns: i64,
    /// Last change of content or attributes, ns since 1970; cannot be set back by a user.
    pub(super) ctime_ns: i64,
}

impl FileState {
    // The fields of `Stat` have other types on other architectures.
    #[allow(
        clippy::unnecessary_cast,
        reason = "the types differ between architectures"
    )]
    pub(super) fn of(stat: &Stat) -> Self {
        let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000) + nanos;
        FileState {
            dev: stat.st_dev as u64,
            ino: stat.st_ino as u64,
            size: stat.st_size as u64,
            mtime_ns: nanos(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            ctime_ns: nanos(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// The state of a file in 8 bytes: there may be a million files. The same in every release: the operator compares
    /// what is made of it between attempts, and an agent may be upgraded between two.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let FileState {
            dev,
            ino,
            size,
            mtime_ns,
            ctime_ns,
        } = *self;
        let fields = [
            dev,
            ino,
            size,
            mtime_ns.cast_unsigned(),
            ctime_ns.cast_unsigned(),
        ];
        Fingerprint(XxHash3_64::oneshot(
            fields.map(u64::to_le_bytes).as_flattened(),
        ))
    }

    /// The same of a directory, whose times change with every file that is added or removed beside the
    /// listed ones.
    pub(super) fn directory_fingerprint(&self) -> Fingerprint {
        let FileState { dev, ino, .. } = *self;
        let directory = FileState {
            dev,
            ino,
            ..FileState::default()
        };
        directory.fingerprint()
    }

    /// As it is recorded with a copy: device numbers may change when the node restarts.
    pub(super) fn recorded(self) -> Self {
        FileState { dev: 0, ..self }
    }

    /// Whether both are of the same file or directory.
    pub(super) fn is_same_file(&self, other: &FileState) -> bool {
        (self.dev, self.ino) == (other.dev, other.ino)
    }
}

/// Bytes of disk that a file takes.
pub(super) fn allocated_bytes(stat: &Stat) -> u64 {
    // 512 B: the unit of st_blocks (stat(2)).
    #[allow(clippy::unnecessary_cast, reason = "differs between architectures")]
    let blocks = stat.st_blocks as u64;
    blocks.saturating_mul(512)
}

/// Tells one state of a file from another: XXH3 of the fields of a [`FileState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint(pub(super) u64);
