//! Calls to agents that belong to no job.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use tokio::{
    select,
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{Sender, channel, unbounded_channel},
    },
    time::{Instant, sleep_until},
};
use tonic::Status;
use weft_proto::agent::v1::{
    AttemptRef, CancelRequest, DiagnoseRequest, DiagnoseResponse, ListPodDevicesRequest,
    ListPodDevicesResponse, MetricsPart, ReadMetricsRequest, StatResponse,
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

/// The reason where another reader reads a page of the agent's metrics.
pub const PAGE_UNDER_WAY: &str = "PageUnderWay";

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

/// The text of a node's metrics, part by part: the agent sends no more than a window ahead of what is read, and jobs
/// share its connection. So one page of an agent is read at a time, and for 20 s at most, whoever reads it.
///
/// # Errors
/// Another page of the agent is being read ([`PAGE_UNDER_WAY`]). Why the agent refused the call, or could not be called.
/// The stream ends with an error where the agent or the reader does not come to the page's end.
pub async fn read_metrics(
    request: ReadMetricsRequest,
    pool: &ConnectionPool,
    endpoint: &AgentEndpoint,
) -> Result<impl Stream<Item = Result<Vec<u8>, Failure>> + Send + use<>, Failure> {
    let deadline = Instant::now() + METRICS_TIMEOUT;
    let agent = pool.agent(endpoint);
    let turn = turn(agent.pages(), &endpoint.node)?;
    let call = agent.open(&request, |mut client, request| async move {
        client.read_metrics(request).await
    });
    let node = endpoint.node.clone();
    let (parts, connection) = with_timeout(METRICS_TIMEOUT, READ_METRICS, &node, call).await?;
    let failed = move |status: &Status| agent.failed(&connection, status);
    Ok(passed_on(parts, node, failed, deadline, turn))
}

/// The right to read a page.
fn turn(pages: &Arc<Semaphore>, node: &str) -> Result<OwnedSemaphorePermit, Failure> {
    Arc::clone(pages).try_acquire_owned().map_err(|_| {
        let message = format!("node {node}: another reader reads its metrics; try again");
        Failure::at(node, PAGE_UNDER_WAY, &message, true)
    })
}

/// Passes a page on. A task of its own reads it: the deadline holds too where nobody asks for the next part.
fn passed_on(
    parts: impl Stream<Item = Result<MetricsPart, Status>> + Send + 'static,
    node: String,
    failed: impl Fn(&Status) -> Failure + Send + 'static,
    deadline: Instant,
    turn: OwnedSemaphorePermit,
) -> BoxStream<'static, Result<Vec<u8>, Failure>> {
    let (sender, receiver) = channel(1);
    let copied = tokio::spawn(async move {
        let _turn = turn;
        select! {
            biased;
            // The reader has gone.
            () = sender.closed() => Ok(()),
            () = sleep_until(deadline) => {
                let message = format!(
                    "node {node}: its metrics have not come to their end in {} s: its agent or the reader is too slow; see the agent's log, and ask again",
                    METRICS_TIMEOUT.as_secs()
                );
                Err(Failure::at(&node, "CallTimedOut", &message, true))
            }
            copied = copy(parts, &node, failed, &sender) => copied,
        }
    });
    let parts = stream::unfold(receiver, async |mut receiver| {
        let part = receiver.recv().await?;
        Some((Ok(part), receiver))
    });
    // What ends a page is said behind its last part.
    let end = stream::once(copied).filter_map(async |copied| match copied {
        Ok(copied) => copied.err().map(Err),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    });
    parts.chain(end).boxed()
}

