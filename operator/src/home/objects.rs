//! The operator's namespace, and what may go wrong with the objects there.

use kube::{
    Client,
    api::{ObjectMeta, PatchParams},
};
use weft_identity::authority::AuthorityError;

use crate::{NAME, retry, rotation::Step};

/// Secret and ConfigMap of the authority.
pub(super) const AUTHORITY: &str = "weft-ca";

/// An object that cannot be read, written or understood.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// The API server did not do what it was asked to.
    #[error(
        "{object} in namespace {namespace} cannot be {what}: {source}; check the operator's Role"
    )]
    Request {
        /// Which object.
        object: &'static str,
        /// Where.
        namespace: String,
        /// `read` or `written`.
        what: &'static str,
        /// The API server's answer.
        source: kube::Error,
    },
    /// The authority cannot be made, or what was kept of it cannot be used.
    #[error("Secret {AUTHORITY}: {0}")]
    Authority(#[from] AuthorityError),
    /// Somebody has put another authority in place of the one in force.
    #[error("Secret {AUTHORITY} holds another authority now; the next process takes it up")]
    Replaced,
    /// One authority is following another.
    #[error("Secret {AUTHORITY}: a step of its rotation: {0}; the next process takes it up")]
    Rotated(Step),
    /// The chart's Service is missing, or has no address.
    #[error("Service {NAME} in namespace {namespace} {problem}: install the chart as it is")]
    Service {
        /// Where.
        namespace: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl HomeError {
    /// The same may succeed without anybody changing anything.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Request { source, .. } => retry::passes(source),
            Self::Authority(_) | Self::Replaced | Self::Rotated(_) | Self::Service { .. } => false,
        }
    }
}

/// The operator's namespace.
pub struct Home {
    pub(super) client: Client,
    pub(super) namespace: String,
}

impl Home {
    /// Nothing is asked yet.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
        }
    }

    pub(super) fn failed(
        &self,
        object: &'static str,
        what: &'static str,
        source: kube::Error,
    ) -> HomeError {
        HomeError::Request {
            object,
            namespace: self.namespace.clone(),
            what,
            source,
        }
    }
}

pub(super) fn params() -> PatchParams {
    PatchParams::apply(NAME).force()
}

pub(super) fn metadata(name: &str) -> ObjectMeta {
    let label = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let labels = [
        ("app.kubernetes.io/part-of", "weft"),
        ("app.kubernetes.io/managed-by", NAME),
    ];
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(labels.map(label).into()),
        ..ObjectMeta::default()
    }
}
