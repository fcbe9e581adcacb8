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

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{ConfigMap, Secret, Service},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, Resource as _,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};

use time::OffsetDateTime;
use tokio::time::sleep;

use crate::{
    NAME,
    authority::{Authority, AuthorityError, KeptAuthority},
    rotation::{self, Step},
};

/// Secret and ConfigMap of the authority.
const AUTHORITY: &str = "weft-ca";
const CERTIFICATES: &str = "ca.crt";
const KEY: &str = "ca.key";
const TICKETS: &str = "tickets.key";
const NEXT: &str = "ca.next.key";
/// Somebody wants another authority: `kubectl annotate secret weft-ca weft.dev/rotate=now`.
const ROTATE: &str = "weft.dev/rotate";
/// When the last step of a rotation was, in seconds since the Unix epoch.
const ROTATED_AT: &str = "weft.dev/rotation-step-at";
/// The leader's EndpointSlice.
pub(crate) const LEADER: &str = "weft-operator-leader";
/// The port's name where the Service gives it none.
const PORT: &str = "control";
/// The port's name in the chart's Service.
const LIVE_PORT: &str = "live";

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

/// The operator's namespace.
pub struct Home {
    client: Client,
    namespace: String,
    /// What stood beside the authority when it was last seen: a Secret that is put back says it, too.
    notes: Mutex<BTreeMap<String, String>>,
}

/// What a leader keeps in its namespace.
#[derive(Debug, PartialEq)]
enum Found {
    /// It is as it was left.
    Same,
    /// It is to be put back.
    Missing,
    /// Somebody has put another valid authority there.
    Replaced,
    /// What is there is no authority, for this reason.
    Broken(String),
}

/// Where a leader listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Of the control API, which agents call.
    pub control: u16,
    /// Of the live API, which the API server calls.
    pub live: Option<u16>,
}

/// What agents are told to dial.
#[derive(Debug, Clone, PartialEq)]
pub struct Address {
    /// HOST:PORT of the Service.
    pub dial: String,
    /// Its port's name.
    port_name: Option<String>,
    owner: Option<OwnerReference>,
}

