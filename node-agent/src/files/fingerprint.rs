//! `Fingerprint`: tells a copy's files, as they are on their node, from what may become of them,
//! and from what else lies beside them.
//!
//! Made when the copy is verified, kept by the operator as a text, and held against a listing later;
//! no file is read for it. As text it is 32 hexadecimal digits of a hash over the entries, and then
//! which entries those are:
//!
//! | text | entries |
//! |---|---|
//! | `HASH.PATHS` | the copy's own, [`OWN_MAX`] at most; PATHS is base64 of 4 bytes for each path |
//! | `HASH.all` | the copy's own, which were all that lay there |
//! | `HASH` | all that lay there, also what the copy has not brought; or of an older release |

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::error::FileError;
use super::manifest::{Entry, EntryKind, Identity, Manifest};
use super::root::{Root, RootPath};

/// Most entries whose paths a text tells: it is part of an annotation, and all annotations of a node
/// together have 256 KiB (Kubernetes). 256 paths are 1.4 kB; models of 1 TB have some 200 files.
const OWN_MAX: usize = 256;
/// Hexadecimal digits of the hash.
const HASH_DIGITS: usize = 32;
/// Of a path's hash. Two paths that are taken for one another make a copy look changed, no more: the
/// hash over the entries is of whole paths.
const PATH_BYTES: usize = 4;
/// In place of the paths.
const ALL: &str = "all";

/// What tells a copy's files from what may become of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    hash: String,
    scope: Scope,
}

/// Which entries of a listing it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    /// Those with these paths.
    Own(BTreeSet<[u8; PATH_BYTES]>),
    /// All, each of them the copy's own.
    All,
    /// All, and nobody can tell which are the copy's own.
    Mixed,
}

/// What has become of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Its files are as they were.
    Intact,
    /// Some of it is gone or has been changed, or nothing can be told from what was added.
    Changed,
    /// No file of it is there.
    Missing,
}

/// A copy in a listing.
#[derive(Debug)]
pub(super) enum Found<'l> {
    /// As it was: its own entries.
    Intact(Vec<&'l Entry>),
    /// As it was, with what was there besides: nobody can tell them apart.
    Mixed,
    Changed,
    Missing,
}

/// The state of the files of a copy when they were verified, by path; of a directory, nothing.
pub(super) type Verified<'m> = BTreeMap<&'m str, Option<Identity>>;

impl Fingerprint {
    /// Of a source that is all that lies there.
    pub fn of_source(manifest: &Manifest) -> Self {
        let own: Vec<&Entry> = manifest.entries().iter().collect();
        let scope = if own.len() > OWN_MAX {
            Scope::All
        } else {
            Scope::Own(paths(&own))
        };
        Self {
            hash: hash(own.into_iter()),
            scope,
        }
    }

    /// Of a copy, by what lies there now; nothing where that is not what was verified.
    pub(super) fn of_copy(verified: &Verified<'_>, listed: &[Entry]) -> Option<Self> {
        let mut own = Vec::new();
        for entry in listed {
            let Some(state) = verified.get(entry.path.as_str()) else {
                continue;
            };
            let same = match (state, entry.kind) {
                (Some(state), EntryKind::File { .. }) => {
                    state.difference(&entry.identity).is_none()
                }
                (None, EntryKind::Directory) => true,
                (Some(_), EntryKind::Directory) | (None, EntryKind::File { .. }) => false,
            };
            if !same {
                return None;
            }
            own.push(entry);
        }
        if own.len() != verified.len() {
            return None;
        }
        let (scope, of) = if own.len() <= OWN_MAX {
            (Scope::Own(paths(&own)), own)
        } else if own.len() == listed.len() {
            (Scope::All, own)
        } else {
            (Scope::Mixed, listed.iter().collect())
        };
        Some(Self {
            hash: hash(of.into_iter()),
            scope,
        })
    }

    /// From its text; `None` of what is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (hash, rest) = match text.split_once('.') {
            Some((hash, rest)) => (hash, Some(rest)),
            None => (text, None),
        };
        if hash.len() != HASH_DIGITS || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let scope = match rest {
            None => Scope::Mixed,
            Some(ALL) => Scope::All,
            Some(paths) => {
                let bytes = BASE64_URL_SAFE_NO_PAD.decode(paths).ok()?;
                let (paths, []) = bytes.as_chunks::<PATH_BYTES>() else {
                    return None;
                };
                Scope::Own(paths.iter().copied().collect())
            }
        };
        Some(Self {
            hash: hash.to_owned(),
            scope,
        })
    }

    /// What has become of the copy at `path`. An error: nobody can tell.
    pub fn examine(&self, root: &Root, path: &RootPath) -> Result<Condition, FileError> {
        Ok(match survey(root, path)? {
            Survey::Nothing => Condition::Missing,
            Survey::NoCopy => Condition::Changed,
            Survey::Listed(listed) => match self.find(listed.entries()) {
                Found::Intact(_) | Found::Mixed => Condition::Intact,
                Found::Changed => Condition::Changed,
                Found::Missing => Condition::Missing,
            },
        })
    }

    /// The copy among what is listed.
    pub(super) fn find<'l>(&self, listed: &'l [Entry]) -> Found<'l> {
        let own: Vec<&Entry> = match &self.scope {
            Scope::Own(paths) => listed
                .iter()
                .filter(|entry| paths.contains(&path_hash(&entry.path)))
                .collect(),
            Scope::All | Scope::Mixed => listed.iter().collect(),
        };
        // One of an empty directory has no entries at all.
        if hash(own.iter().copied()) == self.hash {
            return match self.scope {
                Scope::Own(_) | Scope::All => Found::Intact(own),
                Scope::Mixed => Found::Mixed,
            };
        }
        // What others put into its directories keeps those.
        if own.iter().all(|entry| entry.kind == EntryKind::Directory) {
            Found::Missing
        } else {
            Found::Changed
        }
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.hash)?;
        match &self.scope {
            Scope::Own(paths) => {
                let bytes: Vec<u8> = paths.iter().flatten().copied().collect();
                write!(f, ".{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))
            }
            Scope::All => write!(f, ".{ALL}"),
            Scope::Mixed => Ok(()),
        }
    }
}

