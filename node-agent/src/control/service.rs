//! The control API's service: checks the fence, calls the command, and forms the answer.
//!
//! The [`authorization`](crate::control::authorization) has checked the caller before, and adds the [`Caller`] to
//! the request.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use futures::Stream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use weft_engine::{LinkInUse, LinkKind};
use weft_identity::ticket::{self, TicketContext};
use weft_proto::agent::v1 as proto;
use weft_proto::agent::v1::agent_server::Agent;
use weft_proto::agent::v1::link_measurement_server::LinkMeasurement;
use weft_proto::agent::v1::{Permission, Role};

use crate::config::values::{FabricName, NodeName};
use crate::control::attempt_handle::AttemptHandle;
use crate::control::attempt_registry::AttemptRegistry;
use crate::control::diagnose::diagnose;
use crate::control::fence::Fence;
use crate::control::manifests;
use crate::control::metrics_page;
use crate::control::misuse;
use crate::convert;
use crate::devices::Devices;
use crate::fail_fast;
use crate::fault::Fault;
use crate::identity::Caller;
use crate::web::Ready;

/// Interval between progress messages when the request names none.
const INTERVAL_DEFAULT: Duration = Duration::from_millis(500);

/// A parent takes milliseconds to measure, and less than this where the network is slow.
const MEASUREMENT_MAX: Duration = Duration::from_secs(10);
/// How long a parent waits for others to end theirs; then it connects without.
const MEASUREMENT_WAIT: Duration = Duration::from_secs(1);

/// The message of a verified destination that has not appeared whole.
const FILE_BY_FILE: &str = "the directory was there before, and its files were replaced one after the other: to have \
     it appear whole, give a path that is not there yet";

/// The control API of one agent.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    /// Its registry.
    pub registry: Arc<AttemptRegistry>,
    /// Its fence.
    pub fence: Arc<Fence>,
    /// Its fabric.
    pub fabric: FabricName,
    /// The data path's address.
    pub data: Ipv4Addr,
    /// Bytes of buffers that jobs may use.
    pub memory: u64,
    /// The node's virtual devices.
    pub devices: Option<Arc<Devices>>,
    /// What the agent exports.
    pub metrics: watch::Receiver<Ready>,
    /// As many parents may measure the links to this node at a time.
    pub measurements: Arc<Semaphore>,
}

impl Service {
    /// The node that calls, and what its ticket allows it.
    fn ticket<T>(
        &self,
        request: &Request<T>,
        signed: Option<proto::SignedTicket>,
        permission: Permission,
    ) -> Result<(NodeName, proto::Ticket), Fault> {
        let Some(Caller::Node(caller)) = request.extensions().get().cloned() else {
            return Err(Fault::WrongCertificate {
                problem: "was not checked".to_owned(),
            });
        };
        let context = TicketContext {
            fabric: self.fabric.as_str(),
            here: self.registry.config.node.as_str(),
            caller: caller.as_str(),
            key: &self.registry.reloadable_config().ticket_key.0,
            now: SystemTime::now(),
            permission,
        };
        let ticket = ticket::verify(&convert::required(signed, "ticket")?, &context);
        let ticket = ticket.inspect_err(|fault| {
            if let Some(tried) = misuse::of_ticket(fault) {
                self.registry.misuses.note(Instant::now(), &caller, tried);
            }
        })?;
        Ok((caller, ticket))
    }

    /// Carries out a command of the operator, unless a later operator has commanded before.
    async fn command<T>(
        &self,
        epoch: u64,
        command: impl Future<Output = Result<T, Fault>>,
    ) -> Result<Response<T>, Status> {
        self.answer(match self.fence.pass(epoch) {
            Ok(()) => command.await,
            Err(fault) => Err(fault),
        })
    }

    fn answer<T>(&self, result: Result<T, Fault>) -> Result<Response<T>, Status> {
        result
            .map(Response::new)
            .map_err(|fault| self.status(&fault))
    }

    /// A refusal, as the caller receives it.
    pub(crate) fn status(&self, fault: &Fault) -> Status {
        self.registry.count_refusal(fault.reason());
        tracing::debug!(reason = fault.reason(), "refused: {fault}");
        let config = &self.registry.config;
        fault.to_status(config.node.as_str(), config.config_source)
    }
}

#[tonic::async_trait]
impl Agent for Service {
    async fn stat(
        &self,
        request: Request<proto::StatRequest>,
    ) -> Result<Response<proto::StatResponse>, Status> {
        let epoch = request.get_ref().leader_epoch;
        let command = self.registry.stat(request.into_inner());
        self.command(epoch, command).await
    }

    async fn prepare(
        &self,
        request: Request<proto::PrepareRequest>,
    ) -> Result<Response<proto::PrepareResponse>, Status> {
        let epoch = request.get_ref().leader_epoch;
        let command = self.registry.prepare(request.into_inner());
        self.command(epoch, command).await
    }

