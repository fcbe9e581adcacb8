//! What agents are asked outside of any job.

use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use weft_proto::agent::v1::{DiagnoseRequest, DiagnoseResponse, Manifest};

use super::{
    Channels, Contact, Refusal, Spec,
    calls::{Calls, STAT_WITHIN, within},
};

/// Three rounds of packets to 64 peers.
const DIAGNOSE_WITHIN: Duration = Duration::from_secs(15);

/// What the source of a transfer holds, asked outside of any job: nothing is begun.
///
/// # Errors
/// What the agent, or the way to it, refused.
pub async fn stat(
    spec: Spec,
    channels: Channels,
    contacts: &[Contact],
) -> Result<Manifest, Refusal> {
    let node = spec.source.node.clone();
    let calls = Calls::new(spec, channels, contacts, unbounded_channel().0);
    within(STAT_WITHIN, "Stat", &node, calls.stat()).await
}

/// What a node reaches and has, tried by its agent.
///
/// # Errors
/// What the agent, or the way to it, refused.
pub async fn diagnose(
    request: DiagnoseRequest,
    channels: &Channels,
    contact: &Contact,
) -> Result<DiagnoseResponse, Refusal> {
    let agent = channels.agent(contact);
    let call = agent.call(|mut client| {
        let request = request.clone();
        async move { client.diagnose(request).await }
    });
    within(DIAGNOSE_WITHIN, "Diagnose", &contact.node, call).await
}
