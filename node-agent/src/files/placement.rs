//! `Placement`: where the files and directories of a destination are put.

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::destination_config::DestinationConfig;
use super::error::{FileError, Place};
use super::manifest::{Entry, EntryKind, Shape};
use super::path::RootPath;
use super::target::Target;

/// Where a destination puts its manifest. Paths are worked out one at a time, for there may be a million.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) config: DestinationConfig,
    /// The file, or the directory, when all is in place.
    pub(super) base: RootPath,
    /// Where the directory is assembled; nothing: file by file, at `base`.
    pub(super) staging: Option<RootPath>,
}

impl Placement {
    /// A directory that is not there yet is assembled beside its place.
    pub(super) fn new(config: DestinationConfig) -> Result<Self, FileError> {
        let base = config.base()?;
        let is_new = matches!(config.root.open_at(&base, OFlags::PATH), Err(Errno::NOENT));
        let staging = config.staging(&base)?.filter(|_| is_new);
        Ok(Placement {
            config,
            base,
            staging,
        })
    }

    /// Where the whole is until it is complete.
    pub(super) fn assembled(&self) -> &RootPath {
        self.staging.as_ref().unwrap_or(&self.base)
    }

    /// The destination as a whole, for messages.
    pub(super) fn place(&self) -> Place {
        self.config.root.place(&self.base)
    }

    /// A directory as messages name it: by its path when all is in place.
    pub(super) fn place_of(&self, path: &RootPath) -> Place {
        let root = &self.config.root;
        let staging = self.staging.as_ref();
        let within = staging.and_then(|staging| path.as_str().strip_prefix(staging.as_str()));
        match within.map(|rest| self.base.join(rest.trim_start_matches('/'))) {
            Some(Ok(path)) => root.place(&path),
            _ => root.place(path),
        }
    }

    /// Where the file with that index in the manifest goes, and its size.
    pub(super) fn file(&self, index: u32) -> Result<(Target, Entry<'_>, u64), FileError> {
        let entry = self.config.manifest.named(index)?;
        match entry.kind {
            EntryKind::File { bytes } => Ok((self.target(entry)?, entry, bytes)),
            EntryKind::Directory => Err(FileError::BadManifest {
                path: entry.path.into(),
                fault: "is a directory, not a file",
            }),
        }
    }

    /// Where each of the files goes, with its size.
    pub(super) fn targets(&self) -> impl Iterator<Item = Result<(Target, u64), FileError>> {
        let files = self.config.manifest.files();
        files.map(|(_, entry, bytes)| Ok((self.target(entry)?, bytes)))
    }

    /// The directories that the manifest needs, parents first, where they are until all is complete.
    pub(super) fn directories(&self) -> impl Iterator<Item = Result<RootPath, FileError>> {
        let manifest = &self.config.manifest;
        let top = match manifest.shape() {
            Shape::Directory => self.assembled().clone(),
            Shape::File => self
                .base
                .split()
                .map_or(RootPath::ROOT, |(parent, _)| parent),
        };
        let below = manifest
            .entries()
            .filter(|entry| entry.kind == EntryKind::Directory);
        let below = below.map(|entry| manifest.path_of(self.assembled(), entry));
        std::iter::once(Ok(top)).chain(below)
    }

    fn target(&self, entry: Entry<'_>) -> Result<Target, FileError> {
        let DestinationConfig {
            root,
            job,
            manifest,
            overwrite,
            ..
        } = &self.config;
        let target = Target::new(root, manifest.path_of(&self.base, entry)?, job, *overwrite)?;
        match &self.staging {
            Some(staging) => Ok(target.staged(&manifest.path_of(staging, entry)?)),
            None => Ok(target),
        }
    }
}
