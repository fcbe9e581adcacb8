//! How full the file systems of the roots are, for metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::control::attempt_registry::AttemptRegistry;
use crate::fail_fast;
use crate::files::{Access, Root};

/// How often it is looked at.
const READ_INTERVAL: Duration = Duration::from_secs(10);
/// After this no root's space is known, until the file system answers.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The file system of one root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RootSpace {
    /// The root's name.
    pub(crate) root: String,
    pub(crate) free_bytes: u64,
    /// What transfers leave free.
    pub(crate) min_free_bytes: u64,
}

/// Looks at the roots that jobs write to, for ever. While a file system does not answer, nothing is known of any.
pub(crate) async fn follow(registry: Arc<AttemptRegistry>, known: watch::Sender<Vec<RootSpace>>) {
    let mut ticks = tokio::time::interval(READ_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let roots = registry.reloadable_config().roots.clone();
        let mut reading = Box::pin(fail_fast::spawn_blocking("roots' space", move || {
            read(&roots)
        }));
        let in_time = tokio::time::timeout(READ_TIMEOUT, &mut reading).await;
        let found = match in_time {
            Ok(found) => found,
            Err(_) => {
                known.send_replace(Vec::new());
                reading.await
            }
        };
        known.send_replace(found);
    }
}

/// As they are now, without those whose file system does not count.
fn read(roots: &[Arc<Root>]) -> Vec<RootSpace> {
    let writable = roots
        .iter()
        .filter(|root| root.access() == Access::ReadWrite);
    let read = writable.filter_map(|root| {
        let (free_bytes, min_free_bytes) = root.free_bytes()?;
        Some(RootSpace {
            root: root.name().to_owned(),
            free_bytes,
            min_free_bytes,
        })
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{MinFree, RootLimits};

    #[test]
    fn roots_that_jobs_write_to_say_what_is_free_and_what_stays_free() {
        let directory = tempfile::tempdir().unwrap();
        let open = |name, access| Arc::new(Root::open(name, directory.path(), access).unwrap());
        let roots = [
            open("models", Access::ReadWrite),
            open("library", Access::ReadOnly),
        ];
        roots[0].set_limits(RootLimits {
            min_free: MinFree::Percent(50),
            ..RootLimits::default()
        });
        let found = read(&roots);
        let [models] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(models.root, "models");
        let of_disk = rustix::fs::statvfs(directory.path()).unwrap();
        let half = of_disk.f_blocks * of_disk.f_frsize / 100 * 50;
        assert_eq!(models.min_free_bytes, half);
        assert!(models.free_bytes > 0);
    }
}
