//! Before the first byte: directories, partial files and space at a destination.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FallocateFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::claim::{self, JobUid, PRIVATE};
use super::destination::{DestinationConfig, Overwrite};
use super::error::{FileError, Place};
use super::filling::{self, Unfilled};
use super::manifest::{Entry, EntryKind, Identity, Manifest, Shape};
use super::root::{Root, RootPath, special};
use super::space::{Demand, Taken};

/// Mode of directories while a job fills them; the manifest's is set at the end.
pub(super) const WORKING_DIRECTORY: Mode = Mode::from_raw_mode(0o755);

/// Where one file goes: its final path, and its partial file beside it or in a staging directory.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) root: Arc<Root>,
    pub(super) path: RootPath,
    /// Where the partial file is.
    pub(super) parent: RootPath,
    pub(super) name: String,
    pub(super) partial: String,
    pub(super) overwrite: Overwrite,
}

/// Where a file's bytes are before the job writes any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Nowhere: the partial file is new.
    Fresh,
    /// Some may be in the partial file of an earlier attempt.
    Resumed,
    /// A file of the right size stands under the final name; the partial file only claims it.
    Existing,
    /// All of them are in the partial file, which has its final mode: it can be read only.
    Finished,
}

impl Target {
    pub(super) fn new(
        root: &Arc<Root>,
        path: RootPath,
        job: &JobUid,
        overwrite: Overwrite,
    ) -> Result<Self, FileError> {
        let fault = "is the root itself, and a file cannot take its place";
        let (parent, name) = path
            .split()
            .map(|(parent, name)| (parent, name.to_owned()))
            .ok_or_else(|| FileError::BadPath {
                path: path.to_string(),
                fault,
            })?;
        if claim::is_reserved(&name) {
            return Err(FileError::ReservedName {
                place: root.place(&path),
            });
        }
        let partial = claim::partial_name(job, &name);
        Ok(Target {
            root: root.clone(),
            path,
            parent,
            name,
            partial,
            overwrite,
        })
    }

    /// With the partial file in a staging directory, under its final name.
    fn staged(self, path: &RootPath) -> Self {
        match path.split() {
            Some((parent, name)) => Target {
                parent,
                partial: name.to_owned(),
                ..self
            },
            None => self,
        }
    }

    pub(super) fn is_staged(&self) -> bool {
        self.partial == self.name
    }

    pub(super) fn place(&self) -> Place {
        self.root.place(&self.path)
    }

    /// What the system's answer means for this file.
    pub(super) fn failed(&self, operation: &'static str, cause: Errno, bytes: u64) -> FileError {
        self.root
            .symlink_on_the_way(&self.path, cause)
            .unwrap_or_else(|| FileError::writing(self.place(), operation, cause, bytes))
    }

    /// Opens the partial file. A finished one may not be writable any more.
    pub(super) fn open_partial(&self, access: OFlags) -> Result<File, FileError> {
        let parent = self
            .root
            .open_directory(&self.parent)
            .map_err(|cause| self.failed("open", cause, 0))?;
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match fs::openat(&parent, &self.partial, flags, Mode::empty()) {
            Ok(file) => Ok(File::from(file)),
            // Somebody removed it.
            Err(Errno::NOENT) => Err(FileError::DestinationChanged {
                place: self.place(),
            }),
            Err(cause) => Err(self.failed("open", cause, 0)),
        }
    }

