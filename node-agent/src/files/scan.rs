//! Lists a source: [`Manifest::scan`].

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::digest::{Algorithm, BlockLayout, MAX_FILE_BYTES};
use super::error::{FileError, Location};
use super::file_state::{FileState, allocated_bytes};
use super::holes::hole_bytes;
use super::limits::MAX_DEPTH;
use super::manifest::{Entry, EntryKind, MODE_BITS, Manifest, ManifestBuilder, Shape};
use super::names;
use super::not_kept::{self, NotKept};
use super::path::RootPath;
use super::root::{Root, special};
use super::symlink::{self, Link, Symlinks};

impl Manifest {
    /// Lists the file or directory `path`. Weft's own partial files are left out; a device, pipe or
    /// socket anywhere in it is refused, as is what cannot be read. Where links are followed, `path` may be one or
    /// lead through some.
    pub fn scan(root: &Root, path: &RootPath, symlinks: &Symlinks) -> Result<Self, FileError> {
        // What is being assembled there is no copy yet.
        if names::is_within_reserved(path.as_str()) {
            return Err(FileError::ReservedName {
                location: root.location(path),
            });
        }
        let found = match symlinks {
            Symlinks::Refuse => root
                .open_at(path, OFlags::PATH)
                .and_then(|opened| Ok((path.clone(), fs::fstat(&opened)?))),
            Symlinks::Follow { boundary } => root.resolve(boundary, path),
        };
        let (real, stat) = found.map_err(|cause| {
            if cause == Errno::NOENT && root.link_text(path).is_err() {
                return FileError::SourceMissing {
                    location: root.location(path),
                    missing: root.missing_part(path),
                };
            }
            // With NOENT it is a link that leads to nothing.
            let cause = match cause {
                Errno::NOENT => Errno::LOOP,
                cause => cause,
            };
            root.symlink_on_the_way(path, cause)
                .unwrap_or_else(|| FileError::reading(root.location(path), cause))
        })?;
        if names::is_within_reserved(real.as_str()) {
            return Err(FileError::ReservedName {
                location: root.location(&real),
            });
        }
        let location = || root.location(path);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return scan_directory(root, &real, symlinks)?.finish();
        }
        if path.names_directory() {
            return Err(FileError::NotARegularFile {
                location: location(),
                kind: special(&stat).unwrap_or("a file, and the path says directory by its slash"),
            });
        }
        let mut not_kept = BTreeSet::new();
        let (kind, state, holes) = file_at(root, &real, &stat, &mut not_kept, location)?;
        let name = path.file_name();
        let entry = Entry {
            path: name.ok_or_else(|| FileError::reading(location(), Errno::NOENT))?,
            kind,
            mode: stat.st_mode & MODE_BITS,
        };
        let mut only = ManifestBuilder::new(Shape::File);
        only.add_listed(entry, state.fingerprint())?;
        only.set_hole_bytes(holes);
        only.set_modified_ns(state.mtime_ns);
        only.set_not_kept(not_kept);
        only.finish()
    }
}

