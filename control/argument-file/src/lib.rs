//! Flags that one program of a node writes into a file for another: the agent, which the operator tells them, for the engine of
//! virtual devices and for the device plugin.
//!
//! The file has a flag on each line, as `--mtu=9000`. The command line names it as `@FILE`. A program takes the flags that are
//! listed here from the file and no others. The agent cannot choose, for example, which program a container runtime starts.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// How often a file is looked for that is not there yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// What a program says that waits for its file.
const WAITING: &str = "waiting for the node's agent, which writes it where the fabric has devices";

/// What `weft-engine` takes from its file.
pub const ENGINE_FLAGS: &[&str] = &[
    "--address",
    "--first-port",
    "--ports",
    "--open-devices",
    "--mtu",
    "--paths",
    "--policy",
    "--encryption",
    "--dscp",
    "--link-bps",
];
/// What `weft-device-plugin` takes from its file.
pub const DEVICE_PLUGIN_FLAGS: &[&str] = &[
    "--count",
    "--numa-node",
    "--cap-bps",
    "--ops",
    "--share",
    "--cross-namespace",
    "--namespaces",
];

/// A file of flags cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("@{path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It has a line that is no flag, or a flag that a file may not set.
    #[error("@{path}: `{line}` is not for a file: give it on the command line")]
    NotAllowed {
        /// The file.
        path: PathBuf,
        /// The whole line.
        line: String,
    },
}

impl FileError {
    /// The file is not there.
    #[must_use]
    fn is_missing(&self) -> bool {
        match self {
            Self::Unreadable { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Self::NotAllowed { .. } => false,
        }
    }
}

/// Writes flags, unless they are what is there. A reader never sees half of them.
///
/// # Errors
/// The file cannot be written, or a flag has several lines, of which the others would be flags, too.
pub fn write(path: &Path, flags: &[String]) -> io::Result<()> {
    if let Some(flag) = flags.iter().find(|flag| flag.contains(['\n', '\r'])) {
        let problem = format!("{flag:?} has several lines");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let text: String = flags.iter().flat_map(|flag| [flag, "\n"]).collect();
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    fs::write(&temporary, text)?;
    fs::rename(&temporary, path)
}

/// The command line, with the lines of the file in place of each `@FILE`: each sets one of the flags that are `allowed`.
///
/// # Errors
/// A file cannot be read, or sets something else.
pub fn expand(
    words: impl IntoIterator<Item = OsString>,
    allowed: &[&str],
) -> Result<Vec<OsString>, FileError> {
    let mut expanded = Vec::new();
    for word in words {
        let Some(path) = word.as_bytes().strip_prefix(b"@") else {
            expanded.push(word);
            continue;
        };
        let path = Path::new(OsStr::from_bytes(path));
        let text = fs::read_to_string(path).map_err(|source| FileError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        for line in text.lines() {
            let (flag, _) = line.split_once('=').unwrap_or((line, ""));
            if !allowed.contains(&flag) {
                return Err(FileError::NotAllowed {
                    path: path.to_owned(),
                    line: line.to_owned(),
                });
            }
            expanded.push(line.into());
        }
    }
    Ok(expanded)
}

/// As [`expand`], for this program's command line. Waits until each file is there, and says so once.
///
/// # Errors
/// A file cannot be read, or sets something else.
pub fn wait_and_expand(allowed: &[&str]) -> Result<Vec<OsString>, FileError> {
    let mut is_told = false;
    loop {
        match expand(std::env::args_os(), allowed) {
            Err(error) if error.is_missing() => {
                if !is_told {
                    // Nobody may be listening.
                    let _ = writeln!(io::stderr(), "{error}: {WAITING}");
                    is_told = true;
                }
                sleep(RETRY_INTERVAL);
            }
            expanded => return expanded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &Path) -> OsString {
        OsString::from(format!("@{}", path.display()))
    }

    #[test]
    fn the_flags_that_were_written_stand_in_place_of_their_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("engine.args");
        let flags = ["--mtu=9000", "--policy=reps"].map(str::to_owned);
        write(&path, &flags).unwrap();
        let words = ["weft-engine", "--ports=4"].map(OsString::from);
        let expanded = expand(words.into_iter().chain([named(&path)]), ENGINE_FLAGS).unwrap();
        let wanted = ["weft-engine", "--ports=4", "--mtu=9000", "--policy=reps"];
        assert_eq!(expanded, wanted);
        let problem = expand([named(directory.path())], ENGINE_FLAGS).unwrap_err();
        assert!(problem.to_string().contains("irectory"), "{problem}");
        assert!(!problem.is_missing());
        fs::remove_file(&path).unwrap();
        assert!(
            expand([named(&path)], ENGINE_FLAGS)
                .unwrap_err()
                .is_missing()
        );
    }

    #[test]
    fn a_file_sets_the_flags_that_are_listed_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device-plugin.args");
        let of_file = |text: &str| {
            fs::write(&path, text).unwrap();
            expand([named(&path)], DEVICE_PLUGIN_FLAGS)
        };
        let well = of_file("--count=8\n--cross-namespace\n").unwrap();
        assert_eq!(well, ["--count=8", "--cross-namespace"]);
        for line in [
            "--hook=/weft/roots/models/program",
            "--resource=nvidia.com/gpu",
            "--counts=8",
            "-c8",
            "--",
            "8",
            "",
            "@/etc/passwd",
        ] {
            let problem = of_file(&format!("--count=8\n{line}\n")).unwrap_err();
            let told = format!("`{line}` is not for a file");
            assert!(problem.to_string().contains(&told), "{problem}");
        }
    }

    #[test]
    fn a_flag_of_several_lines_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device-plugin.args");
        for name in ["a\n--share=10000", "a\r\n--share=10000"] {
            let flag = format!("--namespaces={name}");
            let problem = write(&path, &[flag]).unwrap_err();
            assert_eq!(problem.kind(), io::ErrorKind::InvalidInput);
        }
        assert!(!path.exists());
    }
}
