//! Removing a verified copy on the operator's word.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use weft_proto::agent::v1::{Kept, Location, RemoveResponse};

use crate::convert;
use crate::fault::Fault;
use crate::files::{self, Fingerprint, Removed, RootPath};
use crate::guard;
use crate::jobs::Jobs;

/// Whoever writes or reads there may be about to end: two jobs that are deleted together end within moments,
/// and an attempt that is over has to tell its peers and to end writes that are on their way to a disk.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is tried meanwhile.
const AGAIN: Duration = Duration::from_millis(100);

/// A copy is being removed, or what attempts have left: as long as it is there, the agent is not replaced by one that would not know.
#[derive(Debug)]
pub(crate) struct Removal(pub(crate) Arc<watch::Sender<usize>>);

impl Drop for Removal {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Jobs {
    /// Removes the files of a verified copy that nobody has changed, and that no attempt here writes
    /// or reads. Whoever does so is given a moment to end.
    pub async fn remove(
        &self,
        location: Option<Location>,
        fingerprint: String,
    ) -> Result<RemoveResponse, Fault> {
        let location = convert::given(location, "location")?;
        let fingerprint = Fingerprint::parse(&fingerprint)
            .ok_or_else(|| Fault::bad("fingerprint", "is none that an agent has told"))?;
        let root = self.root(&location.root)?;
        let path = RootPath::parse(&location.path)?;
        let removal = Arc::new(self.begin_removal()?);
        let until = Instant::now() + PATIENCE;
        let removed = loop {
            let is_last = Instant::now() >= until;
            let (root, path, fingerprint) = (root.clone(), path.clone(), fingerprint.clone());
            // A caller that hangs up ends this future, and not the work.
            let counted = removal.clone();
            let work = move || {
                let removed = files::remove(&root, &path, &fingerprint);
                drop(counted);
                removed
            };
            let removed = guard::blocking("remove", work).await?;
            if removed != Removed::InUse || is_last {
                break removed;
            }
            sleep(AGAIN).await;
        };
        tell(removed, &location);
        Ok(RemoveResponse {
            removed: removed == Removed::Gone,
            kept: kept(removed).into(),
        })
    }
}

fn tell(removed: Removed, location: &Location) {
    let Location { root, path } = location;
    match removed {
        Removed::Gone => tracing::info!(root, path, "removed"),
        Removed::Changed => tracing::warn!(
            root,
            path,
            "not removed: something of it has been changed since it was verified"
        ),
        Removed::Mixed => tracing::warn!(
            root,
            path,
            "not removed: other files lay there when it was verified, and it has too many files \
             to tell which are its own: remove it by hand"
        ),
        Removed::InUse => tracing::warn!(
            root,
            path,
            "not removed: another job is at work there, or reads it: remove it by hand once that \
             job has ended"
        ),
    }
}

fn kept(removed: Removed) -> Kept {
    match removed {
        Removed::Gone => Kept::Unspecified,
        Removed::Changed => Kept::Changed,
        Removed::Mixed => Kept::Mixed,
        Removed::InUse => Kept::InUse,
    }
}