fn scan_directory(
    root: &Root,
    top: &RootPath,
    symlinks: &Symlinks,
) -> Result<ManifestBuilder, FileError> {
    let mut found = ManifestBuilder::new(Shape::Directory);
    let mut not_kept = BTreeSet::new();
    // Directories still to be listed, relative to the top, with their depth.
    let mut waiting = vec![(String::new(), 0usize)];
    while let Some((directory, depth)) = waiting.pop() {
        let path = top.join(&directory)?;
        let failed = |cause| {
            root.symlink_on_the_way(&path, cause)
                .unwrap_or_else(|| FileError::reading(root.location(&path), cause))
        };
        let opened = root.open_directory(&path).map_err(failed)?;
        let mut entries = Dir::read_from(&opened).map_err(failed)?;
        while let Some(next) = entries.read() {
            let next = next.map_err(failed)?;
            let bytes = next.file_name().to_bytes();
            if matches!(bytes, b"." | b"..") {
                continue;
            }
            let location = |name: &str| Location {
                root: root.name().into(),
                path: format!("{path}/{name}").trim_start_matches("./").into(),
            };
            let Ok(name) = std::str::from_utf8(bytes) else {
                let escaped = bytes.escape_ascii().to_string();
                return Err(FileError::NameNotUtf8 {
                    location: location(&escaped),
                });
            };
            if names::is_reserved(name) {
                continue;
            }
            let relative = below(&directory, name);
            let stat = match fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => {
                    let what = "a file was removed from it";
                    return Err(FileError::SourceChanged {
                        location: root.location(&path),
                        what,
                    });
                }
                Err(cause) => return Err(FileError::reading(location(name), cause)),
            };
            let file_type = FileType::from_raw_mode(stat.st_mode);
            let is_directory = file_type == FileType::Directory;
            if is_directory && depth == MAX_DEPTH {
                return Err(FileError::TooDeep {
                    location: location(name),
                });
            }
            let link = match file_type {
                FileType::Symlink => {
                    let link = path.join(name)?;
                    Some(symlink::read(root, &link, &relative, symlinks)?)
                }
                _ => None,
            };
            let (kind, mode, fingerprint, of_file) = match &link {
                Some(Link::Kept { link_text }) => {
                    let fingerprint = FileState::of(&stat).fingerprint();
                    (EntryKind::Link { link_text }, 0, fingerprint, None)
                }
                Some(Link::File { path, stat }) => {
                    let (kind, state, holes) =
                        file_at(root, path, stat, &mut not_kept, || location(name))?;
                    (
                        kind,
                        stat.st_mode,
                        state.fingerprint(),
                        Some((holes, state.mtime_ns)),
                    )
                }
                None if is_directory => {
                    not_kept::note(&mut not_kept, &opened, name, &stat);
                    let fingerprint = FileState::of(&stat).directory_fingerprint();
                    (EntryKind::Directory, stat.st_mode, fingerprint, None)
                }
                None => {
                    let (kind, state, holes) =
                        file_entry(&opened, name, &stat, &mut not_kept, || location(name))?;
                    (
                        kind,
                        stat.st_mode,
                        state.fingerprint(),
                        Some((holes, state.mtime_ns)),
                    )
                }
            };
            let entry = Entry {
                path: &relative,
                kind,
                mode: mode & MODE_BITS,
            };
            let added = found.add_listed(entry, fingerprint);
            added.map_err(|_| FileError::TooManyFiles {
                location: root.location(top),
            })?;
            if let Some((holes, modified_ns)) = of_file {
                found.set_hole_bytes(holes);
                found.set_modified_ns(modified_ns);
            }
            if is_directory {
                waiting.push((relative, depth + 1));
            }
        }
    }
    found.set_not_kept(not_kept);
    Ok(found)
}

/// As [`file_entry`], for the file at a path without links.
fn file_at(
    root: &Root,
    path: &RootPath,
    stat: &Stat,
    not_kept: &mut BTreeSet<NotKept>,
    location: impl Fn() -> Location,
) -> Result<(EntryKind<'static>, FileState, u64), FileError> {
    let failed = |cause| FileError::reading(location(), cause);
    // The root itself is a directory, so what is not one has a parent and a name.
    let (parent, name) = path.split().ok_or_else(|| failed(Errno::NOENT))?;
    let parent = root.open_directory(&parent).map_err(failed)?;
    file_entry(&parent, name, stat, not_kept, &location)
}

/// What is not a directory, if it can be sent, and how many bytes of it are holes. Adds what copies will not have.
fn file_entry(
    parent: &OwnedFd,
    name: &str,
    stat: &Stat,
    not_kept: &mut BTreeSet<NotKept>,
    location: impl Fn() -> Location,
) -> Result<(EntryKind<'static>, FileState, u64), FileError> {
    if let Some(kind) = special(stat) {
        return Err(FileError::NotARegularFile {
            location: location(),
            kind,
        });
    }
    if names::is_reserved(name) {
        return Err(FileError::ReservedName {
            location: location(),
        });
    }
    let state = FileState::of(stat);
    if state.size > MAX_FILE_BYTES {
        return Err(FileError::FileTooLarge {
            location: location(),
            bytes: state.size,
        });
    }
    fs::accessat(parent.as_fd(), name, fs::Access::READ_OK, AtFlags::EACCESS)
        .map_err(|cause| FileError::reading(location(), cause))?;
    not_kept::note(not_kept, parent, name, stat);
    let bytes = state.size;
    let mut holes = 0;
    if state.size > allocated_bytes(stat) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        holes = fs::openat(parent, name, flags, Mode::empty())
            .and_then(|file| {
                hole_bytes(&file.into(), BlockLayout::new(Algorithm::default(), bytes))
            })
            .map_err(|cause| FileError::reading(location(), cause))?;
    }
    Ok((EntryKind::File { bytes }, state, holes))
}

fn below(directory: &str, name: &str) -> String {
    if directory.is_empty() {
        name.into()
    } else {
        format!("{directory}/{name}")
    }
}
