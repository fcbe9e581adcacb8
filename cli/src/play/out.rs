//! The directory of `--out`. It keeps a record of the run in it, by which the same command goes on where an
//! interrupted one ended. Written by [`super::session`]; nothing is moved here.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
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

/// Whether a directory with these entries has nothing in it but, at most, a record that an interrupted run did not
/// finish.
pub(super) fn is_unused(entries: fs::ReadDir) -> bool {
    entries.flatten().all(|entry| entry.file_name() == RECORD)
}

/// A run in a directory.
#[derive(Debug)]
pub(super) struct Run {
    /// The UID of the job.
    pub(super) uid: String,
    /// The record, locked: no other run uses the directory meanwhile.
    _record: Option<File>,
}

/// Begins a run, in `out` if there is one: goes on with the one that was interrupted there, or records a new one.
pub(super) fn begin(out: Option<&Path>, data: String) -> Result<Run, PlayError> {
    let new = || authority::unique().map(|unique| format!("play-{unique}"));
    let Some(directory) = out else {
        return Ok(Run {
            uid: new()?,
            _record: None,
        });
    };
    let path = directory.join(RECORD);
    let failed = |source| PlayError::Files {
        path: path.clone(),
        source,
    };
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(PlayError::OutInUse {
                path: directory.to_owned(),
            });
        }
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    let record = match read(directory) {
        Ok(record) => record,
        Err(_) => {
            let record = Record { uid: new()?, data };
            file.set_len(0)
                .and_then(|()| file.write_all(&serde_json::to_vec(&record)?))
                .map_err(failed)?;
            record
        }
    };
    Ok(Run {
        uid: record.uid,
        _record: Some(file),
    })
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
    fn a_record_that_was_not_finished_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path();
        fs::write(out.join(RECORD), "").unwrap();
        assert!(is_unused(fs::read_dir(out).unwrap()));
        begin(Some(out), "model".to_owned()).unwrap();
        assert_eq!(data_of(out).as_deref(), Some("model"));
        fs::write(out.join("mine"), "").unwrap();
        assert!(!is_unused(fs::read_dir(out).unwrap()));
    }

    #[test]
    fn two_runs_do_not_use_one_directory_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let run = begin(Some(directory.path()), "model".to_owned()).unwrap();
        let error = begin(Some(directory.path()), "model".to_owned()).unwrap_err();
        assert!(matches!(error, PlayError::OutInUse { .. }), "{error}");
        drop(run);
        begin(Some(directory.path()), "model".to_owned()).unwrap();
    }

    #[test]
    fn a_run_that_was_interrupted_has_the_same_uid_and_names_its_partial_files() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path();
        let uid = || begin(Some(out), "model".to_owned()).unwrap().uid;
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