impl Home {
    /// Nothing is asked yet.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            notes: Mutex::default(),
        }
    }

    /// Of a rotation.
    fn notes(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The authority that was kept, or a new one if there is none.
    pub async fn authority(&self) -> Result<Authority, HomeError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let object = "Secret weft-ca";
        let read = |source| self.failed(object, "read", source);
        if let Some(secret) = api.get_opt(AUTHORITY).await.map_err(read)? {
            return Ok(Authority::from_kept(NAME, kept(&secret))?);
        }
        let authority = Authority::new(NAME)?;
        let secret = secret(&authority.to_kept());
        match api.create(&PostParams::default(), &secret).await {
            Ok(_) => {
                tracing::info!("a new certificate authority is kept in Secret {AUTHORITY}");
                Ok(authority)
            }
            Err(source) => Err(self.failed(object, "written", source)),
        }
    }

    /// Shows agents by which certificates they know the operator.
    pub async fn publish(&self, authority: &Authority) -> Result<(), HomeError> {
        let map = config_map(authority);
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        match api.patch(AUTHORITY, &params(), &Patch::Apply(&map)).await {
            Ok(_) => Ok(()),
            Err(source) => Err(self.failed("ConfigMap weft-ca", "written", source)),
        }
    }

    /// Looks after the objects until another authority is put in place of this one.
    pub async fn keep(
        &self,
        authority: &Authority,
        address: &Address,
        pod: IpAddr,
        ports: Ports,
    ) -> Result<Infallible, HomeError> {
        loop {
            sleep(LOOK).await;
            let secret = self.keep_secret(authority).await;
            if let Err(ended @ (HomeError::Replaced | HomeError::Rotated(_))) = secret {
                return Err(ended);
            }
            let map = self.keep_config_map(authority).await;
            let slice = self.keep_slice(address, pod, ports).await;
            for error in [secret, map, slice].into_iter().filter_map(Result::err) {
                tracing::warn!("{error}; trying on");
            }
        }
    }

    async fn keep_secret(&self, authority: &Authority) -> Result<(), HomeError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let object = "Secret weft-ca";
        let found = api.get_opt(AUTHORITY).await;
        let found = found.map_err(|source| self.failed(object, "read", source))?;
        match judge(found.as_ref(), authority) {
            Found::Same => {
                if let Some(secret) = &found {
                    *self.notes() = rotation_notes(secret);
                    self.rotate(&api, secret, authority).await?;
                }
            }
            Found::Missing => {
                let mut secret = secret(&authority.to_kept());
                secret.metadata.annotations = Some(self.notes().clone());
                let created = api.create(&PostParams::default(), &secret).await;
                created.map_err(|source| self.failed(object, "written", source))?;
                tracing::warn!("{object} was deleted; it is there again, with the same authority");
            }
            Found::Replaced => return Err(HomeError::Replaced),
            Found::Broken(problem) => {
                tracing::error!("{object}: {problem}; the authority in force is another");
            }
        }
        Ok(())
    }

    /// Takes the step of a rotation that is due. The next process goes on with what is kept then.
    async fn rotate(
        &self,
        api: &Api<Secret>,
        found: &Secret,
        authority: &Authority,
    ) -> Result<(), HomeError> {
        let notes = found.metadata.annotations.as_ref();
        let note = |name: &str| notes.and_then(|notes| notes.get(name));
        let since = note(ROTATED_AT)
            .and_then(|text| text.parse().ok())
            .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
        let now = OffsetDateTime::now_utc();
        let asked = note(ROTATE).is_some();
        let due = rotation::due(&authority.to_kept(), since, asked, now)?;
        let Some((step, kept)) = due else {
            return Ok(());
        };
        let mut next = secret(&kept);
        let notes = next.metadata.annotations.get_or_insert_default();
        notes.insert(ROTATED_AT.to_owned(), now.unix_timestamp().to_string());
        if asked && step != Step::Announce {
            // Asked for while one goes on already: another follows it.
            notes.insert(ROTATE.to_owned(), "now".to_owned());
        }
        // Somebody else's change in between is not written over.
        next.metadata.resource_version = found.metadata.resource_version.clone();
        let replaced = api.replace(AUTHORITY, &PostParams::default(), &next).await;
        replaced.map_err(|source| self.failed("Secret weft-ca", "written", source))?;
        Err(HomeError::Rotated(step))
    }

    async fn keep_config_map(&self, authority: &Authority) -> Result<(), HomeError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api.get_opt(AUTHORITY).await;
        let found = found.map_err(|source| self.failed("ConfigMap weft-ca", "read", source))?;
        match found.is_some_and(|found| found.data == config_map(authority).data) {
            true => Ok(()),
            false => self.publish(authority).await,
        }
    }

    async fn keep_slice(
        &self,
        address: &Address,
        pod: IpAddr,
        ports: Ports,
    ) -> Result<(), HomeError> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api.get_opt(LEADER).await;
        let found = found
            .map_err(|source| self.failed("EndpointSlice weft-operator-leader", "read", source))?;
        match found.is_some_and(|found| leads_to(&found, &slice(address, pod, ports))) {
            true => Ok(()),
            false => self.lead(address, pod, ports).await,
        }
    }

    /// Where agents reach whoever leads.
    pub async fn address(&self, port: u16) -> Result<Address, HomeError> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = |source| self.failed("Service weft-operator", "read", source);
        let found = api.get_opt(NAME).await.map_err(read)?;
        found
            .as_ref()
            .ok_or("is missing")
            .and_then(|service| address(service, port))
            .map_err(|problem| HomeError::Service {
                namespace: self.namespace.clone(),
                problem,
            })
    }

    /// Makes the Service lead to this process.
    pub async fn lead(
        &self,
        address: &Address,
        pod: IpAddr,
        ports: Ports,
    ) -> Result<(), HomeError> {
        let slice = slice(address, pod, ports);
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        match api.patch(LEADER, &params(), &Patch::Apply(&slice)).await {
            Ok(_) => Ok(()),
            Err(source) => {
                Err(self.failed("EndpointSlice weft-operator-leader", "written", source))
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

fn secret(kept: &KeptAuthority) -> Secret {
    let part =
        |(name, text): (&str, &String)| (name.to_owned(), ByteString(text.clone().into_bytes()));
    let data = [
        (CERTIFICATES, &kept.certificates),
        (KEY, &kept.key),
        (TICKETS, &kept.tickets),
        (NEXT, &kept.next),
    ];
    let data = data.into_iter().filter(|(_, text)| !text.is_empty());
    Secret {
        metadata: metadata(AUTHORITY),
        data: Some(data.map(part).collect()),
        ..Secret::default()
    }
}

/// What a Secret says about a rotation.
fn rotation_notes(secret: &Secret) -> BTreeMap<String, String> {
    let notes = secret.metadata.annotations.iter().flatten();
    let ours = notes.filter(|(name, _)| [ROTATE, ROTATED_AT].contains(&name.as_str()));
    ours.map(|(name, text)| (name.clone(), text.clone()))
        .collect()
}

fn config_map(authority: &Authority) -> ConfigMap {
    let data = [(CERTIFICATES.to_owned(), authority.certificate().to_owned())];
    ConfigMap {
        metadata: metadata(AUTHORITY),
        data: Some(data.into()),
        ..ConfigMap::default()
    }
}

/// What to make of the Secret that is there, or is not.
fn judge(found: Option<&Secret>, authority: &Authority) -> Found {
    let Some(secret) = found else {
        return Found::Missing;
    };
    let there = kept(secret);
    if there == authority.to_kept() {
        return Found::Same;
    }
    match Authority::from_kept(NAME, there) {
        Ok(_) => Found::Replaced,
        Err(error) => Found::Broken(error.to_string()),
    }
}

/// Whether a slice still says what was written; the API server adds defaults to some of it.
fn leads_to(found: &EndpointSlice, ours: &EndpointSlice) -> bool {
    let where_to = |slice: &EndpointSlice| {
        let addresses = |endpoint: &Endpoint| endpoint.addresses.clone();
        let ports = slice.ports.iter().flatten();
        let addresses: Vec<_> = slice.endpoints.iter().flat_map(addresses).collect();
        let ports: Vec<_> = ports.map(|port| (port.name.clone(), port.port)).collect();
        (slice.metadata.labels.clone(), addresses, ports)
    };
    where_to(found) == where_to(ours)
}

/// What is missing, or no text, is empty; the authority says then what it lacks.
fn kept(secret: &Secret) -> KeptAuthority {
    let empty = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&empty);
    let part = |name: &str| {
        let bytes = data.get(name).map(|bytes| bytes.0.clone());
        String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
    };
    KeptAuthority {
        certificates: part(CERTIFICATES),
        key: part(KEY),
        tickets: part(TICKETS),
        next: part(NEXT),
    }
}

fn address(service: &Service, port: u16) -> Result<Address, &'static str> {
    let spec = service.spec.as_ref().ok_or("is empty")?;
    let ip: IpAddr = spec
        .cluster_ip
        .as_deref()
        .and_then(|ip| ip.parse().ok())
        .ok_or("has no cluster IP")?;
    let ports = spec.ports.iter().flatten();
    let ours = ports
        .clone()
        .find(|entry| entry.port == i32::from(port))
        .or(ports.clone().next());
    let ours = ours.ok_or("has no port")?;
    let number = u16::try_from(ours.port).map_err(|_| "has no port")?;
    Ok(Address {
        dial: std::net::SocketAddr::new(ip, number).to_string(),
        port_name: ours.name.clone(),
        owner: service.owner_ref(&()),
    })
}

fn slice(address: &Address, pod: IpAddr, ports: Ports) -> EndpointSlice {
    let mut metadata = metadata(LEADER);
    let labels = metadata.labels.get_or_insert_default();
    labels.insert("kubernetes.io/service-name".to_owned(), NAME.to_owned());
    labels.insert(
        "endpointslice.kubernetes.io/managed-by".to_owned(),
        NAME.to_owned(),
    );
    metadata.owner_references = address.owner.clone().map(|owner| vec![owner]);
    let port = |name: &str, port: u16| EndpointPort {
        name: Some(name.to_owned()),
        port: Some(port.into()),
        protocol: Some("TCP".to_owned()),
        ..EndpointPort::default()
    };
    let control = port(address.port_name.as_deref().unwrap_or(PORT), ports.control);
    let live = ports.live.map(|number| port(LIVE_PORT, number));
    EndpointSlice {
        metadata,
        address_type: if pod.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned(),
        endpoints: vec![Endpoint {
            addresses: vec![pod.to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                ..EndpointConditions::default()
            }),
            ..Endpoint::default()
        }],
        ports: Some([Some(control), live].into_iter().flatten().collect()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PORTS: Ports = Ports {
        control: 7410,
        live: Some(7412),
    };

    fn service() -> Service {
        let service = json!({
            "metadata": {"name": "weft-operator", "uid": "u1"},
            "spec": {"clusterIP": "10.96.0.7", "ports": [
                {"name": "other", "port": 80},
                {"name": "control", "port": 7410},
            ]},
        });
        serde_json::from_value(service).unwrap()
    }

    #[test]
    fn an_authority_goes_into_its_secret_and_comes_out_of_it() {
        let authority = Authority::new(NAME).unwrap();
        let mut secret = secret(&authority.to_kept());
        assert!(kept(&secret) == authority.to_kept());
        secret.data.as_mut().unwrap().remove(KEY);
        let error = Authority::from_kept(NAME, kept(&secret)).err().unwrap();
        assert!(error.to_string().starts_with("ca.key: "), "{error}");
        let error = Authority::from_kept(NAME, kept(&Secret::default()));
        assert!(error.is_err());
    }

    #[test]
    fn the_service_leads_to_the_leaders_pod_under_the_services_own_port_name() {
        let address = address(&service(), 7410).unwrap();
        assert_eq!(address.dial, "10.96.0.7:7410");
        let slice = slice(&address, "10.244.1.5".parse().unwrap(), PORTS);
        let slice = serde_json::to_value(slice).unwrap();
        assert_eq!(
            slice["metadata"]["labels"]["kubernetes.io/service-name"],
            NAME
        );
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "u1");
        assert_eq!(slice["addressType"], "IPv4");
        assert_eq!(slice["endpoints"][0]["addresses"], json!(["10.244.1.5"]));
        assert_eq!(slice["ports"][0]["name"], "control");
        assert_eq!(slice["ports"][0]["port"], 7410);
        assert_eq!(slice["ports"][1]["name"], "live");
        assert_eq!(slice["ports"][1]["port"], 7412);
    }

    #[test]
    fn a_secret_that_somebody_touched_is_put_back_or_taken_up_and_nonsense_is_neither() {
        let authority = Authority::new(NAME).unwrap();
        let same = secret(&authority.to_kept());
        assert_eq!(judge(Some(&same), &authority), Found::Same);
        assert_eq!(judge(None, &authority), Found::Missing);
        let other = secret(&Authority::new(NAME).unwrap().to_kept());
        assert_eq!(judge(Some(&other), &authority), Found::Replaced);
        let found = judge(Some(&Secret::default()), &authority);
        assert!(matches!(found, Found::Broken(_)), "{found:?}");
    }

    #[test]
    fn a_slice_that_leads_elsewhere_is_written_again_and_defaults_are_no_difference() {
        let address = address(&service(), 7410).unwrap();
        let to = |pod: &str| slice(&address, pod.parse().unwrap(), PORTS);
        let mut found = to("10.244.1.5");
        found.endpoints[0].node_name = Some("n1".to_owned());
        assert!(leads_to(&found, &to("10.244.1.5")));
        assert!(!leads_to(&found, &to("10.244.2.9")));
        found.metadata.labels = None;
        assert!(!leads_to(&found, &to("10.244.1.5")));
    }

    #[test]
    fn an_address_of_the_sixth_version_is_written_as_one() {
        let mut service = service();
        service.spec.as_mut().unwrap().cluster_ip = Some("fd00::7".to_owned());
        let address = address(&service, 7410).unwrap();
        assert_eq!(address.dial, "[fd00::7]:7410");
        assert_eq!(
            slice(&address, "fd00::5".parse().unwrap(), PORTS).address_type,
            "IPv6"
        );
    }

    #[test]
    fn a_service_without_an_address_is_named_as_the_cause() {
        let mut headless = service();
        headless.spec.as_mut().unwrap().cluster_ip = Some("None".to_owned());
        assert_eq!(address(&headless, 7410), Err("has no cluster IP"));
        let mut bare = service();
        bare.spec.as_mut().unwrap().ports = None;
        assert_eq!(address(&bare, 7410), Err("has no port"));
    }
}
