//! An agent for tests of the ways to one: real TLS, a real port, and nothing behind it.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt as _, stream};
use tokio::{net::TcpListener, runtime::Runtime, sync::watch};
use tokio_stream::wrappers::{TcpListenerStream, WatchStream};
use tonic::{
    Request, Response, Status,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};
use weft_identity::authority::Authority;
use weft_planner::{Strategy, Topology};
use weft_proto::agent::v1::{
    OfferQueuePairRequest, OfferQueuePairResponse,
    agent_server::{Agent, AgentServer},
    *,
};

use crate::{
    endpoint::AgentEndpoint,
    spec::{LeaderContext, NodeLocation, Spec, Timing},
};

/// A transfer from n0 to n1.
pub(crate) fn spec(topology: Topology, timing: Timing) -> Spec {
    let location = |node: &str| NodeLocation {
        node: node.into(),
        root: "data".into(),
        path: "x".into(),
    };
    Spec {
        uid: "uid".into(),
        name: None,
        source: location("n0"),
        symlinks: Symlinks::Follow,
        object: None,
        destinations: vec![location("n1")],
        topology,
        strategy: Strategy::Direct,
        payload_share: 1.0,
        algorithm: Algorithm::Blake3,
        backoff_limit: 6,
        expect: String::new(),
        overwrite: Overwrite::IfDifferent,
        timing,
        leader: LeaderContext::ONLY,
    }
}

/// A running one.
pub(crate) struct StandIn {
    pub(crate) endpoint: AgentEndpoint,
    service: Service,
    runtime: Option<Runtime>,
}

#[derive(Clone, Default)]
struct Service {
    connections: Arc<AtomicUsize>,
    beats: watch::Sender<u64>,
    prepared: Arc<Mutex<Vec<PrepareRequest>>>,
    /// Reports that a progress stream has at once; where there are any, it waits for no beats.
    flood: Arc<AtomicU64>,
    told: Arc<AtomicUsize>,
    /// After a flood there is one more report, that it is Verified, if this is not 0.
    finishes: Arc<AtomicUsize>,
    /// Cancels so far.
    cancels: Arc<AtomicUsize>,
    /// So many more Cancels fail.
    failing: Arc<AtomicUsize>,
}

impl StandIn {
    pub(crate) async fn start(authority: &Authority, node: &str) -> Self {
        let any = "127.0.0.1:0".parse().unwrap();
        Self::at(any, Service::default(), authority, node).await
    }

    async fn at(address: SocketAddr, service: Service, authority: &Authority, node: &str) -> Self {
        let identity = authority.node(node).unwrap();
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(identity.certificate, identity.key))
            .client_ca_root(Certificate::from_pem(authority.certificate()));
        // Ends with everything in it, as a process does.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (agent, connections) = (service.clone(), Arc::clone(&service.connections));
        let served = runtime.spawn(async move {
            let listener = TcpListener::bind(address).await.unwrap();
            let address = listener.local_addr().unwrap();
            let incoming = TcpListenerStream::new(listener).inspect(move |_| {
                connections.fetch_add(1, Ordering::Relaxed);
            });
            let server = Server::builder().tls_config(tls).unwrap();
            let agent = AgentServer::new(agent);
            tokio::spawn({ server }.add_service(agent).serve_with_incoming(incoming));
            address
        });
        Self {
            endpoint: AgentEndpoint {
                node: node.to_owned(),
                address: served.await.unwrap().to_string(),
            },
            service,
            runtime: Some(runtime),
        }
    }

    /// Its process ends.
    pub(crate) async fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let end = move || runtime.shutdown_timeout(Duration::from_secs(10));
            tokio::task::spawn_blocking(end).await.unwrap();
        }
    }

    /// Its process ends, and another one begins in its place.
    pub(crate) async fn restart(&mut self, authority: &Authority) {
        self.kill().await;
        let (endpoint, service) = (self.endpoint.clone(), self.service.clone());
        let address = endpoint.address.parse().unwrap();
        *self = Self::at(address, service, authority, &endpoint.node).await;
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.service.connections.load(Ordering::Relaxed)
    }

    /// Every progress stream says something.
    pub(crate) fn beat(&self) {
        self.service.beats.send_modify(|beat| *beat += 1);
    }

    /// Each progress stream that begins from now on has so many reports at once, and then nothing to say.
    pub(crate) fn flood(&self, reports: u64) {
        self.service.flood.store(reports, Ordering::Relaxed);
    }

    /// The same, and then one that it is Verified.
    pub(crate) fn flood_and_finish(&self, reports: u64) {
        self.flood(reports);
        self.service.finishes.store(1, Ordering::Relaxed);
    }

    /// Reports that a flood has got rid of.
    pub(crate) fn told(&self) -> usize {
        self.service.told.load(Ordering::Relaxed)
    }

    /// So many Cancels fail from now on, as those of an agent that is restarted.
    pub(crate) fn fail_cancels(&self, count: usize) {
        self.service.failing.store(count, Ordering::Relaxed);
    }

    /// Cancels since the last look.
    pub(crate) fn cancels(&self) -> usize {
        self.service.cancels.swap(0, Ordering::Relaxed)
    }

    /// What it was told to prepare.
    pub(crate) fn prepared(&self) -> Vec<PrepareRequest> {
        self.service.prepared.lock().unwrap().clone()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn none<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("a stand-in has nothing to say to it"))
}

