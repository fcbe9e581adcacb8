//! Many agents in one process: each enrolls with a token of its own, reports once a second and serves
//! the agents' control API, all over mutual TLS as real ones do.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::IntervalStream;
use tonic::transport::ServerTlsConfig;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server};
use weft_identity::OPERATOR_NAME;
use weft_proto::agent::v1::agent_server::AgentServer;
use weft_proto::operator::v1::operator_client::OperatorClient;
use weft_proto::operator::v1::{EnrollRequest, EnrollResponse, NodeReport, Ports};

use super::ClusterBenchError;
use super::stand_in::StandIn;

/// After a call that failed: the operator may not know the node yet.
const AGAIN: Duration = Duration::from_secs(1);

/// One agent, before it enrolls.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// Its node.
    pub(super) node: String,
    /// Of the agent's pod.
    pub(super) token: String,
    /// Of its data path; never used.
    pub(super) data_address: Ipv4Addr,
}

/// What they all have in common.
#[derive(Debug)]
pub(super) struct Fleet {
    /// Their fabric.
    pub(super) fabric: String,
    /// HOST:PORT of the operator.
    pub(super) operator: String,
    /// PEM of the ConfigMap weft-ca.
    pub(super) authorities: String,
    /// Where they serve.
    pub(super) address: Ipv4Addr,
    /// How long a transfer takes.
    pub(super) transfer: Duration,
    /// Between two reports.
    pub(super) report: Duration,
    /// Those that have enrolled, with what they report.
    pub(super) joined: Mutex<Vec<(String, NodeReport)>>,
    /// How many have a stream of reports.
    pub(super) reporting: AtomicUsize,
}

impl Fleet {
    /// Starts one; it goes on until the process ends.
    pub(super) async fn join(self: Arc<Self>, member: Member) -> Result<(), ClusterBenchError> {
        let key = KeyPair::generate().map_err(ClusterBenchError::fleet(&member.node))?;
        let request = CertificateParams::default()
            .serialize_request(&key)
            .and_then(|request| request.pem())
            .map_err(ClusterBenchError::fleet(&member.node))?;
        let answer = self.enroll(&member, &request).await?;
        let identity = Identity::from_pem(&answer.certificate, key.serialize_pem());
        let listener = TcpListener::bind((self.address, 0))
            .await
            .map_err(ClusterBenchError::fleet(&member.node))?;
        let control = listener
            .local_addr()
            .map_err(ClusterBenchError::fleet(&member.node))?;
        let tls = ServerTlsConfig::new()
            .identity(identity.clone())
            .client_ca_root(Certificate::from_pem(&answer.authorities));
        let served = Server::builder()
            .tls_config(tls)
            .map_err(ClusterBenchError::fleet(&member.node))?
            .add_service(AgentServer::new(StandIn::new(&member.node, self.transfer)))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
        tokio::spawn(served);
        let report = NodeReport {
            configuration: answer.config.unwrap_or_default().pod_configuration,
            ..report(&member, control)
        };
        self.joined().push((member.node.clone(), report.clone()));
        tokio::spawn(async move {
            loop {
                if let Err(error) = self.report(&report, &identity).await {
                    tracing::debug!(node = member.node, "reports no longer: {error}");
                }
                sleep(AGAIN).await;
            }
        });
        Ok(())
    }

    fn joined(&self) -> MutexGuard<'_, Vec<(String, NodeReport)>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that have enrolled, with what they report.
    pub(super) fn reports(&self) -> Vec<(String, NodeReport)> {
        self.joined().clone()
    }

    async fn enroll(
        &self,
        member: &Member,
        request: &str,
    ) -> Result<EnrollResponse, ClusterBenchError> {
        let request = EnrollRequest {
            fabric: self.fabric.clone(),
            certificate_request: request.to_owned(),
            token: member.token.clone(),
        };
        let mut last = None;
        for _ in 0..60 {
            let answer = match self.dial(None).await {
                Ok(mut operator) => operator.enroll(request.clone()).await,
                Err(error) => Err(tonic::Status::from_error(error.into())),
            };
            match answer {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => last = Some(status),
            }
            sleep(AGAIN).await;
        }
        let why = last.map_or_else(String::new, |status| status.message().to_owned());
        Err(ClusterBenchError::Fleet {
            node: member.node.clone(),
            problem: format!("not enrolled within 60 tries: {why}"),
        })
    }

    /// One stream of reports, until it ends.
    async fn report(
        &self,
        report: &NodeReport,
        identity: &Identity,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut operator = self.dial(Some(identity.clone())).await?;
        let mut ticks = interval(self.report);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let report = report.clone();
        let reports = IntervalStream::new(ticks).map(move |_| report.clone());
        let mut orders = operator.report(reports).await?.into_inner();
        self.reporting.fetch_add(1, Ordering::Relaxed);
        let ended = async {
            while orders.message().await?.is_some() {}
            Ok::<(), tonic::Status>(())
        }
        .await;
        self.reporting.fetch_sub(1, Ordering::Relaxed);
        Ok(ended?)
    }

    async fn dial(
        &self,
        identity: Option<Identity>,
    ) -> Result<OperatorClient<Channel>, tonic::transport::Error> {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.authorities))
            .domain_name(OPERATOR_NAME);
        if let Some(identity) = identity {
            tls = tls.identity(identity);
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", self.operator))?;
        let channel = endpoint.tls_config(tls)?.connect().await?;
        Ok(OperatorClient::new(channel))
    }
}

fn report(member: &Member, control: SocketAddr) -> NodeReport {
    NodeReport {
        control_address: control.to_string(),
        data_address: member.data_address.to_string(),
        interface: "data0".to_owned(),
        mtu: 9000,
        link_mbps: 100_000,
        ports: Some(Ports {
            first: 7500,
            count: 16,
        }),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ready: true,
        ..NodeReport::default()
    }
}
