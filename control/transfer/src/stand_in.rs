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
    agent_server::{Agent, AgentServer},
    *,
};

use super::{Contact, Mandate, Place, Spec, Tempo};

/// A transfer from n0 to n1.
pub(super) fn spec(topology: Topology, tempo: Tempo) -> Spec {
    let place = |node: &str| Place {
        node: node.into(),
        root: "data".into(),
        path: "x".into(),
    };
    Spec {
        uid: "uid".into(),
        name: None,
        source: place("n0"),
        object: None,
        destinations: vec![place("n1")],
        topology,
        strategy: Strategy::Direct,
        payload_share: 1.0,
        algorithm: Algorithm::Blake3,
        backoff_limit: 6,
        expect: String::new(),
        overwrite: Overwrite::IfDifferent,
        tempo,
        mandate: Mandate::ONLY,
    }
}

/// A running one.
pub(super) struct StandIn {
    pub(super) contact: Contact,
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
}

impl StandIn {
    pub(super) async fn start(authority: &Authority, node: &str) -> Self {
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
            contact: Contact {
                node: node.to_owned(),
                address: served.await.unwrap().to_string(),
            },
            service,
            runtime: Some(runtime),
        }
    }

    /// Its process ends.
    pub(super) async fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let end = move || runtime.shutdown_timeout(Duration::from_secs(10));
            tokio::task::spawn_blocking(end).await.unwrap();
        }
    }

    /// Its process ends, and another one begins in its place.
    pub(super) async fn restart(&mut self, authority: &Authority) {
        self.kill().await;
        let (contact, service) = (self.contact.clone(), self.service.clone());
        let address = contact.address.parse().unwrap();
        *self = Self::at(address, service, authority, &contact.node).await;
    }

    /// Connections so far.
    pub(super) fn connections(&self) -> usize {
        self.service.connections.load(Ordering::Relaxed)
    }

    /// Every progress stream says something.
    pub(super) fn beat(&self) {
        self.service.beats.send_modify(|beat| *beat += 1);
    }

    /// Each progress stream that begins from now on has so many reports at once, and then nothing to say.
    pub(super) fn flood(&self, reports: u64) {
        self.service.flood.store(reports, Ordering::Relaxed);
    }

    /// Reports that a flood has got rid of.
    pub(super) fn told(&self) -> usize {
        self.service.told.load(Ordering::Relaxed)
    }

    /// What it was told to prepare.
    pub(super) fn prepared(&self) -> Vec<PrepareRequest> {
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
            return Ok(Response::new(Box::pin(flood.chain(stream::pending()))));
        }
        let beats = WatchStream::new(self.beats.subscribe());
        Ok(Response::new(Box::pin(beats.map(told))))
    }

    async fn cancel(&self, _: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
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

    async fn diagnose(
        &self,
        _: Request<DiagnoseRequest>,
    ) -> Result<Response<DiagnoseResponse>, Status> {
        none()
    }
}