    /// Opens the file under the final name to read.
    pub(super) fn open_final(&self) -> Result<(File, Identity), FileError> {
        let opened = self
            .root
            .open_at(&self.path, OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|cause| match cause {
                Errno::NOENT => FileError::DestinationChanged {
                    place: self.place(),
                },
                cause => self.failed("open", cause, 0),
            })?;
        let stat = fs::fstat(&opened).map_err(|cause| self.failed("fstat", cause, 0))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FileError::DestinationChanged {
                place: self.place(),
            });
        }
        Ok((File::from(opened), Identity::of(&stat)))
    }

    /// Fails when a file with another content must not be replaced.
    pub(super) fn may_replace(&self) -> Result<(), FileError> {
        match self.overwrite {
            Overwrite::Never => Err(FileError::DestinationExists {
                place: self.place(),
                found: "a file with another content",
                remedy: "remove it, choose another path, or set overwrite to IfDifferent",
            }),
            Overwrite::IfDifferent | Overwrite::Always => Ok(()),
        }
    }

    /// Makes the partial file and takes space for it.
    pub(super) fn reserve(&self, bytes: u64, taken: &Taken) -> Result<(), FileError> {
        let parent = self
            .root
            .open_directory(&self.parent)
            .map_err(|cause| self.failed("open", cause, bytes))?;
        let demand = Demand {
            bytes,
            new_bytes: bytes,
            inodes: 0,
        };
        let _turn = taken.take(&self.place(), &parent, demand)?;
        let file = self.make_partial(&parent, bytes)?;
        self.take_space(&parent, &file, bytes)
    }

    /// Makes the partial file, or finds it, and gives it its size.
    fn make_partial(&self, parent: &OwnedFd, bytes: u64) -> Result<File, FileError> {
        let flags =
            OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let failed = |operation, cause| self.failed_to_reserve(parent, operation, cause, bytes);
        let file = fs::openat(parent, &self.partial, flags, PRIVATE)
            .map_err(|cause| failed("open", cause))?;
        let stat = fs::fstat(&file).map_err(|cause| failed("fstat", cause))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FileError::DestinationChanged {
                place: self.place(),
            });
        }
        if Identity::of(&stat).size != bytes {
            // An earlier attempt's of another size: its bytes are rehashed as they are.
            fs::ftruncate(&file, bytes).map_err(|cause| failed("ftruncate", cause))?;
        }
        Ok(File::from(file))
    }

    fn take_space(&self, parent: &OwnedFd, file: &File, bytes: u64) -> Result<(), FileError> {
        if bytes == 0 {
            return Ok(());
        }
        loop {
            match fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
                // Where it cannot be done, the check of free space before has to do.
                Ok(()) | Err(Errno::OPNOTSUPP) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(cause) => {
                    return Err(self.failed_to_reserve(parent, "fallocate", cause, bytes));
                }
            }
        }
    }

    /// As [`Target::failed`], with the free space in what says that there is none.
    fn failed_to_reserve(
        &self,
        parent: &OwnedFd,
        operation: &'static str,
        cause: Errno,
        bytes: u64,
    ) -> FileError {
        match FileError::writing(self.place(), operation, cause, bytes) {
            FileError::DiskFull { place, needed, .. } => {
                let available =
                    fs::fstatvfs(parent).map_or(0, |free| free.f_bavail * free.f_frsize);
                FileError::DiskFull {
                    place,
                    needed,
                    available,
                }
            }
            error => error,
        }
    }

    /// Removes the partial file, if there is one.
    pub(super) fn remove_partial(&self, parent: &OwnedFd) -> Result<(), FileError> {
        match fs::unlinkat(parent, &self.partial, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(cause) => Err(self.failed("unlink", cause, 0)),
        }
    }

    /// What is there already, and how many bytes of disk the rest takes.
    fn survey(&self, parent: &OwnedFd, bytes: u64) -> Result<(Origin, u64), FileError> {
        let look = |name: &str| match fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(self.failed("fstatat", cause, bytes)),
        };
        let named = match self.is_staged() {
            true => None,
            false => look(&self.name)?,
        };
        let same_size = match named {
            None => false,
            Some(found) => self.replaceable(parent, &found, bytes)?,
        };
        let partial = look(&self.partial)?;
        let whole = partial.is_some_and(|stat| bytes > 0 && Identity::of(&stat).size == bytes);
        let existing = match self.overwrite {
            Overwrite::Never => same_size,
            Overwrite::IfDifferent => same_size && !whole,
            Overwrite::Always => false,
        };
        if existing {
            return Ok((Origin::Existing, 0));
        }
        match partial {
            None => Ok((Origin::Fresh, bytes)),
            Some(stat) => {
                // 512 B: the unit of st_blocks (stat(2)).
                #[allow(clippy::unnecessary_cast, reason = "differs between architectures")]
                let there = stat.st_blocks as u64 * 512;
                Ok((Origin::Resumed, bytes.saturating_sub(there)))
            }
        }
    }

    /// Whether what stands under the final name has the right size; an error when it is nothing
    /// that a file may replace.
    fn replaceable(&self, parent: &OwnedFd, found: &Stat, bytes: u64) -> Result<bool, FileError> {
        let exists = |found| FileError::DestinationExists {
            place: self.place(),
            found,
            remedy: "remove it or choose another path (to put a file into a directory, end its path with a slash)",
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(exists("a directory")),
            FileType::Symlink => {
                let target = fs::readlinkat(parent, &self.name, Vec::new()).unwrap_or_default();
                return Err(FileError::SymlinkRefused {
                    place: self.place(),
                    link: self.path.as_str().into(),
                    target: target.as_bytes().escape_ascii().to_string(),
                });
            }
            _ => return Err(exists(special(found).unwrap_or("something else"))),
        }
        let same_size = Identity::of(found).size == bytes;
        if !same_size {
            self.may_replace()?;
        }
        Ok(same_size)
    }
}

