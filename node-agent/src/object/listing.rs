//! `Listing`: collects the objects below a prefix into a manifest.
//!
//! A store is not trusted: the bounds hold while it lists, not only at its end. Pure;
//! [`Store`](super::store::Store) adds the objects.

use std::collections::BTreeSet;

use object_store::ObjectMeta;
use object_store::path::Path;

use super::error::ObjectError;
use super::locator::Locator;
use crate::files::{
    Entry, EntryKind, FileError, MAX_DEPTH, MAX_ENTRIES, MAX_PATHS_BYTES, Manifest,
    ManifestBuilder, ObjectVersion, Shape,
};

/// The mode of files made of objects, which have none.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
/// Characters of a store's text that a message repeats.
pub(super) const MESSAGE_CHARS: usize = 200;
/// How much a store may list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Objects and the directories in their names, together. Objects that are skipped count.
    pub(super) entries: usize,
    /// Of their names and entity tags.
    pub(super) bytes: usize,
}

impl Default for Bounds {
    /// The limits of a manifest.
    fn default() -> Self {
        Self {
            entries: MAX_ENTRIES,
            bytes: MAX_PATHS_BYTES,
        }
    }
}

/// The objects that were listed.
pub(super) struct Listing<'a> {
    locator: &'a Locator,
    bounds: Bounds,
    /// Path, size and version of each.
    files: Vec<(String, u64, ObjectVersion)>,
    directories: BTreeSet<String>,
    /// Objects, with those that were skipped.
    objects: usize,
    bytes: usize,
}

impl<'a> Listing<'a> {
    /// With no object yet.
    pub(super) fn new(locator: &'a Locator, bounds: Bounds) -> Self {
        Self {
            locator,
            bounds,
            files: Vec::new(),
            directories: BTreeSet::new(),
            objects: 0,
            bytes: 0,
        }
    }

    /// Adds an object.
    pub(super) fn add(&mut self, meta: &ObjectMeta) -> Result<(), ObjectError> {
        self.objects += 1;
        if self.objects + self.directories.len() > self.bounds.entries {
            return Err(self.too_much());
        }
        let Some(relative) = relative(&self.locator.key, &meta.location) else {
            return Ok(());
        };
        if relative.split('/').count() > MAX_DEPTH + 1 {
            let problem = format!("it lies more than {MAX_DEPTH} directories deep");
            return Err(bad_key(self.locator, &relative, &problem));
        }
        for (at, _) in relative.match_indices('/') {
            let directory = &relative[..at];
            if !self.directories.contains(directory) {
                self.bytes += directory.len();
                self.directories.insert(directory.to_owned());
            }
        }
        let version = version(meta);
        self.bytes += relative.len() + version.etag.len();
        if self.bytes > self.bounds.bytes
            || self.objects + self.directories.len() > self.bounds.entries
        {
            return Err(self.too_much());
        }
        self.files.push((relative, meta.size, version));
        Ok(())
    }

    /// Makes the manifest.
    pub(super) fn manifest(self) -> Result<Manifest, ObjectError> {
        let mut files = self.files;
        // Consoles make objects without bytes for directories; the library has cut their slash off.
        files.retain(|(path, size, _)| *size > 0 || !self.directories.contains(path));
        let both = files
            .iter()
            .find(|(path, ..)| self.directories.contains(path));
        if let Some((path, ..)) = both {
            let problem = "it is also the directory of other objects";
            return Err(bad_key(self.locator, path, problem));
        }
        if files.is_empty() {
            let url = self.locator.url.clone();
            return Err(ObjectError::Missing { url });
        }
        let build = || {
            let mut manifest = ManifestBuilder::new(Shape::Directory);
            for path in &self.directories {
                manifest.add(Entry {
                    path,
                    kind: EntryKind::Directory,
                    mode: DIRECTORY_MODE,
                })?;
            }
            for (path, size, version) in files {
                manifest.object(file(&path, size), version)?;
            }
            manifest.finish()
        };
        build().map_err(|error| unfit(self.locator, &error))
    }

    fn too_much(&self) -> ObjectError {
        ObjectError::TooMuch {
            url: self.locator.url.clone(),
            entries: self.bounds.entries,
            bytes: self.bounds.bytes,
        }
    }
}

