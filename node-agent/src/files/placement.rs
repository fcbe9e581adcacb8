//! `Placement`: where the files and directories of a destination are put.

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::destination_config::DestinationConfig;
use super::error::{FileError, Location};
use super::file_target::FileTarget;
use super::manifest::{Entry, EntryKind, Shape};
use super::names;
use super::path::RootPath;
use super::staging;

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
    /// A directory that is not there yet is assembled beside its location. Removes what earlier attempts have
    /// assembled and this one does not go on with.
    pub(super) fn new(config: DestinationConfig, base: RootPath) -> Result<Self, FileError> {
        let root = &config.root;
        let mut staging = None;
        // Not for a file, and not for the root itself.
        if let (Shape::Directory, Some((parent, name))) = (config.manifest.shape(), base.split()) {
            let beside = parent.join(&names::partial_name(&config.job, name))?;
            match root.open_at(&base, OFlags::PATH) {
                Err(Errno::NOENT) => {
                    staging::remove_unlisted(root, &beside, &config.manifest)?;
                    staging = Some(beside);
                }
                // Somebody has made the directory since an earlier attempt.
                _ => staging::remove(root, &beside)?,
            }
        }
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
    pub(super) fn location(&self) -> Location {
        self.config.root.location(&self.base)
    }

    /// A directory as messages name it: by its path when all is in place.
    pub(super) fn location_of(&self, path: &RootPath) -> Location {
        let root = &self.config.root;
        let staging = self.staging.as_ref();
        let within = staging.and_then(|staging| path.as_str().strip_prefix(staging.as_str()));
        match within.map(|rest| self.base.join(rest.trim_start_matches('/'))) {
            Some(Ok(path)) => root.location(&path),
            _ => root.location(path),
        }
    }

    /// Where the file with that index in the manifest goes, and its size.
    pub(super) fn file(&self, index: u32) -> Result<(FileTarget, Entry<'_>, u64), FileError> {
        let entry = self.config.manifest.require_entry(index)?;
        match entry.kind {
            EntryKind::File { bytes } => Ok((self.target(index, entry)?, entry, bytes)),
            EntryKind::Directory | EntryKind::Link { .. } => Err(FileError::BadManifest {
                path: entry.path.into(),
                fault: "is no file",
            }),
        }
    }

    /// Where each of the files goes, with its size.
    pub(super) fn targets(&self) -> impl Iterator<Item = Result<(FileTarget, u64), FileError>> {
        let files = self.config.manifest.files();
        files.map(|(index, entry, bytes)| Ok((self.target(index, entry)?, bytes)))
    }

    /// Where each of the links goes, with its index in the manifest and its text.
    pub(super) fn links(&self) -> impl Iterator<Item = Result<(u32, FileTarget, &str), FileError>> {
        let links = self.config.manifest.links();
        links.map(|(index, entry, text)| Ok((index, self.target(index, entry)?, text)))
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

    fn target(&self, index: u32, entry: Entry<'_>) -> Result<FileTarget, FileError> {
        let config = &self.config;
        let path = config.manifest.path_of(&self.base, entry)?;
        let now = config.manifest.path_of(self.assembled(), entry)?;
        let (parent, name) = now.split().expect("an entry of a manifest has a name");
        let name = name.to_owned();
        Ok(FileTarget {
            root: config.root.clone(),
            path,
            parent,
            partial: match &self.staging {
                Some(_) => name.clone(),
                None => names::partial_name(&config.job, &name),
            },
            name,
            modified_ns: config.manifest.modified_ns(index as usize),
            hole_bytes: config.manifest.hole_bytes(index as usize),
            overwrite: config.overwrite,
        })
    }
}
