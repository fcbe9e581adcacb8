//! A small fabric for tests: a certificate authority, agents over 127.0.0.0/8, and the operator.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};
use weft_agent::agent::Agent;
use weft_agent::config;
use weft_identity::authority::Authority;
use weft_proto::Message as _;
use weft_proto::agent::v1::agent_client::AgentClient;
use weft_proto::agent::v1::start_request::Task;
use weft_proto::agent::v1::*;

pub(crate) use crate::eventually::{DEADLINE, eventually};

const CONTROL_PORT: u16 = 7400;
const METRICS_PORT: u16 = 7401;
const DATA_PORT: u16 = 7410;

pub(crate) type Client = AgentClient<Channel>;

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn params(uri: &str, dns: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![dns.to_owned()]).unwrap();
    let uri = Ia5String::try_from(uri).unwrap();
    params.subject_alt_names.push(SanType::URI(uri));
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params
}

/// PEM certificate and key.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// A fabric's authority, ticket key and directories.
pub(crate) struct Lab {
    pub(crate) dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
    tickets: Ed25519KeyPair,
    /// Third byte of all addresses.
    net: u8,
}

impl Lab {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let issuer = authority();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self {
            dir,
            issuer,
            tickets: Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap(),
            net: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Replaces the authority, and with it the certificates of these nodes.
    pub(crate) fn renew(&mut self, nodes: Range<usize>) {
        self.issuer = authority();
        std::fs::write(self.dir.path().join("ca.pem"), self.issuer.pem()).unwrap();
        nodes.for_each(|node| self.certify(node));
    }

    /// Writes a node's certificate and key.
    fn certify(&self, node: usize) {
        let name = format!("n{node}");
        let pair = self.issue(
            &format!("weft://lab/node/{name}"),
            &format!("{name}.lab.weft"),
        );
        let file = |suffix: &str| self.dir.path().join(format!("{name}.{suffix}"));
        std::fs::write(file("pem"), pair.certificate).unwrap();
        std::fs::write(file("key"), pair.key).unwrap();
    }

    /// A certificate with these names, signed by this fabric's authority.
    pub(crate) fn issue(&self, uri: &str, dns: &str) -> Pair {
        let key = KeyPair::generate().unwrap();
        let certificate = params(uri, dns).signed_by(&key, &self.issuer).unwrap();
        Pair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    pub(crate) fn address(&self, node: usize) -> Ipv4Addr {
        // Test binaries may run at the same time.
        let process = u8::try_from(std::process::id() % 200).unwrap() + 20;
        Ipv4Addr::new(127, process, self.net, u8::try_from(node + 1).unwrap())
    }

    pub(crate) fn control(&self, node: usize) -> String {
        format!("{}:{CONTROL_PORT}", self.address(node))
    }

    pub(crate) fn metrics(&self, node: usize) -> String {
        format!("{}:{METRICS_PORT}", self.address(node))
    }

    /// The directory of a node's root `data`.
    pub(crate) fn root(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("node{node}"))
    }

    /// The authority in force, as PEM.
    pub(crate) fn authority(&self) -> String {
        self.issuer.pem()
    }

    /// Signs the key of a request, as `uri` and `dns`.
    pub(crate) fn sign(&self, request: &str, uri: &str, dns: &str, life: Range<i64>) -> String {
        let request = CertificateSigningRequestParams::from_pem(request).unwrap();
        let mut params = params(uri, dns);
        let now = OffsetDateTime::now_utc();
        params.not_before = now + time::Duration::seconds(life.start);
        params.not_after = now + time::Duration::seconds(life.end);
        let certificate = params.signed_by(&request.public_key, &self.issuer);
        certificate.unwrap().pem()
    }

    /// The public half of the ticket key, in hexadecimal digits.
    pub(crate) fn ticket_key(&self) -> String {
        let mut key = String::new();
        for byte in self.tickets.public_key().as_ref() {
            write!(key, "{byte:02x}").unwrap();
        }
        key
    }