    async fn start(
        &self,
        request: Request<proto::StartRequest>,
    ) -> Result<Response<proto::StartResponse>, Status> {
        let epoch = request.get_ref().leader_epoch;
        let command = self.registry.start(request.into_inner());
        self.command(epoch, command).await
    }

    type ProgressStream =
        Pin<Box<dyn Stream<Item = Result<proto::ProgressResponse, Status>> + Send>>;

    async fn progress(
        &self,
        request: Request<proto::ProgressRequest>,
    ) -> Result<Response<Self::ProgressStream>, Status> {
        let begin = || {
            self.fence.pass(request.get_ref().leader_epoch)?;
            let interval = match request.get_ref().interval_ms {
                0 => INTERVAL_DEFAULT,
                ms @ 50..=60_000 => Duration::from_millis(ms.into()),
                ms => {
                    return Err(Fault::bad(
                        "interval_ms",
                        format!("is {ms}: it must be 50 to 60000"),
                    ));
                }
            };
            let attempt_ref = convert::attempt_ref(request.get_ref().attempt.clone())?;
            Ok((self.registry.find(&attempt_ref)?, interval))
        };
        let (handle, interval) = begin().map_err(|fault| self.status(&fault))?;
        let epoch = request.get_ref().leader_epoch;
        let (progress_tx, progress_rx) = mpsc::channel(4);
        let service = self.clone();
        fail_fast::spawn("progress", async move {
            let status = tokio::select! {
                // First: an operator that no longer leads renews no lease of an attempt.
                biased;
                fault = service.fence.wait_for_later_epoch(epoch) => service.status(&fault),
                () = follow(&service, handle, interval, &progress_tx) => return,
            };
            // The observer may have gone.
            let _ = progress_tx.send(Err(status)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(progress_rx))))
    }

    async fn cancel(
        &self,
        request: Request<proto::CancelRequest>,
    ) -> Result<Response<proto::CancelResponse>, Status> {
        let epoch = request.get_ref().leader_epoch;
        let command = self.registry.cancel(request.into_inner());
        self.command(epoch, command).await
    }

    async fn connect(
        &self,
        request: Request<proto::ConnectRequest>,
    ) -> Result<Response<proto::ConnectResponse>, Status> {
        let work = || {
            let signed = request.get_ref().ticket.clone();
            let (parent, ticket) = self.ticket(&request, signed, Permission::Write)?;
            self.registry.connect(&parent, &ticket, request.get_ref())
        };
        self.answer(work())
    }

    type FetchManifestStream =
        Pin<Box<dyn Stream<Item = Result<proto::ManifestPart, Status>> + Send>>;

    async fn fetch_manifest(
        &self,
        request: Request<proto::FetchManifestRequest>,
    ) -> Result<Response<Self::FetchManifestStream>, Status> {
        let work = || {
            let signed = request.get_ref().ticket.clone();
            let (_, ticket) = self.ticket(&request, signed, Permission::FetchManifest)?;
            let fingerprint = &request.get_ref().fingerprint;
            self.registry
                .manifests
                .exact(&ticket.manifest_digest, fingerprint)
        };
        let manifest = work().map_err(|fault| self.status(&fault))?;
        let parts = futures::stream::iter(manifests::parts(manifest).map(Ok));
        Ok(Response::new(Box::pin(parts)))
    }

    async fn offer_queue_pair(
        &self,
        request: Request<proto::OfferQueuePairRequest>,
    ) -> Result<Response<proto::OfferQueuePairResponse>, Status> {
        let caller = request.extensions().get().cloned();
        let work = async {
            let Some(Caller::Node(caller)) = caller else {
                return Err(Fault::WrongCertificate {
                    problem: "was not checked".to_owned(),
                });
            };
            let devices = self.devices.as_ref().ok_or_else(|| {
                Fault::engine("this node has no virtual devices: use one of a node that has")
            })?;
            let received = devices.receive(&caller, request.into_inner().offer).await;
            if let Err(Fault::NotAllowed { .. }) = received {
                let tried = "an offer of another node's device";
                self.registry.misuses.note(Instant::now(), &caller, tried);
            }
            received.map(|()| proto::OfferQueuePairResponse {})
        };
        self.answer(work.await)
    }

    async fn diagnose(
        &self,
        request: Request<proto::DiagnoseRequest>,
    ) -> Result<Response<proto::DiagnoseResponse>, Status> {
        let request = request.get_ref();
        let links: Vec<LinkKind> = self.registry.config.links.kinds().collect();
        let command = diagnose(request, self.data, &links, self.memory);
        self.command(request.leader_epoch, command).await
    }

    async fn list_pod_devices(
        &self,
        request: Request<proto::ListPodDevicesRequest>,
    ) -> Result<Response<proto::ListPodDevicesResponse>, Status> {
        let request = request.get_ref();
        let command = async {
            match &self.devices {
                Some(devices) => devices.of_pods(request).await,
                None => Ok(proto::ListPodDevicesResponse::default()),
            }
        };
        self.command(request.leader_epoch, command).await
    }

