//! Where keys, configurations, logs and the nodes' roots are while it plays.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tempfile::{TempDir, TempPath};
use weft_fabric::isolation;

use super::{PlayError, arguments::Data};
use crate::stage::directory;

/// `/run` is a private tmpfs in isolation: it ends with the last process, whatever ends that.
const PRIVATE: &str = "/run/weft-play";
/// What a temporary directory's name begins with.
const TEMPORARY_PREFIX: &str = "weft-play-";
/// In a temporary directory: locked while its run lasts.
const LOCK: &str = "lock";
/// What --size makes is called so at every node.
const RANDOM_NAME: &str = "random.bin";
const WRITE_AT_ONCE: usize = 1 << 20;
/// Of the memory that is free, what the nodes' files may take.
const MEMORY_SHARE: f64 = 0.8;

/// A directory for this run only. Removed when dropped, or with the isolation.
#[derive(Debug)]
pub(super) enum Scratch {
    Private(PathBuf),
    Temporary {
        directory: TempDir,
        /// A run that is killed leaves its directory to the next one, which finds this unlocked.
        _lock: File,
    },
}

/// Where the data is and what it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    /// The source's root.
    pub(super) root: PathBuf,
    /// Below the root.
    pub(super) path: String,
    /// What it is called at the destinations.
    pub(super) name: String,
}

impl Scratch {
    pub(super) fn new() -> Result<Self, PlayError> {
        let private = Path::new(PRIVATE);
        if isolation::is_inside() {
            directory(private)?;
            return Ok(Self::Private(private.to_owned()));
        }
        // Only its owner may enter it.
        let parent = std::env::temp_dir();
        remove_abandoned(&parent);
        Self::temporary(&parent).map_err(|source| PlayError::NoTemporary {
            path: parent,
            source,
        })
    }

    fn temporary(parent: &Path) -> io::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .tempdir_in(parent)?;
        // It has its name once it is locked: until then no other run removes the directory.
        let unlocked = directory.path().join("unlocked");
        let lock = File::create(&unlocked)?;
        lock.try_lock()?;
        fs::rename(&unlocked, directory.path().join(LOCK))?;
        Ok(Self::Temporary {
            directory,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Private(path) => path,
            Self::Temporary { directory, .. } => directory.path(),
        }
    }

    /// A path below it, as those outside see it.
    pub(super) fn seen(&self, path: &Path) -> PathBuf {
        match self {
            Self::Private(_) => {
                let inside = path.strip_prefix("/").unwrap_or(path);
                PathBuf::from(format!("/proc/{}/root", isolation::pid())).join(inside)
            }
            Self::Temporary { .. } => path.to_owned(),
        }
    }

    /// It stays when this program ends.
    pub(super) fn keep(self) {
        if let Self::Temporary { directory, .. } = &self {
            // Without it no later run takes the directory for an abandoned one.
            let _ = fs::remove_file(directory.path().join(LOCK));
        }
        // What is private ends with the isolation.
        std::mem::forget(self);
    }

    /// Says no when so many bytes do not fit into `directory`, where the nodes' files are to be.
    pub(super) fn check_room(
        &self,
        directory: &Path,
        bytes: u64,
        copies: u64,
    ) -> Result<(), PlayError> {
        let stat = nix::sys::statvfs::statvfs(directory).map_err(|e| PlayError::Files {
            path: directory.to_owned(),
            source: e.into(),
        })?;
        let on_disk = stat.blocks_available().saturating_mul(stat.fragment_size());
        let needed = bytes.saturating_mul(copies);
        match self {
            Self::Private(path) if directory.starts_with(path) => {
                let free = on_disk.min((memory_available() as f64 * MEMORY_SHARE) as u64);
                if needed > free {
                    return Err(PlayError::TooLittleMemory {
                        bytes,
                        copies,
                        needed,
                        free,
                    });
                }
            }
            _ if needed > on_disk => {
                return Err(PlayError::TooLittleRoom {
                    path: directory.to_owned(),
                    bytes,
                    copies,
                    needed,
                    free: on_disk,
                });
            }
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Self::Private(path) = self
            && let Err(error) = fs::remove_dir_all(path)
        {
            tracing::debug!(%error, "left to the end of the namespace");
        }
    }
}

/// Removes the directories of runs that were killed: this user's, and unlocked.
fn remove_abandoned(parent: &Path) {
    let own = nix::unistd::getuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_own = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == own);
        let name = entry.file_name();
        if !is_own || !name.to_string_lossy().starts_with(TEMPORARY_PREFIX) {
            continue;
        }
        let lock = File::open(entry.path().join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok())
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            tracing::debug!(%error, ?name, "the directory of a run that was killed is left");
        }
    }
}

/// Bytes that programs can still have, from `/proc/meminfo`; no limit where that cannot be read.
fn memory_available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
}

