//! The operator's own objects in its namespace: its authority, its Service, and where the leader is.
//!
//! | object | |
//! |---|---|
//! | Secret `weft-ca` | the authority; made by the first leader, read by the others |
//! | ConfigMap `weft-ca` | the certificates by which agents know the operator |
//! | Service `weft-operator` | of the chart, without a selector |
//! | EndpointSlice `weft-operator-leader` | where the leader is, so that the Service leads to it |
//!
//! Only a leader writes here, and keeps it so: what somebody deletes or changes is put back.

mod leader;
mod secret;

use std::{convert::Infallible, net::IpAddr, time::Duration};

use kube::{
    Client,
    api::{ObjectMeta, PatchParams},
};
use tokio::time::sleep;
use weft_identity::authority::{Authority, AuthorityError};

pub use self::leader::Address;
pub(crate) use self::leader::LEADER;
use crate::{NAME, patience, rotation::Step};

/// Secret and ConfigMap of the authority.
const AUTHORITY: &str = "weft-ca";

/// The objects are looked at so often: an agent that cannot reach the leader tries for ever.
const LOOK: Duration = Duration::from_secs(10);

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
            Self::Request { source, .. } => patience::passes(source),
            Self::Authority(_) | Self::Replaced | Self::Rotated(_) | Self::Service { .. } => false,
        }
    }
}

/// The operator's namespace.
pub struct Home {
    client: Client,
    namespace: String,
}

impl Home {
    /// Nothing is asked yet.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
        }
    }

    /// Looks after the objects until another authority is put in place of this one.
    pub async fn keep(
        &self,
        authority: &Authority,
        address: &Address,
        pod: IpAddr,
    ) -> Result<Infallible, HomeError> {
        loop {
            sleep(LOOK).await;
            let secret = self.keep_secret(authority).await;
            if let Err(ended @ (HomeError::Replaced | HomeError::Rotated(_))) = secret {
                return Err(ended);
            }
            let map = self.keep_config_map(authority).await;
            let slice = self.keep_slice(address, pod).await;
            for error in [secret, map, slice].into_iter().filter_map(Result::err) {
                tracing::warn!("{error}; trying on");
            }
        }
    }

    fn failed(&self, object: &'static str, what: &'static str, source: kube::Error) -> HomeError {
        HomeError::Request {
            object,
            namespace: self.namespace.clone(),
            what,
            source,
        }
    }
}

fn params() -> PatchParams {
    PatchParams::apply(NAME).force()
}

fn metadata(name: &str) -> ObjectMeta {
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
