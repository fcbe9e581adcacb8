//! Flags that one program of a node writes into a file for another: the agent, which the operator tells them, for the engine of
//! virtual devices and for the device plugin.
//!
//! The file has a flag on each line, as `--mtu=9000`. The command line names it as `@FILE`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// How often a file is looked for that is not there yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A file of flags cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("@{path}: {source}")]
pub struct Unreadable {
    path: PathBuf,
    source: io::Error,
}

/// Writes flags, unless they are what is there. A reader never sees half of them.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, flags: &[String]) -> io::Result<()> {
    let text: String = flags.iter().flat_map(|flag| [flag, "\n"]).collect();
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    fs::write(&temporary, text)?;
    fs::rename(&temporary, path)
}

/// The command line, with the lines of the file in place of each `@FILE`.
///
/// # Errors
/// A file cannot be read.
pub fn expand(words: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, Unreadable> {
    let mut expanded = Vec::new();
    for word in words {
        let Some(path) = word.as_bytes().strip_prefix(b"@") else {
            expanded.push(word);
            continue;
        };
        let path = Path::new(OsStr::from_bytes(path));
        let text = fs::read_to_string(path).map_err(|source| Unreadable {
            path: path.to_owned(),
            source,
        })?;
        expanded.extend(text.lines().map(OsString::from));
    }
    Ok(expanded)
}

/// As [`expand`], for this program's command line. Waits until each file is there, and says so once.
///
/// # Errors
/// A file cannot be read.
pub fn wait_and_expand() -> Result<Vec<OsString>, Unreadable> {
    let mut is_told = false;
    loop {
        match expand(std::env::args_os()) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                if !is_told {
                    let path = error.path.display();
                    // Nobody may be listening.
                    let _ = writeln!(
                        io::stderr(),
                        "waiting for {path}, which the node's agent writes where its fabric has devices"
                    );
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

    #[test]
    fn the_flags_that_were_written_stand_in_place_of_their_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("engine.args");
        let flags = ["--mtu=9000", "--policy=reps"].map(str::to_owned);
        write(&path, &flags).unwrap();
        let words = ["weft-engine", "--ports=4"].map(OsString::from);
        let file = OsString::from(format!("@{}", path.display()));
        let expanded = expand(words.into_iter().chain([file])).unwrap();
        let wanted = ["weft-engine", "--ports=4", "--mtu=9000", "--policy=reps"];
        assert_eq!(expanded, wanted);
        let directory = OsString::from(format!("@{}", directory.path().display()));
        let problem = expand([directory]).unwrap_err().to_string();
        assert!(problem.contains("irectory"), "{problem}");
    }
}