impl Data {
    /// How much it is; what cannot be read counts nothing here, the agent names it later.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Random { bytes, .. } => *bytes,
            Self::File(path) => fs::metadata(path).map_or(0, |m| m.len()),
            Self::Directory(path) => below(path),
        }
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Random { bytes, seed } => {
                format!("{RANDOM_NAME} ({bytes} random bytes of seed {seed})")
            }
            Self::File(path) | Self::Directory(path) => path.display().to_string(),
        }
    }

    /// Makes what has to be made, in `made`, and says where the data is.
    pub(super) fn lay_out(&self, made: &Path) -> Result<Origin, PlayError> {
        let name = |path: &Path| {
            path.file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        Ok(match self {
            Self::Directory(path) => Origin {
                root: path.clone(),
                path: String::new(),
                name: name(path),
            },
            Self::File(path) => Origin {
                root: path.parent().unwrap_or(Path::new("/")).to_owned(),
                path: name(path),
                name: name(path),
            },
            Self::Random { bytes, seed } => {
                directory(made)?;
                let path = made.join(RANDOM_NAME);
                write_random(&path, *bytes, *seed)
                    .map_err(|source| PlayError::Files { path, source })?;
                let name = RANDOM_NAME.to_owned();
                Origin {
                    root: made.to_owned(),
                    path: name.clone(),
                    name,
                }
            }
        })
    }
}

fn below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Whole or not at all: it is written under another name. What an earlier run made is used again, if it has these bytes.
fn write_random(path: &Path, bytes: u64, seed: u64) -> io::Result<()> {
    if is_random(path, bytes, seed).unwrap_or(false) {
        return Ok(());
    }
    // Removed when this returns early.
    let unfinished = TempPath::try_from_path(path.with_extension("unfinished"))?;
    let mut file = File::create(&unfinished)?;
    each_block(bytes, seed, |block| file.write_all(block).map(|()| true))?;
    unfinished.persist(path).map_err(|error| error.error)
}

/// Whether a file has these bytes.
fn is_random(path: &Path, bytes: u64, seed: u64) -> io::Result<bool> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() != bytes {
        return Ok(false);
    }
    let mut found = vec![0; WRITE_AT_ONCE];
    each_block(bytes, seed, |block| {
        let found = &mut found[..block.len()];
        file.read_exact(found)?;
        Ok(found == block)
    })
}

/// Draws the bytes in blocks, as long as `take` answers `true`. Answers whether it always did.
fn each_block(
    bytes: u64,
    seed: u64,
    mut take: impl FnMut(&[u8]) -> io::Result<bool>,
) -> io::Result<bool> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut block = vec![0; WRITE_AT_ONCE];
    let mut left = bytes;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
        random.fill_bytes(&mut block[..part]);
        if !take(&block[..part])? {
            return Ok(false);
        }
        left -= part as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_any_size() {
        let directory = tempfile::tempdir().unwrap();
        let read = |made: &str, bytes, seed| {
            let made = directory.path().join(made);
            let origin = Data::Random { bytes, seed }.lay_out(&made).unwrap();
            fs::read(origin.root.join(origin.path)).unwrap()
        };
        let first = read("a", 3_000_000, 1);
        assert_eq!(first.len(), 3_000_000);
        assert_eq!(first, read("b", 3_000_000, 1));
        assert_ne!(first, read("c", 3_000_000, 2));
        assert!(read("d", 0, 1).is_empty());
        // One that was damaged since is made anew.
        let damaged = directory.path().join("a").join(RANDOM_NAME);
        let mut bytes = first.clone();
        bytes[2_000_000] ^= 1;
        fs::write(&damaged, bytes).unwrap();
        assert_eq!(first, read("a", 3_000_000, 1));
    }

    #[test]
    fn the_directory_of_a_run_that_was_killed_goes_with_the_next_run() {
        let parent = tempfile::tempdir().unwrap();
        let [running, mut killed, kept] =
            [(); 3].map(|()| Scratch::temporary(parent.path()).unwrap());
        let paths = [&running, &killed, &kept].map(|scratch| scratch.path().to_owned());
        kept.keep();
        // As the kernel does it for a process that is killed.
        if let Scratch::Temporary { directory, _lock } = &mut killed {
            directory.disable_cleanup(true);
            *_lock = File::open("/dev/null").unwrap();
        }
        drop(killed);
        fs::create_dir(parent.path().join("weft-play-of-others")).unwrap();
        remove_abandoned(parent.path());
        assert_eq!(paths.map(|path| path.exists()), [true, false, true]);
        assert!(parent.path().join("weft-play-of-others").exists());
    }

    #[test]
    fn a_source_is_served_from_where_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let model = directory.path().join("model");
        fs::create_dir_all(model.join("sub")).unwrap();
        fs::write(model.join("a"), [0; 10]).unwrap();
        fs::write(model.join("sub/b"), [0; 5]).unwrap();
        let made = directory.path().join("made");

        let data = Data::Directory(model.clone());
        assert_eq!(data.bytes(), 15);
        let origin = data.lay_out(&made).unwrap();
        assert_eq!((origin.root, origin.path.as_str()), (model.clone(), ""));
        assert_eq!(origin.name, "model");

        let data = Data::File(model.join("a"));
        assert_eq!(data.bytes(), 10);
        let origin = data.lay_out(&made).unwrap();
        assert_eq!((origin.root, origin.path.as_str()), (model, "a"));
        assert!(!made.exists());
    }
}
