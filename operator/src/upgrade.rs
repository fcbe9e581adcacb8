//! What `helm upgrade` and `helm rollback` have looked at before anything is changed: that pods have nothing of what the new values
//! take away.

use std::time::Duration;

use kube::Client;
use tokio::time::timeout;

use crate::{
    api::{CallError, retry_until_answered},
    controllers::FORCE,
    in_use::{self, Feature},
};

/// The API server is asked for so long.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Why nothing is changed.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// Pods use what is taken away.
    #[error(
        "pods use {0}, which the values volumes.enabled, devices.enabled or devices.mode take away: without the driver pods with volumes or \
         claims cannot end, without the device plugin containers with devices do not start again, and without the engine programs with \
         devices fail. `kubectl weft devices -A` lists those with devices, and \
         `kubectl get pods -A -o custom-columns=NAMESPACE:.metadata.namespace,POD:.metadata.name,DRIVERS:.spec.volumes[*].csi.driver` \
         those with volumes of csi.weft.dev. Delete these pods and try again, or have it all the same after \
         `kubectl annotate rdmafabrics --all {FORCE}=true`. To leave it as it is, `helm rollback weft REVISION` to the revision that \
         `helm history weft` says is deployed"
    )]
    InUse(String),
    /// It is not known whether pods do.
    #[error(
        "nobody knows whether pods use devices or volumes ({0}); try again when the API server answers"
    )]
    NotRead(String),
}

/// Refuses while pods have something of what is taken away.
///
/// # Errors
/// [`UpgradeError`].
pub async fn check(client: &Client, takes: &[Feature]) -> Result<(), UpgradeError> {
    let asked = retry_until_answered(
        "whether pods use devices or volumes is not known",
        CallError::is_transient,
        || in_use::find(client, takes),
    );
    let not_read = |why: String| UpgradeError::NotRead(why);
    let in_use = match timeout(ANSWER_WITHIN, asked).await {
        Ok(answer) => answer.map_err(|error| not_read(error.to_string()))?,
        Err(_) => return Err(not_read(format!("no answer within {ANSWER_WITHIN:?}"))),
    };
    match in_use.is_empty() {
        true => Ok(()),
        false => Err(UpgradeError::InUse(in_use.join(", "))),
    }
}
