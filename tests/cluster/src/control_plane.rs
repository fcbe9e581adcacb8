//! etcd, API server, controller manager and scheduler, beside the builder of the fabric: the nodes
//! reach them over the management network.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType,
};
use serde_json::json;

use crate::network::{API_PORT, API_SERVICE, SERVICES};
use crate::process::Processes;
use crate::{ClusterError, write_private};

const ETCD: &str = "http://127.0.0.1:2379";
/// Names of the API server inside and outside of pods.
const NAMES: [&str; 4] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
];
/// Who may do everything.
const ADMINISTRATORS: &str = "system:masters";

/// Keys, certificates and tokens, as files in one directory.
#[derive(Debug)]
pub(crate) struct Keys {
    directory: PathBuf,
    ca: String,
    /// Token of the administrator.
    pub(crate) administrator: String,
    /// Token of each node's kubelet.
    pub(crate) kubelets: Vec<String>,
    /// Token of kube-proxy.
    pub(crate) proxy: String,
}

impl Keys {
    /// Makes them for an API server at this address.
    pub(crate) fn make(
        directory: &Path,
        address: Ipv4Addr,
        nodes: &[String],
    ) -> Result<Self, ClusterError> {
        fs::create_dir_all(directory)
            .map_err(ClusterError::system(directory.display().to_string()))?;
        let (ca, certificate, key) = certificate(address)
            .map_err(|error| ClusterError::Setting(format!("making certificates: {error}")))?;
        let (front_ca, front, front_key) = front_proxy()
            .map_err(|error| ClusterError::Setting(format!("making certificates: {error}")))?;
        let signing = KeyPair::generate()
            .map_err(|error| ClusterError::Setting(format!("making a key: {error}")))?;
        let kubelets: Vec<String> = nodes.iter().map(|_| token()).collect::<Result<_, _>>()?;
        let keys = Self {
            directory: directory.to_owned(),
            ca,
            administrator: token()?,
            kubelets,
            proxy: token()?,
        };
        let mut tokens = format!(
            "{},admin,admin,{ADMINISTRATORS}\n{},system:kube-proxy,proxy\n",
            keys.administrator, keys.proxy
        );
        for (token, name) in keys.kubelets.iter().zip(nodes) {
            tokens += &format!("{token},system:node:{name},{name},system:nodes\n");
        }
        for (name, text) in [
            ("ca.crt", &keys.ca),
            ("server.crt", &certificate),
            ("server.key", &key),
            ("front-proxy-ca.crt", &front_ca),
            ("front-proxy.crt", &front),
            ("front-proxy.key", &front_key),
            ("service-accounts.key", &signing.serialize_pem()),
            ("service-accounts.pub", &signing.public_key_pem()),
            ("tokens.csv", &tokens),
            ("admission.json", &admission()),
        ] {
            write_private(&keys.file(name), text)?;
        }
        Ok(keys)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// What a client is told, as JSON, which is YAML.
    pub(crate) fn kubeconfig(&self, address: Ipv4Addr, port: u16, token: &str) -> String {
        use base64::Engine as _;
        let ca = base64::engine::general_purpose::STANDARD.encode(&self.ca);
        let server = format!("https://{address}:{port}");
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "weft", "cluster": {
                "server": server, "certificate-authority-data": ca,
            }}],
            "users": [{"name": "weft", "user": {"token": token}}],
            "contexts": [{"name": "weft", "context": {"cluster": "weft", "user": "weft"}}],
            "current-context": "weft",
        })
        .to_string()
    }
}

/// Authority, certificate and key of the API server.
fn certificate(address: Ipv4Addr) -> Result<(String, String, String), rcgen::Error> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(DnType::CommonName, "weft test cluster");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut server = CertificateParams::default();
    server
        .distinguished_name
        .push(DnType::CommonName, "kube-apiserver");
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for name in NAMES {
        server
            .subject_alt_names
            .push(SanType::DnsName(name.try_into()?));
    }
    for address in [address, API_SERVICE, Ipv4Addr::LOCALHOST] {
        let address = SanType::IpAddress(IpAddr::V4(address));
        server.subject_alt_names.push(address);
    }
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &authority)?;
    Ok((authority.pem(), certificate.pem(), key.serialize_pem()))
}

/// The name that servers behind the API server know its proxy by.
const FRONT_PROXY: &str = "front-proxy-client";

/// Authority, certificate and key of the API server as a caller of the servers behind it.
fn front_proxy() -> Result<(String, String, String), rcgen::Error> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(DnType::CommonName, "weft test cluster's front proxy");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut client = CertificateParams::default();
    client
        .distinguished_name
        .push(DnType::CommonName, FRONT_PROXY);
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = client.signed_by(&key, &authority)?;
    Ok((authority.pem(), certificate.pem(), key.serialize_pem()))
}

