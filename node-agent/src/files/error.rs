//! `FileError`: everything that can go wrong with a file, with its cause and remedy.
//!
//! Names the root and the path; the agent that reports it adds its node.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;

use super::digest::{Algorithm, Digest, MAX_FILE_BYTES};
use super::limits::{MAX_BLOCKS, MAX_DEPTH, MAX_ENTRIES};

/// A path within a root, as messages name it. Bytes that are not UTF-8 are shown escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The root's name.
    pub root: String,
    /// The path below it.
    pub path: String,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() {
            "."
        } else {
            &self.path
        };
        write!(f, "{path:?} in root {:?}", self.root)
    }
}

/// Why a file could not be read, sent, reserved, written or published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// A path that no root takes.
    #[error("path {path:?} {fault}: give a path relative to a root, such as \"minilm/model.bin\"")]
    BadPath {
        /// The path as given.
        path: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// A text that names no job.
    #[error("{text:?} is not a job's UID: 1 to 64 letters, digits and dashes")]
    BadJobUid {
        /// What was given.
        text: String,
    },
    /// A symbolic link on the way, or at the end of it.
    #[error(
        "{location}: {link:?} is a symbolic link to {link_text:?}, which is not followed: put the file itself there or name its real path"
    )]
    SymlinkRefused {
        /// What was asked for.
        location: Location,
        /// Path of the link, below the root.
        link: String,
        /// Where it points.
        link_text: String,
    },
    /// A symbolic link in a source that is neither kept nor followed.
    #[error("{location} is a symbolic link to {link_text:?}, {fault}: {remedy}")]
    LinkRefused {
        /// The link.
        location: Location,
        /// Where it points.
        link_text: String,
        /// Why it is refused.
        fault: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The root's directory cannot be opened.
    #[error("root {root:?} at {}: {cause}: create the directory or correct the root's path in the agent's configuration", path.display())]
    RootMissing {
        /// The root's name.
        root: String,
        /// Its directory on the node.
        path: PathBuf,
        /// The system's answer.
        cause: Errno,
    },
    /// The root's directory does not answer.
    #[error(
        "root {root:?} at {} has not opened for {seconds} s: see whether the server of its file system answers; until then, take the root out of the configuration, or unmount it (umount -f)",
        path.display()
    )]
    RootHung {
        /// The root's name.
        root: String,
        /// Its directory on the node.
        path: PathBuf,
        /// How long was waited.
        seconds: u64,
    },
    /// The root's path leads to another directory than the one that is open.
    #[error(
        "root {root:?}: another file system has been mounted at {} since the agent opened it, or another directory put there: the agent opens it anew when it is restarted, and where it takes its configuration from an operator, as soon as no job runs here", path.display()
    )]
    RootReplaced {
        /// The root's name.
        root: String,
        /// Its path on the node.
        path: PathBuf,
    },
    /// The root is configured read-only.
    #[error(
        "root {root:?} is ReadOnly: choose another root or set its access to ReadWrite in the agent's configuration"
    )]
    RootReadOnly {
        /// The root's name.
        root: String,
    },
    /// The kernel lacks `openat2`.
    #[error(
        "the kernel has no openat2(2), without which a root cannot be confined: Linux 5.6 or newer is needed, and seccomp must allow it"
    )]
    KernelTooOld,
    /// The source is not there.
    #[error(
        "{location} does not exist{}: check the path and the root",
        from(location, missing)
    )]
    SourceMissing {
        /// What was asked for.
        location: Location,
        /// The shortest part of its path that does not.
        missing: String,
    },
    /// The source cannot be read.
    #[error("{location} cannot be read: {cause}: make it readable for the agent")]
    SourceUnreadable {
        /// Which file or directory.
        location: Location,
        /// The system's answer.
        cause: Errno,
    },
    /// The source is no longer what the manifest says.
    #[error(
        "{location} changed while it was being sent ({what}): start the job again once nothing writes to it"
    )]
    SourceChanged {
        /// Which file or directory.
        location: Location,
        /// What differs.
        what: &'static str,
    },
    /// The source got shorter while it was read.
    #[error(
        "{location} was cut to {found} bytes while it was being sent (it had {expected}): start the job again once nothing writes to it"
    )]
    SourceTruncated {
        /// Which file.
        location: Location,
        /// Bytes it had at first.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// Something that is neither a regular file nor a directory.
    #[error(
        "{location} is {kind}: only regular files and directories can be sent; take it out of the source"
    )]
    NotARegularFile {
        /// Which.
        location: Location,
        /// What it is, with its article.
        kind: &'static str,
    },
    /// A name that is not UTF-8.
    #[error("{location} is not UTF-8: rename it (for example with convmv)")]
    NameNotUtf8 {
        /// Which, escaped.
        location: Location,
    },
    /// A name that belongs to Weft's own partial files.
    #[error("{location} has a name of Weft's own partial files (.weft-…): rename it")]
    ReservedName {
        /// Which.
        location: Location,
    },
    /// Directories nested too deep.
    #[error(
        "{location} lies more than {MAX_DEPTH} directories deep: send an inner directory instead"
    )]
    TooDeep {
        /// Which.
        location: Location,
    },
    /// Too many files and directories.
    #[error("{location} holds more than {MAX_ENTRIES} files and directories: send it in parts")]
    TooManyFiles {
        /// The source.
        location: Location,
    },
    /// More than one job may move.
    #[error(
        "the manifest's entry {path:?} takes it beyond {MAX_BLOCKS} blocks of 1 MiB (256 TiB): send the files by several jobs"
    )]
    TooManyBlocks {
        /// The entry.
        path: String,
    },
    /// A file that is too large to send, or for the file system to hold.
    #[error(
        "{location} has {bytes} bytes, more than Weft ({MAX_FILE_BYTES}) or the file system can hold: split it"
    )]
    FileTooLarge {
        /// Which.
        location: Location,
        /// Its size.
        bytes: u64,
    },
    /// A manifest that no scan makes.
    #[error("the manifest's entry {path:?} {fault}: the sender is faulty or hostile")]
    BadManifest {
        /// The entry.
        path: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// No space for it.
    #[error(
        "no space for {location}: {needed} bytes are needed and {available} are free: free space or choose another root"
    )]
    DiskFull {
        /// Which file, or the whole destination.
        location: Location,
        /// Bytes needed.
        needed: u64,
        /// Bytes the file system has free for the agent.
        available: u64,
    },
    /// It would leave too little free space in the root.
    #[error(
        "{location}: {needed} bytes are needed and {available} are free, of which {min_free} must stay free: remove files, choose another root, or lower the root's minFree"
    )]
    RootReserve {
        /// The destination.
        location: Location,
        /// Bytes needed.
        needed: u64,
        /// Bytes the file system has free for the agent.
        available: u64,
        /// Bytes that the root's limits keep free.
        min_free: u64,
    },
    /// More than a namespace may have in the root.
    #[error(
        "{location}: {needed} bytes are needed, and namespace {namespace:?} has {found} bytes in its directory and in other copies and {taken} bytes of transfers under way in the root at this node, where a namespace may have {limit}: remove copies that are not needed any more (kubectl weft copies delete), or raise the root's bytesPerNamespace"
    )]
    NamespaceQuota {
        /// The destination.
        location: Location,
        /// The job's namespace.
        namespace: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes of its directory, and of its copies elsewhere.
        found: u64,
        /// Bytes that its transfers under way have taken.
        taken: u64,
        /// Bytes that it may have.
        limit: u64,
    },
    /// The directory of a namespace that was deleted.
    #[error(
        "{location} has files of an earlier namespace of the same name, which this one does not open: remove its copies (kubectl weft copies delete) and, on the node, its other files, or move the directory away"
    )]
    NamespaceReplaced {
        /// The namespace's directory.
        location: Location,
    },
    /// No thread for what may block.
    #[error(
        "{location}: no thread could be made to work on it: {cause}: raise the limit on threads (TasksMax of the agent's unit, or the limit on pids of its pod)"
    )]
    NoThread {
        /// A destination, or a root itself.
        location: Location,
        /// The system's answer.
        cause: Errno,
    },
    /// No inodes for it.
    #[error(
        "no inodes for {location}: {needed} files are to be made and {available} can be, beyond what the root's minFree keeps: remove files or choose another root"
    )]
    InodesExhausted {
        /// The destination.
        location: Location,
        /// Files and links to be made.
        needed: u64,
        /// Inodes that may be taken: those free, less what minFree keeps.
        available: u64,
    },
    /// The file system is mounted read-only.
    #[error("{location}: the file system is read-only: mount it read-write or choose another root")]
    DestinationReadOnly {
        /// What was to be written.
        location: Location,
    },
    /// The agent may not write there.
    #[error("{location}: {cause}: give the agent's user write permission on the directory")]
    DestinationDenied {
        /// What was to be written.
        location: Location,
        /// The system's answer.
        cause: Errno,
    },
    /// Something else is there and must not be replaced.
    #[error("{location} exists as {found}: {remedy}")]
    DestinationExists {
        /// What is in the way.
        location: Location,
        /// What it is, with its article.
        found: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A pod's volume shows what is there.
    #[error(
        "{location} is in a copy that pods of this node have mounted, and would be replaced: delete these pods, or choose another path"
    )]
    PathInUse {
        /// What is in the way.
        location: Location,
    },
    /// Another job writes there.
    #[error("{location} is being written by job {job}: wait for that job or cancel it")]
    DestinationBusy {
        /// What was to be written.
        location: Location,
        /// The job that holds it.
        job: String,
    },
    /// An earlier attempt of the same job is not at its end here.
    #[error(
        "job {job} is still at work at this node, which holds {location}: it is tried again when that has ended"
    )]
    JobBusy {
        /// The job's lock.
        location: Location,
        /// The job.
        job: String,
    },
    /// A verified copy is being removed there.
    #[error(
        "{location}: a copy whose job was deleted is being removed there: the next attempt can begin once it is gone"
    )]
    BeingRemoved {
        /// What was to be written.
        location: Location,
    },
    /// A record of a copy that cannot be understood.
    #[error(
        "{location}: the record of a copy is broken: {problem}: remove the record; the copy's files then stay until somebody removes them"
    )]
    CopyRecordBroken {
        /// The record.
        location: Location,
        /// What is wrong with it.
        problem: String,
    },
    /// Somebody else wrote to it meanwhile.
    #[error(
        "{location} was changed by somebody else while it was being written: start the job again and keep others out"
    )]
    DestinationChanged {
        /// Which.
        location: Location,
    },
    /// Any other answer of the file system.
    #[error(
        "{location}: {operation} failed: {cause}: check the file system and the kernel log of the node"
    )]
    DestinationFailed {
        /// What was to be written.
        location: Location,
        /// The system call.
        operation: &'static str,
        /// The system's answer.
        cause: Errno,
    },
    /// The file was to be finished before all of it was there.
    #[error("{location}: {missing} blocks have not arrived: the job must be resumed")]
    BlocksMissing {
        /// Which file, or the whole destination.
        location: Location,
        /// How many.
        missing: u64,
    },
    /// The attempt has been completed, cancelled or given up here.
    #[error("{location}: this attempt has ended on this node: nothing more of it is written")]
    AttemptEnded {
        /// What was to be written.
        location: Location,
    },
    /// The file differs from the source's.
    #[error(
        "{location} has digest {found} where the source has {expected}: it is not published; start the job again"
    )]
    DigestMismatch {
        /// Which file.
        location: Location,
        /// The source's.
        expected: Digest,
        /// What arrived.
        found: Digest,
    },
    /// The expected digest is of another algorithm than the job verifies with.
    #[error(
        "the job expects digest {expected}, which is not one of {algorithm}: give verification.expect and verification.algorithm of one kind"
    )]
    BadExpect {
        /// What the job asks for.
        expected: Digest,
        /// What it verifies with.
        algorithm: Algorithm,
    },
    /// The content is not what the job expects.
    #[error(
        "{location} has digest {found} where the job expects {expected}: it is not published; correct the source or verification.expect"
    )]
    ExpectMismatch {
        /// The destination.
        location: Location,
        /// What the job asks for.
        expected: Digest,
        /// What arrived.
        found: Digest,
    },
}

