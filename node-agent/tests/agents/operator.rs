//! The operator of a cluster, as far as agents see it: enrolment, reports, orders.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::net::TcpListener;
use tokio::sync::{RwLock, RwLockReadGuard, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{TcpListenerStream, WatchStream};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use weft_agent::enroll::{self, EnrollError, Settings, Timing};
use weft_proto::Message as _;
use weft_proto::agent::v1::ErrorDetail;
use weft_proto::claims::v1::{AllocatedDevice, FindClaimRequest, FindClaimResponse};
use weft_proto::operator::v1::operator_server::{Operator as Serve, OperatorServer};
use weft_proto::operator::v1::*;

use crate::support::{DEADLINE, Lab, eventually};

/// Life of a certificate that is not renewed during a test, seconds from now.
const DAY: Range<i64> = -60..86_400;
/// Before the node's name.
pub(crate) const TOKEN: &str = "token of ";

/// What the operator does and has heard.
#[derive(Clone)]
pub(crate) struct Operator(Arc<Inner>);

struct Inner {
    lab: RwLock<Lab>,
    /// Of certificates to come.
    life: Mutex<Range<i64>>,
    config: watch::Sender<NodeConfig>,
    epoch: watch::Sender<u64>,
    requests: Mutex<Vec<EnrollRequest>>,
    /// By their names.
    jobs: Mutex<HashMap<String, Job>>,
    reports: watch::Sender<Vec<NodeReport>>,
    streams: AtomicUsize,
    reviews: AtomicUsize,
    callers: AtomicUsize,
    up: watch::Sender<bool>,
}

/// A running one: it can be taken away.
pub(crate) struct Running {
    operator: Operator,
    served: JoinHandle<()>,
}

/// A running agent.
pub(crate) struct Member {
    pub(crate) settings: Settings,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), EnrollError>>,
}

impl Operator {
    pub(crate) fn new(lab: Lab) -> Self {
        let engine = EngineConfig {
            transport: None,
            ports: Some(Ports {
                first: 7410,
                count: 2,
            }),
            nics: None,
            devices: None,
        };
        let agent = AgentConfig {
            fabric: "lab".to_owned(),
            ticket_key: lab.ticket_key(),
            roots: vec![Root {
                name: "data".to_owned(),
                writable: true,
                host_path: "/var/lib/weft/data".to_owned(),
                ..Root::default()
            }],
            objects: None,
            egress: None,
        };
        let config = NodeConfig {
            engine: Some(engine),
            agent: Some(agent),
            pod_configuration: "1".to_owned(),
        };
        Self(Arc::new(Inner {
            lab: RwLock::new(lab),
            life: Mutex::new(DAY),
            config: watch::Sender::new(config),
            epoch: watch::Sender::new(1),
            requests: Mutex::default(),
            jobs: Mutex::default(),
            reports: watch::Sender::default(),
            streams: AtomicUsize::new(0),
            reviews: AtomicUsize::new(0),
            callers: AtomicUsize::new(0),
            up: watch::Sender::default(),
        }))
    }

