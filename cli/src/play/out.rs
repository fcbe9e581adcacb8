//! The directory of `--out`. It keeps a record of the run in it, by which the same command goes on where an
//! interrupted one ended. Written by [`super::session`]; nothing is moved here.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use weft_identity::authority;

use super::PlayError;

/// The record's file. Roots are the directories beside it.
const RECORD: &str = "weft-play.json";
/// Partial files that a message names, at most.
const PARTIALS_SHOWN: usize = 8;

/// Of the run in a directory: agents know partial files by the job's UID.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    uid: String,
    data: String,
}

fn read(directory: &Path) -> io::Result<Record> {
    Ok(serde_json::from_slice(&fs::read(directory.join(RECORD))?)?)
}

/// What was sent in the run of a directory, if there was one.
pub(super) fn data_of(directory: &Path) -> Option<String> {
    read(directory).ok().map(|record| record.data)
}

/// The UID of the job: that of the run that was interrupted, or a new one, which is recorded.
pub(super) fn uid(out: Option<&Path>, data: String) -> Result<String, PlayError> {
    let new = || authority::unique().map(|unique| format!("play-{unique}"));
    let Some(directory) = out else {
        return Ok(new()?);
    };
    if let Ok(record) = read(directory) {
        return Ok(record.uid);
    }
    let record = Record { uid: new()?, data };
    let path = directory.join(RECORD);
    let written = fs::write(&path, serde_json::to_vec(&record)?);
    written.map_err(|source| PlayError::Files { path, source })?;
    Ok(record.uid)
}

/// Names what has not arrived whole, and how to go on; nothing where there is none.
pub(super) fn left(directory: &Path) -> Option<String> {
    let prefix = format!(".weft-{}-", read(directory).ok()?.uid);
    let mut partials = Vec::new();
    find(directory, &prefix, &mut partials);
    partials.sort();
    let names = partials.iter().take(PARTIALS_SHOWN);
    let names = names.map(|path| format!("\n  {}", path.display()));
    let more = match partials.len().saturating_sub(PARTIALS_SHOWN) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    (!partials.is_empty()).then(|| {
        format!(
            "partial files are left; the same command goes on from them:{}{more}",
            names.collect::<String>()
        )
    })
}

fn find(directory: &Path, prefix: &str, partials: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            partials.push(entry.path());
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find(&entry.path(), prefix, partials);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_interrupted_has_the_same_uid_and_names_its_partial_files() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path();
        let uid = || super::uid(Some(out), "model".to_owned()).unwrap();
        assert_eq!(data_of(out), None);
        let first = uid();
        assert_eq!(uid(), first);
        assert_eq!(data_of(out).as_deref(), Some("model"));
        assert_eq!(left(out), None);
        let partial = out.join("node1").join(format!(".weft-{first}-00"));
        fs::create_dir(out.join("node1")).unwrap();
        fs::write(&partial, [0]).unwrap();
        fs::write(out.join("node1/.weft-notes"), [0]).unwrap();
        assert_eq!(
            left(out).unwrap(),
            format!(
                "partial files are left; the same command goes on from them:\n  {}",
                partial.display()
            )
        );
    }
}