    type ReadMetricsStream = Pin<Box<dyn Stream<Item = Result<proto::MetricsPart, Status>> + Send>>;

    async fn read_metrics(
        &self,
        request: Request<proto::ReadMetricsRequest>,
    ) -> Result<Response<Self::ReadMetricsStream>, Status> {
        let request = request.get_ref();
        let command = async {
            let page = metrics_page::page(&self.metrics, request.paths).await?;
            let parts = futures::stream::iter(metrics_page::parts(page).map(Ok));
            Ok(Box::pin(parts) as Self::ReadMetricsStream)
        };
        self.command(request.leader_epoch, command).await
    }
}

#[tonic::async_trait]
impl LinkMeasurement for Service {
    type MeasureStream = Pin<Box<dyn Stream<Item = Result<proto::MeasureResponse, Status>> + Send>>;

    async fn measure(
        &self,
        request: Request<proto::MeasureRequest>,
    ) -> Result<Response<Self::MeasureStream>, Status> {
        // Each holds connections.
        let free = Arc::clone(&self.measurements).acquire_owned();
        let Ok(turn) = timeout(MEASUREMENT_WAIT, free).await else {
            let busy = "other nodes measure their links to this one";
            return Err(self.status(&Fault::engine(busy.to_owned())));
        };
        let work = || {
            let signed = request.get_ref().ticket.clone();
            let (parent, ticket) = self.ticket(&request, signed, Permission::Write)?;
            self.registry.measure(&parent, &ticket, request.get_ref())
        };
        let (ends, response) = work().map_err(|fault| self.status(&fault))?;
        let (answer, answered) = mpsc::channel(1);
        fail_fast::spawn("measure", async move {
            let _held = (turn, ends);
            // Until the parent drops the answer.
            if answer.send(Ok(response)).await.is_ok() {
                let _ = timeout(MEASUREMENT_MAX, answer.closed()).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answered))))
    }
}

/// Reports an attempt to one observer until the attempt is over.
async fn follow(
    service: &Service,
    handle: Arc<AttemptHandle>,
    interval: Duration,
    progress_tx: &mpsc::Sender<Result<proto::ProgressResponse, Status>>,
) {
    let mut watch = handle.attempt.watch();
    let mut ticks = tokio::time::interval(interval);
    loop {
        handle.attempt.renew();
        let status = watch.borrow_and_update().clone();
        let (registry, of) = (service.registry.clone(), handle.clone());
        let progress =
            fail_fast::spawn_blocking("progress", move || describe(&registry, &of)).await;
        if progress_tx.send(Ok(progress)).await.is_err() || status.closed {
            return;
        }
        tokio::select! {
            _ = ticks.tick() => {}
            changed = watch.changed() => if changed.is_err() { return },
            () = progress_tx.closed() => return,
        }
    }
}

fn describe(registry: &AttemptRegistry, handle: &AttemptHandle) -> proto::ProgressResponse {
    let (attempt, node) = (&handle.attempt, &registry.config.node);
    // Before the counters: a terminal state must come with its final numbers.
    let status = attempt.status();
    let snapshot = registry.config.links.snapshot();
    let peers = attempt.peers();
    // The parent says how bytes come here; a source has children only.
    let parent = peers.iter().find(|peer| peer.role == Role::Parent);
    let mut by_parent_first = parent.into_iter().chain(&peers);
    let (link, link_reason) = match by_parent_first.find_map(|peer| peer.link()) {
        Some(LinkInUse { link, reason }) => (link.name().to_owned(), reason),
        None => (String::new(), String::new()),
    };
    let peers: Vec<_> = peers
        .iter()
        .map(|peer| peer.to_proto(node.as_str(), registry.config.config_source, &snapshot))
        .collect();
    let counters = &attempt.counters;
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let fault = status.fault.as_ref();
    proto::ProgressResponse {
        attempt: Some(attempt.attempt_ref.clone()),
        node: node.to_string(),
        state: status.state.to_proto().into(),
        reason: fault
            .map(|fault| fault.reason().to_owned())
            .unwrap_or_default(),
        message: match fault {
            Some(fault) => format!("node {node}: {fault}"),
            None if counters.file_by_file.load(Ordering::Relaxed) => {
                format!("node {node}: {FILE_BY_FILE}")
            }
            None => String::new(),
        },
        retriable: fault.is_some_and(|fault| fault.retriable(registry.config.config_source)),
        bytes: count(&counters.bytes),
        bytes_total: count(&counters.bytes_total),
        bytes_resumed: count(&counters.bytes_resumed),
        digest: status
            .digest
            .map(|digest| digest.to_string())
            .unwrap_or_default(),
        chunks_sent: peers.iter().map(|peer| peer.chunks_sent).sum(),
        chunks_resent: peers.iter().map(|peer| peer.chunks_resent).sum(),
        link,
        link_reason,
        peers,
        serving: status.state.is_terminal() && status.workers > 0,
    }
}
