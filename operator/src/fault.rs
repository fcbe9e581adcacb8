//! `Fault`: why an agent's call was refused, with its cause and remedy.

use std::{net::IpAddr, num::NonZeroU32};

use tonic::{Code, Status};
use weft_identity::{authority::AuthorityError, role::RoleError};
use weft_proto::{Message as _, agent::v1::ErrorDetail};

use crate::api::CallError;

/// Why a call was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// It showed none.
    #[error(
        "the call shows no client certificate: call Enroll first, then Report with the certificate that it gives"
    )]
    NoCertificate,
    /// It is no node's.
    #[error("the client certificate {problem}: use the one that Enroll gave")]
    WrongCertificate {
        /// What it is or lacks.
        problem: String,
    },
    /// A field is not as the protocol has it.
    #[error("{field}: {problem}")]
    BadRequest {
        /// Which.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no such fabric.
    #[error(
        "no RdmaFabric `{fabric}` is known: create it, or wait until the operator has seen it and try again"
    )]
    NoFabric {
        /// Its name.
        fabric: String,
    },
    /// The API server does not stand behind the token.
    #[error(
        "the token is refused ({problem}): give the pod's projected token with audience weft.dev/operator"
    )]
    TokenRefused {
        /// In the API server's words where it gave any.
        problem: String,
    },
    /// Somebody else's token.
    #[error(
        "the token is of {account}: only {expected} may enroll; run the agent in its DaemonSet"
    )]
    WrongAccount {
        /// Whose.
        account: String,
        /// Whose it must be.
        expected: String,
    },
    /// A token that is bound to no pod.
    #[error(
        "the token does not say on which node its pod is: it must be bound to a pod, by Kubernetes 1.30 or newer"
    )]
    TokenWithoutNode,
    /// A node that the fabric does not have.
    #[error(
        "it does not belong to fabric `{fabric}`: correct the node's labels or the fabric's spec.nodeSelector, \
         or wait until the operator has seen the change"
    )]
    NotOfFabric {
        /// Its name.
        fabric: String,
    },
    /// More calls of Enroll than one address may make.
    #[error(
        "{address} calls Enroll more than {per_second} times a second, which is the limit of one address: wait a \
         second and call again"
    )]
    TooManyCalls {
        /// Where the calls come from.
        address: IpAddr,
        /// The limit.
        per_second: NonZeroU32,
    },
    /// More calls of FindJob and FindClaim at once than one node may make.
    #[error(
        "{most} calls of FindJob and FindClaim of this node are unanswered, which is the limit of one node: wait for their \
         answers and call again"
    )]
    TooManyOpenCalls {
        /// The limit.
        most: usize,
    },
    /// More calls of ReviewMetricsToken than one node may make.
    #[error(
        "the node's agent asks about tokens of readers of metrics more than {per_second} times a second, which is the limit of one \
         node: find out who sends it so many different tokens, and try again"
    )]
    TooManyReviews {
        /// The limit.
        per_second: NonZeroU32,
    },
    /// The API server could not be asked about the token of a reader of metrics.
    #[error("{0}; try again")]
    MetricsNotReviewed(String),
    /// Nobody could be asked about the token.
    #[error("the token cannot be checked ({0}): the operator needs the API server; try again")]
    ReviewFailed(CallError),
    /// Nobody, or two, have it.
    #[error(
        "{found} nodes of the fabric have reported the data address {address}: wait until its agent has, or have each node use an \
         address of its own"
    )]
    NoNode {
        /// The address.
        address: String,
        /// How many have.
        found: usize,
    },
    /// A pod's namespace is not there, or is being deleted.
    #[error(
        "there is no namespace {namespace}, or it is being deleted: pods of it mount no copies"
    )]
    NoNamespace {
        /// Its name.
        namespace: String,
    },
    /// Nobody could be asked about a pod's namespace and job.
    #[error(
        "the API server does not say which namespace and job there are ({0}): the operator needs it; try again"
    )]
    NotAnswered(CallError),
    /// There is no such ResourceClaim, or it has nothing of the node.
    #[error(
        "ResourceClaim {claim} {problem}: look at its status, and at the node that its pod is on"
    )]
    NoClaim {
        /// NAMESPACE/NAME.
        claim: String,
        /// What is missing.
        problem: String,
    },
    /// A claim is configured in a way that it may not be, or its DeviceClass is.
    #[error("ResourceClaim {claim} {problem}")]
    ClaimConfig {
        /// NAMESPACE/NAME.
        claim: String,
        /// Which field, and what to do.
        problem: String,
    },
    /// The API server could not be asked about a claim.
    #[error(
        "the ResourceClaim cannot be read ({0}): the operator needs an API server that serves resource.k8s.io/v1, and the \
         chart's value devices.mode dra or both; try again"
    )]
    ClaimNotRead(CallError),
    /// A later stream of the same node has taken over.
    #[error("another agent reports for this node now: stop one of the two")]
    Superseded,
    /// The certificate that the stream began with has ended.
    #[error("the certificate has ended: call Enroll again, and Report with the new one")]
    CertificateEnded,
    /// The authority could not issue a certificate.
    #[error(transparent)]
    NotIssued(AuthorityError),
}

