//! Which namespace the directory of a namespace belongs to.
//!
//! Below a root, the jobs of a namespace have the directory of its name. The first job that uses it has the
//! namespace's UID written down beside the records of copies. A recreated namespace has
//! another UID and may not use the directory until it is empty or gone.
//! Nothing is written down in a ReadOnly root.

use std::io::{Read as _, Write as _};

use rustix::fs::{self, AtFlags};
use rustix::io::Errno;

use super::copies::Records;
use super::copy_record::{CopyJob, record_name};
use super::error::{FileError, errno};
use super::path::RootPath;
use super::root::{Access, Root};

/// Of a UID that is written down: more is no UID.
const UID_BYTES_MAX: u64 = 64;

/// Refuses a job that reads at `path` in the directory of an earlier namespace. Takes no lock once the UID is
/// written down. A root where nothing can be written down stays readable.
pub fn read(root: &Root, path: &RootPath, job: &CopyJob) -> Result<(), FileError> {
    if !is_checked(root, path, job) {
        return Ok(());
    }
    let owner = match Records::open(root)? {
        Some(records) => owner(&records, &file_name(job))?,
        None => String::new(),
    };
    if owner == job.namespace_uid {
        return Ok(());
    }
    let directory = RootPath::parse(&job.namespace)?;
    if owner.is_empty() && root.open_directory(&directory).is_err() {
        // There is nothing to read: the reader's own error says so.
        return Ok(());
    }
    match write(root, path, job) {
        Err(error) if !owner.is_empty() || matches!(error, FileError::NamespaceReplaced { .. }) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// The directory that no link of a source at `path` leads out of: that of the job's namespace, if the source is in
/// it, and the root otherwise.
pub fn link_boundary(path: &RootPath, job: Option<&CopyJob>) -> RootPath {
    let namespace = job.and_then(|job| RootPath::parse(&job.namespace).ok());
    namespace
        .filter(|namespace| path.is_within(namespace))
        .unwrap_or(RootPath::ROOT)
}

/// Whether the rule holds for a path: in a root that is written to, below the directory of the job's namespace.
fn is_checked(root: &Root, path: &RootPath, job: &CopyJob) -> bool {
    let is_in_namespace = path.as_str().split('/').next() == Some(&*job.namespace);
    !job.namespace_uid.is_empty() && is_in_namespace && root.access() == Access::ReadWrite
}

fn file_name(job: &CopyJob) -> String {
    format!("namespace-{}", record_name(&job.namespace))
}

/// The UID that is written down; empty where there is none.
fn owner(records: &Records<'_>, name: &str) -> Result<String, FileError> {
    let mut owner = String::new();
    if let Some(file) = records.open_file(name)? {
        let read = file.take(UID_BYTES_MAX).read_to_string(&mut owner);
        read.map_err(|error| FileError::reading(records.location(name), errno(&error)))?;
    }
    Ok(owner)
}

/// Refuses a job that writes at `path` in the directory of an earlier namespace. From now on the directory belongs
/// to the job's namespace.
pub(super) fn write(root: &Root, path: &RootPath, job: &CopyJob) -> Result<(), FileError> {
    let (namespace, uid) = (job.namespace.as_str(), job.namespace_uid.as_str());
    if !is_checked(root, path, job) {
        return Ok(());
    }
    let _locked = root.lock_records();
    let records = Records::make(root)?;
    let name = file_name(job);
    let owner = owner(&records, &name)?;
    if owner == uid {
        return Ok(());
    }
    if !owner.is_empty() {
        let location = root.own_location(namespace);
        match fs::unlinkat(root.directory(), namespace, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                return Err(FileError::NamespaceReplaced { location });
            }
            Err(cause) => return Err(FileError::writing(location, "rmdir", cause, 0)),
        }
    }
    records.replace(&name, |out| out.write_all(uid.as_bytes()))?;
    Ok(())
}
