//! The file: a compressed tar, and the list of what is in it.
//!
//! Texts and objects get in by [`Archive::text`] and [`Archive::object`] only, which take out what is secret.

use std::{
    fmt,
    io::{self, Write},
};

use flate2::{Compression, write::GzEncoder};
use serde_json::Value;
use tar::{Builder, Header};

use super::removal::{self, Removals};

/// The list's name in the file.
const INDEX: &str = "INDEX.md";

/// A file in the bundle.
#[derive(Debug)]
struct Entry {
    path: String,
    bytes: usize,
    says: String,
    removed: String,
}

/// What is in a bundle, and what is not.
#[derive(Debug, Default)]
pub(super) struct Index {
    made_by: String,
    entries: Vec<Entry>,
    /// What could not be read or had no room, and why.
    missing: Vec<(String, String)>,
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Support bundle of Weft\n")?;
        writeln!(f, "{}\n", self.made_by)?;
        writeln!(
            f,
            "Secrets are never read. Private keys, tokens, passwords, credentials and signatures in URLs, values of \
             variables whose name says that they are secret or that come from elsewhere, and what kubectl apply keeps \
             in an annotation were replaced by {}; managedFields were left out. Names of namespaces, pods, jobs, nodes and files, paths and \
             addresses are still there: look through the files before you give them away.\n",
            removal::REMOVED
        )?;
        writeln!(f, "| file | bytes | what it is | removed |")?;
        writeln!(f, "|---|---|---|---|")?;
        for entry in &self.entries {
            let Entry {
                path,
                bytes,
                says,
                removed,
            } = entry;
            writeln!(f, "| {path} | {bytes} | {says} | {removed} |")?;
        }
        if self.missing.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n## What is not in it\n")?;
        writeln!(f, "| what | why |")?;
        writeln!(f, "|---|---|")?;
        for (what, why) in &self.missing {
            // On one line, in its column.
            let why = why.replace('|', "\\|").replace(['\n', '\r'], " ");
            writeln!(f, "| {what} | {why} |")?;
        }
        Ok(())
    }
}

/// A bundle that is being written.
pub(super) struct Archive<W: Write> {
    tar: Builder<GzEncoder<W>>,
    /// All files are in this directory.
    directory: String,
    seconds: u64,
    index: Index,
}

impl<W: Write> Archive<W> {
    /// Made at this time, in seconds since the Unix epoch.
    pub(super) fn new(out: W, directory: &str, made_by: String, seconds: u64) -> Self {
        Self {
            tar: Builder::new(GzEncoder::new(out, Compression::default())),
            directory: directory.to_owned(),
            seconds,
            index: Index {
                made_by,
                ..Index::default()
            },
        }
    }

    /// Adds an object, as JSON.
    pub(super) fn object(&mut self, path: &str, says: &str, mut object: Value) -> io::Result<()> {
        let mut removals = Removals::default();
        removal::object(&mut object, &mut removals);
        let text = serde_json::to_string_pretty(&object)? + "\n";
        self.add(path, says, &text, &removals)
    }

    /// Adds a text.
    pub(super) fn text(&mut self, path: &str, says: &str, text: &str) -> io::Result<()> {
        let mut removals = Removals::default();
        let text = removal::text(text, &mut removals);
        self.add(path, says, &text, &removals)
    }

    /// Notes that something is not in it.
    pub(super) fn missing(&mut self, what: impl Into<String>, why: impl fmt::Display) {
        let why = removal::text(&why.to_string(), &mut Removals::default());
        self.index.missing.push((what.into(), why));
    }

    /// Adds the list, and gives it and what was written to.
    pub(super) fn finish(mut self) -> io::Result<(Index, W)> {
        let index = self.index.to_string();
        self.write(INDEX, &index)?;
        let out = self.tar.into_inner()?.finish()?;
        Ok((self.index, out))
    }

    fn add(&mut self, path: &str, says: &str, text: &str, removals: &Removals) -> io::Result<()> {
        self.write(path, text)?;
        self.index.entries.push(Entry {
            path: path.to_owned(),
            bytes: text.len(),
            says: says.to_owned(),
            removed: removals.to_string(),
        });
        Ok(())
    }

    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.seconds);
        let path = format!("{}/{path}", self.directory);
        self.tar.append_data(&mut header, path, text.as_bytes())
    }
}
