//! Symbolic links: which of a source stay links, which are read as the files that they lead to, and which are refused.
//!
//! A link stays one if its text shows that it leads to a place in the copied directory ([`stays_within`]). That rule
//! reads no file system, so a destination checks a manifest from another agent by it. Any other link is copied as the
//! file that it leads to, if the way stays in the directory that the job may read.

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::error::FileError;
use super::names;
use super::path::RootPath;
use super::root::Root;

/// For a link that leads to nothing that can be sent.
const REMEDY: &str = "remove the link, or put the file itself there";

/// What a scan does with symbolic links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// Keeps those that stay in the copied directory, and copies the files that the others lead to.
    Follow {
        /// No link is followed out of this directory.
        boundary: RootPath,
    },
    /// Refuses every one.
    Refuse,
}

/// What a scan makes of a link.
pub(super) enum Link {
    /// It stays a link.
    Kept {
        /// Its text.
        link_text: String,
    },
    /// It is copied as a file.
    File {
        /// Where the file is, by a path without links.
        path: RootPath,
        /// What is there; a directory is refused.
        stat: Stat,
    },
}

/// Whether a link with this text, at `path` in a directory, leads to no place outside of that directory: it is
/// relative, goes up at its beginning only, and no further than to the directory. Other links on its way go by the
/// same rule.
pub(super) fn stays_within(path: &str, link_text: &str) -> bool {
    let (mut rest, mut up) = (link_text, 0);
    loop {
        if let Some(below) = rest.strip_prefix("./") {
            rest = below;
        } else if let Some(above) = rest.strip_prefix("../") {
            (rest, up) = (above, up + 1);
        } else {
            break;
        }
    }
    if rest == ".." {
        (rest, up) = ("", up + 1);
    }
    !link_text.is_empty()
        && up <= path.matches('/').count()
        && RootPath::parse(rest).is_ok_and(|rest| !names::is_within_reserved(rest.as_str()))
}

/// Decides on the link at `path` of a root, which is `relative` to the copied directory.
pub(super) fn read(
    root: &Root,
    path: &RootPath,
    relative: &str,
    symlinks: &Symlinks,
) -> Result<Link, FileError> {
    let failed = |cause| FileError::reading(root.location(path), cause);
    let text = root.link_text(path).map_err(failed)?;
    let refused = |fault, remedy| FileError::LinkRefused {
        location: root.location(path),
        link_text: text.escape_ascii().to_string(),
        fault,
        remedy,
    };
    let Symlinks::Follow { boundary } = symlinks else {
        return Err(refused(
            "and symlinks is Refuse",
            "remove the link, or set symlinks to Follow",
        ));
    };
    let (real, stat) = root.resolve(boundary, path).map_err(|cause| match cause {
        Errno::NOENT | Errno::NOTDIR => refused("which is not there", REMEDY),
        Errno::LOOP => refused("which leads back to itself, or over too many links", REMEDY),
        Errno::XDEV if text.starts_with(b"/") => refused(
            "and an absolute link means another file on another node",
            "make it relative, remove it, or put the file itself there",
        ),
        Errno::XDEV => refused("which leads out of what the job may read", REMEDY),
        Errno::ILSEQ => refused("whose path is not UTF-8", REMEDY),
        cause => failed(cause),
    })?;
    if names::is_within_reserved(real.as_str()) {
        return Err(refused("a file of Weft's own", REMEDY));
    }
    if let Ok(link_text) = str::from_utf8(&text)
        && stays_within(relative, link_text)
    {
        return Ok(Link::Kept {
            link_text: link_text.to_owned(),
        });
    }
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return Err(refused(
            "a directory outside of the source",
            "remove the link, put the directory itself there, or send the directory by a job of its own",
        ));
    }
    Ok(Link::File { path: real, stat })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_within_its_directory_by_its_text_alone() {
        for (path, link_text) in [
            ("l", "a"),
            ("l", "./a/b"),
            ("l", "."),
            ("snapshots/r/model", "../../blobs/f00"),
            ("a/l", ".."),
            ("a/l", "./.././b"),
            ("a/l", "b//c/"),
        ] {
            assert!(stays_within(path, link_text), "{path} -> {link_text}");
        }
        for (path, link_text) in [
            ("l", ""),
            ("l", "/etc/passwd"),
            ("l", ".."),
            ("l", "../a"),
            ("a/l", "../../a"),
            ("a/l", ".././../a"),
            // Where `up` is a link to a directory that lies less deep, this leads out.
            ("l", "up/../a"),
            ("a/l", "../b/.."),
            ("a/l", "..//etc"),
            ("l", "a\0b"),
            ("l", ".weft-copies/a"),
            ("l", ".weft-j-17762fddd969a453925d65717ac3eea2"),
        ] {
            assert!(!stays_within(path, link_text), "{path} -> {link_text}");
        }
        assert!(!stays_within("l", &"x/".repeat(2100)));
    }
}