/// The directory that was opened last: a manifest is sorted, so files of one directory follow
/// each other, and one descriptor is enough for any number of directories.
pub(super) struct OpenDirectory<'r> {
    root: &'r Root,
    last: Option<(RootPath, Rc<OwnedFd>)>,
}

impl<'r> OpenDirectory<'r> {
    pub(super) fn new(root: &'r Root) -> Self {
        OpenDirectory { root, last: None }
    }

    pub(super) fn root(&self) -> &'r Root {
        self.root
    }

    pub(super) fn at(&mut self, path: &RootPath) -> Result<Rc<OwnedFd>, FileError> {
        self.open(path).map_err(|cause| {
            self.root
                .symlink_on_the_way(path, cause)
                .unwrap_or_else(|| FileError::writing(self.root.place(path), "open", cause, 0))
        })
    }

    /// The directory, if there is one that something can have been made in.
    pub(super) fn found(&mut self, path: &RootPath) -> Result<Option<Rc<OwnedFd>>, FileError> {
        match self.open(path) {
            Ok(opened) => Ok(Some(opened)),
            Err(cause) if is_no_directory(cause) => Ok(None),
            Err(cause) => {
                let place = self.root.place(path);
                Err(FileError::writing(place, "open", cause, 0))
            }
        }
    }

    fn open(&mut self, path: &RootPath) -> Result<Rc<OwnedFd>, Errno> {
        if let Some((last, opened)) = &self.last
            && last.as_str() == path.as_str()
        {
            return Ok(opened.clone());
        }
        let opened = Rc::new(self.root.open_directory(path)?);
        self.last = Some((path.clone(), opened.clone()));
        Ok(opened)
    }
}

/// Whether the answer says that there is no such directory: nothing, or a file or link in its place.
pub(super) fn is_no_directory(cause: Errno) -> bool {
    matches!(
        cause,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV
    )
}

/// What a reservation has made so far: undone when it fails.
#[derive(Clone, Debug, Default)]
pub(super) struct Made {
    /// Directories that were not there, parents first.
    pub(super) directories: Vec<RootPath>,
    /// Files whose partial files were not there, by their place among the files.
    partials: Vec<u32>,
}

impl Made {
    /// Removes what was made, as far as it can.
    pub(super) fn undo(&self, reservation: &Reservation<'_>) {
        let DestinationConfig { root, job, .. } = reservation.config;
        let mut open = OpenDirectory::new(root);
        let mut made = self.partials.iter().copied().peekable();
        for (file, place) in reservation.targets().zip(0..) {
            if made.next_if_eq(&place).is_some()
                && let Ok((target, _)) = file
                && let Ok(parent) = open.at(&target.parent)
            {
                let _ = target.remove_partial(&parent);
            }
        }
        let _ = self.remove_directories(root, job);
    }

