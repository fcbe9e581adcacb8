//! Which namespace the directory of a namespace belongs to.
//!
//! Below a root, the jobs of a namespace have the directory of its name. The first job that uses it has the
//! namespace's UID written down beside the records of copies. A namespace that is made again by the same name has
//! another UID: it opens nothing of the old one. The directory is the new one's once it is empty or gone.
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

/// Refuses a job that reads at `path` in the directory of an earlier namespace.
pub fn read(root: &Root, path: &RootPath, job: &CopyJob) -> Result<(), FileError> {
    // A job that reads makes nothing.
    match root.open_directory(&RootPath::parse(&job.namespace)?) {
        Ok(_) => write(root, path, job),
        Err(_) => Ok(()),
    }
}

/// Refuses a job that writes at `path` in the directory of an earlier namespace. From now on the directory belongs
/// to the job's namespace.
pub(super) fn write(root: &Root, path: &RootPath, job: &CopyJob) -> Result<(), FileError> {
    let (namespace, uid) = (job.namespace.as_str(), job.namespace_uid.as_str());
    let is_its_own = path.as_str().split('/').next() == Some(namespace);
    if uid.is_empty() || !is_its_own || root.access() != Access::ReadWrite {
        return Ok(());
    }
    let _locked = root.records();
    let records = Records::make(root)?;
    let name = format!("namespace-{}", record_name(namespace));
    let mut owner = String::new();
    if let Some(file) = records.open_file(&name)? {
        let read = file.take(UID_BYTES_MAX).read_to_string(&mut owner);
        read.map_err(|error| FileError::reading(records.place(&name), errno(&error)))?;
    }
    if owner == uid {
        return Ok(());
    }
    let directory = RootPath::parse(namespace)?;
    if !owner.is_empty() {
        match fs::unlinkat(root.directory(), namespace, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                return Err(FileError::NamespaceReplaced {
                    place: root.place(&directory),
                });
            }
            Err(cause) => {
                return Err(FileError::writing(
                    root.place(&directory),
                    "rmdir",
                    cause,
                    0,
                ));
            }
        }
    }
    records.replace(&name, |out| out.write_all(uid.as_bytes()))?;
    Ok(())
}
