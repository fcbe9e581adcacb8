//! The manifests that this node has: those that it listed for the operator, and those that it was prepared
//! with.
//!
//! A manifest passes between agents only. The operator knows its digest, and signs which agent may fetch it from
//! which. When an agent has lost a manifest, the next attempt lists the files again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use weft_proto::agent::v1::{Entry as SentEntry, ManifestPart, ObjectVersion as SentVersion};

use crate::fail_fast;
use crate::fault::Fault;
use crate::files::{EntryKind, Manifest, Shape};

/// Manifests are kept until they take more than this together. The newest stays, and so do those that an
/// attempt uses.
const KEPT_BYTES: usize = 64 << 20;

/// Of one part, about: what HTTP/2 has under way of a stream.
const PART_BYTES: usize = 64 << 10;
/// Of an entry, beside its path.
const ENTRY_BYTES: usize = 16;

/// All of them, the one that was used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Manifests(Mutex<VecDeque<Arc<Manifest>>>);

impl Manifests {
    /// Adds one. Listings with the same names and sizes, of other files, stay apart.
    pub(crate) fn insert(&self, manifest: Arc<Manifest>) {
        self.insert_within(KEPT_BYTES, manifest);
    }

    fn insert_within(&self, most: usize, manifest: Arc<Manifest>) {
        let mut kept = fail_fast::lock(&self.0);
        kept.retain(|known| !is_same(known, manifest.digest(), manifest.fingerprint()));
        let bytes: usize = kept.iter().map(|known| known.memory()).sum();
        let mut surplus = (bytes + manifest.memory()).saturating_sub(most);
        kept.retain(|known| {
            // An attempt that uses it keeps it in memory anyway, and other agents fetch it from here.
            let is_used = Arc::strong_count(known) > 1;
            let stays = surplus == 0 || is_used;
            if !stays {
                surplus = surplus.saturating_sub(known.memory());
            }
            stays
        });
        kept.push_back(manifest);
    }

    /// The manifest with this digest; where there are several, the one with this fingerprint.
    pub(crate) fn get(&self, digest: &[u8], fingerprint: &[u8]) -> Result<Arc<Manifest>, Fault> {
        let mut kept = fail_fast::lock(&self.0);
        let exact = kept
            .iter()
            .position(|known| is_same(known, digest, fingerprint));
        let index = exact.or_else(|| kept.iter().position(|known| known.digest() == digest));
        let found = index.and_then(|index| kept.remove(index));
        let found = found.ok_or(Fault::ManifestUnknown)?;
        // What is used stays longest.
        kept.push_back(found.clone());
        Ok(found)
    }

    /// The one with this digest and fingerprint; with an empty fingerprint any with this digest.
    pub(crate) fn exact(&self, digest: &[u8], fingerprint: &[u8]) -> Result<Arc<Manifest>, Fault> {
        let found = self.get(digest, fingerprint)?;
        (fingerprint.is_empty() || found.fingerprint() == fingerprint)
            .then_some(found)
            .ok_or(Fault::ManifestUnknown)
    }

    /// The one with this digest and fingerprint, if it was listed on this node.
    pub(crate) fn listed(&self, digest: &[u8], fingerprint: &[u8]) -> Result<Arc<Manifest>, Fault> {
        let found = self.get(digest, fingerprint)?;
        (found.is_listed_here() && is_same(&found, digest, fingerprint))
            .then_some(found)
            .ok_or(Fault::ManifestUnknown)
    }
}

fn is_same(known: &Manifest, digest: &[u8], fingerprint: &[u8]) -> bool {
    known.digest() == digest && known.fingerprint() == fingerprint
}

/// A manifest as it is sent to another agent. An empty directory is one part.
pub(crate) fn parts(manifest: Arc<Manifest>) -> impl Iterator<Item = ManifestPart> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let mut at = next?;
        let mut part = ManifestPart {
            directory: manifest.shape() == Shape::Directory,
            entries: Vec::new(),
        };
        let mut bytes = 0;
        while bytes < PART_BYTES
            && let Some(entry) = manifest.entry(at)
        {
            bytes += entry.path.len() + ENTRY_BYTES;
            let (size, link) = match entry.kind {
                EntryKind::File { bytes } => (Some(bytes), ""),
                EntryKind::Directory => (None, ""),
                EntryKind::Link { link_text } => (None, link_text),
            };
            bytes += link.len();
            let version = manifest.version(at);
            bytes += version.map_or(0, |version| version.etag.len());
            part.entries.push(SentEntry {
                path: entry.path.to_owned(),
                size,
                mode: entry.mode,
                link: link.to_owned(),
                hole_bytes: manifest.hole_bytes(at),
                modified_ns: manifest.modified_ns(at),
                version: version.map(|version| SentVersion {
                    etag: version.etag.clone(),
                    modified_ns: version.modified_ns,
                }),
            });
            at += 1;
        }
        next = (at < manifest.len()).then_some(at);
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Access, Root, RootPath, Symlinks};

    #[test]
    fn listings_with_the_same_names_and_sizes_stay_apart() {
        let directory = tempfile::tempdir().unwrap();
        for copy in ["a", "b"] {
            std::fs::create_dir(directory.path().join(copy)).unwrap();
            std::fs::write(directory.path().join(copy).join("model"), b"12").unwrap();
        }
        let root = Root::open("data", directory.path(), Access::ReadOnly).unwrap();
        let list = |path: &str| {
            let path = RootPath::parse(path).unwrap();
            Arc::new(Manifest::scan(&root, &path, &Symlinks::Refuse).unwrap())
        };
        let (a, b) = (list("a"), list("b"));
        assert_eq!(a.digest(), b.digest());
        let manifests = Manifests::default();
        manifests.insert(a.clone());
        manifests.insert(b.clone());
        for listed in [&a, &b] {
            let found = manifests.listed(listed.digest(), &listed.fingerprint()[..]);
            assert!(Arc::ptr_eq(&found.unwrap(), listed));
        }
        assert!(manifests.listed(a.digest(), &[]).is_err());
    }

    #[test]
    fn a_list_that_an_attempt_uses_stays_when_others_come() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open("data", directory.path(), Access::ReadOnly).unwrap();
        let list = |name: &str| {
            std::fs::write(directory.path().join(name), name).unwrap();
            let path = RootPath::parse(name).unwrap();
            Arc::new(Manifest::scan(&root, &path, &Symlinks::Refuse).unwrap())
        };
        let manifests = Manifests::default();
        let used = list("used");
        manifests.insert_within(0, used.clone());
        let unused = list("unused by anybody");
        let digest = *unused.digest();
        manifests.insert_within(0, unused);
        assert!(manifests.get(&digest, &[]).is_ok(), "the newest stays");
        manifests.insert_within(0, list("a"));
        assert!(manifests.get(&digest, &[]).is_err());
        assert!(manifests.get(used.digest(), &[]).is_ok());
    }
}
