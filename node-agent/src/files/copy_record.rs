//! `CopyRecord`: one verified copy as it is written down, with its files, the state of each, and its jobs.
//!
//! The first line describes the copy and each further line one entry, in the order of their paths; every
//! line is JSON. A reader holds one entry in memory, however many there are.

use std::fs::File;
use std::io::{self, BufReader, Seek as _, Write};

use rustix::fs::{self, FileType, Stat};
use serde::{Deserialize, Serialize};
use serde_json::de::IoRead;
use serde_json::{Deserializer, StreamDeserializer};

use super::error::{FileError, Location, errno};
use super::file_state::FileState;
use super::names::HEX_DIGITS;
use super::path::RootPath;

/// The version of the records that this release writes and reads.
pub(super) const VERSION: u32 = 1;

/// A job that a copy is recorded for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyJob {
    /// The UID of its attempts.
    pub uid: String,
    /// The namespace of the TransferJob.
    pub namespace: String,
    /// The name of the TransferJob.
    pub name: String,
    /// The UID of the namespace; "" where it has none.
    pub namespace_uid: String,
}

/// A verified copy, as the first line of its record describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyHeader {
    pub(super) version: u32,
    /// Where it is, relative to its root.
    pub path: String,
    /// The digest of the whole.
    pub digest: String,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes of disk that they take, without holes and in whole blocks; absent in a record of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// How many files it has.
    pub files: u64,
    /// The files may be removed once no job is recorded: false of a source's own files, and of files that a job which is
    /// not in the record may need.
    pub removable: bool,
    /// The jobs that it is recorded for, oldest first.
    pub jobs: Vec<CopyJob>,
    /// The files are being removed: some may be gone already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) removing: bool,
}

/// One file, link or directory of a copy.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedEntry {
    /// Relative to the copy; "" is the copy itself.
    pub(super) path: String,
    /// Of the file or link itself; absent for a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<FileState>,
}

/// The name of the record of the copy at `path`.
pub(super) fn record_name(path: &str) -> String {
    blake3::hash(path.as_bytes()).to_hex()[..HEX_DIGITS].to_owned()
}

/// Writes one line of a record.
pub(super) fn write_line(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

impl RecordedEntry {
    /// What differs from what is there now, in words, if anything does.
    pub(super) fn difference(&self, now: Option<&Stat>) -> Option<&'static str> {
        let Some(now) = now else {
            return Some("it is gone");
        };
        match &self.file {
            Some(file) => (*file != FileState::of(now).recorded())
                .then_some("it was replaced or written to, or its attributes were changed"),
            None => (FileType::from_raw_mode(now.st_mode) != FileType::Directory)
                .then_some("it is no directory any more"),
        }
    }
}

/// A record that is open for reading.
pub(super) struct CopyRecord {
    pub(super) name: String,
    location: Location,
    pub(super) file: File,
    /// Tells it from a record of this name that has replaced it.
    pub(super) inode: u64,
    pub(super) copy: CopyHeader,
    /// As `copy.path` says.
    pub(super) base: RootPath,
}

/// The further lines of a record.
type Entries<'f> = StreamDeserializer<'f, IoRead<BufReader<&'f File>>, RecordedEntry>;

/// The first line of a record, and the further ones.
fn parse<'f>(file: &'f File, location: &Location) -> Result<(CopyHeader, Entries<'f>), FileError> {
    let mut reader = BufReader::new(file);
    reader
        .rewind()
        .map_err(|error| FileError::reading(location.clone(), errno(&error)))?;
    let mut lines = Deserializer::from_reader(reader);
    let copy = CopyHeader::deserialize(&mut lines).map_err(|error| unreadable(location, error))?;
    Ok((copy, lines.into_iter()))
}

/// Why a record cannot be read.
fn unreadable(location: &Location, error: serde_json::Error) -> FileError {
    if error.is_io() {
        FileError::reading(location.clone(), errno(&error.into()))
    } else {
        broken(location, &error)
    }
}

fn broken(location: &Location, problem: &impl ToString) -> FileError {
    FileError::CopyRecordBroken {
        location: location.clone(),
        problem: problem.to_string(),
    }
}

impl CopyRecord {
    /// Reads the first line.
    pub(super) fn read(name: &str, file: File, location: Location) -> Result<Self, FileError> {
        let stat = fs::fstat(&file).map_err(|cause| FileError::reading(location.clone(), cause))?;
        let (copy, _) = parse(&file, &location)?;
        if copy.version != VERSION {
            let problem = format!("it is of version {}, and not {VERSION}", copy.version);
            return Err(broken(&location, &problem));
        }
        Ok(CopyRecord {
            name: name.to_owned(),
            file,
            inode: FileState::of(&stat).ino,
            base: RootPath::parse(&copy.path).map_err(|error| broken(&location, &error))?,
            copy,
            location,
        })
    }

    /// For a record that contradicts itself.
    pub(super) fn broken(&self, problem: &str) -> FileError {
        broken(&self.location, &problem)
    }

    /// All entries with their paths.
    pub(super) fn entries(
        &self,
    ) -> Result<impl Iterator<Item = Result<(RootPath, RecordedEntry), FileError>>, FileError> {
        let (_, entries) = parse(&self.file, &self.location)?;
        Ok(entries.map(|entry| {
            let entry = entry.map_err(|error| unreadable(&self.location, error))?;
            let path = self.base.join(&entry.path);
            let path = path.map_err(|error| broken(&self.location, &error))?;
            Ok((path, entry))
        }))
    }
}
