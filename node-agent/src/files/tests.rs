//! Faults, resumption and whole transfers over real directories, without a network between.

pub(super) mod alone;
mod appears;
mod copies;
mod destination_faults;
mod holes;
mod links;
mod resume;
mod source_faults;
mod space;
mod volumes;
mod whole;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;

/// A directory on disk that is a root.
struct Node {
    directory: tempfile::TempDir,
    root: Arc<Root>,
}

impl Node {
    fn new() -> Self {
        Node::at(tempfile::tempdir().unwrap())
    }

    /// On tmpfs: for so many files that a busy disk would take a minute to remove them.
    fn in_memory() -> Self {
        Node::at(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn at(directory: tempfile::TempDir) -> Self {
        let root = Arc::new(Root::open("models", directory.path(), Access::ReadWrite).unwrap());
        Node { directory, root }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    fn write(&self, below: &str, content: &[u8]) -> &Self {
        let path = self.path(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    fn read(&self, below: &str) -> Vec<u8> {
        std::fs::read(self.path(below)).unwrap()
    }

    /// Links are refused.
    fn source(&self, path: &str) -> Result<Source, FileError> {
        self.source_with(path, &Symlinks::Refuse)
    }

    fn source_with(&self, path: &str, symlinks: &Symlinks) -> Result<Source, FileError> {
        let path = RootPath::parse(path)?;
        let manifest = Manifest::scan(&self.root, &path, symlinks)?;
        Ok(Source::new(self.root.clone(), path, Arc::new(manifest)))
    }

    fn config(&self, path: &str, source: &Source) -> DestinationConfig {
        DestinationConfig {
            root: self.root.clone(),
            path: RootPath::parse(path).unwrap(),
            job: "job-1".parse().unwrap(),
            recorded_for: None,
            manifest: source.manifest().clone(),
            algorithm: Algorithm::Blake3,
            overwrite: Overwrite::IfDifferent,
            expect: None,
        }
    }

    /// All names below the root, sorted; directories with a slash at the end.
    fn names(&self) -> Vec<String> {
        names_below(self.directory.path())
    }
}

fn names_below(top: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && !path.is_symlink() {
                names.push(name + "/");
                waiting.push(path);
            } else {
                names.push(name);
            }
        }
    }
    names.sort();
    names
}

/// Bytes that no two seeds share.
fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut out);
    out
}

/// Blocks that went over the pretended network, and that did not have to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sent {
    sent: u32,
    confirmed: u32,
}

/// What source and receiver do for one file, up to `most` sent blocks; the file's digest when
/// all of it is there.
fn send_file(
    source: &Source,
    destination: &Destination,
    index: u32,
    most: u32,
    counts: &mut Sent,
) -> Result<Option<Digest>, FileError> {
    let from = source.open(index)?;
    let to = destination.open(index)?;
    let blocks = to.blocks();
    let mut buffer = vec![0; BLOCK_BYTES];
    let unconfirmed = to.rehash(&mut buffer)?;
    let mut tree = HashTree::new(blocks);
    for block in 0..blocks.count() {
        let len = from.read_block(block, &mut buffer)?;
        let digest = blocks.digest(block, &buffer[..len]);
        tree.set(block, digest);
        if unconfirmed.contains(&(block, digest)) && to.confirm(block, &digest)? {
            counts.confirmed += 1;
            continue;
        }
        if counts.sent == most {
            return Ok(None);
        }
        let verified = blocks.verify(block, &buffer[..len], &digest).unwrap();
        assert!(to.write_block(&verified)?);
        counts.sent += 1;
    }
    source.entry_unchanged(index)?;
    let digest = tree.root().unwrap();
    destination.finish(&to, &digest)?;
    Ok(Some(digest))
}

/// Sends everything and publishes it.
fn send(source: &Source, config: DestinationConfig) -> Result<(Digest, Sent), FileError> {
    let destination = Destination::prepare(config)?;
    let mut counts = Sent::default();
    for (index, _, _) in source.manifest().files() {
        send_file(source, &destination, index, u32::MAX, &mut counts)?;
    }
    source.unchanged()?;
    Ok((destination.publish()?, counts))
}

/// Ends an attempt and removes what its job has left.
fn give_up(destination: &Destination) -> Vec<FileError> {
    let config = &destination.placement.config;
    let mut leftover = Leftover::default();
    leftover.note_attempt(config);
    leftover.add(destination);
    destination.abort();
    leftover.remove_partials(&config.job)
}

/// The same directory after something was mounted on it.
fn reopened(node: Node) -> Node {
    let root = Root::open("models", node.directory.path(), Access::ReadWrite).unwrap();
    Node {
        root: Arc::new(root),
        directory: node.directory,
    }
}

/// An error says its reason and, in its text, where it happened.
#[track_caller]
fn assert_fault(error: &FileError, reason: &str, named: &str) {
    let text = error.to_string();
    assert_eq!(error.reason(), reason, "{text}");
    assert!(text.contains(named), "{text:?} does not name {named:?}");
    assert!(text.contains(": "), "{text:?} gives no remedy");
}
