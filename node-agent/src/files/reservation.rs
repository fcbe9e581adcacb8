//! Before the first byte: makes the directories and partial files of a destination, and reserves its space.

use rustix::fs::{self, Mode};
use rustix::io::Errno;

use super::directory::{OpenDirectory, remove_empty};
use super::error::FileError;
use super::file_target::InitialContent;
use super::names::JobUid;
use super::path::RootPath;
use super::placement::Placement;
use super::reserved_space::{Demand, ReservedSpace};
use super::root::Root;
use super::space::disk_bytes;

/// Mode of directories while a job fills them; the manifest's is set at the end.
pub(super) const WORKING_DIRECTORY: Mode = Mode::from_raw_mode(0o755);

/// What an attempt has made.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    /// Directories that were not there, parents first.
    pub(super) directories: Vec<RootPath>,
    /// Where the bytes of each file were before; of as many files as were inspected.
    initial_contents: Vec<InitialContent>,
    /// As many files have their partial files.
    files: usize,
}

/// Makes directories and partial files for a whole manifest and reserves space for it, except for files
/// that may be there already, or fails, says why, and leaves nothing of it. Gives the directories that it made, except those in a staging directory, and
/// where the bytes of each file are.
pub(super) fn reserve(
    placement: &Placement,
    space: &ReservedSpace,
) -> Result<(Vec<RootPath>, Vec<InitialContent>), FileError> {
    let mut reservation = Reservation::default();
    match reservation.reserve(placement, space) {
        Ok(()) => {
            let staging = placement.staging.as_ref();
            let is_staged = |path: &RootPath| staging.is_some_and(|at| path.is_within(at));
            reservation.directories.retain(|path| !is_staged(path));
            Ok((reservation.directories, reservation.initial_contents))
        }
        Err(error) => {
            reservation.undo(placement);
            Err(error)
        }
    }
}

impl Reservation {
    fn reserve(&mut self, placement: &Placement, space: &ReservedSpace) -> Result<(), FileError> {
        for path in placement.directories() {
            self.directory(placement, &path?)?;
        }
        let mut open = OpenDirectory::new(&placement.config.root);
        let mut demand = Demand::default();
        let new_directories = disk_bytes(0) * self.directories.len() as u64;
        demand.add(new_directories, new_directories);
        for file in placement.targets() {
            let (target, bytes) = file?;
            let (initial_content, more) = target.inspect(&*open.at(&target.parent)?, bytes)?;
            let counted = match initial_content {
                InitialContent::Existing => 0,
                _ => target.disk_bytes(bytes),
            };
            demand.add(counted, more);
            demand.inodes += u64::from(initial_content != InitialContent::Resumed);
            self.initial_contents.push(initial_content);
        }
        for link in placement.links() {
            let (_, target, text) = link?;
            let parent = open.at(&target.parent)?;
            if !target.has_link(&parent, text)? {
                demand.add(disk_bytes(0), disk_bytes(0));
                demand.inodes += 1;
            }
        }
        let Some(top) = placement.directories().next() else {
            return Ok(());
        };
        let top = open.at(&top?)?;
        let _locked = space.reserve(&placement.location(), &top, demand)?;
        for (index, file) in placement.targets().enumerate() {
            let (target, bytes) = file?;
            let parent = open.at(&target.parent)?;
            self.files = index + 1;
            // An existing file's partial file only takes the name: it takes no space.
            let bytes = match self.initial_contents[index] {
                InitialContent::Existing => 0,
                _ => bytes,
            };
            target.make_partial(&parent, bytes)?;
        }
        Ok(())
    }

    /// Removes what was made, as far as it can.
    fn undo(&self, placement: &Placement) {
        let mut open = OpenDirectory::new(&placement.config.root);
        let initial_contents = self.initial_contents.iter().take(self.files);
        for (file, initial_content) in placement.targets().zip(initial_contents) {
            if *initial_content != InitialContent::Resumed
                && let Ok((target, _)) = file
                && let Ok(parent) = open.at(&target.parent)
            {
                let _ = target.remove_partial(&parent);
            }
        }
        let _ = remove_directories(
            &placement.config.root,
            &placement.config.job,
            &self.directories,
        );
    }

    /// Makes the directory and those above it where they are missing.
    fn directory(&mut self, placement: &Placement, path: &RootPath) -> Result<(), FileError> {
        let root = &placement.config.root;
        let failed = |operation, cause| {
            let writing = || FileError::writing(placement.location_of(path), operation, cause, 0);
            root.symlink_on_the_way(path, cause).unwrap_or_else(writing)
        };
        match root.open_directory(path) {
            Ok(_) => return Ok(()),
            Err(Errno::NOENT) => {}
            Err(cause) => return Err(failed("open", cause)),
        }
        // The root itself is open, so what is missing has a parent.
        let Some((parent, name)) = path.split() else {
            return Ok(());
        };
        self.directory(placement, &parent)?;
        let opened = root.open_directory(&parent);
        let opened = opened.map_err(|cause| failed("open", cause))?;
        match fs::mkdirat(&opened, name, WORKING_DIRECTORY) {
            Ok(()) => self.directories.push(path.clone()),
            Err(Errno::EXIST) => {}
            Err(cause) => return Err(failed("mkdir", cause)),
        }
        let opened = root.open_directory(path).map(drop);
        opened.map_err(|cause| failed("open", cause))
    }
}

/// Removes the directories that `job` has made if they are empty and no other job writes there. `directories` lists
/// parents first; they are removed in reverse order. Goes on where one cannot be removed, and names the first of these.
pub(super) fn remove_directories(
    root: &Root,
    job: &JobUid,
    directories: &[RootPath],
) -> Result<(), FileError> {
    let mut result = Ok(());
    for path in directories.iter().rev() {
        let remove = || remove_empty(root, path);
        let removed = root.occupancy().unless_written(job, path, remove);
        result = result.and(removed.unwrap_or(Ok(())));
    }
    result
}