async fn copy(
    parts: impl Stream<Item = Result<MetricsPart, Status>>,
    node: &str,
    failed: impl Fn(&Status) -> Failure,
    sender: &Sender<Vec<u8>>,
) -> Result<(), Failure> {
    let mut parts = pin!(parts);
    let mut room = METRICS_BYTES_MAX;
    while let Some(part) = parts.next().await {
        let text = part.map_err(|status| failed(&status))?.text;
        if text.is_empty() {
            // Any number of these would be within the page's size.
            let message =
                format!("node {node}: a part of its metrics is empty; see its agent's log");
            return Err(Failure::at(node, "PartEmpty", &message, true));
        }
        room = room.checked_sub(text.len()).ok_or_else(|| {
            let message = format!(
                "node {node}: its metrics are longer than {METRICS_BYTES_MAX} bytes; see the log of its agent"
            );
            Failure::at(node, "PageTooLarge", &message, true)
        })?;
        if sender.send(text).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    fn part(text: &str) -> Result<MetricsPart, Status> {
        Ok(MetricsPart {
            text: text.as_bytes().to_vec(),
        })
    }

    fn passed(
        parts: impl Stream<Item = Result<MetricsPart, Status>> + Send + 'static,
        pages: &Arc<Semaphore>,
    ) -> BoxStream<'static, Result<Vec<u8>, Failure>> {
        let failed = |status: &Status| Failure::at("n1", "Broken", status.message(), true);
        let turn = turn(pages, "n1").unwrap();
        let deadline = Instant::now() + METRICS_TIMEOUT;
        passed_on(parts, "n1".to_owned(), failed, deadline, turn)
    }

    /// What the last item of a page says, behind so many parts.
    async fn end(page: BoxStream<'static, Result<Vec<u8>, Failure>>) -> (usize, String) {
        let items: Vec<_> = page.collect().await;
        let (last, parts) = items.split_last().unwrap();
        assert!(parts.iter().all(Result::is_ok));
        (parts.len(), last.as_ref().unwrap_err().reason.clone())
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_reading_is_ended_and_another_may_read() {
        let pages = Arc::new(Semaphore::new(1));
        let mut page = passed(stream::repeat_with(|| part("#")), &pages);
        page.next().await.unwrap().unwrap();
        assert_eq!(turn(&pages, "n1").unwrap_err().reason, PAGE_UNDER_WAY);
        let (begun, free) = (Instant::now(), pages.acquire());
        let free = timeout(2 * METRICS_TIMEOUT, free).await;
        assert!(free.is_ok(), "the reader holds the page for ever");
        assert!(Instant::now() - begun <= METRICS_TIMEOUT + Duration::from_millis(1));
        // It does not take what it has for the whole page.
        assert_eq!(end(page).await, (1, "CallTimedOut".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_sends_slowly_or_nothing_is_ended_at_the_same_deadline() {
        let pages = Arc::new(Semaphore::new(1));
        let silent = passed(stream::pending(), &pages).collect::<Vec<_>>().await;
        assert_eq!(silent.len(), 1);
        assert_eq!(silent[0].as_ref().unwrap_err().reason, "CallTimedOut");
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        let slow = stream::poll_fn(move |cx| seconds.poll_tick(cx).map(|_| Some(part("#"))));
        let (parts, reason) = end(passed(slow, &pages)).await;
        assert_eq!((parts, &*reason), (20, "CallTimedOut"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_part_ends_a_page_and_so_does_an_error_of_the_agent() {
        let pages = Arc::new(Semaphore::new(1));
        let empty = stream::iter([part("#")]).chain(stream::repeat_with(|| part("")));
        assert_eq!(
            end(passed(empty, &pages)).await,
            (1, "PartEmpty".to_owned())
        );
        let broken = stream::iter([part("#"), Err(Status::unavailable("it stops"))]);
        assert_eq!(end(passed(broken, &pages)).await, (1, "Broken".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_is_read_or_that_nobody_reads_any_more_leaves_room_for_the_next() {
        let pages = Arc::new(Semaphore::new(1));
        let whole = passed(stream::iter([part("a"), part("b")]), &pages);
        let whole: Vec<_> = whole.map(Result::unwrap).collect().await;
        assert_eq!(whole, [b"a", b"b"]);
        drop(passed(stream::pending(), &pages));
        let begun = Instant::now();
        let _free = pages.acquire().await.unwrap();
        assert_eq!(Instant::now(), begun);
    }
}
