//! What agents are asked outside of any job.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc::unbounded_channel;
use weft_proto::agent::v1::{DiagnoseRequest, DiagnoseResponse, Manifest};

use super::{
    Refusal, Spec,
    agent::agents,
    calls::{Calls, STAT_WITHIN, within},
    refusal::{refusal, unreachable},
    runner::{Contact, RunnerError},
};
use crate::authority::Authority;

/// Three rounds of packets to 64 peers.
const DIAGNOSE_WITHIN: Duration = Duration::from_secs(15);

/// What the source of a transfer holds, asked outside of any job: nothing is begun.
///
/// # Errors
/// What the agent, or the way to it, refused.
pub(crate) async fn stat(
    spec: Spec,
    authority: Arc<Authority>,
    contacts: &[Contact],
) -> Result<Manifest, Refusal> {
    let node = spec.source.node.clone();
    let agents = agents(&authority, contacts).map_err(|error| uncalled(&node, &error))?;
    let calls = Calls {
        spec,
        authority,
        agents,
        answers: unbounded_channel().0,
    };
    within(STAT_WITHIN, "Stat", &node, calls.stat()).await
}

/// What a node reaches and has, tried by its agent.
///
/// # Errors
/// What the agent, or the way to it, refused.
pub(crate) async fn diagnose(
    request: DiagnoseRequest,
    authority: &Authority,
    contact: &Contact,
) -> Result<DiagnoseResponse, Refusal> {
    let node = &contact.node;
    let agents = agents(authority, std::slice::from_ref(contact));
    let agents = agents.map_err(|error| uncalled(node, &error))?;
    let call = async {
        let Some(agent) = agents.get(node) else {
            return Err(unreachable(node, &contact.address, "it is not known"));
        };
        match agent.client(node).await?.diagnose(request).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(refusal(node, &contact.address, &status)),
        }
    };
    within(DIAGNOSE_WITHIN, "Diagnose", node, call).await
}

fn uncalled(node: &str, error: &RunnerError) -> Refusal {
    Refusal {
        node: node.to_owned(),
        reason: error.reason().to_owned(),
        message: error.to_string(),
        retriable: true,
    }
}