    /// The fabric that it is of.
    pub(crate) async fn lab(&self) -> RwLockReadGuard<'_, Lab> {
        self.0.lab.read().await
    }

    /// Replaces the authority. Certificates are of the new one from now on.
    pub(crate) async fn rotate(&self) {
        self.0.lab.write().await.renew(0..0);
    }

    pub(crate) fn set_life(&self, life: Range<i64>) {
        *self.0.life.lock().unwrap() = life;
    }

    /// Changes what a running agent takes over, and tells all agents.
    pub(crate) fn set_agent(&self, change: impl FnOnce(&mut AgentConfig)) {
        let config = &self.0.config;
        config.send_modify(|config| change(config.agent.as_mut().unwrap()));
    }

    /// Changes what agents are started with from now on, and tells all agents.
    pub(crate) fn set_engine(&self, name: &str, change: impl FnOnce(&mut EngineConfig)) {
        self.0.config.send_modify(|config| {
            change(config.engine.as_mut().unwrap());
            name.clone_into(&mut config.pod_configuration);
        });
    }

    /// A job has this name from now on.
    pub(crate) fn set_job(&self, name: &str, job: Job) {
        self.0.jobs.lock().unwrap().insert(name.to_owned(), job);
    }

    /// Another one leads from now on, and says so to whoever asks or listens.
    pub(crate) fn lead(&self, epoch: u64) {
        self.0.epoch.send_replace(epoch);
    }

    /// All requests to enrol so far.
    pub(crate) fn requests(&self) -> Vec<EnrollRequest> {
        self.0.requests.lock().unwrap().clone()
    }

    /// Tokens that agents have asked about so far.
    pub(crate) fn reviews(&self) -> usize {
        self.0.reviews.load(Ordering::Relaxed)
    }

    /// Streams of reports so far.
    pub(crate) fn streams(&self) -> usize {
        self.0.streams.load(Ordering::Relaxed)
    }

    /// Connections so far, whatever became of them.
    pub(crate) fn callers(&self) -> usize {
        self.0.callers.load(Ordering::Relaxed)
    }

    /// The first report from now on that is as wanted.
    pub(crate) async fn report(
        &self,
        what: &str,
        wanted: impl Fn(&NodeReport) -> bool,
    ) -> NodeReport {
        self.0.reports.send_modify(Vec::clear);
        eventually(what, || async {
            self.0.reports.borrow().iter().find(|r| wanted(r)).cloned()
        })
        .await
    }

    /// The next report by which this node is ready.
    pub(crate) async fn ready(&self, node: usize) -> NodeReport {
        let address = self.lab().await.control(node);
        let is_it = |report: &NodeReport| report.ready && report.control_address == address;
        self.report("the node is ready", is_it).await
    }

    /// Where this operator listens, once it does.
    async fn address(&self) -> SocketAddr {
        // No node has this one.
        SocketAddr::new(self.lab().await.address(200).into(), 7410)
    }

    pub(crate) async fn serve(&self) -> Running {
        let lab = self.lab().await;
        std::fs::write(lab.dir.path().join("operator-ca.pem"), lab.authority()).unwrap();
        let pair = lab.issue("weft://lab/operator", "operator.weft");
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(pair.certificate, pair.key))
            .client_ca_root(Certificate::from_pem(lab.authority()))
            .client_auth_optional(true);
        drop(lab);
        let listener = TcpListener::bind(self.address().await).await.unwrap();
        let server = Server::builder()
            .tls_config(tls)
            .unwrap()
            .add_service(OperatorServer::new(self.clone()));
        self.0.up.send_replace(true);
        let (stopped, inner) = (down(self.0.up.subscribe()), self.0.clone());
        let served = tokio::spawn(async move {
            let incoming = TcpListenerStream::new(listener).inspect(move |_| {
                inner.callers.fetch_add(1, Ordering::Relaxed);
            });
            let served = server.serve_with_incoming_shutdown(incoming, stopped);
            served.await.unwrap();
        });
        Running {
            operator: self.clone(),
            served,
        }
    }

    /// Starts a node's agent.
    pub(crate) async fn join(&self, node: usize) -> Member {
        self.join_with(node, |_| {}).await
    }

    /// The same with other settings.
    pub(crate) async fn join_with(
        &self,
        node: usize,
        change: impl FnOnce(&mut Settings),
    ) -> Member {
        let operator = self.address().await.to_string();
        let lab = self.lab().await;
        let file = |name: &str| lab.dir.path().join(name);
        std::fs::create_dir_all(lab.root(node)).unwrap();
        let roots_dir = file(&format!("roots{node}"));
        if !roots_dir.exists() {
            std::fs::create_dir(&roots_dir).unwrap();
            symlink(lab.root(node), roots_dir.join("data")).unwrap();
            std::fs::write(file("operator-ca.pem"), lab.authority()).unwrap();
        }
        let token = file(&format!("token{node}"));
        if !token.exists() {
            std::fs::write(&token, format!("{TOKEN}n{node}\n")).unwrap();
        }
        let mut settings = Settings {
            operator,
            operator_ca: file("operator-ca.pem"),
            token,
            fabric: "lab".parse().unwrap(),
            node: format!("n{node}").parse().unwrap(),
            address: lab.address(node).into(),
            state: file(&format!("state{node}")),
            control_port: 7400,
            metrics_port: 7401,
            metrics_auth: false,
            roots_dir,
            engine_socket: Some(file("engine.sock")),
            volumes: Some(file(&format!("volumes{node}"))),
            pod_configuration: self.0.config.borrow().pod_configuration.clone(),
            objects: Default::default(),
            timing: Timing {
                report: Duration::from_millis(50),
                retry_first: Duration::from_millis(20),
                retry_most: Duration::from_millis(100),
                renew_least: Duration::from_millis(20),
            },
        };
        change(&mut settings);
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(enroll::run(settings.clone(), async {
            let _ = stopped.await;
        }));
        Member {
            settings,
            stop,
            ended,
        }
    }
}

impl Running {
    pub(crate) async fn stop(self) {
        self.operator.0.up.send_replace(false);
        self.served.await.unwrap();
    }
}

impl Member {
    pub(crate) fn state(&self, file: &str) -> PathBuf {
        self.settings.state.join(file)
    }

    /// Why it has ended without being told to.
    pub(crate) async fn ended(self) -> Result<(), EnrollError> {
        let _stop = self.stop;
        let ended = tokio::time::timeout(DEADLINE, self.ended).await;
        ended.expect("it ends").unwrap()
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap().unwrap();
    }
}

