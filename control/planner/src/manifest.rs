//! What is to be sent: files and directories below one root, without their content.
//!
//! A person gives such a manifest to `weft plan`; only its size goes into the plan. It is not the manifest that
//! agents list and send to each other. Nothing here touches a file system.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest path in bytes, from Linux `PATH_MAX` (4096, which counts the closing NUL).
const PATH_BYTES_MAX: usize = 4095;

/// Longest component of a path in bytes, from Linux `NAME_MAX`.
const COMPONENT_BYTES_MAX: usize = 255;

/// Permission bits, set-user-id, set-group-id and sticky; the type of a file is not part of a mode.
const MODE_MAX: u32 = 0o7777;

/// Bytes of a block, the unit that agents hash and send; a file's last one may be shorter.
const BLOCK_BYTES: u64 = 1 << 20;

/// Blocks of one manifest, at most: 256 TiB. An agent keeps some bytes for each, and numbers its
/// messages by 32 bits.
const BLOCKS_MAX: u64 = 1 << 28;

/// A tree of files, as `weft plan --manifest` reads it from a file. Agents have a manifest of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Regular files, in any order.
    #[serde(default)]
    pub files: Vec<FileEntry>,
    /// Directories, in any order. Parents of files need not be listed; empty directories must be.
    #[serde(default)]
    pub directories: Vec<DirectoryEntry>,
}

/// One regular file of a [`Manifest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Path relative to the root, components separated by `/`.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Mode bits, `0o7777` at most.
    pub mode: u32,
}

/// One directory of a [`Manifest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectoryEntry {
    /// Path relative to the root, components separated by `/`.
    pub path: String,
    /// Mode bits, `0o7777` at most.
    pub mode: u32,
}

/// Why a manifest cannot be used. Every text names the entry and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// An entry has no path at all.
    #[error("{entry} has an empty path: give the path relative to the source's root")]
    EmptyPath {
        /// Which entry, as `files[3]`.
        entry: String,
    },
    /// A path starts at the root of the file system.
    #[error("{entry} {path:?} is absolute: give it relative to the source's root")]
    AbsolutePath {
        /// Which entry, as `files[3]`.
        entry: String,
        /// The path as given.
        path: String,
    },
    /// A path has `.` or `..` among its components.
    #[error(
        "{entry} {path:?} has the component {component:?}, which could leave the root: write the path without it"
    )]
    DotComponent {
        /// Which entry, as `files[3]`.
        entry: String,
        /// The path as given.
        path: String,
        /// `.` or `..`.
        component: String,
    },
    /// A path has two slashes in a row or one at its end.
    #[error("{entry} {path:?} has an empty component: remove the doubled or closing '/'")]
    EmptyComponent {
        /// Which entry, as `files[3]`.
        entry: String,
        /// The path as given.
        path: String,
    },
    /// A path holds a NUL, which no file system can store.
    #[error("{entry} {path:?} holds a NUL byte: rename the file at the source")]
    NulInPath {
        /// Which entry, as `files[3]`.
        entry: String,
        /// The path as given.
        path: String,
    },
    /// A path or a component is longer than Linux allows.
    #[error(
        "{entry} {path:?} has {bytes} bytes in {what}, {limit} are allowed: shorten it at the source"
    )]
    TooLong {
        /// Which entry, as `files[3]`.
        entry: String,
        /// The path as given.
        path: String,
        /// "the path" or "one component".
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The most bytes that fit.
        limit: usize,
    },
    /// The same path is listed twice.
    #[error("{entry} {path:?} is also listed as {first}: list every path once")]
    DuplicatePath {
        /// Which entry, as `files[3]`.
        entry: String,
        /// The path as given.
        path: String,
        /// The entry that had it first.
        first: String,
    },
    /// A file's path is the directory of another entry.
    #[error("{entry} {path:?} lies below {file}, which is a file: remove one of the two")]
    BelowFile {
        /// Which entry, as `files[3]`.
        entry: String,
        /// The path as given.
        path: String,
        /// The file that would have to be a directory.
        file: String,
    },
    /// A mode carries more than permission bits.
    #[error(
        "{entry} {path:?} has mode {mode:#o}: only bits within 0o7777 are allowed, leave the file type out"
    )]
    BadMode {
        /// Which entry, as `files[3]`.
        entry: String,
        /// The path as given.
        path: String,
        /// The mode as given.
        mode: u32,
    },
    /// The files are more than one job may move.
    #[error(
        "{entry} {path:?} of {size} bytes takes the manifest beyond {BLOCKS_MAX} blocks of 1 MiB (256 TiB): check its size, or send the files by several jobs"
    )]
    TooManyBlocks {
        /// Which entry, as `files[3]`.
        entry: String,
        /// The path as given.
        path: String,
        /// Its size in bytes.
        size: u64,
    },
}