/// As on GKE: pods of these classes need a ResourceQuota for them in their namespace, in kube-system too.
fn admission() -> String {
    let classes = ["system-cluster-critical", "system-node-critical"];
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "ResourceQuota", "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "ResourceQuotaConfiguration",
            "limitedResources": [{"resource": "pods", "matchScopes": [
                {"scopeName": "PriorityClass", "operator": "In", "values": classes},
            ]}],
        }}],
    })
    .to_string()
}

/// 128 bits that nobody guesses.
fn token() -> Result<String, ClusterError> {
    let mut bytes = [0; 16];
    let source = "/dev/urandom";
    File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(ClusterError::system(source))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What the components are started from.
pub(crate) struct ControlPlane<'a> {
    pub(crate) programs: &'a Path,
    pub(crate) logs: &'a Path,
    pub(crate) data: &'a Path,
    pub(crate) keys: &'a Keys,
    pub(crate) address: Ipv4Addr,
    /// Of the administrator.
    pub(crate) kubeconfig: &'a Path,
    pub(crate) feature_gates: &'a BTreeMap<String, bool>,
}

impl ControlPlane<'_> {
    /// Starts what the others ask: the API server waits for etcd by itself.
    pub(crate) fn start_api(&self, processes: &Processes) -> Result<(), ClusterError> {
        let mut etcd = Command::new("etcd");
        etcd.arg("--data-dir").arg(self.data).args([
            // What a crash of this machine loses is not missed.
            "--unsafe-no-fsync",
            "--listen-client-urls",
            ETCD,
            "--advertise-client-urls",
            ETCD,
            "--listen-peer-urls",
            "http://127.0.0.1:2380",
        ]);
        self.start(processes, "etcd", etcd)?;

        let mut api = Command::new(self.programs.join("kube-apiserver"));
        for (flag, file) in [
            ("--tls-cert-file", "server.crt"),
            ("--tls-private-key-file", "server.key"),
            ("--token-auth-file", "tokens.csv"),
            ("--service-account-key-file", "service-accounts.pub"),
            ("--service-account-signing-key-file", "service-accounts.key"),
            ("--requestheader-client-ca-file", "front-proxy-ca.crt"),
            ("--proxy-client-cert-file", "front-proxy.crt"),
            ("--proxy-client-key-file", "front-proxy.key"),
            ("--admission-control-config-file", "admission.json"),
        ] {
            api.arg(flag).arg(self.keys.file(file));
        }
        api.args([
            format!("--advertise-address={}", self.address),
            format!("--secure-port={API_PORT}"),
            format!("--etcd-servers={ETCD}"),
            format!("--service-cluster-ip-range={SERVICES}"),
            format!("--requestheader-allowed-names={FRONT_PROXY}"),
        ]);
        api.args([
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            // How servers behind it are told who asks: as every distribution has them.
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            // There is no kube-proxy here; it goes to a Service's pods by itself.
            "--enable-aggregator-routing=true",
        ]);
        api.args(self.feature_gates());
        self.start(processes, "kube-apiserver", api)
    }

    fn feature_gates(&self) -> Option<String> {
        let gates = self.feature_gates.iter();
        let gates: Vec<String> = gates
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        (!gates.is_empty()).then(|| format!("--feature-gates={}", gates.join(",")))
    }

    /// Starts what would end if there were no API server yet.
    pub(crate) fn start_controllers(&self, processes: &Processes) -> Result<(), ClusterError> {
        let mut controllers = Command::new(self.programs.join("kube-controller-manager"));
        controllers
            .arg("--service-account-private-key-file")
            .arg(self.keys.file("service-accounts.key"))
            .arg("--root-ca-file")
            .arg(self.keys.file("ca.crt"));
        let scheduler = Command::new(self.programs.join("kube-scheduler"));
        for (name, mut command) in [
            ("kube-controller-manager", controllers),
            ("kube-scheduler", scheduler),
        ] {
            command.arg("--kubeconfig").arg(self.kubeconfig);
            command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
            command.args(self.feature_gates());
            self.start(processes, name, command)?;
        }
        Ok(())
    }

    fn start(
        &self,
        processes: &Processes,
        name: &'static str,
        command: Command,
    ) -> Result<(), ClusterError> {
        let log = self.logs.join(format!("{name}.log"));
        let command = std::sync::Mutex::new(command);
        processes.start(name, log, move |log| {
            let mut command = command
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            spawn(&mut command, name, &log)
        })
    }
}

/// Starts a component with its output going to its log and nothing to read.
pub(crate) fn spawn(command: &mut Command, name: &str, log: &File) -> Result<Child, ClusterError> {
    let output = || log.try_clone().map_err(ClusterError::system(name));
    command
        .stdin(std::process::Stdio::null())
        .stdout(output()?)
        .stderr(output()?)
        .spawn()
        .map_err(ClusterError::system(name))
}