    /// Writes a node's certificate and configuration; `extra` is appended.
    pub(crate) fn configure(&self, node: usize, extra: &str) -> PathBuf {
        let name = format!("n{node}");
        self.certify(node);
        let dir = self.dir.path();
        std::fs::create_dir_all(self.root(node)).unwrap();
        let key = self.ticket_key();
        let (d, root) = (dir.display(), self.root(node).display().to_string());
        let text = format!(
            "node: {name}\nfabric: lab\n\
             control: {{listen: '{control}'}}\nmetrics: {{listen: '{metrics}'}}\n\
             data: {{address: {address}, ports: {{first: {DATA_PORT}, count: 2}}}}\n\
             operator: {{ticketKey: {key}}}\n\
             tls: {{ca: {d}/ca.pem, certificate: {d}/{name}.pem, key: {d}/{name}.key}}\n\
             roots:\n  - {{name: data, path: {root}, access: ReadWrite}}\n{extra}",
            control = self.control(node),
            metrics = self.metrics(node),
            address = self.address(node),
        );
        let file = dir.join(format!("{name}.yaml"));
        std::fs::write(&file, text).unwrap();
        file
    }

    /// Starts the agent of a node whose authority is an operator's.
    pub(crate) async fn agent_of(&self, authority: &Authority, node: usize, extra: &str) -> Agent {
        let text = std::fs::read_to_string(self.configure(node, extra)).unwrap();
        let (dir, name) = (self.dir.path(), format!("n{node}"));
        let identity = authority.node(&name).unwrap();
        std::fs::write(dir.join("ca.pem"), authority.certificate()).unwrap();
        std::fs::write(dir.join(format!("{name}.pem")), identity.certificate).unwrap();
        std::fs::write(dir.join(format!("{name}.key")), identity.key).unwrap();
        let text = text.replace(&self.ticket_key(), &authority.ticket_key());
        Agent::start(&config::parse(&text).unwrap()).await.unwrap()
    }

    /// Starts a node's agent in this process.
    pub(crate) async fn agent(&self, node: usize, extra: &str) -> Agent {
        let text = std::fs::read_to_string(self.configure(node, extra)).unwrap();
        Agent::start(&config::parse(&text).unwrap()).await.unwrap()
    }

    /// A client that shows this certificate.
    pub(crate) async fn client_as(&self, node: usize, pair: &Pair) -> Result<Client, String> {
        self.client_by(&self.control(node), node, pair).await
    }

    /// The same by another way to the node.
    pub(crate) async fn client_by(
        &self,
        address: &str,
        node: usize,
        pair: &Pair,
    ) -> Result<Client, String> {
        self.channel_by(address, node, pair).await.map(Client::new)
    }

