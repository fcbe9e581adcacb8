//! The operator's control API: lets agents enroll, and receives their reports.
//!
//! Only a leader serves it. Who calls is decided here: by the token at Enroll, by the certificate at
//! Report; no message says of which node it is. Who belongs to a fabric is what the controllers say.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{Instant, sleep},
};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};
use weft_identity::{
    authority::{Authority, AuthorityError},
    metrics_access::{MetricsAccess, Review, Verdict},
    role::{Holder, Role},
    tls::{self, ClientCertificate, TlsError},
    tls_listener::{TlsListener, TlsRefusals},
};
use weft_metrics::{register, table};
use weft_proto::claims::v1::{FindClaimRequest, FindClaimResponse};
use weft_proto::operator::v1::{
    EnrollRequest, EnrollResponse, FindJobRequest, FindJobResponse, FindNodeRequest,
    FindNodeResponse, NodeConfig, NodeConfigUpdate, NodeNic, NodeReport, ReviewMetricsTokenRequest,
    ReviewMetricsTokenResponse,
    operator_server::{Operator, OperatorServer},
};

use crate::{
    claims::Claims,
    enrollment_limit::{EnrollmentLimit, ReviewLimit},
    fault::Fault,
    pod_jobs::PodJobs,
    refused_attempts::RefusedAttempts,
    reports::{Fabrics, NodeState, Reports},
    review::{AUDIENCE, Reviews},
};

/// Where the API server says on which node a token's pod is.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// A token has some 1.5 kB, a request 1 kB, a report with 32 findings and 48 KiB of copies 90 kB at most.
const MESSAGE_BYTES_MAX: usize = 128 << 10;
/// Of these a node's status holds as many.
const FINDINGS_MAX: usize = 32;
/// Of a finding's message; the rest is cut.
const FINDING_BYTES_MAX: usize = 1024;
/// Of a name: what Kubernetes takes for one.
const NAME_BYTES_MAX: usize = 253;
/// Of an IPv4 packet (RFC 791).
const MTU_MAX: u32 = 65_535;
/// Of one report, as agents send them.
const REFUSED_ATTEMPTS_MAX: usize = 16;
/// NICs of a report: as many as an engine has.
const NICS_MAX: usize = 16;
/// With [`PING_TIMEOUT`]: a node that vanished without a word gives its stream up after 20 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls on one connection at a time: an agent needs three, its reports and two reviews of tokens. A caller without a certificate can hold as many messages.
const STREAMS_MAX: u32 = 4;
/// Calls of FindJob and FindClaim of one node at a time, on however many connections: the API server is asked for all nodes in a few
/// turns, and a stolen certificate must not take them all.
const OPEN_CALLS_MAX: usize = 2;
/// Updates on their way to an agent: each holds the whole configuration.
const CONFIG_UPDATES: usize = 1;

/// What is counted.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    enrolled: Counter,
    connected: Gauge,
    reports: Counter,
    refused: Family<Vec<(&'static str, &'static str)>, Counter>,
    pub(crate) tls_refusals: TlsRefusals,
}

impl Metrics {
    /// Shows it.
    pub fn register(&self, registry: &mut Registry) {
        register(registry, &table::OPERATOR_ENROLLED, self.enrolled.clone());
        register(registry, &table::OPERATOR_AGENTS, self.connected.clone());
        register(registry, &table::OPERATOR_REPORTS, self.reports.clone());
        register(registry, &table::OPERATOR_REFUSED, self.refused.clone());
        let metric = &table::OPERATOR_TLS_REFUSED;
        self.tls_refusals.register(registry, metric);
    }
}

/// What the control API works with.
pub(crate) struct Control {
    /// Issues the certificates.
    pub authority: Arc<Authority>,
    /// The leader's: agents refuse commands of earlier ones from their first answer on.
    pub epoch: u64,
    /// How often an address may call Enroll.
    pub limit: EnrollmentLimit,
    /// Knows whose a token is.
    pub reviews: Reviews,
    /// Knows who may read metrics.
    pub metrics_access: Arc<MetricsAccess>,
    /// How often a node may ask that.
    pub review_limit: ReviewLimit,
    /// Knows which jobs and namespaces there are.
    pub pod_jobs: PodJobs,
    /// Knows which devices a claim has.
    pub claims: Claims,
    /// Tells pods what one tried with the device of the other and may not.
    pub refused_attempts: Arc<RefusedAttempts>,
    /// The calls that wait for the API server.
    pub open_calls: OpenCalls,
    /// The agents' service account, `system:serviceaccount:NAMESPACE:NAME`.
    pub account: String,
    /// Which fabrics there are, with their nodes and the configuration of those.
    pub fabrics: watch::Receiver<Fabrics>,
    /// Where reports go.
    pub reports: Reports,
    /// What is counted.
    pub metrics: Metrics,
}

