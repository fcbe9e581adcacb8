//! Calls to agents that belong to no job.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc::unbounded_channel;
use weft_proto::agent::v1::{
    AttemptRef, CancelRequest, DiagnoseRequest, DiagnoseResponse, ListPodDevicesRequest,
    ListPodDevicesResponse, StatResponse,
};

use crate::{
    calls::{CANCEL_TIMEOUT, CallContext, STAT_TIMEOUT, with_timeout},
    endpoint::AgentEndpoint,
    failure::Failure,
    pool::ConnectionPool,
    spec::Spec,
};

/// Three rounds of packets to 64 peers.
const DIAGNOSE_TIMEOUT: Duration = Duration::from_secs(15);

/// An agent asks its engine, which answers within 5 s or not at all.
const LIST_TIMEOUT: Duration = Duration::from_secs(8);

/// What the source of a transfer holds. Nothing is begun.
///
/// # Errors
/// Why the agent refused the call, or could not be called.
pub async fn stat(
    spec: &Spec,
    pool: ConnectionPool,
    endpoints: &[AgentEndpoint],
) -> Result<StatResponse, Failure> {
    let context = CallContext {
        agents: Arc::new(pool.agents(endpoints)),
        pool,
        inputs: unbounded_channel().0,
        spec: Arc::new(spec.clone()),
        listing: None,
    };
    with_timeout(STAT_TIMEOUT, "Stat", &spec.source.node, context.stat(None)).await
}

/// Which peers a node reaches, and what its kernel and pod give it.
///
/// # Errors
/// Why the agent refused the call, or could not be called.
pub async fn diagnose(
    request: DiagnoseRequest,
    pool: &ConnectionPool,
    endpoint: &AgentEndpoint,
) -> Result<DiagnoseResponse, Failure> {
    let agent = pool.agent(endpoint);
    let call = agent.call(&request, |mut client, request| async move {
        client.diagnose(request).await
    });
    with_timeout(DIAGNOSE_TIMEOUT, "Diagnose", &endpoint.node, call).await
}

/// The virtual devices of a node's pods.
///
/// # Errors
/// Why the agent refused the call, or could not be called.
pub async fn list_pod_devices(
    request: ListPodDevicesRequest,
    pool: &ConnectionPool,
    endpoint: &AgentEndpoint,
) -> Result<ListPodDevicesResponse, Failure> {
    let agent = pool.agent(endpoint);
    let call = agent.call(&request, |mut client, request| async move {
        client.list_pod_devices(request).await
    });
    with_timeout(LIST_TIMEOUT, "ListPodDevices", &endpoint.node, call).await
}

/// Takes a job that does not exist any more out of the records of a node's copies: the agent removes the
/// copies that are recorded for no other job. `uid` is the job's as the agent has reported it.
///
/// # Errors
/// Why the agent refused the call, or could not be called.
pub async fn release_copies(
    uid: &str,
    leader_epoch: u64,
    pool: &ConnectionPool,
    endpoint: &AgentEndpoint,
) -> Result<(), Failure> {
    let request = CancelRequest {
        // Later than every attempt of the job.
        attempt: Some(AttemptRef {
            uid: uid.to_owned(),
            generation: u64::MAX,
            number: u32::MAX,
        }),
        leader_epoch,
        remove_partials: false,
        release_copies: true,
    };
    let agent = pool.agent(endpoint);
    let call = agent.call(&request, |mut client, request| async move {
        client.cancel(request).await
    });
    with_timeout(CANCEL_TIMEOUT, "Cancel", &endpoint.node, call)
        .await
        .map(drop)
}