impl FileError {
    /// A stable word for conditions, events and metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            FileError::BadPath { .. } => "BadPath",
            FileError::BadJobUid { .. } => "BadJobUid",
            FileError::SymlinkRefused { .. } | FileError::LinkRefused { .. } => "SymlinkRefused",
            FileError::RootMissing { .. } => "RootMissing",
            FileError::RootHung { .. } => "RootHung",
            FileError::RootReplaced { .. } => "RootReplaced",
            FileError::RootReadOnly { .. } => "RootReadOnly",
            FileError::KernelTooOld => "KernelTooOld",
            FileError::SourceMissing { .. } => "SourceMissing",
            FileError::SourceUnreadable { .. } => "SourceUnreadable",
            FileError::SourceChanged { .. } => "SourceChanged",
            FileError::SourceTruncated { .. } => "SourceTruncated",
            FileError::NotARegularFile { .. } => "NotARegularFile",
            FileError::NameNotUtf8 { .. } => "NameNotUtf8",
            FileError::ReservedName { .. } => "ReservedName",
            FileError::TooDeep { .. } => "TooDeep",
            FileError::TooManyFiles { .. } => "TooManyFiles",
            FileError::TooManyBlocks { .. } => "TooManyBlocks",
            FileError::FileTooLarge { .. } => "FileTooLarge",
            FileError::BadManifest { .. } => "BadManifest",
            FileError::DiskFull { .. } => "DiskFull",
            FileError::RootReserve { .. } => "RootReserve",
            FileError::NamespaceQuota { .. } => "NamespaceQuota",
            FileError::NamespaceReplaced { .. } => "NamespaceReplaced",
            FileError::NoThread { .. } => "NoThread",
            FileError::InodesExhausted { .. } => "InodesExhausted",
            FileError::DestinationReadOnly { .. } => "DestinationReadOnly",
            FileError::DestinationDenied { .. } => "DestinationDenied",
            FileError::DestinationExists { .. } => "DestinationExists",
            FileError::PathInUse { .. } => "PathInUse",
            FileError::DestinationBusy { .. }
            | FileError::JobBusy { .. }
            | FileError::BeingRemoved { .. } => "DestinationBusy",
            FileError::CopyRecordBroken { .. } => "CopyRecordBroken",
            FileError::DestinationChanged { .. } => "DestinationChanged",
            FileError::DestinationFailed { .. } => "DestinationFailed",
            FileError::BlocksMissing { .. } => "BlocksMissing",
            FileError::AttemptEnded { .. } => "AttemptEnded",
            FileError::DigestMismatch { .. } => "DigestMismatch",
            FileError::BadExpect { .. } => "BadExpect",
            FileError::ExpectMismatch { .. } => "ExpectMismatch",
        }
    }

    /// What the system's answer to an operation on the source means.
    pub(super) fn reading(location: Location, cause: Errno) -> Self {
        match cause {
            Errno::NOENT | Errno::NOTDIR => FileError::SourceMissing {
                missing: location.path.clone(),
                location,
            },
            Errno::NOSYS => FileError::KernelTooOld,
            cause => FileError::SourceUnreadable { location, cause },
        }
    }

    /// What the system's answer to an operation on the destination means. `needed` is the size of
    /// what was to be written, in bytes.
    pub(super) fn writing(
        location: Location,
        operation: &'static str,
        cause: Errno,
        needed: u64,
    ) -> Self {
        match cause {
            Errno::NOSPC | Errno::DQUOT => FileError::DiskFull {
                location,
                needed,
                available: 0,
            },
            Errno::FBIG => FileError::FileTooLarge {
                location,
                bytes: needed,
            },
            Errno::ROFS => FileError::DestinationReadOnly { location },
            Errno::ACCESS | Errno::PERM => FileError::DestinationDenied { location, cause },
            Errno::NOTDIR => FileError::DestinationExists {
                location,
                found: "a file where a directory is needed, or below one",
                remedy: "remove the file or choose another path",
            },
            Errno::NOSYS => FileError::KernelTooOld,
            cause => FileError::DestinationFailed {
                location,
                operation,
                cause,
            },
        }
    }
}

/// From where on a path is missing, unless that is its end.
fn from(location: &Location, missing: &str) -> String {
    if missing == location.path {
        String::new()
    } else {
        format!(", from {missing:?} on")
    }
}

/// The system's error number in an `io::Error`; errors without one count as input/output errors.
pub(crate) fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
