//! Calls to agents that belong to no job.

use std::{sync::Arc, time::Duration};

use futures::{Stream, stream};
use tokio::{
    sync::mpsc::unbounded_channel,
    time::{Instant, timeout_at},
};
use weft_proto::agent::v1::{
    AttemptRef, CancelRequest, DiagnoseRequest, DiagnoseResponse, ListPodDevicesRequest,
    ListPodDevicesResponse, ReadMetricsRequest, StatResponse,
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

/// The call for a page of metrics.
const READ_METRICS: &str = "ReadMetrics";
/// From the call to the page's last part: less than the 60 s after which an API server gives an answer up.
const METRICS_TIMEOUT: Duration = Duration::from_secs(20);

/// Of a page: one of 114,688 series has some 14 MB.
const METRICS_BYTES_MAX: usize = 16 << 20;

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

/// The text of a node's metrics, part by part: the agent sends no more than a window ahead of what is read.
///
/// # Errors
/// Why the agent refused the call, or could not be called. The stream ends with an error where the agent falls silent
/// or does not come to an end.
pub async fn read_metrics(
    request: ReadMetricsRequest,
    pool: &ConnectionPool,
    endpoint: &AgentEndpoint,
) -> Result<impl Stream<Item = Result<Vec<u8>, Failure>> + Send + use<>, Failure> {
    let deadline = Instant::now() + METRICS_TIMEOUT;
    let agent = pool.agent(endpoint);
    let call = agent.open(&request, |mut client, request| async move {
        client.read_metrics(request).await
    });
    let node = endpoint.node.clone();
    let (parts, connection) = with_timeout(METRICS_TIMEOUT, READ_METRICS, &node, call).await?;
    let page = Some((parts, METRICS_BYTES_MAX));
    Ok(stream::unfold(page, move |page| {
        let (agent, connection, node) = (agent.clone(), connection.clone(), node.clone());
        async move {
            let (mut parts, room) = page?;
            let failed = |reason, message: String| Failure::at(&node, reason, &message, true);
            let next = match timeout_at(deadline, parts.message()).await {
                Ok(Ok(Some(part))) => match room.checked_sub(part.text.len()) {
                    Some(room) => return Some((Ok(part.text), Some((parts, room)))),
                    None => failed(
                        "PageTooLarge",
                        format!(
                            "node {node}: its metrics are longer than {METRICS_BYTES_MAX} bytes; see the log of its agent"
                        ),
                    ),
                },
                Ok(Ok(None)) => return None,
                Ok(Err(status)) => agent.failed(&connection, &status),
                Err(_) => failed(
                    "CallTimedOut",
                    format!(
                        "node {node}: its agent has not answered {READ_METRICS} for {} s; see its log, and restart it",
                        METRICS_TIMEOUT.as_secs()
                    ),
                ),
            };
            Some((Err(next), None))
        }
    }))
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