#[tonic::async_trait]
impl Serve for Operator {
    async fn enroll(
        &self,
        request: Request<EnrollRequest>,
    ) -> Result<Response<EnrollResponse>, Status> {
        let request = request.into_inner();
        self.0.requests.lock().unwrap().push(request.clone());
        // As a token of Kubernetes says which node its pod is on.
        let Some(node) = request.token.strip_prefix(TOKEN) else {
            let detail = ErrorDetail {
                reason: "TokenRefused".to_owned(),
                ..ErrorDetail::default()
            };
            let (code, message) = (tonic::Code::Unauthenticated, "the token does not hold");
            let details = detail.encode_to_vec().into();
            return Err(Status::with_details(code, message, details));
        };
        let life = self.0.life.lock().unwrap().clone();
        let lab = self.lab().await;
        let (uri, dns) = (
            format!("weft://lab/node/{node}"),
            format!("{node}.lab.weft"),
        );
        let certificate = lab.sign(&request.certificate_request, &uri, &dns, life);
        let authorities = lab.authority();
        Ok(Response::new(EnrollResponse {
            node: node.to_owned(),
            certificate,
            authorities,
            config: Some(self.0.config.borrow().clone()),
            leader_epoch: *self.0.epoch.borrow(),
        }))
    }

    async fn find_node(
        &self,
        _: Request<FindNodeRequest>,
    ) -> Result<Response<FindNodeResponse>, Status> {
        Err(Status::unimplemented("no node here has devices"))
    }

    async fn find_job(
        &self,
        request: Request<FindJobRequest>,
    ) -> Result<Response<FindJobResponse>, Status> {
        let jobs = self.0.jobs.lock().unwrap();
        let found = jobs.get(&request.into_inner().name).cloned();
        Ok(Response::new(FindJobResponse {
            namespace_uid: "namespace-1".to_owned(),
            job: found,
        }))
    }

    /// `reader` may read metrics and `guest` may not.
    async fn review_metrics_token(
        &self,
        request: Request<ReviewMetricsTokenRequest>,
    ) -> Result<Response<ReviewMetricsTokenResponse>, Status> {
        if request.peer_certs().is_none_or(|chain| chain.is_empty()) {
            return Err(Status::unauthenticated("no certificate"));
        }
        self.0.reviews.fetch_add(1, Ordering::Relaxed);
        let user = match request.into_inner().token.as_str() {
            user @ ("reader" | "guest") => user.to_owned(),
            _ => String::new(),
        };
        Ok(Response::new(ReviewMetricsTokenResponse {
            allowed: user == "reader",
            user,
            problem: "nobody has it".to_owned(),
            valid_for_ms: 60_000,
        }))
    }

    /// Every claim has a device, which has the name of the claim.
    async fn find_claim(
        &self,
        request: Request<FindClaimRequest>,
    ) -> Result<Response<FindClaimResponse>, Status> {
        if request.peer_certs().is_none_or(|chain| chain.is_empty()) {
            return Err(Status::unauthenticated("no certificate"));
        }
        let device = AllocatedDevice {
            device: request.into_inner().name,
            ..AllocatedDevice::default()
        };
        Ok(Response::new(FindClaimResponse {
            devices: vec![device],
            ..FindClaimResponse::default()
        }))
    }

    type ReportStream = Pin<Box<dyn Stream<Item = Result<NodeConfigUpdate, Status>> + Send>>;

    async fn report(
        &self,
        request: Request<Streaming<NodeReport>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        if request.peer_certs().is_none_or(|chain| chain.is_empty()) {
            return Err(Status::unauthenticated("no certificate"));
        }
        self.0.streams.fetch_add(1, Ordering::Relaxed);
        let mut reports = request.into_inner();
        let inner = self.0.clone();
        tokio::spawn(async move {
            while let Ok(Some(report)) = reports.message().await {
                inner.reports.send_modify(|all| all.push(report));
            }
        });
        let inner = self.0.clone();
        let configs = WatchStream::new(self.0.config.subscribe()).map(drop);
        let epochs = WatchStream::new(self.0.epoch.subscribe()).map(drop);
        let orders = futures::stream::select(configs, epochs)
            .map(move |()| {
                Ok(NodeConfigUpdate {
                    config: Some(inner.config.borrow().clone()),
                    leader_epoch: *inner.epoch.borrow(),
                })
            })
            .take_until(down(self.0.up.subscribe()));
        Ok(Response::new(Box::pin(orders)))
    }
}

/// Waits until the operator is to go.
async fn down(mut up: watch::Receiver<bool>) {
    let _ = up.wait_for(|up| !*up).await;
}
