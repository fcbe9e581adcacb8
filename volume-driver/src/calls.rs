//! Which of the kubelet's calls decides what a volume shows: the last one.
//!
//! A call that has begun goes on when the kubelet does not wait for it any more: a root's file system hangs, or the kubelet was
//! restarted. When the copy is open, the volume may have been unmounted, or another call may have mounted it. Nobody else changes a
//! volume while the lock here is held. A bind or an unmount that hangs under the lock also holds up the unpublish.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as CallMutex, MutexGuard, OwnedMutexGuard};

/// The last call about a volume.
#[derive(Debug, Default)]
pub(crate) struct LastCall {
    number: u64,
    is_to_mount: bool,
}

impl LastCall {
    /// Nothing is mounted.
    pub(crate) fn fail(&mut self) {
        self.is_to_mount = false;
    }
}

/// Calls about the volumes of a node.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Of volumes that a call, or its work, is at.
    volumes: Mutex<BTreeMap<String, Arc<CallMutex<LastCall>>>>,
}

/// A call that is to mount a volume. It must end in [`MountCall::fail`] or with the volume mounted: until then, earlier calls leave the
/// volume to it.
#[derive(Debug)]
pub(crate) struct MountCall {
    last: Arc<CallMutex<LastCall>>,
    number: u64,
}

/// What has become of a call meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallState {
    /// It is the last one.
    Last,
    /// A later one is to mount the volume.
    Replaced,
    /// A later one has unmounted it, or has failed.
    Unmounted,
}

impl Calls {
    fn of(&self, volume: &str) -> Arc<CallMutex<LastCall>> {
        let volumes = self.volumes.lock();
        let mut volumes = volumes.unwrap_or_else(PoisonError::into_inner);
        volumes.retain(|_, last| Arc::strong_count(last) > 1);
        Arc::clone(volumes.entry(volume.to_owned()).or_default())
    }

    /// A call that is to mount the volume begins. One that is dropped while it waits has not begun.
    pub(crate) async fn mount(&self, volume: &str) -> MountCall {
        let last = self.of(volume);
        let mut locked = last.lock().await;
        locked.number += 1;
        locked.is_to_mount = true;
        let number = locked.number;
        drop(locked);
        MountCall { last, number }
    }

    /// A call that is to unmount the volume, which is its own from here on.
    pub(crate) async fn unmount(&self, volume: &str) -> OwnedMutexGuard<LastCall> {
        let mut locked = self.of(volume).lock_owned().await;
        locked.number += 1;
        locked.is_to_mount = false;
        locked
    }
}

impl MountCall {
    /// It has failed before it had anything to mount. An earlier one that still opens its copy is not to mount that either.
    pub(crate) async fn fail(&self) {
        let mut last = self.last.lock().await;
        if last.number == self.number {
            last.fail();
        }
    }

    /// Has the volume for itself, on a thread that may block. What has become of the call says what it may do.
    pub(crate) fn lock(&self) -> (MutexGuard<'_, LastCall>, CallState) {
        let last = self.last.blocking_lock();
        let state = match last.is_to_mount {
            false => CallState::Unmounted,
            true if last.number == self.number => CallState::Last,
            true => CallState::Replaced,
        };
        (last, state)
    }
}