fn bad_key(locator: &Locator, key: &str, problem: &str) -> ObjectError {
    ObjectError::BadKey {
        url: locator.url.clone(),
        key: key.chars().take(MESSAGE_CHARS).collect(),
        problem: problem.to_owned(),
    }
}

/// The manifest refuses it.
fn unfit(locator: &Locator, error: &FileError) -> ObjectError {
    bad_key(locator, "", &error.to_string())
}

/// A manifest of one object.
pub(super) fn only(
    locator: &Locator,
    name: &str,
    meta: &ObjectMeta,
) -> Result<Manifest, ObjectError> {
    let mut manifest = ManifestBuilder::new(Shape::File);
    let added = manifest.object(file(name, meta.size), version(meta));
    let made = added.and_then(|()| manifest.finish());
    made.map_err(|error| unfit(locator, &error))
}

/// The part of a key below a prefix.
pub(super) fn relative(prefix: &Path, key: &Path) -> Option<String> {
    let parts: Vec<String> = key
        .prefix_match(prefix)?
        .map(|part| part.as_ref().to_owned())
        .collect();
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// An object as a file.
fn file(path: &str, bytes: u64) -> Entry<'_> {
    Entry {
        path,
        kind: EntryKind::File { bytes },
        mode: FILE_MODE,
    }
}

fn version(meta: &ObjectMeta) -> ObjectVersion {
    ObjectVersion {
        etag: meta.e_tag.clone().unwrap_or_default(),
        modified_ns: modified_ns(meta),
    }
}

/// In whole seconds: HTTP has no more, and a list may have more than an answer to GET.
pub(super) fn modified_ns(meta: &ObjectMeta) -> i64 {
    meta.last_modified.timestamp().saturating_mul(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(key: &str) -> ObjectMeta {
        ObjectMeta {
            location: Path::parse(key).unwrap(),
            last_modified: Default::default(),
            size: 1,
            e_tag: Some("\"1\"".to_owned()),
            version: None,
        }
    }

    /// What a listing of these says.
    fn listed(bounds: Bounds, keys: &[&str]) -> Result<Manifest, ObjectError> {
        let locator = Locator::parse("s3://models/m/").unwrap();
        let mut listing = Listing::new(&locator, bounds);
        for key in keys {
            listing.add(&meta(key))?;
        }
        listing.manifest()
    }

    #[test]
    fn objects_directories_and_skipped_objects_count_while_the_store_lists() {
        let bounds = Bounds {
            entries: 4,
            bytes: 1 << 20,
        };
        let within = listed(bounds, &["m/a/b/c", "m/d"]).unwrap();
        assert_eq!((within.file_count(), within.len()), (2, 4));
        for keys in [
            ["m/a/b/c", "m/d", "m/e"].as_slice(),
            &["m/a/b/c/d/e"],
            &["x", "x", "x", "x", "m/a"],
        ] {
            let error = listed(bounds, keys).unwrap_err();
            assert_eq!(error.reason(), "ObjectsTooMany", "{keys:?}");
            let text = error.to_string();
            assert!(text.contains("s3://models/m/") && text.contains("more than 4 "));
        }
    }

    #[test]
    fn long_names_are_too_much_before_many_are() {
        let bounds = Bounds {
            entries: 1000,
            bytes: 240,
        };
        let long = format!("m/{}", "n".repeat(200));
        assert!(listed(bounds, &[&long]).is_ok());
        let error = listed(
            bounds,
            &[&long, "m/and-one-that-does-not-fit-any-more-then"],
        );
        assert_eq!(error.unwrap_err().reason(), "ObjectsTooMany");
    }

    #[test]
    fn a_name_of_many_directories_is_refused_before_they_are_made() {
        let deep = format!("m/{}x", "d/".repeat(MAX_DEPTH + 1));
        let error = listed(Bounds::default(), &[&deep]).unwrap_err();
        assert_eq!(error.reason(), "ObjectKeyInvalid");
        assert!(listed(Bounds::default(), &[&deep.replacen("d/", "", 1)]).is_ok());
    }
}
