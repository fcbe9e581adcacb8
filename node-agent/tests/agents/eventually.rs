//! How tests wait. The end-to-end tests and those of claims include this file, too.

use std::future::Future;
use std::time::{Duration, Instant};

/// Everything here ends, or the test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Asks until the condition holds; fails at the deadline.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        // The one sleep of all tests: between two looks at the condition.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
