//! What a row sends: made from the seed, and compared with what arrived.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use rand_core::Rng as _;
use weft_sim::draw::Draw;

/// Partial files and locks are called so.
const OURS: &str = ".weft-";
/// But not the records of copies.
const COPIES: &str = ".weft-copies";

/// What a row sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// One file.
    File { bytes: usize },
    /// One file of no bytes.
    Nothing,
    /// A directory without anything in it.
    EmptyDirectory,
    /// A directory of a large file, small ones, an empty one and an empty directory.
    Model { bytes: usize },
    /// So many files of up to 2 KiB in ten directories.
    Small { files: usize },
}

/// Files by their paths below the source (the file itself has none), and empty directories.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    files: BTreeMap<PathBuf, Vec<u8>>,
    directories: Vec<PathBuf>,
    is_directory: bool,
}

impl Tree {
    pub(crate) fn draw(work: Work, draw: &mut Draw) -> Self {
        let mut tree = Self {
            is_directory: !matches!(work, Work::File { .. } | Work::Nothing),
            ..Self::default()
        };
        match work {
            Work::File { bytes } => {
                // Not a whole number of blocks.
                let odd = draw.within(0, 4095) as usize;
                tree.files.insert(PathBuf::new(), noise(bytes + odd, draw));
            }
            Work::Nothing => {
                tree.files.insert(PathBuf::new(), Vec::new());
            }
            Work::EmptyDirectory => {}
            Work::Model { bytes } => {
                tree.files.insert("model.bin".into(), noise(bytes, draw));
                tree.files.insert("none".into(), Vec::new());
                for i in 0..draw.within(1, 40) {
                    let bytes = draw.within(1, 1 << 16) as usize;
                    tree.files
                        .insert(format!("many/f{i}").into(), noise(bytes, draw));
                }
                tree.directories.push("hollow".into());
            }
            Work::Small { files } => {
                for i in 0..files {
                    let bytes = draw.within(0, 2048) as usize;
                    let path = format!("d{}/f{i}", i % 10);
                    tree.files.insert(path.into(), noise(bytes, draw));
                }
            }
        }
        tree
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.len() as u64).sum()
    }

    /// The largest file's path below the source.
    pub(crate) fn largest(&self) -> PathBuf {
        let largest = self.files.iter().max_by_key(|(_, bytes)| bytes.len());
        largest.unwrap().0.clone()
    }

    pub(crate) fn write(&self, at: &Path) {
        if self.is_directory {
            fs::create_dir_all(at).unwrap();
        }
        for directory in &self.directories {
            fs::create_dir_all(at.join(directory)).unwrap();
        }
        for (path, bytes) in &self.files {
            let path = below(at, path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }

    /// All of it is there, byte for byte, and nothing else.
    pub(crate) fn assert_arrived(&self, at: &Path) {
        self.assert_nothing_wrong(at);
        for path in self.files.keys() {
            let path = below(at, path);
            assert!(path.is_file(), "{} is missing", path.display());
        }
        for directory in &self.directories {
            let directory = at.join(directory);
            assert!(directory.is_dir(), "{} is missing", directory.display());
        }
        if self.is_directory {
            assert!(at.is_dir(), "{} is missing", at.display());
        }
    }

    /// Whatever stands under a final name is the source's, byte for byte.
    pub(crate) fn assert_nothing_wrong(&self, at: &Path) {
        for path in files_below(at) {
            let name = path.file_name().unwrap().to_string_lossy();
            if name.starts_with(OURS) {
                continue;
            }
            let relative = path.strip_prefix(at).unwrap();
            let expected = self.files.get(relative);
            let expected = expected.unwrap_or_else(|| panic!("{} was never sent", path.display()));
            let found = fs::read(&path).unwrap();
            assert!(
                found == *expected,
                "{}: {} bytes that are not the source's {}",
                path.display(),
                found.len(),
                expected.len()
            );
        }
    }

    /// No file of it stands whole under its final name.
    pub(crate) fn assert_not_published(&self, at: &Path) {
        assert!(!self.is_published(at), "{} is published", at.display());
    }

    /// Its largest file stands under its final name.
    pub(crate) fn is_published(&self, at: &Path) -> bool {
        below(at, &self.largest()).exists()
    }
}

/// `join` would end a file's own path with a slash.
pub(crate) fn below(at: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() {
        at.to_owned()
    } else {
        at.join(path)
    }
}

fn noise(bytes: usize, draw: &mut Draw) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    draw.rng().fill_bytes(&mut noise);
    noise
}

/// Everything that is no directory, at or below a path; links are not followed.
pub(crate) fn files_below(at: &Path) -> Vec<PathBuf> {
    let Ok(metadata) = fs::symlink_metadata(at) else {
        return Vec::new();
    };
    if !metadata.is_dir() {
        return vec![at.to_owned()];
    }
    let entries = fs::read_dir(at).unwrap();
    entries
        .flat_map(|entry| files_below(&entry.unwrap().path()))
        .collect()
}

/// Partial files and locks of ours at or below a path, and files in directories that are being assembled.
pub(crate) fn partials_below(at: &Path) -> Vec<PathBuf> {
    let ours = |path: &PathBuf| {
        let below = path.strip_prefix(at).unwrap_or(path);
        let mut names = below.iter();
        names.any(|name| name.to_string_lossy().starts_with(OURS) && name != COPIES)
    };
    files_below(at).into_iter().filter(ours).collect()
}
