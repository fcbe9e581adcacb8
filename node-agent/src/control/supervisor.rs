//! The supervisor: ends an attempt when its lease expires, and cleans up when it is over.

use std::sync::Arc;
use std::time::Duration;

use crate::control::attempt_handle::AttemptHandle;
use crate::fail_fast;
use crate::fault::Fault;
use crate::transfer::state::State;

/// Supervises one attempt from its beginning until it is closed.
pub(crate) async fn supervise(handle: Arc<AttemptHandle>, lease: Duration) {
    let attempt = &handle.attempt;
    let mut watch = attempt.watch();
    loop {
        let over = watch.wait_for(|status| status.state.is_terminal() && status.workers == 0);
        let remaining = lease.saturating_sub(attempt.idle());
        let over = tokio::time::timeout(remaining, over).await.map(drop);
        match over {
            Ok(()) if attempt.try_refuse_workers() => break,
            // Another worker has begun since.
            Ok(()) => {}
            Err(_) if attempt.idle() < lease => {}
            Err(_) => {
                // A relay that is verified and still sends ends too: its threads stop.
                attempt.fail(Fault::LeaseExpired {
                    seconds: lease.as_secs(),
                });
                attempt.renew();
            }
        }
    }
    let prepared = {
        let mut resources = handle.resources();
        resources.connected = None;
        resources.buffers = None;
        resources.prepared.take()
    };
    if let Some(prepared) = prepared {
        let failed = attempt.state() == State::Failed;
        let of = handle.clone();
        fail_fast::spawn_blocking("abort", move || {
            prepared.blocks.close_files();
            let destination = &prepared.blocks.destination;
            if failed {
                destination.abort();
            } else {
                of.leftover().forget();
            }
            destination.release_path();
        })
        .await;
    }
    attempt.close();
}