/// Counts the unanswered calls of each node that has any.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls(Mutex<BTreeMap<String, Arc<Semaphore>>>);

impl OpenCalls {
    /// Counts a call of a node until what it returns is dropped, or refuses it.
    fn open(&self, node: &str) -> Result<OwnedSemaphorePermit, Fault> {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|_, free| free.available_permits() < OPEN_CALLS_MAX);
        let free = nodes
            .entry(node.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(OPEN_CALLS_MAX)));
        let opened = Arc::clone(free).try_acquire_owned();
        opened.map_err(|_| Fault::TooManyOpenCalls {
            most: OPEN_CALLS_MAX,
        })
    }
}

/// Why the control API is not served.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No certificate for it.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// TLS refuses what the authority gave.
    #[error("the control API cannot be served: {0}; see the Secret weft-ca")]
    Tls(#[from] TlsError),
    /// The server failed.
    #[error("the control API cannot be served: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves the control API until it fails; `names` are further DNS names of this server.
pub(crate) async fn serve(
    listener: TcpListener,
    control: Control,
    names: &[&str],
) -> Result<(), ControlError> {
    let identity = control.authority.operator_server(names)?;
    let tls = tls::server(
        identity.certificate.as_bytes(),
        identity.key.as_bytes(),
        control.authority.certificate().as_bytes(),
        // Enroll is called without one.
        ClientCertificate::Optional,
        tls::HTTP2,
    )?;
    let refusals = control.metrics.tls_refusals.clone();
    let listener = TlsListener::new(Arc::new(listener), Arc::new(tls), refusals);
    let service = OperatorServer::new(control).max_decoding_message_size(MESSAGE_BYTES_MAX);
    Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_concurrent_streams(STREAMS_MAX)
        .add_service(service)
        .serve_with_incoming(listener.connections(std::future::pending()))
        .await?;
    Ok(())
}

/// The node that a reviewed token's pod is on.
fn admit(status: &TokenReviewStatus, account: &str) -> Result<String, Fault> {
    let refused = |problem: &str| Fault::TokenRefused {
        problem: problem.to_owned(),
    };
    if status.authenticated != Some(true) {
        return Err(refused(
            status.error.as_deref().unwrap_or("nobody is known by it"),
        ));
    }
    let audiences = status.audiences.iter().flatten();
    if !audiences.into_iter().any(|audience| audience == AUDIENCE) {
        return Err(refused("it is made for another audience"));
    }
    let user = status.user.clone().unwrap_or_default();
    let name = user.username.unwrap_or_default();
    if name != account {
        return Err(Fault::WrongAccount {
            account: name,
            expected: account.to_owned(),
        });
    }
    match user
        .extra
        .unwrap_or_default()
        .get(NODE_NAME)
        .map(Vec::as_slice)
    {
        Some([node]) if !node.is_empty() => Ok(node.clone()),
        _ => Err(Fault::TokenWithoutNode),
    }
}

/// The configuration of a fabric's agents, if the node is one of its.
fn config_of(fabrics: &Fabrics, fabric: &str, node: &str) -> Result<NodeConfig, Fault> {
    let name = fabric.to_owned();
    match fabrics.get(fabric) {
        None => Err(Fault::NoFabric { fabric: name }),
        Some(view) if view.nodes.contains(node) => Ok(view.config.clone()),
        Some(_) => Err(Fault::NotOfFabric { fabric: name }),
    }
}

/// A node of a fabric, by its certificate.
struct Caller {
    fabric: String,
    node: String,
    /// When the certificate ends, seconds since the Unix epoch.
    until_unix_s: u64,
}

impl Control {
    async fn enroll(&self, request: EnrollRequest) -> Result<EnrollResponse, (Fault, String)> {
        let unknown = |fault| (fault, String::new());
        let status = self.reviews.of(request.token).await.map_err(unknown)?;
        let node = admit(&status, &self.account).map_err(unknown)?;
        let known = |fault: Fault| (fault, node.clone());
        let config = config_of(&self.fabrics.borrow(), &request.fabric, &node).map_err(known)?;
        let authority = self.authority.of_fabric(&request.fabric);
        let certificate = authority
            .certify_node(&node, &request.certificate_request)
            .map_err(|error| known(error.into()))?;
        tracing::info!(node, fabric = request.fabric, "enrolled");
        Ok(EnrollResponse {
            node,
            certificate,
            authorities: authority.certificate().to_owned(),
            config: Some(config),
            leader_epoch: self.epoch,
        })
    }

    /// The node whose certificate the call shows.
    fn admit_node<T>(&self, request: &Request<T>) -> Result<Caller, (Fault, String)> {
        let unknown = |fault| (fault, String::new());
        let chain = request.peer_certs();
        let leaf = chain.as_ref().and_then(|chain| chain.first());
        let leaf = leaf.ok_or_else(|| unknown(Fault::NoCertificate))?;
        // TLS has checked it against the authority before.
        let holder = Holder::read(leaf).map_err(|error| unknown(error.into()))?;
        let Role::Node(node) = holder.role else {
            let uri = holder.role.uri(&holder.fabric);
            let problem = format!("says `{uri}`, which is no node of a fabric");
            return Err(unknown(Fault::WrongCertificate { problem }));
        };
        match config_of(&self.fabrics.borrow(), &holder.fabric, &node) {
            Ok(_) => Ok(Caller {
                fabric: holder.fabric,
                node,
                until_unix_s: holder.until_unix_s,
            }),
            Err(fault) => Err((fault, node)),
        }
    }

    fn refuse(&self, call: &'static str, (fault, node): &(Fault, String)) -> Status {
        self.metrics.refuse(call, fault);
        tracing::warn!(call, node, reason = fault.reason(), "refused: {fault}");
        fault.to_status(node)
    }
}

impl Metrics {
    pub(crate) fn refuse(&self, call: &'static str, fault: &Fault) {
        let labels = table::OPERATOR_REFUSED.with([call, fault.reason()]);
        self.refused.get_or_create(&labels.to_vec()).inc();
    }
}

#[tonic::async_trait]
impl Operator for Control {
    async fn enroll(
        &self,
        request: Request<EnrollRequest>,
    ) -> Result<Response<EnrollResponse>, Status> {
        // The server has accepted the call from somewhere.
        let address = request.remote_addr().map(|from| from.ip());
        let address = address.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
        if let Err(fault) = self.limit.check(address) {
            return Err(self.refuse("Enroll", &(fault, String::new())));
        }
        match Self::enroll(self, request.into_inner()).await {
            Ok(response) => {
                self.metrics.enrolled.inc();
                Ok(Response::new(response))
            }
            Err(refused) => Err(self.refuse("Enroll", &refused)),
        }
    }

    async fn find_node(
        &self,
        request: Request<FindNodeRequest>,
    ) -> Result<Response<FindNodeResponse>, Status> {
        let refuse = |refused| self.refuse("FindNode", &refused);
        let caller = self.admit_node(&request).map_err(refuse)?;
        let address = request.into_inner().data_address;
        let found = self
            .reports
            .at_address(&caller.fabric, &address, Instant::now());
        match found.as_slice() {
            [(node, control_address)] => Ok(Response::new(FindNodeResponse {
                node: node.clone(),
                control_address: control_address.clone(),
            })),
            found => {
                let fault = Fault::NoNode {
                    address: weft_transfer::excerpt(&address, NAME_BYTES_MAX),
                    found: found.len(),
                };
                Err(refuse((fault, caller.node)))
            }
        }
    }

    async fn find_job(
        &self,
        request: Request<FindJobRequest>,
    ) -> Result<Response<FindJobResponse>, Status> {
        let refuse = |refused| self.refuse("FindJob", &refused);
        let caller = self.admit_node(&request).map_err(refuse)?;
        let found = async {
            let _open = self.open_calls.open(&caller.node)?;
            self.pod_jobs.find(request.get_ref()).await
        };
        let found = found.await;
        let found = found.map_err(|fault| refuse((fault, caller.node)))?;
        Ok(Response::new(found))
    }

    async fn find_claim(
        &self,
        request: Request<FindClaimRequest>,
    ) -> Result<Response<FindClaimResponse>, Status> {
        let refuse = |refused| self.refuse("FindClaim", &refused);
        let caller = self.admit_node(&request).map_err(refuse)?;
        let found = async {
            let _open = self.open_calls.open(&caller.node)?;
            self.claims.find(&caller.node, request.get_ref()).await
        };
        match found.await {
            Ok(found) => Ok(Response::new(found)),
            Err(fault) => Err(refuse((fault, caller.node))),
        }
    }

    async fn review_metrics_token(
        &self,
        request: Request<ReviewMetricsTokenRequest>,
    ) -> Result<Response<ReviewMetricsTokenResponse>, Status> {
        let refuse = |refused| self.refuse("ReviewMetricsToken", &refused);
        let caller = self.admit_node(&request).map_err(refuse)?;
        let reviewed = async {
            self.review_limit.check(&caller.node)?;
            let token = request.into_inner().token;
            let reviewed = self.metrics_access.review(&token).await;
            reviewed.map_err(Fault::MetricsNotReviewed)
        };
        match reviewed.await {
            Ok(review) => Ok(Response::new(review_response(review))),
            Err(fault) => Err(refuse((fault, caller.node))),
        }
    }

    type ReportStream = Pin<Box<dyn Stream<Item = Result<NodeConfigUpdate, Status>> + Send>>;

    async fn report(
        &self,
        request: Request<Streaming<NodeReport>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let caller = self
            .admit_node(&request)
            .map_err(|refused| self.refuse("Report", &refused))?;
        tracing::info!(caller.node, caller.fabric, "reports");
        let (config_updates, receiver) = mpsc::channel(CONFIG_UPDATES);
        let stream = ReportStream {
            reports: self.reports.clone(),
            refused_attempts: Arc::clone(&self.refused_attempts),
            number: self.reports.open(),
            caller,
            fabrics: self.fabrics.clone(),
            epoch: self.epoch,
            config_updates,
            metrics: self.metrics.clone(),
        };
        tokio::spawn(stream.run(request.into_inner()));
        let config_updates = ReceiverStream::new(receiver).map(|update| *update);
        Ok(Response::new(Box::pin(config_updates)))
    }
}

fn review_response(Review { verdict, valid_for }: Review) -> ReviewMetricsTokenResponse {
    let allowed = matches!(verdict, Verdict::Allowed { .. });
    let (user, problem) = match verdict {
        Verdict::Allowed { user } | Verdict::Forbidden { user } => (user, String::new()),
        Verdict::Unknown { problem } => (String::new(), problem),
    };
    ReviewMetricsTokenResponse {
        user,
        allowed,
        problem,
        valid_for_ms: u32::try_from(valid_for.as_millis()).unwrap_or(u32::MAX),
    }
}

/// One agent's stream of reports, and the configuration updates that answer it.
struct ReportStream {
    caller: Caller,
    reports: Reports,
    refused_attempts: Arc<RefusedAttempts>,
    /// Later streams have greater ones.
    number: u64,
    fabrics: watch::Receiver<Fabrics>,
    epoch: u64,
    /// Boxed: a channel keeps room for 32 of what it carries, and every agent has one.
    config_updates: mpsc::Sender<Box<Result<NodeConfigUpdate, Status>>>,
    metrics: Metrics,
}

impl ReportStream {
    async fn run(mut self, reports: Streaming<NodeReport>) {
        let node = self.caller.node.clone();
        self.metrics.connected.inc();
        let received = self.receive_reports(reports).await;
        self.metrics.connected.dec();
        match received {
            Ok(()) => tracing::info!(node, "reports no longer"),
            Err(fault) => {
                self.metrics.refuse("Report", &fault);
                tracing::warn!(node, reason = fault.reason(), "reports no longer: {fault}");
                // An agent that has gone needs no reason.
                let _ = self
                    .config_updates
                    .send(Box::new(Err(fault.to_status(&node))))
                    .await;
            }
        }
    }

    /// Until the stream ends, or the agent may report no more.
    async fn receive_reports(&mut self, mut reports: Streaming<NodeReport>) -> Result<(), Fault> {
        let mut ended = std::pin::pin!(sleep(remaining(self.caller.until_unix_s)));
        // The last update that was sent; none before the first report.
        let mut last_sent: Option<NodeConfigUpdate> = None;
        loop {
            tokio::select! {
                report = reports.message() => match report {
                    Ok(Some(mut report)) => {
                        self.metrics.reports.inc();
                        validate_report(&mut report)?;
                        let refused = std::mem::take(&mut report.refused_attempts);
                        let state = NodeState {
                            stream: self.number,
                            ..NodeState::new(&self.caller.fabric, report, Instant::now())
                        };
                        if !self.reports.put(&self.caller.node, state) {
                            return Err(Fault::Superseded);
                        }
                        self.refused_attempts.report(&self.caller.node, &refused);
                        if last_sent.is_none() && !self.send_config(&mut last_sent).await? {
                            return Ok(());
                        }
                    }
                    // The stream has ended or failed.
                    Ok(None) | Err(_) => return Ok(()),
                },
                changed = self.fabrics.changed() => {
                    if changed.is_err() || !self.send_config(&mut last_sent).await? {
                        return Ok(());
                    }
                }
                () = &mut ended => return Err(Fault::CertificateEnded),
            }
        }
    }

    /// Sends the configuration if it is another than the last; false when the agent is gone.
    async fn send_config(
        &mut self,
        last_sent: &mut Option<NodeConfigUpdate>,
    ) -> Result<bool, Fault> {
        let Caller { fabric, node, .. } = &self.caller;
        let config = config_of(&self.fabrics.borrow_and_update(), fabric, node)?;
        let update = NodeConfigUpdate {
            config: Some(config),
            leader_epoch: self.epoch,
        };
        if last_sent.as_ref() == Some(&update) {
            return Ok(true);
        }
        *last_sent = Some(update.clone());
        Ok(self.config_updates.send(Box::new(Ok(update))).await.is_ok())
    }
}

/// Refuses or cuts what no agent sends: a report's texts are written to objects, and its addresses are dialled.
fn validate_report(report: &mut NodeReport) -> Result<(), Fault> {
    let bad = |field, problem: &str| Fault::BadRequest {
        field,
        problem: problem.to_owned(),
    };
    // An agent that cannot work yet has no addresses.
    let given = |text: &str| report.ready || !text.is_empty();
    if given(&report.control_address) && report.control_address.parse::<SocketAddr>().is_err() {
        return Err(bad(
            "control_address",
            "give an IP address and port, ADDRESS:PORT",
        ));
    }
    if given(&report.data_address) && report.data_address.parse::<Ipv4Addr>().is_err() {
        return Err(bad("data_address", "give an IPv4 address"));
    }
    let is_nic = |nic: &NodeNic| {
        nic.address.parse::<Ipv4Addr>().is_ok() && nic.interface.len() <= NAME_BYTES_MAX
    };
    if report.nics.len() > NICS_MAX || !report.nics.iter().all(is_nic) {
        let problem = format!(
            "give at most {NICS_MAX}, each with an IPv4 address and at most 253 bytes of interface"
        );
        return Err(bad("nics", &problem));
    }
    if report.refused_attempts.len() > REFUSED_ATTEMPTS_MAX {
        let problem = format!("give at most {REFUSED_ATTEMPTS_MAX}");
        return Err(bad("refused_attempts", &problem));
    }
    if report.mtu > MTU_MAX {
        return Err(bad("mtu", "give the bytes of an IP packet, at most 65535"));
    }
    let NodeReport {
        interface,
        pcie_root,
        version,
        configuration,
        ..
    } = &*report;
    let names = [interface, pcie_root, version, configuration];
    if names.iter().any(|name| name.len() > NAME_BYTES_MAX) {
        return Err(bad(
            "interface, pcie_root, version, configuration",
            "give at most 253 bytes",
        ));
    }
    if let Some(devices) = &mut report.devices {
        // It becomes the reason of a condition.
        let is_word = devices.reason.chars().all(|c| c.is_ascii_alphabetic());
        if !is_word || devices.reason.len() > NAME_BYTES_MAX {
            let problem = "give at most 253 letters, or nothing";
            return Err(bad("devices.reason", problem));
        }
        devices.message = weft_transfer::excerpt(&devices.message, FINDING_BYTES_MAX);
    }
    report.findings.truncate(FINDINGS_MAX);
    for finding in &mut report.findings {
        if finding.reason.len() > NAME_BYTES_MAX {
            return Err(bad("findings.reason", "give at most 253 bytes"));
        }
        finding.message = weft_transfer::excerpt(&finding.message, FINDING_BYTES_MAX);
    }
    Ok(())
}

fn remaining(until_unix_s: u64) -> Duration {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Duration::from_secs(until_unix_s).saturating_sub(now)
}

#[cfg(test)]
mod tests;
