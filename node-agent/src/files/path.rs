//! `RootPath`: a path below a root.

use std::fmt;
use std::str::FromStr;

use super::error::FileError;
use super::names::COPIES;

/// Bytes in the longest path (`PATH_MAX` less its NUL) and in the longest name (`NAME_MAX`).
const MAX_PATH_BYTES: usize = 4095;
const MAX_NAME_BYTES: usize = 255;

/// A path below a root: relative, UTF-8, without "..", "." or NUL. The empty path is the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RootPath {
    text: String,
    directory: bool,
}

impl RootPath {
    /// The root itself.
    pub const ROOT: RootPath = RootPath {
        text: String::new(),
        directory: true,
    };

    /// Checks and normalises a path: single slashes, no "." components; a slash at the end is
    /// remembered and says "a directory".
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let bad = |fault| FileError::BadPath {
            path: text.to_owned(),
            fault,
        };
        if text.starts_with('/') {
            return Err(bad("is absolute"));
        }
        if text.contains('\0') {
            return Err(bad("contains a NUL character"));
        }
        let mut clean = String::with_capacity(text.len());
        for name in text.split('/').filter(|name| !matches!(*name, "" | ".")) {
            if name == ".." {
                return Err(bad("contains \"..\""));
            }
            if name.len() > MAX_NAME_BYTES {
                return Err(bad("contains a name of more than 255 bytes"));
            }
            if name == COPIES {
                return Err(bad(
                    "contains .weft-copies, where Weft keeps its own records",
                ));
            }
            if !clean.is_empty() {
                clean.push('/');
            }
            clean.push_str(name);
        }
        if clean.len() > MAX_PATH_BYTES {
            return Err(bad("has more than 4095 bytes"));
        }
        let directory = clean.is_empty() || text.ends_with('/') || text.ends_with("/.");
        Ok(RootPath {
            text: clean,
            directory,
        })
    }

    /// The path, normalised and without a slash at the end.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it was written with a slash at the end (or is the root itself).
    pub fn names_directory(&self) -> bool {
        self.directory
    }

    /// Its last name; `None` for the root itself.
    pub fn file_name(&self) -> Option<&str> {
        self.split().map(|(_, name)| name)
    }

    /// The path `below` this one.
    pub fn join(&self, below: &str) -> Result<Self, FileError> {
        let below = RootPath::parse(below)?;
        match (self.text.is_empty(), below.text.is_empty()) {
            (true, _) => Ok(below),
            (false, true) => Ok(self.clone()),
            (false, false) => {
                let slash = if below.directory { "/" } else { "" };
                RootPath::parse(&format!("{}/{}{slash}", self.text, below.text))
            }
        }
    }

    /// Whether it is `other` or lies below it.
    pub(super) fn is_within(&self, other: &RootPath) -> bool {
        self.below(other).is_some()
    }

    /// The path from `other` on, if it is `other` or lies below it.
    pub(super) fn below(&self, other: &RootPath) -> Option<RootPath> {
        let rest = self.text.strip_prefix(&other.text)?;
        let rest = match other.text.is_empty() || rest.is_empty() {
            true => rest,
            false => rest.strip_prefix('/')?,
        };
        Some(RootPath {
            text: rest.to_owned(),
            directory: self.directory,
        })
    }

    /// Whether one of the two lies within the other, or they are the same.
    pub(super) fn overlaps(&self, other: &RootPath) -> bool {
        self.is_within(other) || other.is_within(self)
    }

    /// Its directory and last name; `None` for the root itself.
    pub(super) fn split(&self) -> Option<(RootPath, &str)> {
        if self.text.is_empty() {
            return None;
        }
        let (parent, name) = self.text.rsplit_once('/').unwrap_or(("", &self.text));
        Some((
            RootPath {
                text: parent.into(),
                directory: true,
            },
            name,
        ))
    }

    /// The directories that it is in, from the outermost one on, without the root itself.
    pub(super) fn ancestors(&self) -> impl Iterator<Item = RootPath> {
        let ends = self.text.match_indices('/').map(|(at, _)| at);
        ends.map(|end| RootPath {
            text: self.text[..end].into(),
            directory: true,
        })
    }

    /// What the kernel is given: it takes no empty path.
    pub(super) fn to_open(&self) -> &str {
        if self.text.is_empty() {
            "."
        } else {
            &self.text
        }
    }
}

impl fmt::Display for RootPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_open())
    }
}

impl FromStr for RootPath {
    type Err = FileError;

    fn from_str(text: &str) -> Result<Self, FileError> {
        RootPath::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_and_what_could_leave_the_root_is_refused() {
        for (text, clean, directory) in [
            ("a", "a", false),
            ("a/b", "a/b", false),
            ("a//b/", "a/b", true),
            ("./a/./b", "a/b", false),
            ("", "", true),
            (".", "", true),
            ("..a/b..", "..a/b..", false),
            ("näme", "näme", false),
        ] {
            let path = RootPath::parse(text).unwrap();
            assert_eq!(
                (path.as_str(), path.names_directory()),
                (clean, directory),
                "{text:?}"
            );
        }
        let long = "x".repeat(256);
        let deep = "x/".repeat(2100);
        for text in [
            "..",
            "a/../b",
            "../a",
            "/",
            "/etc/passwd",
            "a\0b",
            "a/.weft-copies/b",
            &long,
            &deep,
        ] {
            let error = RootPath::parse(text).unwrap_err();
            assert_eq!(error.reason(), "BadPath", "{text:?}");
        }
    }

    #[test]
    fn joining_keeps_to_the_rules() {
        let base = RootPath::parse("m/x").unwrap();
        assert_eq!(base.join("a/b").unwrap().as_str(), "m/x/a/b");
        assert_eq!(base.join("").unwrap(), base);
        assert_eq!(RootPath::ROOT.join("a").unwrap().as_str(), "a");
        assert_eq!(base.join("../a").unwrap_err().reason(), "BadPath");
        assert_eq!(base.file_name(), Some("x"));
        assert_eq!(RootPath::ROOT.file_name(), None);
        let within = [("m/x", "m"), ("m/x", "m/x"), ("m", "")];
        let apart = [("m", "m/x"), ("mx", "m"), ("", "m")];
        let is_within = |(path, other): &(&str, &str)| {
            let [path, other] = [path, other].map(|text| RootPath::parse(text).unwrap());
            path.is_within(&other)
        };
        assert!(within.iter().all(is_within) && !apart.iter().any(is_within));
    }
}
