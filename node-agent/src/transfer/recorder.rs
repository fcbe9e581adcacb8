//! `Recorder`: records the files of one attempt as a verified copy. Here jobs also leave the records.

use std::sync::Arc;

use futures::future::join_all;
use tokio::sync::watch;
use weft_proto::agent::v1::JobRef;

use crate::abort;
use crate::control::jobs::Jobs;
use crate::fault::Fault;
use crate::files::copies::{self, CopyJob};
use crate::files::{Destination, Digest, FileError, Source};

/// Made by Prepare or Start and used once, before the attempt says that it is verified.
#[derive(Debug)]
pub(crate) struct Recorder {
    files: Files,
    /// Counts what is recorded, for the copy watcher.
    records: Arc<watch::Sender<u64>>,
}

/// What is recorded.
#[derive(Debug)]
pub(crate) enum Files {
    /// The attempt reads them.
    Source(Source, CopyJob),
    /// The attempt writes them, and they know their job.
    Destination(Arc<Destination>),
}

impl Recorder {
    /// For an attempt of these jobs.
    pub(crate) fn new(jobs: &Jobs, files: Files) -> Self {
        Self {
            files,
            records: jobs.records.clone(),
        }
    }

    /// Records the files. A failure is logged and ends nothing: the files are verified all the same.
    pub(crate) fn record(self, uid: &str, digest: &Digest) {
        let recorded = match self.files {
            Files::Source(source, job) => source.record(digest, job),
            Files::Destination(destination) => destination.record(digest),
        };
        if let Err(error) = recorded {
            tracing::warn!(
                job = uid,
                reason = error.reason(),
                "the verified copy is not recorded, and so gets no label: {error}"
            );
        }
        self.records.send_modify(|count| *count += 1);
    }
}

impl Jobs {
    /// Takes a job out of the records of all roots, and removes the copies that no job needs then. Copies
    /// that an attempt reads or writes are removed after it.
    pub(crate) async fn release(&self, job: &JobRef) -> Result<(), Fault> {
        let mut released = Vec::new();
        for root in &self.live().roots {
            let (root, uid) = (root.clone(), job.uid.clone());
            // A caller that hangs up ends this future, and not the work.
            released.push(abort::blocking("release", move || {
                copies::release(&root, &uid)
            }));
        }
        let released = join_all(released).await;
        self.records.send_modify(|count| *count += 1);
        let all: Result<(), FileError> = released.into_iter().collect();
        Ok(all?)
    }
}