    /// A connection to a node, for any of its services.
    pub(crate) async fn channel_by(
        &self,
        address: &str,
        node: usize,
        pair: &Pair,
    ) -> Result<Channel, String> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.issuer.pem()))
            .identity(Identity::from_pem(&pair.certificate, &pair.key))
            .domain_name(format!("n{node}.lab.weft"));
        let endpoint = Endpoint::from_shared(format!("https://{address}"))
            .unwrap()
            .tls_config(tls)
            .unwrap();
        endpoint
            .connect()
            .await
            .map_err(|error| format!("{error:?}"))
    }

    /// The operator's client, as soon as the agent listens.
    pub(crate) async fn operator(&self, node: usize) -> Client {
        let pair = self.issue("weft://lab/operator", "operator.lab.weft");
        eventually("the agent listens", || async {
            self.client_as(node, &pair).await.ok()
        })
        .await
    }

    /// What a node serves beside its control API, header included.
    pub(crate) async fn get(&self, node: usize, path: &str) -> String {
        self.try_get(node, path).await.unwrap()
    }

    /// The same while the port may be changing hands.
    pub(crate) async fn try_get(&self, node: usize, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.metrics(node)).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    /// A ticket, after a change.
    pub(crate) fn ticket(
        &self,
        job: &AttemptRef,
        from: usize,
        to: usize,
        change: impl FnOnce(&mut Ticket),
    ) -> SignedTicket {
        let location = Location {
            root: "data".to_owned(),
            path: "model".to_owned(),
        };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let mut ticket = Ticket {
            fabric: "lab".to_owned(),
            attempt: Some(job.clone()),
            from_node: format!("n{from}"),
            to_node: format!("n{to}"),
            source: Some(location.clone()),
            destination: Some(location),
            permission: Permission::Write.into(),
            expires_unix_s: now.as_secs() + 600,
            manifest_digest: Vec::new(),
        };
        change(&mut ticket);
        let bytes = ticket.encode_to_vec();
        let signed = [b"weft.agent.v1.Ticket\n".as_slice(), &bytes].concat();
        SignedTicket {
            ticket: bytes,
            signature: self.tickets.sign(&signed).as_ref().to_vec(),
        }
    }

    pub(crate) fn child(&self, job: &AttemptRef, from: usize, to: usize) -> Child {
        Child {
            node: format!("n{to}"),
            control_address: self.control(to),
            ticket: Some(self.ticket(job, from, to, |_| {})),
        }
    }

    /// For a node that is to get what node 0 has listed.
    pub(crate) fn prepare(
        &self,
        job: &AttemptRef,
        node: usize,
        listed: &StatResponse,
    ) -> PrepareRequest {
        PrepareRequest {
            attempt: Some(job.clone()),
            leader_epoch: 1,
            location: model(),
            manifest_digest: listed.manifest_digest.clone(),
            verification: verify(Algorithm::Blake3),
            overwrite: Overwrite::IfDifferent.into(),
            manifest_from: (node != 0).then(|| ManifestHolder {
                node: "n0".to_owned(),
                control_address: self.control(0),
                ticket: Some(self.fetching(job, node, listed)),
            }),
            job_name: name_of(job),
            fingerprint: listed.fingerprint.clone(),
        }
    }

    /// Lets a node fetch from node 0 what that has listed.
    pub(crate) fn fetching(
        &self,
        job: &AttemptRef,
        node: usize,
        listed: &StatResponse,
    ) -> SignedTicket {
        self.ticket(job, node, 0, |ticket| {
            ticket.permission = Permission::FetchManifest.into();
            ticket.manifest_digest.clone_from(&listed.manifest_digest);
        })
    }

    /// Plays the operator: node 0 sends `model` by a tree given as (parent, child) pairs.
    pub(crate) async fn run(
        &self,
        job: &AttemptRef,
        edges: &[(usize, usize)],
    ) -> Vec<ProgressResponse> {
        self.begin(job, edges, Algorithm::Blake3).await.unwrap();
        let mut nodes = vec![0];
        nodes.extend(edges.iter().map(|(_, child)| *child));
        let mut ends = Vec::new();
        for node in nodes {
            ends.push(self.finish(node, job).await);
        }
        ends
    }

    /// Stat, Prepare and Start.
    pub(crate) async fn begin(
        &self,
        job: &AttemptRef,
        edges: &[(usize, usize)],
        algorithm: Algorithm,
    ) -> Result<Vec<PrepareResponse>, Status> {
        self.begin_at("model", job, edges, algorithm).await
    }

    /// The same to another place at the destinations.
    pub(crate) async fn begin_at(
        &self,
        path: &str,
        job: &AttemptRef,
        edges: &[(usize, usize)],
        algorithm: Algorithm,
    ) -> Result<Vec<PrepareResponse>, Status> {
        let location = Some(Location {
            path: path.to_owned(),
            ..model().unwrap()
        });
        let manifest = stat(&mut self.operator(0).await).await?;
        let mut prepared = Vec::new();
        for (_, node) in edges {
            let request = PrepareRequest {
                location: location.clone(),
                verification: verify(algorithm),
                ..self.prepare(job, *node, &manifest)
            };
            prepared.push(
                self.operator(*node)
                    .await
                    .prepare(request)
                    .await?
                    .into_inner(),
            );
        }
        let children = |node: usize| {
            edges
                .iter()
                .filter(|(parent, _)| *parent == node)
                .map(|(_, child)| Child {
                    ticket: Some(self.ticket(job, node, *child, |ticket| {
                        ticket.destination = location.clone();
                    })),
                    ..self.child(job, node, *child)
                })
                .collect()
        };
        for (_, node) in edges {
            let request = StartRequest {
                attempt: Some(job.clone()),
                leader_epoch: 1,
                job_name: name_of(job),
                task: Some(Task::Destination(DestinationTask { object: None })),
                sends_to: children(*node),
            };
            self.operator(*node).await.start(request).await?;
        }
        let mut request = start_source(job, &manifest, children(0), algorithm);
        if let Some(Task::Source(part)) = &mut request.task {
            // The source has the files where the destinations have them.
            part.job_name = name_of(job).filter(|_| location == model());
        }
        self.operator(0).await.start(request).await?;
        Ok(prepared)
    }

    /// The last progress message of an attempt at a node.
    pub(crate) async fn finish(&self, node: usize, job: &AttemptRef) -> ProgressResponse {
        let follow = async {
            let mut stream = self.follow(node, job).await;
            let mut last = None;
            while let Some(progress) = stream.message().await.unwrap() {
                last = Some(progress);
            }
            last.unwrap()
        };
        tokio::time::timeout(DEADLINE, follow)
            .await
            .expect("the attempt ends")
    }

    pub(crate) async fn follow(
        &self,
        node: usize,
        job: &AttemptRef,
    ) -> tonic::Streaming<ProgressResponse> {
        let request = ProgressRequest {
            attempt: Some(job.clone()),
            leader_epoch: 1,
            interval_ms: 50,
        };
        self.operator(node)
            .await
            .progress(request)
            .await
            .unwrap()
            .into_inner()
    }
}