impl From<RoleError> for Fault {
    fn from(error: RoleError) -> Self {
        Self::WrongCertificate {
            problem: error.to_string(),
        }
    }
}

impl From<AuthorityError> for Fault {
    fn from(error: AuthorityError) -> Self {
        match error {
            AuthorityError::Request { .. } => Self::BadRequest {
                field: "certificate_request",
                problem: error.to_string(),
            },
            error => Self::NotIssued(error),
        }
    }
}

impl Fault {
    /// Stable and machine-readable: a metric's label and what an agent tells its log.
    pub(crate) fn reason(&self) -> &'static str {
        self.kind().0
    }

    /// The reason, the code, and whether the same call may succeed without the agent being changed.
    fn kind(&self) -> (&'static str, Code, bool) {
        match self {
            Self::NoCertificate => ("NoCertificate", Code::Unauthenticated, false),
            Self::WrongCertificate { .. } => ("WrongCertificate", Code::Unauthenticated, false),
            Self::BadRequest { .. } => ("BadRequest", Code::InvalidArgument, false),
            Self::NoFabric { .. } => ("NoFabric", Code::NotFound, true),
            Self::TokenRefused { .. } => ("TokenRefused", Code::Unauthenticated, false),
            Self::WrongAccount { .. } => ("WrongAccount", Code::PermissionDenied, false),
            Self::TokenWithoutNode => ("TokenWithoutNode", Code::PermissionDenied, false),
            Self::NotOfFabric { .. } => ("NotOfFabric", Code::FailedPrecondition, true),
            Self::TooManyCalls { .. } => ("TooManyCalls", Code::ResourceExhausted, true),
            Self::TooManyOpenCalls { .. } => ("TooManyOpenCalls", Code::ResourceExhausted, true),
            Self::TooManyReviews { .. } => ("TooManyReviews", Code::ResourceExhausted, true),
            Self::MetricsNotReviewed(_) => ("MetricsNotReviewed", Code::Unavailable, true),
            Self::ReviewFailed(_) => ("ReviewFailed", Code::Unavailable, true),
            Self::NoNode { .. } => ("NoNode", Code::NotFound, true),
            Self::NoNamespace { .. } => ("NoNamespace", Code::NotFound, true),
            Self::NotAnswered(_) => ("NotAnswered", Code::Unavailable, true),
            Self::NoClaim { .. } => ("NoClaim", Code::NotFound, true),
            Self::ClaimConfig { .. } => ("ClaimConfig", Code::FailedPrecondition, true),
            Self::ClaimNotRead(_) => ("ClaimNotRead", Code::Unavailable, true),
            Self::Superseded => ("Superseded", Code::Aborted, false),
            Self::CertificateEnded => ("CertificateEnded", Code::Unauthenticated, false),
            Self::NotIssued(error) => (error.reason(), Code::Internal, false),
        }
    }

    /// As the control API answers it; `node` is "" where it is not known who calls.
    pub(crate) fn to_status(&self, node: &str) -> Status {
        let (reason, code, retriable) = self.kind();
        let message = match node {
            "" => self.to_string(),
            node => format!("node {node}: {self}"),
        };
        let remedy = message.rsplit_once(": ").map_or("", |(_, remedy)| remedy);
        let detail = ErrorDetail {
            reason: reason.to_owned(),
            node: node.to_owned(),
            remedy: remedy.to_owned(),
            retriable,
        };
        Status::with_details(code, message, detail.encode_to_vec().into())
    }
}
