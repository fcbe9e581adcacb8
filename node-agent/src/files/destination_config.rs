//! `DestinationConfig`: what a job writes at a node, and where.

use std::sync::Arc;

use super::copy_record::CopyJob;
use super::digest::{Algorithm, Digest};
use super::error::FileError;
use super::manifest::{Manifest, Shape};
use super::names::{self, JobUid};
use super::path::RootPath;
use super::root::Root;

/// What happens to a file that has a final name already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// One with the same content stays as it is; another is replaced, and blocks that it shares
    /// with the source are not sent again.
    #[default]
    IfDifferent,
    /// One with the same content stays as it is; another is an error.
    Never,
    /// One with the same content stays as it is; another is an error, for a pod's volume shows the copy. No job says
    /// this.
    InUse,
    /// It is not read: the whole file is sent and replaces it. A job that is resumed then
    /// sends again also what it had finished.
    Always,
}

/// What a destination is made from.
#[derive(Clone, Debug)]
pub struct DestinationConfig {
    /// The root to write into.
    pub root: Arc<Root>,
    /// Where: for a directory, the directory that will hold its files; for a single file, its
    /// final path, or with a slash at the end the directory to put it into under its own name.
    pub path: RootPath,
    /// The job; the same for every attempt.
    pub job: JobUid,
    /// The TransferJob that the copy is recorded for once it is verified, and whose namespace's limit
    /// holds; nothing: no copy is recorded, and no namespace's limit holds.
    pub recorded_for: Option<CopyJob>,
    /// What will come.
    pub manifest: Arc<Manifest>,
    /// How it is verified.
    pub algorithm: Algorithm,
    /// What happens to files that are there already.
    pub overwrite: Overwrite,
    /// The digest that the whole must have, if the job says so.
    pub expect: Option<Digest>,
}

impl DestinationConfig {
    /// Where the job puts its manifest: the file, or the directory.
    pub(super) fn base(&self) -> Result<RootPath, FileError> {
        let base = match (self.manifest.shape(), self.manifest.entry(0)) {
            (Shape::File, Some(file)) if self.path.names_directory() => {
                self.path.join(file.path)?
            }
            _ => self.path.clone(),
        };
        if names::is_within_reserved(base.as_str()) {
            return Err(FileError::ReservedName {
                location: self.root.location(&base),
            });
        }
        Ok(base)
    }
}
