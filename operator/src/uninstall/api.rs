//! Calls of the API server for the uninstall.

use std::time::Duration;

use tokio::time::timeout;
use weft_identity::cause::innermost;

/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// An API server that answers at all answers within.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Who changes `spec.suspend`.
pub(super) const MANAGER: &str = "weft-uninstall";

pub(super) enum Refused {
    /// It is not there, or not the same any more.
    Gone,
    Failed(String),
}

pub(super) async fn answer<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Refused> {
    match timeout(ANSWER_WITHIN, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if [404, 409].contains(&status.code) => {
            Err(Refused::Gone)
        }
        Ok(Err(error)) => Err(Refused::Failed(innermost(&error))),
        Err(_) => Err(Refused::Failed(format!(
            "no answer within {ANSWER_WITHIN:?}"
        ))),
    }
}
