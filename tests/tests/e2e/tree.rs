//! Files that are sent, and whether they have arrived.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rand_core::Rng as _;
use weft_sim::draw::Draw;

use crate::test_cluster::repository;

/// Files by their paths below a directory.
#[derive(Clone)]
pub(crate) struct Tree(BTreeMap<PathBuf, Vec<u8>>);

/// The model that `make play` sends: 91 MB in a dozen files.
pub(crate) fn model() -> Tree {
    let made = Command::new(repository("hack/model.sh")).output().unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let tree = Tree::read(Path::new(String::from_utf8(made.stdout).unwrap().trim()));
    assert!(tree.bytes() > 90_000_000, "{} bytes", tree.bytes());
    tree
}

impl Tree {
    /// A large file of noise with smaller ones beside it.
    pub(crate) fn draw(bytes: usize, draw: &mut Draw) -> Self {
        let mut noise = |bytes: usize| {
            let mut noise = vec![0; bytes];
            draw.rng().fill_bytes(&mut noise);
            noise
        };
        Self(BTreeMap::from([
            ("config.json".into(), noise(700)),
            ("empty".into(), Vec::new()),
            ("deep/er/vocabulary".into(), noise(200_001)),
            ("weights".into(), noise(bytes)),
        ]))
    }

    pub(crate) fn read(directory: &Path) -> Self {
        let mut tree = Self(BTreeMap::new());
        tree.add(directory, Path::new(""));
        tree
    }

    fn add(&mut self, root: &Path, below: &Path) {
        let directory = root.join(below);
        let entries = fs::read_dir(&directory);
        let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for entry in entries {
            let entry = entry.unwrap();
            let path = below.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                self.add(root, &path);
            } else {
                self.0.insert(path, fs::read(entry.path()).unwrap());
            }
        }
    }

    pub(crate) fn write(&self, directory: &Path) {
        for (path, content) in &self.0 {
            let path = directory.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.values().map(|content| content.len() as u64).sum()
    }

    pub(crate) fn content(&self, path: &str) -> &[u8] {
        &self.0[Path::new(path)]
    }

    pub(crate) fn files(&self) -> usize {
        self.0.len()
    }

    /// As the reference of the API says: of the lines that b3sum prints for the files, sorted by path.
    pub(crate) fn digest(&self) -> String {
        let line = |(path, content): (&PathBuf, &Vec<u8>)| {
            format!("{}  {}\n", blake3::hash(content), path.display())
        };
        let lines: BTreeMap<String, String> = self
            .0
            .iter()
            .map(|entry| (entry.0.display().to_string(), line(entry)))
            .collect();
        let lines: String = lines.into_values().collect();
        blake3::hash(lines.as_bytes()).to_string()
    }

    /// Fails unless the directory holds these files and no others.
    pub(crate) fn assert_is_at(&self, directory: &Path) {
        let there = Self::read(directory);
        let names = |tree: &Self| tree.0.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&there), names(self), "{}", directory.display());
        for (path, content) in &self.0 {
            let same = there.0[path] == *content;
            assert!(same, "{} differs", directory.join(path).display());
        }
    }
}