/// What lies where a copy was put.
pub(super) enum Survey {
    Listed(Manifest),
    /// No file or directory.
    NoCopy,
    Nothing,
}

pub(super) fn survey(root: &Root, path: &RootPath) -> Result<Survey, FileError> {
    match Manifest::survey(root, path) {
        Ok(listed) => Ok(Survey::Listed(listed)),
        Err(FileError::SourceMissing { .. }) => Ok(Survey::Nothing),
        Err(FileError::NotARegularFile { .. } | FileError::SymlinkRefused { .. }) => {
            Ok(Survey::NoCopy)
        }
        Err(error) => Err(error),
    }
}

/// Of directories only the names count: what other transfers do beside the files changes their
/// times. Device numbers do not: they may be others after a restart of the node.
fn hash<'l>(entries: impl Iterator<Item = &'l Entry>) -> String {
    let mut hasher = blake3::Hasher::new();
    for entry in entries {
        hasher.update(&(entry.path.len() as u64).to_le_bytes());
        hasher.update(entry.path.as_bytes());
        if let EntryKind::File { bytes } = entry.kind {
            let Identity {
                ino,
                mtime_ns,
                ctime_ns,
                ..
            } = entry.identity;
            hasher.update(&bytes.to_le_bytes());
            hasher.update(&ino.to_le_bytes());
            hasher.update(&mtime_ns.to_le_bytes());
            hasher.update(&ctime_ns.to_le_bytes());
        }
    }
    hasher.finalize().to_hex()[..HASH_DIGITS].to_owned()
}

fn paths(entries: &[&Entry]) -> BTreeSet<[u8; PATH_BYTES]> {
    entries.iter().map(|entry| path_hash(&entry.path)).collect()
}

fn path_hash(path: &str) -> [u8; PATH_BYTES] {
    let hash = blake3::hash(path.as_bytes());
    let mut short = [0; PATH_BYTES];
    short.copy_from_slice(&hash.as_bytes()[..PATH_BYTES]);
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &[&str]) -> Vec<Entry> {
        let entry = |(ino, name): (u64, &&str)| Entry {
            path: (*name).to_owned(),
            kind: EntryKind::File { bytes: 1 },
            mode: 0o644,
            identity: Identity {
                ino,
                size: 1,
                ..Identity::default()
            },
        };
        (1..).zip(names).map(entry).collect()
    }

    fn verified(entries: &[Entry]) -> Verified<'_> {
        let state = |entry: &Entry| Some(entry.identity);
        entries
            .iter()
            .map(|entry| (entry.path.as_str(), state(entry)))
            .collect()
    }

    #[test]
    fn a_text_reads_back_and_others_do_not() {
        let many: Vec<String> = (0..=OWN_MAX).map(|n| format!("{n:04}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (few, many) = (entries(&["a", "b"]), entries(&many));
        for (own, listed) in [(&few[..], &few[..]), (&many, &many), (&many[1..], &many)] {
            let made = Fingerprint::of_copy(&verified(own), listed).unwrap();
            let text = made.to_string();
            assert!(text.len() < 1500, "{text}");
            assert_eq!(Fingerprint::parse(&text), Some(made), "{text}");
        }
        let hash = "0".repeat(HASH_DIGITS);
        for text in [
            "",
            "f1",
            &hash[1..],
            &format!("{hash}.x"),
            &format!("{hash}.AAAAA"),
        ] {
            assert_eq!(Fingerprint::parse(text), None, "{text}");
        }
    }

    #[test]
    fn beyond_the_paths_that_a_text_tells_a_copy_is_known_by_all_that_lies_there() {
        let names: Vec<String> = (0..OWN_MAX + 2).map(|n| format!("{n:04}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let listed = entries(&names);
        let own = &listed[1..];
        let alone = Fingerprint::of_copy(&verified(own), own).unwrap();
        assert!(matches!(alone.find(own), Found::Intact(found) if found.len() == own.len()));
        assert!(matches!(alone.find(&listed), Found::Changed));
        let mixed = Fingerprint::of_copy(&verified(own), &listed).unwrap();
        assert!(matches!(mixed.find(&listed), Found::Mixed));
        assert!(matches!(mixed.find(own), Found::Changed));
    }

    #[test]
    fn what_is_not_as_it_was_verified_has_no_fingerprint() {
        let was = entries(&["a", "b"]);
        let mut written = was.clone();
        written[1].identity.mtime_ns = 1;
        for listed in [&written[..], &was[..1], &[]] {
            assert_eq!(Fingerprint::of_copy(&verified(&was), listed), None);
        }
    }
}
