//! What agents are asked outside of any job.

use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use weft_proto::agent::v1::{
    CancelRequest, DiagnoseRequest, DiagnoseResponse, JobRef, StatResponse,
};

use super::{
    Channels, Contact, Refusal, Spec,
    calls::{CANCEL_WITHIN, Calls, STAT_WITHIN, within},
};

/// Three rounds of packets to 64 peers.
const DIAGNOSE_WITHIN: Duration = Duration::from_secs(15);

/// How much the source of a transfer holds, asked outside of any job: nothing is begun.
///
/// # Errors
/// What the agent, or the way to it, refused.
pub async fn stat(
    spec: Spec,
    channels: Channels,
    contacts: &[Contact],
) -> Result<StatResponse, Refusal> {
    let node = spec.source.node.clone();
    let calls = Calls::new(spec, channels, contacts, unbounded_channel().0);
    within(STAT_WITHIN, "Stat", &node, calls.stat(None)).await
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

/// Takes a job that does not exist any more out of the records of a node's copies: the agent removes those
/// that no other job is recorded for. `uid` is the job's as the agent has reported it.
///
/// # Errors
/// What the agent, or the way to it, refused.
pub async fn release(
    uid: &str,
    leader_epoch: u64,
    channels: &Channels,
    contact: &Contact,
) -> Result<(), Refusal> {
    let request = CancelRequest {
        // Later than every attempt of it.
        job: Some(JobRef {
            uid: uid.to_owned(),
            generation: u64::MAX,
            attempt: u32::MAX,
        }),
        leader_epoch,
        discard: false,
        release: true,
    };
    let agent = channels.agent(contact);
    let call = agent.call(|mut client| {
        let request = request.clone();
        async move { client.cancel(request).await }
    });
    within(CANCEL_WITHIN, "Cancel", &contact.node, call)
        .await
        .map(drop)
}