impl ManifestError {
    /// A short stable name, for conditions, events and metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::EmptyPath { .. } => "ManifestEmptyPath",
            Self::AbsolutePath { .. } => "ManifestAbsolutePath",
            Self::DotComponent { .. } => "ManifestDotComponent",
            Self::EmptyComponent { .. } => "ManifestEmptyComponent",
            Self::NulInPath { .. } => "ManifestNulInPath",
            Self::TooLong { .. } => "ManifestPathTooLong",
            Self::DuplicatePath { .. } => "ManifestDuplicatePath",
            Self::BelowFile { .. } => "ManifestBelowFile",
            Self::BadMode { .. } => "ManifestBadMode",
            Self::TooManyBlocks { .. } => "ManifestTooManyBlocks",
        }
    }
}

impl Manifest {
    /// Bytes of all files together; `u64::MAX` where they do not fit (which [`Self::validate`] refuses).
    pub fn bytes(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// Checks every entry; the first that is wrong is named, files before directories.
    ///
    /// What passes cannot leave the root by its text alone. The agent still opens with
    /// `RESOLVE_BENEATH`: a symbolic link is not visible here.
    pub fn validate(&self) -> Result<(), ManifestError> {
        let mut seen: BTreeMap<&str, (&'static str, usize)> = BTreeMap::new();
        let files = self
            .files
            .iter()
            .enumerate()
            .map(|(i, f)| ("files", i, f.path.as_str(), f.mode));
        let directories = self
            .directories
            .iter()
            .enumerate()
            .map(|(i, d)| ("directories", i, d.path.as_str(), d.mode));
        for (list, index, path, mode) in files.chain(directories) {
            let entry = || format!("{list}[{index}]");
            check_path(path, &entry)?;
            if mode > MODE_MAX {
                return Err(ManifestError::BadMode {
                    entry: entry(),
                    path: path.to_owned(),
                    mode,
                });
            }
            if let Some((first_list, first_index)) = seen.insert(path, (list, index)) {
                return Err(ManifestError::DuplicatePath {
                    entry: entry(),
                    path: path.to_owned(),
                    first: format!("{first_list}[{first_index}]"),
                });
            }
        }
        for (path, (list, index)) in &seen {
            for (slash, _) in path.match_indices('/') {
                if let Some(("files", file)) = seen.get(&path[..slash]) {
                    return Err(ManifestError::BelowFile {
                        entry: format!("{list}[{index}]"),
                        path: (*path).to_owned(),
                        file: format!("files[{file}] {:?}", &path[..slash]),
                    });
                }
            }
        }
        let mut blocks = 0u64;
        for (index, file) in self.files.iter().enumerate() {
            blocks = blocks.saturating_add(file.size.div_ceil(BLOCK_BYTES));
            if blocks > BLOCKS_MAX {
                return Err(ManifestError::TooManyBlocks {
                    entry: format!("files[{index}]"),
                    path: file.path.clone(),
                    size: file.size,
                });
            }
        }
        Ok(())
    }
}

fn check_path(path: &str, entry: &dyn Fn() -> String) -> Result<(), ManifestError> {
    let owned = || path.to_owned();
    if path.is_empty() {
        return Err(ManifestError::EmptyPath { entry: entry() });
    }
    if path.contains('\0') {
        return Err(ManifestError::NulInPath {
            entry: entry(),
            path: owned(),
        });
    }
    if path.starts_with('/') {
        return Err(ManifestError::AbsolutePath {
            entry: entry(),
            path: owned(),
        });
    }
    let too_long = |what, bytes, limit| ManifestError::TooLong {
        entry: entry(),
        path: owned(),
        what,
        bytes,
        limit,
    };
    if path.len() > PATH_BYTES_MAX {
        return Err(too_long("the path", path.len(), PATH_BYTES_MAX));
    }
    for component in path.split('/') {
        match component {
            "" => {
                return Err(ManifestError::EmptyComponent {
                    entry: entry(),
                    path: owned(),
                });
            }
            "." | ".." => {
                return Err(ManifestError::DotComponent {
                    entry: entry(),
                    path: owned(),
                    component: component.to_owned(),
                });
            }
            _ if component.len() > COMPONENT_BYTES_MAX => {
                return Err(too_long(
                    "one component",
                    component.len(),
                    COMPONENT_BYTES_MAX,
                ));
            }
            _ => {}
        }
    }
    Ok(())
}
