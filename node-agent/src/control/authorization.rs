//! Authorization: who is calling, and whether the caller may make this call, before its message is read.
//!
//! A message is decoded whole before its handler runs. A check in the handler would come too late to save
//! memory: a node, which may only send small messages, could have many messages of megabytes decoded.

use std::convert::Infallible;
use std::task::{Context, Poll};
use std::time::Instant;

use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service as Serve, http};
use tonic::server::NamedService;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use weft_proto::agent::v1::agent_server::AgentServer;
use weft_proto::agent::v1::link_measurement_server::LinkMeasurementServer;

use crate::control::service::Service;
use crate::fault::Fault;
use crate::identity::{Caller, caller};
use crate::transfer::agent_client::CONTROL_BYTES_MAX;

/// Largest message of a node: a ticket names two paths of at most 4 KiB, the rest is 200 B.
const CONNECT_BYTES_MAX: usize = 64 << 10;

/// Largest message of the operator: the largest Secret that Kubernetes keeps has 1 MiB.
const OPERATOR_BYTES_MAX: usize = 2 << 20;

/// The calls that agents make; all others are the operator's.
const NODE_CALLS: [&str; 4] = ["Measure", "Connect", "FetchManifest", "OfferQueuePair"];
const OPERATOR_CALLS: [&str; 8] = [
    "Stat",
    "Prepare",
    "Start",
    "Progress",
    "Cancel",
    "Diagnose",
    "ListPodDevices",
    "ReadMetrics",
];

type Answer = BoxFuture<http::Response<Body>, Infallible>;

/// The control API with its authorization.
#[derive(Debug, Clone)]
pub(crate) struct Authorization {
    service: Service,
    /// For the operator, who sends Secrets.
    operator: AgentServer<Service>,
    /// For other agents.
    node: AgentServer<Service>,
}

impl Authorization {
    /// In front of this service.
    pub(crate) fn new(service: Service) -> Self {
        let server = |bytes_max| {
            AgentServer::new(service.clone())
                .max_decoding_message_size(bytes_max)
                .max_encoding_message_size(CONTROL_BYTES_MAX)
        };
        Self {
            operator: server(OPERATOR_BYTES_MAX),
            node: server(CONNECT_BYTES_MAX),
            service,
        }
    }

    fn authorize(&self, request: &http::Request<Body>) -> Result<Caller, Fault> {
        let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
        let certificates = connection.and_then(TlsConnectInfo::peer_certs);
        let leaf = certificates.as_ref().and_then(|chain| chain.first());
        let leaf = leaf.ok_or_else(|| Fault::WrongCertificate {
            problem: "is missing".to_owned(),
        })?;
        let caller = caller(leaf, &self.service.fabric)?;
        let call = request.uri().path().rsplit('/').next().unwrap_or_default();
        let allowed = match (&caller, NODE_CALLS.contains(&call)) {
            (Caller::Operator, false) | (Caller::Node(_), true) => return Ok(caller),
            (Caller::Operator, true) => "an agent",
            (Caller::Node(node), false) => {
                // Only the names of calls are repeated: the caller may have sent any text.
                let known = OPERATOR_CALLS.iter().find(|known| **known == call);
                let tried = known.copied().unwrap_or("an unknown call");
                let misuses = &self.service.registry.misuses;
                misuses.note(Instant::now(), node, tried);
                "the operator"
            }
        };
        Err(Fault::NotAllowed {
            call: call.to_owned(),
            allowed,
            caller: caller.to_string(),
        })
    }
}

impl Authorization {
    /// Notes in the request who calls, or answers the refusal.
    fn admit(&self, request: &mut http::Request<Body>) -> Result<Caller, Answer> {
        match self.authorize(request) {
            Ok(caller) => {
                request.extensions_mut().insert(caller.clone());
                Ok(caller)
            }
            Err(fault) => {
                let refused = self.service.status(&fault).into_http();
                Err(Box::pin(async { Ok(refused) }))
            }
        }
    }
}

impl Serve<http::Request<Body>> for Authorization {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        match self.admit(&mut request) {
            Ok(Caller::Operator) => self.operator.call(request),
            Ok(Caller::Node(_)) => self.node.call(request),
            Err(refused) => refused,
        }
    }
}

/// The calls by which other agents measure links, with their authorization.
#[derive(Debug, Clone)]
pub(crate) struct MeasurementAuthorization {
    authorization: Authorization,
    server: LinkMeasurementServer<Service>,
}

impl From<Authorization> for MeasurementAuthorization {
    fn from(authorization: Authorization) -> Self {
        let server = LinkMeasurementServer::new(authorization.service.clone());
        Self {
            authorization,
            server: server.max_decoding_message_size(CONNECT_BYTES_MAX),
        }
    }
}

impl Serve<http::Request<Body>> for MeasurementAuthorization {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        match self.authorization.admit(&mut request) {
            Ok(_) => self.server.call(request),
            Err(refused) => refused,
        }
    }
}

impl NamedService for MeasurementAuthorization {
    const NAME: &'static str = LinkMeasurementServer::<Service>::NAME;
}

impl NamedService for Authorization {
    const NAME: &'static str = AgentServer::<Service>::NAME;
}