#[tonic::async_trait]
impl Agent for Service {
    async fn stat(&self, _: Request<StatRequest>) -> Result<Response<StatResponse>, Status> {
        none()
    }

    async fn prepare(
        &self,
        request: Request<PrepareRequest>,
    ) -> Result<Response<PrepareResponse>, Status> {
        self.prepared.lock().unwrap().push(request.into_inner());
        Ok(Response::new(Default::default()))
    }

    async fn start(&self, _: Request<StartRequest>) -> Result<Response<StartResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    type ProgressStream = Pin<Box<dyn Stream<Item = Result<ProgressResponse, Status>> + Send>>;

    /// A message now, and one for each beat: its number is the bytes.
    async fn progress(
        &self,
        _: Request<ProgressRequest>,
    ) -> Result<Response<Self::ProgressStream>, Status> {
        let told = |bytes| {
            Ok(ProgressResponse {
                bytes,
                ..ProgressResponse::default()
            })
        };
        let reports = self.flood.load(Ordering::Relaxed);
        if reports > 0 {
            let count = Arc::clone(&self.told);
            let flood = stream::iter(0..reports).map(move |bytes| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(ProgressResponse {
                    bytes,
                    message: "x".repeat(1000),
                    ..ProgressResponse::default()
                })
            });
            let finishes = self.finishes.load(Ordering::Relaxed) > 0;
            let last = ProgressResponse {
                bytes: reports,
                state: State::Verified.into(),
                ..ProgressResponse::default()
            };
            let last = stream::iter(finishes.then_some(Ok(last)));
            let all = flood.chain(last).chain(stream::pending());
            return Ok(Response::new(Box::pin(all)));
        }
        let beats = WatchStream::new(self.beats.subscribe());
        Ok(Response::new(Box::pin(beats.map(told))))
    }

    async fn cancel(&self, _: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        self.cancels.fetch_add(1, Ordering::Relaxed);
        let take = |left: usize| left.checked_sub(1);
        let fails = self
            .failing
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if fails.is_ok() {
            return Err(Status::unavailable("shutting down"));
        }
        Ok(Response::new(Default::default()))
    }

    type FetchManifestStream = Pin<Box<dyn Stream<Item = Result<ManifestPart, Status>> + Send>>;

    async fn fetch_manifest(
        &self,
        _: Request<FetchManifestRequest>,
    ) -> Result<Response<Self::FetchManifestStream>, Status> {
        none()
    }

    async fn connect(
        &self,
        _: Request<ConnectRequest>,
    ) -> Result<Response<ConnectResponse>, Status> {
        none()
    }

    async fn offer_queue_pair(
        &self,
        _: Request<OfferQueuePairRequest>,
    ) -> Result<Response<OfferQueuePairResponse>, Status> {
        none()
    }

    async fn list_pod_devices(
        &self,
        _: Request<ListPodDevicesRequest>,
    ) -> Result<Response<ListPodDevicesResponse>, Status> {
        none()
    }

    async fn diagnose(
        &self,
        _: Request<DiagnoseRequest>,
    ) -> Result<Response<DiagnoseResponse>, Status> {
        none()
    }

    type ReadMetricsStream = Pin<Box<dyn Stream<Item = Result<MetricsPart, Status>> + Send>>;

    /// A page without an end.
    async fn read_metrics(
        &self,
        _: Request<ReadMetricsRequest>,
    ) -> Result<Response<Self::ReadMetricsStream>, Status> {
        let part = MetricsPart {
            text: vec![b'#'; 64 << 10],
        };
        let parts = stream::repeat_with(move || Ok(part.clone()));
        Ok(Response::new(Box::pin(parts)))
    }
}
