//! The operator's own objects in its namespace: its authority, its Service, and where the leader is.
//!
//! | object | |
//! |---|---|
//! | Secret `weft-ca` | the authority; made by the first leader, read by the others |
//! | ConfigMap `weft-ca` | the certificates by which agents know the operator |
//! | Service `weft-operator` | of the chart, without a selector |
//! | EndpointSlice `weft-operator-leader` | where the leader is, so that the Service leads to it |
//! | APIService `v1alpha1.live.weft.dev` | of the chart; gets the certificates by which the API server knows the live API |
//!
//! Only a leader writes here, and keeps it so: what somebody deletes or changes is put back.

mod leader;
mod secret;

use std::{convert::Infallible, net::IpAddr, time::Duration};

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams},
};
use serde_json::json;
use tokio::{sync::watch, time::sleep};
use weft_crds::{LIVE_GROUP, LIVE_VERSION};
use weft_identity::authority::{Authority, AuthorityError};

pub use self::leader::Address;
pub(crate) use self::leader::LEADER;
use crate::{
    NAME,
    api::{CallError, call},
    rotation::Step,
};

/// The objects are written so often: an agent that cannot reach the leader tries for ever, and the API server
/// stores nothing where nothing has changed.
const AGAIN: Duration = Duration::from_secs(10);
/// Secret and ConfigMap of the authority.
const AUTHORITY: &str = "weft-ca";

/// An object that cannot be read, written or understood.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// The API server did not do what it was asked to.
    #[error(
        "{object} cannot be {what}: {source}; check the operator's rights, and install the chart as it is"
    )]
    Call {
        /// Which object.
        object: String,
        /// `read` or `written`.
        what: &'static str,
        /// The API server's answer.
        source: CallError,
    },
    /// The authority cannot be made, or what was kept of it cannot be used.
    #[error("Secret {AUTHORITY}: {0}")]
    Authority(#[from] AuthorityError),
    /// Somebody has put another authority in place of the one in force.
    #[error("Secret {AUTHORITY} holds another authority now; the next process takes it up")]
    Replaced,
    /// Somebody has made the chart's Service anew: what belongs to the one before ends with it.
    #[error("Service {NAME} is another one now; the next process takes it up")]
    Moved,
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
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Call { source, .. } if source.is_transient())
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

    /// Looks after the objects until another authority is put in place of this one, or another Service; says in
    /// `service_problem` what is wrong with the Service.
    pub async fn keep(
        &self,
        authority: &Authority,
        address: &Address,
        pod: IpAddr,
        has_live_api: bool,
        service_problem: &watch::Sender<Option<String>>,
    ) -> Result<Infallible, HomeError> {
        let mut said: Vec<String> = Vec::new();
        loop {
            let secret = self.keep_secret(authority).await;
            if let Err(ended @ (HomeError::Replaced | HomeError::Rotated(_))) = secret {
                return Err(ended);
            }
            let found = self.address(address.port).await;
            if found.as_ref().is_ok_and(|found| found != address) {
                return Err(HomeError::Moved);
            }
            match &found {
                Ok(_) => drop(service_problem.send_replace(None)),
                Err(HomeError::Service { namespace, problem }) => {
                    let problem = format!("Service {NAME} in namespace {namespace} {problem}");
                    service_problem.send_replace(Some(problem));
                }
                // What was true stays so until the API server answers.
                Err(_) => {}
            }
            let map = self.publish(authority).await;
            let slice = self.lead(address, pod).await;
            let service = match has_live_api {
                true => self.register(authority).await,
                false => Ok(()),
            };
            let found = found.map(drop);
            let errors = [secret, found, map, slice, service].into_iter();
            let errors = errors.filter_map(|kept| Some(kept.err()?.to_string()));
            let errors: Vec<String> = errors.collect();
            for error in errors.iter().filter(|error| !said.contains(error)) {
                tracing::warn!("{error}; trying on");
            }
            said = errors;
            sleep(AGAIN).await;
        }
    }

    /// Shows the API server by which certificates it knows the live API.
    async fn register(&self, authority: &Authority) -> Result<(), HomeError> {
        let api: Api<APIService> = Api::all(self.client.clone());
        let name = format!("{LIVE_VERSION}.{LIVE_GROUP}");
        let bundle = k8s_openapi::ByteString(authority.certificate().as_bytes().to_vec());
        let patch = Patch::Merge(json!({"spec": {"caBundle": bundle}}));
        let written = call(api.patch(&name, &PatchParams::default(), &patch)).await;
        written.map(drop).map_err(|source| HomeError::Call {
            object: format!("APIService {name}"),
            what: "written",
            source,
        })
    }

    /// One of its own objects, `KIND NAME`, could not be read or written.
    fn failed(&self, object: &str, what: &'static str, source: CallError) -> HomeError {
        HomeError::Call {
            object: format!("{object} in namespace {}", self.namespace),
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;

    use super::*;
    use crate::controllers::tests::api_server::ApiServer;

    fn service(uid: &str, ip: &str) -> Service {
        let service = json!({
            "metadata": {"name": NAME, "namespace": "weft-system", "uid": uid},
            "spec": {"clusterIP": ip},
        });
        serde_json::from_value(service).unwrap()
    }

    /// What the leader ends with after somebody has put `new` in place of the Service.
    async fn ends_with(new: Service) -> HomeError {
        let server = ApiServer::new();
        server.put(&service("u1", "10.96.0.7"));
        let home = Home::new(server.client(), "weft-system");
        let authority = Authority::new(NAME).unwrap();
        let address = home.address(7410).await.unwrap();
        let pod = "10.244.1.5".parse().unwrap();
        let (problem, _) = watch::channel(None);
        let mut kept = std::pin::pin!(home.keep(&authority, &address, pod, false, &problem));
        let while_nothing_changes = tokio::time::timeout(AGAIN * 3, &mut kept).await;
        assert!(while_nothing_changes.is_err(), "{while_nothing_changes:?}");
        server.put(&new);
        let ended = tokio::time::timeout(AGAIN * 2, kept).await;
        ended.expect("it notices").unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_says_that_its_service_is_missing() {
        let server = ApiServer::new();
        server.put(&service("u1", "10.96.0.7"));
        let home = Home::new(server.client(), "weft-system");
        let authority = Authority::new(NAME).unwrap();
        let address = home.address(7410).await.unwrap();
        let pod = "10.244.1.5".parse().unwrap();
        let (problem, said) = watch::channel(None);
        let mut kept = std::pin::pin!(home.keep(&authority, &address, pod, false, &problem));
        for (is_there, expected) in [
            (true, None),
            (
                false,
                Some("Service weft-operator in namespace weft-system is missing"),
            ),
            (true, None),
        ] {
            match is_there {
                true => server.put(&service("u1", "10.96.0.7")),
                false => server.delete::<Service>("weft-system", NAME),
            }
            let ended = tokio::time::timeout(AGAIN * 2, &mut kept).await;
            assert!(ended.is_err(), "{ended:?}");
            assert_eq!(said.borrow().as_deref(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_ends_when_its_service_is_made_anew() {
        for new in [service("u1", "10.96.0.8"), service("u2", "10.96.0.7")] {
            let error = ends_with(new).await;
            assert!(matches!(error, HomeError::Moved), "{error}");
        }
    }
}