    /// Removes the directories that `job` has made and that are empty, but where another job has
    /// its files. Goes on where one cannot be removed, and names the first of these.
    pub(super) fn remove_directories(&self, root: &Root, job: &JobUid) -> Result<(), FileError> {
        let mut result = Ok(());
        for path in self.directories.iter().rev() {
            let Some((parent, name)) = path.split() else {
                continue;
            };
            let removed = root.occupancy().unless_anothers(job, path, || {
                fs::unlinkat(root.open_directory(&parent)?, name, AtFlags::REMOVEDIR)
            });
            match removed {
                None | Some(Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY)) => {}
                Some(Err(cause)) if is_no_directory(cause) => {}
                Some(Err(cause)) => {
                    let failed = FileError::writing(root.place(path), "rmdir", cause, 0);
                    result = result.and(Err(failed));
                }
            }
        }
        result
    }

    /// Makes the directory and those above it where they are missing.
    fn directory(
        &mut self,
        reservation: &Reservation<'_>,
        path: &RootPath,
    ) -> Result<(), FileError> {
        let root = &reservation.config.root;
        let not_a_directory =
            |cause| not_a_directory(root, path, || reservation.place(path), cause);
        match root.open_directory(path) {
            Ok(_) => return Ok(()),
            Err(Errno::NOENT) => {}
            Err(cause) => return Err(not_a_directory(cause)),
        }
        // The root itself is open, so what is missing has a parent.
        let Some((parent, name)) = path.split() else {
            return Ok(());
        };
        self.directory(reservation, &parent)?;
        let opened = root.open_directory(&parent).map_err(not_a_directory)?;
        match fs::mkdirat(&opened, name, WORKING_DIRECTORY) {
            Ok(()) => self.directories.push(path.clone()),
            Err(Errno::EXIST) => {}
            Err(cause) => {
                return Err(FileError::writing(
                    reservation.place(path),
                    "mkdir",
                    cause,
                    0,
                ));
            }
        }
        root.open_directory(path).map(drop).map_err(not_a_directory)
    }
}

fn not_a_directory(
    root: &Root,
    path: &RootPath,
    place: impl FnOnce() -> Place,
    cause: Errno,
) -> FileError {
    if let Some(error) = root.symlink_on_the_way(path, cause) {
        return error;
    }
    match cause {
        Errno::NOTDIR => FileError::DestinationExists {
            place: place(),
            found: "a file where a directory is needed",
            remedy: "remove the file or choose another path",
        },
        cause => FileError::writing(place(), "open", cause, 0),
    }
}

/// What is reserved for a destination.
pub(super) struct Reservation<'d> {
    pub(super) config: &'d DestinationConfig,
    pub(super) base: &'d RootPath,
    pub(super) staging: Option<&'d RootPath>,
    pub(super) directories: &'d [RootPath],
    pub(super) taken: &'d Taken,
}

impl<'d> Reservation<'d> {
    /// A directory as messages name it: by its path when all is in place.
    fn place(&self, path: &RootPath) -> Place {
        let root = &self.config.root;
        let within = self
            .staging
            .and_then(|staging| path.as_str().strip_prefix(staging.as_str()));
        match within.map(|rest| self.base.join(rest.trim_start_matches('/'))) {
            Some(Ok(path)) => root.place(&path),
            _ => root.place(path),
        }
    }

    /// Where each of the files goes, with its size.
    fn targets(&self) -> impl Iterator<Item = Result<(Target, u64), FileError>> + use<'d> {
        targets(self.config, self.base, self.staging)
    }
}

