//! Threads and tasks that must not die unseen: a panic in one takes the process down.
//!
//! A transfer whose writer is gone would hang or, worse, say that all is well. The process is
//! restarted by whoever runs it, and transfers resume.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Runs `work` on a thread of that name.
pub(crate) fn thread(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let label = name.to_owned();
    std::thread::Builder::new()
        // The kernel cuts thread names at 15 bytes.
        .name(name.chars().take(15).collect())
        .spawn(move || {
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                die(&label);
            }
        })
}

/// Runs `work` on the runtime. Aborting the answer's task lets `work` run on.
pub(crate) fn spawn(
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    let running = tokio::spawn(work);
    tokio::spawn(async move {
        if running.await.is_err_and(|error| error.is_panic()) {
            die(name);
        }
    })
}

/// Runs `work` where it may block, and gives its result.
pub(crate) async fn spawn_blocking<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    // Caught there: the caller may be gone.
    let work = move || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| die(name));
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The runtime is being shut down, and whoever waits here with it.
        Err(_) => std::future::pending().await,
    }
}

/// Locks a mutex, also after a panic: none comes half-way through a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn die(name: &str) -> ! {
    // The panic's own message was written by the panic hook.
    tracing::error!(
        thread = name,
        "a thread of the agent has died, and the agent with it"
    );
    std::process::abort();
}
