//! `Progress`: how far each entry of a destination is. A million files take 42 MB.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::destination_file::{DestinationFile, PublishAction};
use super::digest::{Algorithm, Digest};
use super::file_state::Fingerprint;
use super::file_target::InitialContent;
use super::manifest::{EntryKind, Manifest};

/// Files that are not open any more are dropped from the list when it has so many.
const OPEN_MAX: usize = 1024;

/// How far an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A directory: made by the reservation.
    Directory,
    /// A link: made once all files are verified.
    Link,
    /// A file whose blocks are still to come.
    Incomplete(InitialContent),
    /// Whole and verified, not yet on disk for sure or not yet under its name.
    Finished(PublishAction),
    /// On disk and under its final name; a link: made.
    Published,
}

/// By entry of the manifest.
#[derive(Debug)]
pub(super) struct Progress {
    algorithm: Algorithm,
    pub(super) stages: Vec<Stage>,
    /// Of files that are finished or published.
    digests: Vec<[u8; 32]>,
    /// Of files that are finished and kept, or published, and of links that are made.
    pub(super) fingerprints: Vec<Fingerprint>,
    /// Files of a directory that was there have got their names one after the other.
    pub(super) file_by_file: bool,
    /// Files that somebody has open: two users of a file share its state.
    open: HashMap<u32, Weak<DestinationFile>>,
}

impl Progress {
    /// With as many initial_contents as the manifest has files.
    pub(super) fn new(
        manifest: &Manifest,
        algorithm: Algorithm,
        mut initial_contents: impl Iterator<Item = InitialContent>,
    ) -> Self {
        let stages = manifest.entries().map(|entry| match entry.kind {
            EntryKind::Directory => Stage::Directory,
            EntryKind::Link { .. } => Stage::Link,
            EntryKind::File { .. } => Stage::Incomplete(
                initial_contents
                    .next()
                    .expect("one initial_content for each file"),
            ),
        });
        Progress {
            algorithm,
            stages: stages.collect(),
            digests: vec![[0; 32]; manifest.len()],
            fingerprints: vec![Fingerprint::default(); manifest.len()],
            file_by_file: false,
            open: HashMap::new(),
        }
    }

    /// The file, if somebody has it open.
    pub(super) fn open_file(&self, index: u32) -> Option<Arc<DestinationFile>> {
        self.open.get(&index)?.upgrade()
    }

    /// Somebody has opened the file.
    pub(super) fn add_open(&mut self, index: u32, file: &Arc<DestinationFile>) {
        if self.open.len() >= OPEN_MAX {
            self.open.retain(|_, file| file.strong_count() > 0);
        }
        self.open.insert(index, Arc::downgrade(file));
    }

    /// The file is whole and has this digest; one that is kept is in this state.
    pub(super) fn finish(
        &mut self,
        index: u32,
        action: PublishAction,
        digest: &Digest,
        state: Fingerprint,
    ) {
        let index = index as usize;
        let bytes = digest.as_bytes();
        self.digests[index][..bytes.len()].copy_from_slice(bytes);
        self.fingerprints[index] = state;
        self.stages[index] = Stage::Finished(action);
    }

    /// Whether blocks of some file are still to come.
    pub(super) fn incomplete(&self) -> usize {
        let is_incomplete = |stage: &&Stage| matches!(stage, Stage::Incomplete(_));
        self.stages.iter().filter(is_incomplete).count()
    }

    /// The files that are finished and not published, by index.
    pub(super) fn finished(&self) -> impl Iterator<Item = (u32, PublishAction)> {
        let stages = self.stages.iter().zip(0..);
        stages.filter_map(|(stage, index)| match stage {
            Stage::Finished(action) => Some((index, *action)),
            _ => None,
        })
    }

    /// The digest of a file that is finished.
    pub(super) fn digest(&self, index: u32) -> Option<Digest> {
        match self.stages.get(index as usize)? {
            Stage::Directory | Stage::Link | Stage::Incomplete(_) => None,
            Stage::Finished(_) | Stage::Published => {
                let bytes = &self.digests[index as usize][..self.algorithm.digest_bytes()];
                Digest::from_bytes(self.algorithm, bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_an_entry_takes_42_bytes() {
        let each = size_of::<Stage>() + size_of::<[u8; 32]>() + size_of::<Fingerprint>();
        assert_eq!(each, 42);
    }
}