/// Makes directories and partial files for a whole manifest and takes space for all of it, or
/// fails and says why; what it made by then is in `made`. Space that is slow to take is left to
/// be taken.
pub(super) fn reserve(
    reservation: &Reservation<'_>,
    made: &mut Made,
) -> Result<(Vec<Origin>, Vec<Unfilled>), FileError> {
    let Reservation {
        config: DestinationConfig { root, job, .. },
        base,
        staging,
        directories,
        taken,
    } = reservation;
    let mut unfilled = Vec::new();
    for path in *directories {
        made.directory(reservation, path)?;
    }
    let mut open = OpenDirectory::new(root);
    let mut origins = Vec::new();
    let mut demand = Demand::default();
    for file in reservation.targets() {
        let (target, bytes) = file?;
        let (origin, more) = target.survey(&*open.at(&target.parent)?, bytes)?;
        demand.new_bytes = demand.new_bytes.saturating_add(more);
        if origin != Origin::Existing {
            demand.bytes = demand.bytes.saturating_add(bytes);
        }
        demand.inodes += u64::from(origin != Origin::Resumed);
        origins.push(origin);
    }
    let _turn = match reservation.targets().next() {
        Some(first) => {
            let parent = open.at(&first?.0.parent)?;
            Some(taken.take(&root.place(base), &parent, demand)?)
        }
        None => None,
    };
    for ((file, origin), place) in reservation.targets().zip(&origins).zip(0..) {
        let (target, bytes) = file?;
        let parent = open.at(&target.parent)?;
        if *origin != Origin::Resumed {
            made.partials.push(place);
        }
        // An existing file's partial file only claims the name: it takes no space.
        let bytes = if *origin == Origin::Existing {
            0
        } else {
            bytes
        };
        let file = target.make_partial(&parent, bytes)?;
        if filling::is_slow(&file, bytes) {
            let full = target.failed_to_reserve(&parent, "fallocate", Errno::NOSPC, bytes);
            unfilled.push(Unfilled { file, bytes, full });
        } else {
            target.take_space(&parent, &file, bytes)?;
        }
    }
    if let Some((parent, _)) = staging.and_then(|_| base.split()) {
        claim::refuse_rivals(root, &parent, open.at(&parent)?.as_fd(), job)?;
        return Ok((origins, unfilled));
    }
    let mut looked: Option<RootPath> = None;
    for file in reservation.targets() {
        let (target, _) = file?;
        if looked.as_ref() != Some(&target.parent) {
            claim::refuse_rivals(root, &target.parent, open.at(&target.parent)?.as_fd(), job)?;
            looked = Some(target.parent);
        }
    }
    Ok((origins, unfilled))
}

/// Where a job puts its manifest.
pub(super) fn base(config: &DestinationConfig) -> Result<RootPath, FileError> {
    let manifest = &config.manifest;
    let base = match (manifest.shape(), manifest.entry(0)) {
        (Shape::File, Some(file)) if config.path.names_directory() => {
            config.path.join(file.path)?
        }
        _ => config.path.clone(),
    };
    if claim::is_within_reserved(base.as_str()) {
        return Err(FileError::ReservedName {
            place: config.root.place(&base),
        });
    }
    Ok(base)
}

/// Where a file of the manifest goes.
pub(super) fn target(
    config: &DestinationConfig,
    base: &RootPath,
    staging: Option<&RootPath>,
    entry: Entry<'_>,
) -> Result<Target, FileError> {
    let path = config.manifest.path_of(base, entry)?;
    let target = Target::new(&config.root, path, &config.job, config.overwrite)?;
    match staging {
        Some(staging) => Ok(target.staged(&config.manifest.path_of(staging, entry)?)),
        None => Ok(target),
    }
}

/// Where each of the files goes, with its size: told one at a time, for there may be a million.
pub(super) fn targets<'c>(
    config: &'c DestinationConfig,
    base: &'c RootPath,
    staging: Option<&'c RootPath>,
) -> impl Iterator<Item = Result<(Target, u64), FileError>> + use<'c> {
    let files = config.manifest.files();
    files.map(move |(_, entry, bytes)| Ok((target(config, base, staging, entry)?, bytes)))
}

/// The directories a manifest needs at `base`, parents first.
pub(super) fn directories(
    manifest: &Manifest,
    base: &RootPath,
) -> Result<Vec<RootPath>, FileError> {
    let top = match manifest.shape() {
        Shape::Directory => base.clone(),
        Shape::File => base.split().map_or(RootPath::ROOT, |(parent, _)| parent),
    };
    let mut all = vec![top];
    for entry in manifest.entries() {
        if entry.kind == EntryKind::Directory {
            all.push(manifest.path_of(base, entry)?);
        }
    }
    Ok(all)
}
