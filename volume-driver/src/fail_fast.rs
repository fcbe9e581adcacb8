//! Work that goes on when nobody waits for it any more. A panic in it takes the process down: a volume would be left to a call that is
//! gone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tonic::Status;

/// Runs a call about a volume that has begun, also when the kubelet gives it up.
pub(crate) async fn run_to_end(
    call: impl Future<Output = Result<(), Status>> + Send + 'static,
) -> Result<(), Status> {
    let running = tokio::spawn(call);
    // In a task of its own, too: whoever waits here may be gone.
    let ended = tokio::spawn(async move {
        match running.await {
            Err(error) if error.is_panic() => die(),
            ended => ended,
        }
    });
    // Otherwise the runtime is being shut down.
    let ended = ended.await.and_then(|ended| ended);
    ended.map_err(|error| Status::unavailable(error.to_string()))?
}

/// Runs what may block on a thread for that.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let work = move || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| die());
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Status::unavailable(error.to_string()))
}

fn die() -> ! {
    // The panic's own message was written by the panic hook.
    tracing::error!("a call about a volume has panicked, and the driver ends with it");
    std::process::abort();
}