/// A way to an agent's control API that can be cut so that neither end is told.
pub(crate) struct Wire {
    pub(crate) address: String,
    cut: watch::Sender<bool>,
}

impl Wire {
    pub(crate) async fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let cut = watch::Sender::new(false);
        let watch = cut.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut far = TcpStream::connect(&target).await.unwrap();
                let mut watch = watch.clone();
                tokio::spawn(async move {
                    let cut = async { watch.wait_for(|cut| *cut).await.is_ok() };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        // Both ends stay open, and nobody reads.
                        _ = cut => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, cut }
    }

    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }
}

pub(crate) fn verify(algorithm: Algorithm) -> Option<Verification> {
    Some(Verification {
        algorithm: algorithm.into(),
        expect: String::new(),
    })
}

pub(crate) fn model() -> Option<Location> {
    Some(Location {
        root: "data".to_owned(),
        path: "model".to_owned(),
    })
}

pub(crate) fn job(uid: &str, attempt: u32) -> AttemptRef {
    AttemptRef {
        uid: uid.to_owned(),
        generation: 1,
        number: attempt,
    }
}

pub(crate) async fn stat(client: &mut Client) -> Result<StatResponse, Status> {
    let request = StatRequest {
        leader_epoch: 1,
        location: model(),
        symlinks: Symlinks::Follow.into(),
        ..StatRequest::default()
    };
    Ok(client.stat(request).await?.into_inner())
}

pub(crate) fn start_source(
    job: &AttemptRef,
    manifest: &StatResponse,
    sends_to: Vec<Child>,
    algorithm: Algorithm,
) -> StartRequest {
    let source = SourceTask {
        location: model(),
        manifest_digest: manifest.manifest_digest.clone(),
        fingerprint: manifest.fingerprint.clone(),
        verification: verify(algorithm),
        job_name: None,
    };
    StartRequest {
        attempt: Some(job.clone()),
        leader_epoch: 1,
        job_name: name_of(job),
        task: Some(Task::Source(source)),
        sends_to,
    }
}

/// What a copy of the job is recorded for.
pub(crate) fn name_of(job: &AttemptRef) -> Option<JobName> {
    Some(JobName {
        namespace: "team".to_owned(),
        name: format!("job-{}", job.uid),
        namespace_uid: "namespace-1".to_owned(),
    })
}

/// Ends the job at a node and takes it out of the records there.
pub(crate) async fn release_copies(lab: &Lab, node: usize, job: &AttemptRef) {
    let request = CancelRequest {
        attempt: Some(job.clone()),
        leader_epoch: 1,
        remove_partials: true,
        release_copies: true,
    };
    lab.operator(node).await.cancel(request).await.unwrap();
}

/// The reason in an error's detail.
pub(crate) fn reason(status: &Status) -> String {
    let detail = ErrorDetail::decode(status.details()).unwrap();
    assert!(!status.message().is_empty() && status.code() != Code::Ok);
    detail.reason
}

/// Bytes that repeat nowhere.
pub(crate) fn noise(bytes: usize, seed: u8) -> Vec<u8> {
    let mut out = vec![0; bytes];
    blake3::Hasher::new_keyed(&[seed; 32])
        .finalize_xof()
        .fill(&mut out);
    out
}

pub(crate) fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}
