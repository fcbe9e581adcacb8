//! `Recorder`: records the files of one attempt as a verified copy.

use std::sync::Arc;

use tokio::sync::watch;

use crate::files::copies::CopyJob;
use crate::files::{Destination, Digest, Source};

/// Made by Prepare or Start and used once, before the attempt says that it is verified.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub files: RecordedFiles,
    /// Counts the changes of records, for the copy watcher.
    pub copies_changed: Arc<watch::Sender<u64>>,
}

/// What is recorded.
#[derive(Debug)]
pub(crate) enum RecordedFiles {
    /// The attempt reads them.
    Source(Source, CopyJob),
    /// The attempt writes them, and they know their job.
    Destination(Arc<Destination>),
}

impl Recorder {
    /// Records the files. A failure is logged and ends nothing: the files are verified all the same.
    pub(crate) fn record(self, uid: &str, digest: &Digest) {
        let recorded = match self.files {
            RecordedFiles::Source(source, job) => source.record(digest, job),
            RecordedFiles::Destination(destination) => destination.record(digest),
        };
        if let Err(error) = recorded {
            tracing::warn!(
                job = uid,
                reason = error.reason(),
                "the verified copy is not recorded, and so gets no label: {error}"
            );
        }
        self.copies_changed.send_modify(|count| *count += 1);
    }
}
