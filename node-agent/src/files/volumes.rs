//! Which verified copy the volume of a pod shows, and which copies volumes show now.
//!
//! A volume that shows a copy has a file in a directory of the node that is empty after a reboot, as the node's mounts are gone
//! then. [`use_copy`] writes it before it compares the copy, and the node's driver of volumes removes it after it has unmounted the
//! volume. So both may be restarted. As long as it is there, no job removes the copy or replaces files of it.

use std::io;
use std::path::PathBuf;

use rustix::fs::{OFlags, fstat};
use weft_proto::volumes::v1::InUse;

use super::copies::Records;
use super::copy_record::{CopyJob, CopyRecord};
use super::error::{FileError, Location};
use super::file_state::FileState;
use super::path::RootPath;
use super::root::Root;
use super::root_volumes::RootVolumes;

/// The pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNamespace {
    /// Its name.
    pub name: String,
    /// Its UID, never empty.
    pub uid: String,
}

/// What a volume is to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedCopy {
    /// The copy of a job of the namespace.
    Job {
        /// Its name: of copies whose job is gone.
        name: String,
        /// By which the agent knows it; none where the job is gone.
        uids: Vec<String>,
    },
    /// The copy at this path of the namespace's directory.
    Path(RootPath),
}

/// A copy that is as it was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyInUse {
    /// The root's directory on the node.
    pub host_path: PathBuf,
    /// Relative to the root.
    pub path: RootPath,
    /// Tells it from another file or directory there.
    pub device: u64,
    /// The same.
    pub inode: u64,
}

/// Why a volume does not show a copy that is there.
#[derive(Debug, thiserror::Error)]
pub enum NotShown {
    /// A job works there.
    #[error(
        "{0}: a job writes or removes files there: the pod starts once the job has ended and the copy is verified"
    )]
    Busy(Location),
    /// The files are others.
    #[error("{0} is not as it was verified: {1}: run a job that copies it again")]
    Changed(Location, String),
    /// It is not the namespace's own.
    #[error(
        "{0} is not in the directory of the namespace: volumes show copies of PerNamespace roots only"
    )]
    NotOwn(Location),
    /// The operator is older than volumes.
    #[error("root {0:?}: the operator does not say where it is on the node: update the operator")]
    NoHostPath(String),
    /// The pod is gone, or its volume.
    #[error("{0}: the volume was unmounted while the copy was compared with its record")]
    Unmounted(Location),
    /// The files cannot be looked at.
    #[error(transparent)]
    File(#[from] FileError),
    /// The volume cannot be written down.
    #[error("{}: {source}: the agent must be able to write there", path.display())]
    NotWritten {
        /// The volume's file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The copy that a volume is to show, if this root has it. Writes down that the volume shows it, so that it stays.
pub fn use_copy(
    root: &Root,
    volume: &str,
    namespace: &PodNamespace,
    wanted: &WantedCopy,
) -> Result<Option<CopyInUse>, NotShown> {
    let Some(records) = Records::open(root)? else {
        return Ok(None);
    };
    let own = RootPath::parse(&namespace.name)?;
    // Of several copies one that can be shown, and of these the first, whatever order the file system has.
    let rank = |record: &CopyRecord| (!record.base.is_within(&own), record.base.clone());
    let mut found = None;
    for name in records.names()? {
        match records.read(&name) {
            Ok(Some(record)) if is_wanted(&record, namespace, wanted) => {
                if found
                    .as_ref()
                    .is_none_or(|other| rank(&record) < rank(other))
                {
                    found = Some(record);
                }
            }
            // A broken record names no copy.
            Ok(_) | Err(FileError::CopyRecordBroken { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match found {
        Some(record) => show(&records, &record, root, volume, (namespace, wanted)),
        None => Ok(None),
    }
}

/// Whether a record is of this copy, and of a job of this namespace and of none with the same name before it.
fn is_wanted(record: &CopyRecord, namespace: &PodNamespace, wanted: &WantedCopy) -> bool {
    let is_own =
        |job: &&CopyJob| job.namespace == namespace.name && job.namespace_uid == namespace.uid;
    let mut jobs = record.copy.jobs.iter().filter(is_own);
    let is_there = match wanted {
        WantedCopy::Job { name, uids } if uids.is_empty() => jobs.any(|job| job.name == *name),
        WantedCopy::Job { uids, .. } => jobs.any(|job| uids.contains(&job.uid)),
        WantedCopy::Path(path) => record.base.as_str() == path.as_str() && jobs.next().is_some(),
    };
    is_there && !record.copy.removing
}

fn show(
    records: &Records<'_>,
    record: &CopyRecord,
    root: &Root,
    volume: &str,
    (namespace, wanted): (&PodNamespace, &WantedCopy),
) -> Result<Option<CopyInUse>, NotShown> {
    let base = record.base.clone();
    let location = || root.location(&base);
    // In a Shared root a copy may lie around those of other namespaces.
    if !base.is_within(&RootPath::parse(&namespace.name)?) {
        return Err(NotShown::NotOwn(location()));
    }
    let volumes = root.volumes();
    let volumes = volumes.ok_or_else(|| NotShown::NoHostPath(root.name().to_owned()))?;
    root.check_not_replaced()?;
    // Nobody removes it from now on, and who begins to write sees this, or the file below.
    let guard = root.occupancy().begin_volume(&base);
    let _guard = guard.ok_or_else(|| NotShown::Busy(location()))?;
    // It was read before that.
    let record = match records.read(&record.name)? {
        Some(record) if record.base == base && is_wanted(&record, namespace, wanted) => record,
        _ => return Err(NotShown::Busy(location())),
    };
    let opened = root.open_at(&base, OFlags::PATH);
    let stat = match opened.and_then(fstat) {
        Ok(stat) => stat,
        Err(cause) => {
            // It may be gone, or a link.
            let what = records.difference(&record)?;
            return Err(match what {
                Some(what) => NotShown::Changed(location(), what),
                None => FileError::reading(location(), cause).into(),
            });
        }
    };
    let state = FileState::of(&stat);
    let in_use = InUse {
        root: root.name().to_owned(),
        path: base.as_str().to_owned(),
        device: state.dev,
        inode: state.ino,
    };
    // First: the comparison takes long, and the driver removes the file when the pod is gone meanwhile.
    let written = volumes.write(volume, &in_use);
    written
        .map_err(|source| not_written(&volumes, volume, source))
        .and_then(|()| compare((root, records), &record, &volumes, volume))
        .inspect_err(|_| volumes.remove(volume))?;
    Ok(Some(CopyInUse {
        path: base,
        device: in_use.device,
        inode: in_use.inode,
        host_path: volumes.host_path,
    }))
}

/// Whether the copy is as it was verified, and its volume is wanted still.
pub(super) fn compare(
    (root, records): (&Root, &Records<'_>),
    record: &CopyRecord,
    volumes: &RootVolumes,
    volume: &str,
) -> Result<(), NotShown> {
    let location = || root.location(&record.base);
    if let Some(what) = records.difference(record)? {
        return Err(NotShown::Changed(location(), what));
    }
    match volumes.has(volume) {
        Ok(true) => Ok(()),
        Ok(false) => Err(NotShown::Unmounted(location())),
        Err(source) => Err(not_written(volumes, volume, source)),
    }
}

fn not_written(volumes: &RootVolumes, volume: &str, source: io::Error) -> NotShown {
    NotShown::NotWritten {
        path: volumes.in_use.join(volume),
        source,
    }
}
