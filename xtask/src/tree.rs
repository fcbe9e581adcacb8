//! What the lints read: the repository's files as git lists them, and cargo's view of its crates.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::crates::Crates;
use crate::source::Source;

/// The whole repository, read once.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    files: Vec<File>,
    /// Paths of files that are no text.
    binaries: Vec<String>,
    crates: Crates,
}

/// One text file. Binary files are not in the tree.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the repository's root, with forward slashes.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
    /// The file as code, where it is Rust.
    pub(crate) rust: Option<Source>,
}

/// Why the repository could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    /// A program that the lints ask could not be started.
    #[error("cannot run {program}: {error}")]
    Start {
        program: &'static str,
        error: io::Error,
    },
    /// A program that the lints ask gave an error.
    #[error("{program} failed: {stderr}")]
    Failed {
        program: &'static str,
        stderr: String,
    },
    /// A file that git lists could not be read.
    #[error("cannot read {path}: {error}")]
    Read { path: String, error: io::Error },
    /// cargo's answer was not what this version of cargo is known to print.
    #[error("cargo metadata is not JSON: {0}")]
    Metadata(serde_json::Error),
}

impl Tree {
    /// Reads the repository this program was built from: what git tracks, and what is new and not
    /// ignored, so that a rule is broken before the commit and not after it.
    pub(crate) fn load() -> Result<Self, TreeError> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let list = output(
            Command::new("git").current_dir(&root).args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ]),
            "git ls-files",
        )?;
        let (mut files, mut binaries) = (Vec::new(), Vec::new());
        for path in String::from_utf8_lossy(&list).split_terminator('\0') {
            let full = root.join(path);
            if !full.is_file() {
                continue; // deleted here, not yet in the index
            }
            let bytes = std::fs::read(&full).map_err(|error| TreeError::Read {
                path: path.to_owned(),
                error,
            })?;
            match String::from_utf8(bytes) {
                Ok(text) => files.push(File::new(path, text)),
                Err(_) => binaries.push(path.to_owned()),
            }
        }
        let metadata = output(
            Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
                .current_dir(&root)
                .args(["metadata", "--format-version=1", "--locked"])
                .args(["--filter-platform", "x86_64-unknown-linux-gnu"]),
            "cargo metadata",
        )?;
        let metadata = serde_json::from_slice(&metadata).map_err(TreeError::Metadata)?;
        Ok(Self {
            root,
            files,
            binaries,
            crates: Crates::from_metadata(&metadata),
        })
    }

    /// The repository's root.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// All text files.
    pub(crate) fn files(&self) -> &[File] {
        &self.files
    }

    /// The paths of all files, pictures included.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        let texts = self.files.iter().map(|file| &*file.path);
        texts.chain(self.binaries.iter().map(String::as_str))
    }

    /// The file at this path.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// All Rust files.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&File, &Source)> {
        self.files
            .iter()
            .filter_map(|file| file.rust.as_ref().map(|source| (file, source)))
    }

    /// Cargo's view of the crates.
    pub(crate) fn crates(&self) -> &Crates {
        &self.crates
    }
}

#[cfg(test)]
impl Tree {
    /// A tree of the given files and of no crates.
    pub(crate) fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        Self {
            root: PathBuf::from("."),
            binaries: Vec::new(),
            files: files
                .map(|(path, text)| File::new(path, text.to_owned()))
                .into(),
            crates: Crates::default(),
        }
    }

    /// The same tree with these crates.
    pub(crate) fn with_crates(self, crates: Crates) -> Self {
        Self { crates, ..self }
    }
}

impl File {
    fn new(path: &str, text: String) -> Self {
        let rust = path.ends_with(".rs").then(|| Source::new(path, &text));
        Self {
            path: path.to_owned(),
            text,
            rust,
        }
    }

    /// The lines, each with its number counted from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }

    /// Whether this is a shell script, by name or by its first line.
    pub(crate) fn is_shell(&self) -> bool {
        self.path.ends_with(".sh")
            || self.text.lines().next().is_some_and(|line| {
                line.starts_with("#!") && (line.ends_with("sh") || line.contains("bash "))
            })
    }
}

fn output(command: &mut Command, program: &'static str) -> Result<Vec<u8>, TreeError> {
    let output = command
        .output()
        .map_err(|error| TreeError::Start { program, error })?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(TreeError::Failed { program, stderr })
    }
}
