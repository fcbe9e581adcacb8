use std::num::NonZeroU32;

use axum::{
    Router,
    body::Bytes,
    extract::Path,
    http::StatusCode,
    routing::{get, post},
};
use futures::stream::FuturesUnordered;
use kube::Client;
use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::{UnboundedSender, unbounded_channel},
    time::timeout,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Code,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use weft_identity::{
    OPERATOR_NAME, authority,
    metrics_access::{ALLOWED_FOR, REFUSED_FOR, Reviewer},
};
use weft_proto::{
    Message as _,
    agent::v1::ErrorDetail,
    operator::v1::{
        Copy, DeviceReport, EngineConfig, Finding, Transport, operator_client::OperatorClient,
    },
};

use super::*;
use crate::reports::FabricAgents;

const ACCOUNT: &str = "system:serviceaccount:weft-system:weft-agent";
const PATIENCE: Duration = Duration::from_secs(10);

/// What an API server answers about a good token of a pod on a node.
fn good(node: &str) -> Value {
    json!({
        "authenticated": true,
        "audiences": [AUDIENCE],
        "user": {"username": ACCOUNT, "extra": {NODE_NAME: [node]}},
    })
}

/// Of a token, `node:NAME` is good and `json:…` is answered as it says; that is the second of its three parts,
/// in hexadecimal.
fn token(text: &str) -> String {
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("e30.{digits}.c2ln")
}

fn text(token: &str) -> String {
    let digits = token.split('.').nth(1).unwrap();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    String::from_utf8((0..digits.len()).step_by(2).map(byte).collect()).unwrap()
}

/// An API server that knows them.
fn reviews() -> Client {
    let review = async |body: Bytes| {
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(review["spec"]["audiences"], json!([AUDIENCE]));
        let status = match text(review["spec"]["token"].as_str().unwrap()).split_once(':') {
            Some(("node", node)) => good(node),
            Some(("json", text)) => serde_json::from_str(text).unwrap(),
            _ => {
                let code = StatusCode::INTERNAL_SERVER_ERROR;
                let status = kube::core::Status::failure("connection refused", "InternalError");
                let status = status.with_code(code.as_u16());
                return (code, serde_json::to_string(&status).unwrap());
            }
        };
        review["status"] = status;
        (StatusCode::CREATED, review.to_string())
    };
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let claims = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}";
    let router = Router::new().route(path, post(review));
    Client::new(router.route(claims, get(claim)), "default")
}

/// The claim `vdev`, which has a device of n1; there is no other. About `slow` it never answers.
async fn claim(Path((_, name)): Path<(String, String)>) -> (StatusCode, String) {
    if name == "slow" {
        return std::future::pending().await;
    }
    if name != "vdev" {
        let details = json!({"name": name, "kind": "resourceclaims"});
        let status = json!({
            "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "there is none", "details": details,
        });
        return (StatusCode::NOT_FOUND, status.to_string());
    }
    let device =
        json!({"request": "rdma", "driver": "vdev.weft.dev", "pool": "n1", "device": "vdev-7"});
    let claim = json!({
        "metadata": {"namespace": "team-a", "name": name, "uid": "5d1e"},
        "status": {
            "allocation": {"devices": {"results": [device]}},
            "reservedFor": [{"resource": "pods", "name": "trainer-0", "uid": "77"}],
        },
    });
    (StatusCode::OK, claim.to_string())
}

/// Knows `reader` and `guest`, of whom `reader` may read metrics, and cannot say about `away`.
#[derive(Debug)]
struct Readers;

#[tonic::async_trait]
impl Reviewer for Readers {
    async fn review(&self, token: &str) -> Result<Review, String> {
        let user = token.to_owned();
        let verdict = match token {
            "reader" => Verdict::Allowed { user },
            "guest" => Verdict::Forbidden { user },
            "away" => return Err("no answer within 10 s".to_owned()),
            _ => Verdict::Unknown {
                problem: "expired".to_owned(),
            },
        };
        Ok(verdict.review())
    }
}

/// An operator that leads, with the fabric `lab` of the nodes n1 and n2.
struct Stage {
    authority: Authority,
    address: String,
    fabrics: watch::Sender<Fabrics>,
    reports: Reports,
    metrics: Metrics,
}

fn config(paths: u32) -> NodeConfig {
    NodeConfig {
        engine: Some(EngineConfig {
            transport: Some(Transport {
                paths,
                ..Transport::default()
            }),
            ..EngineConfig::default()
        }),
        ..NodeConfig::default()
    }
}

fn lab(nodes: &[&str], paths: u32) -> Fabrics {
    let view = FabricAgents {
        config: config(paths),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
    };
    BTreeMap::from([("lab".to_owned(), view)])
}

impl Stage {
    async fn new() -> Self {
        let authority = Authority::new("weft").unwrap();
        let (fabrics, known) = watch::channel(lab(&["n1", "n2"], 4));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stage = Self {
            authority: authority.clone(),
            address: listener.local_addr().unwrap().to_string(),
            fabrics,
            reports: Reports::default(),
            metrics: Metrics::default(),
        };
        let control = Control {
            authority: Arc::new(authority),
            epoch: 7,
            limit: EnrollmentLimit::default(),
            reviews: Reviews::new(reviews()),
            metrics_access: Arc::new(MetricsAccess::new(Readers, NonZeroU32::new(9).unwrap())),
            review_limit: ReviewLimit::default(),
            pod_jobs: PodJobs::new(reviews()),
            claims: Claims::new(reviews()),
            refused_attempts: Arc::new(RefusedAttempts::new(reviews())),
            open_calls: OpenCalls::default(),
            account: ACCOUNT.to_owned(),
            fabrics: known,
            reports: stage.reports.clone(),
            metrics: stage.metrics.clone(),
        };
        tokio::spawn(
            async move { serve(listener, control, &["weft-operator.weft-system.svc"]).await },
        );
        stage
    }

    fn endpoint(&self, identity: Option<authority::Identity>) -> Endpoint {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.authority.certificate()))
            .domain_name(OPERATOR_NAME);
        if let Some(identity) = identity {
            tls = tls.identity(Identity::from_pem(identity.certificate, identity.key));
        }
        Endpoint::from_shared(format!("https://{}", self.address))
            .unwrap()
            .tls_config(tls)
            .unwrap()
    }

    async fn client(&self, identity: Option<authority::Identity>) -> OperatorClient<Channel> {
        OperatorClient::new(self.endpoint(identity).connect().await.unwrap())
    }

    async fn enroll(&self, request: EnrollRequest) -> Result<EnrollResponse, Status> {
        let mut client = self.client(None).await;
        client.enroll(request).await.map(Response::into_inner)
    }

    /// Opens a stream of reports with a node's certificate.
    async fn report(&self, fabric: &str, node: &str) -> Result<Agent, Status> {
        let identity = self.authority.of_fabric(fabric).node(node).unwrap();
        self.report_as(Some(identity)).await
    }

    async fn report_as(&self, identity: Option<authority::Identity>) -> Result<Agent, Status> {
        let mut client = self.client(identity).await;
        let (reports, receiver) = unbounded_channel();
        let orders = client
            .report(UnboundedReceiverStream::new(receiver))
            .await?;
        Ok(Agent {
            reports,
            orders: orders.into_inner(),
        })
    }

    /// Waits until the reports are as they should be.
    async fn reported(&self, expected: &[(&str, &str)]) {
        let mut nodes = self.reports.subscribe();
        let is = |nodes: &BTreeMap<String, crate::reports::NodeState>| {
            let found: Vec<_> = nodes
                .iter()
                .map(|(node, state)| (node.as_str(), state.report.version.as_str()))
                .collect();
            found == expected
        };
        let waited = timeout(PATIENCE, nodes.wait_for(is)).await;
        assert!(waited.is_ok(), "{:?}", self.reports.subscribe().borrow());
    }

    /// Waits until so many streams are open.
    async fn connected_are(&self, count: i64) {
        let waited = timeout(PATIENCE, async {
            while self.metrics.connected.get() != count {
                tokio::task::yield_now().await;
            }
        });
        assert!(waited.await.is_ok(), "{}", self.metrics.connected.get());
    }

    fn refusals(&self, call: &'static str, reason: &'static str) -> u64 {
        let labels = vec![("call", call), ("reason", reason)];
        self.metrics.refused.get_or_create(&labels).get()
    }
}

/// The agent's end of a stream.
struct Agent {
    reports: UnboundedSender<NodeReport>,
    orders: Streaming<NodeConfigUpdate>,
}

impl Agent {
    fn say(&self, version: &str) {
        let report = NodeReport {
            version: version.to_owned(),
            ..NodeReport::default()
        };
        self.reports.send(report).unwrap();
    }

    async fn order(&mut self) -> Result<Option<NodeConfig>, Status> {
        let order = timeout(PATIENCE, self.orders.message()).await.unwrap()?;
        Ok(order.and_then(|order| order.config))
    }
}

fn request(fabric: &str, token: &str) -> EnrollRequest {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(Vec::new()).unwrap();
    EnrollRequest {
        fabric: fabric.to_owned(),
        certificate_request: params.serialize_request(&key).unwrap().pem().unwrap(),
        token: self::token(token),
    }
}

fn detail(status: &Status) -> ErrorDetail {
    ErrorDetail::decode(status.details()).unwrap()
}

#[tokio::test]
async fn an_agent_with_its_pods_token_is_given_the_certificate_of_its_node_and_can_report() {
    let stage = Stage::new().await;
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(Vec::new()).unwrap();
    let csr = params.serialize_request(&key).unwrap().pem().unwrap();
    let request = EnrollRequest {
        certificate_request: csr,
        ..request("lab", "node:n1")
    };
    let given = stage.enroll(request).await.unwrap();
    assert_eq!(given.node, "n1");
    assert_eq!(given.config, Some(config(4)));
    assert_eq!(given.authorities, stage.authority.certificate());
    let identity = authority::Identity {
        certificate: given.certificate,
        key: key.serialize_pem(),
    };
    let agent = stage.report_as(Some(identity)).await.unwrap();
    agent.say("1");
    stage.reported(&[("n1", "1")]).await;
    assert_eq!(stage.metrics.enrolled.get(), 1);
}

#[tokio::test]
async fn an_address_that_enrolls_too_often_is_refused_with_the_limit() {
    let stage = Stage::new().await;
    let mut client = stage.client(None).await;
    // It is refused before the token is looked at.
    let request = EnrollRequest {
        token: "none".to_owned(),
        ..EnrollRequest::default()
    };
    let refused = loop {
        let refused = client.enroll(request.clone()).await.unwrap_err();
        if refused.code() != Code::Unauthenticated {
            break refused;
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("50 times a second"), "{refused}");
    assert!(detail(&refused).retriable);
    assert_eq!(stage.refusals("Enroll", "TooManyCalls"), 1);
}

#[tokio::test]
async fn whoever_may_not_enroll_is_told_why_and_counted() {
    let stage = Stage::new().await;
    let with = |change: fn(&mut Value)| {
        let mut status = good("n1");
        change(&mut status);
        format!("json:{status}")
    };
    let csr_of_nothing = EnrollRequest {
        certificate_request: "-----BEGIN CERTIFICATE REQUEST-----\nAAAA".to_owned(),
        ..request("lab", "node:n1")
    };
    let expired = r#"json:{"error": "token has expired"}"#;
    let table = [
        (
            request("lab", expired),
            "TokenRefused",
            Code::Unauthenticated,
            "token has expired",
        ),
        (
            request("lab", "json:{}"),
            "TokenRefused",
            Code::Unauthenticated,
            "token",
        ),
        (
            request(
                "lab",
                &with(|status| status["audiences"] = json!(["https://kubernetes"])),
            ),
            "TokenRefused",
            Code::Unauthenticated,
            "another audience",
        ),
        (
            request("lab", &with(|status| status["audiences"] = Value::Null)),
            "TokenRefused",
            Code::Unauthenticated,
            "another audience",
        ),
        (
            request(
                "lab",
                &with(|status| {
                    status["user"]["username"] = json!("system:serviceaccount:team-a:weft-agent");
                }),
            ),
            "WrongAccount",
            Code::PermissionDenied,
            "system:serviceaccount:team-a:weft-agent",
        ),
        (
            request("lab", &with(|status| status["user"]["extra"] = json!({}))),
            "TokenWithoutNode",
            Code::PermissionDenied,
            "bound to a pod",
        ),
        (
            request(
                "lab",
                &with(|status| status["user"]["extra"][NODE_NAME] = json!(["n1", "n2"])),
            ),
            "TokenWithoutNode",
            Code::PermissionDenied,
            "bound to a pod",
        ),
        (
            request("lab", "node:n3"),
            "NotOfFabric",
            Code::FailedPrecondition,
            "node n3",
        ),
        (
            request("other", "node:n1"),
            "NoFabric",
            Code::NotFound,
            "`other`",
        ),
        (
            csr_of_nothing,
            "BadRequest",
            Code::InvalidArgument,
            "certificate_request",
        ),
        (
            request("lab", "nobody answers"),
            "ReviewFailed",
            Code::Unavailable,
            "connection refused",
        ),
    ];
    for (request, reason, code, says) in table {
        let before = stage.refusals("Enroll", reason);
        let status = stage.enroll(request).await.unwrap_err();
        assert_eq!(detail(&status).reason, reason, "{status:?}");
        assert_eq!(status.code(), code, "{reason}");
        assert!(
            status.message().contains(says),
            "{reason}: {}",
            status.message()
        );
        assert!(!detail(&status).remedy.is_empty(), "{reason}");
        assert_eq!(stage.refusals("Enroll", reason), before + 1);
    }
    assert_eq!(stage.metrics.enrolled.get(), 0);
}

#[tokio::test]
async fn a_stolen_certificate_reports_for_its_own_node_only_and_no_other_certificate_reports() {
    let stage = Stage::new().await;
    let honest = stage.report("lab", "n2").await.unwrap();
    honest.say("honest");
    stage.reported(&[("n2", "honest")]).await;
    // A report names no node; whatever n1's certificate says is about n1.
    let thief = stage.report("lab", "n1").await.unwrap();
    thief.say("stolen");
    stage.reported(&[("n1", "stolen"), ("n2", "honest")]).await;

    let of = |fabric: &str| stage.authority.of_fabric(fabric);
    let table = [
        ("none", None, "NoCertificate"),
        (
            "a node outside",
            Some(of("lab").node("n3").unwrap()),
            "NotOfFabric",
        ),
        (
            "of another fabric",
            Some(of("other").node("n1").unwrap()),
            "NoFabric",
        ),
        (
            "the operator's",
            Some(of("lab").operator().unwrap()),
            "WrongCertificate",
        ),
    ];
    for (case, identity, reason) in table {
        let status = stage.report_as(identity).await.err().unwrap();
        assert_eq!(detail(&status).reason, reason, "{case}: {status:?}");
        assert_eq!(stage.refusals("Report", reason), 1, "{case}");
    }
    let stranger = Authority::new("weft")
        .unwrap()
        .of_fabric("lab")
        .node("n1")
        .unwrap();
    let mut client = OperatorClient::new(stage.endpoint(Some(stranger)).connect_lazy());
    let refused = client.report(tokio_stream::empty()).await.unwrap_err();
    assert!(refused.details().is_empty(), "TLS refuses it: {refused:?}");
    stage.reported(&[("n1", "stolen"), ("n2", "honest")]).await;
}

#[tokio::test]
async fn an_agent_is_told_the_configuration_once_and_then_every_change_until_its_node_leaves() {
    let stage = Stage::new().await;
    let mut agent = stage.report("lab", "n1").await.unwrap();
    agent.say("1");
    assert_eq!(agent.order().await.unwrap(), Some(config(4)));
    // Another node's coming is none of its business.
    stage.fabrics.send_replace(lab(&["n1", "n2", "n3"], 4));
    stage.fabrics.send_replace(lab(&["n1", "n2", "n3"], 8));
    assert_eq!(agent.order().await.unwrap(), Some(config(8)));
    stage.fabrics.send_replace(lab(&["n2"], 8));
    let status = agent.order().await.unwrap_err();
    assert_eq!(detail(&status).reason, "NotOfFabric");
    assert_eq!(detail(&status).node, "n1");
    stage.connected_are(0).await;
}

#[tokio::test]
async fn a_stream_that_ends_is_seen_and_a_second_one_of_the_same_node_takes_over() {
    let stage = Stage::new().await;
    let mut first = stage.report("lab", "n1").await.unwrap();
    first.say("1");
    stage.reported(&[("n1", "1")]).await;
    first.order().await.unwrap();
    let second = stage.report("lab", "n1").await.unwrap();
    second.say("2");
    stage.reported(&[("n1", "2")]).await;
    first.say("1 again");
    let status = first.order().await.unwrap_err();
    assert_eq!(detail(&status).reason, "Superseded");
    stage.reported(&[("n1", "2")]).await;
    stage.connected_are(1).await;
    drop(second);
    stage.connected_are(0).await;
}

#[tokio::test]
async fn a_stream_ends_with_the_certificate_that_it_began_with() {
    let stage = Stage::new().await;
    let kept = stage.authority.to_kept();
    let issuer = KeyPair::from_pem(&kept.key).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&kept.certificates, issuer).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    let uri = "weft://lab/node/n1".try_into().unwrap();
    params.subject_alt_names = vec![SanType::URI(uri)];
    // Long enough to connect in on a busy machine, short enough to wait for.
    params.not_after = time::OffsetDateTime::now_utc() + time::Duration::seconds(4);
    let key = KeyPair::generate().unwrap();
    let identity = authority::Identity {
        certificate: params.signed_by(&key, &issuer).unwrap().pem(),
        key: key.serialize_pem(),
    };
    let mut agent = stage.report_as(Some(identity)).await.unwrap();
    agent.say("1");
    agent.order().await.unwrap();
    let status = agent.order().await.unwrap_err();
    assert_eq!(detail(&status).reason, "CertificateEnded");
    stage.connected_are(0).await;
}

#[tokio::test]
async fn what_an_agent_may_say_is_bounded() {
    let stage = Stage::new().await;
    let mut agent = stage.report("lab", "n1").await.unwrap();
    let finding = |i: usize| Finding {
        reason: "Test".to_owned(),
        message: format!("the {i}th"),
    };
    let report = |findings: usize, version: String| NodeReport {
        version,
        findings: (0..findings).map(finding).collect(),
        ..NodeReport::default()
    };
    agent.reports.send(report(100, "1".into())).unwrap();
    stage.reported(&[("n1", "1")]).await;
    let kept = stage.reports.subscribe().borrow()["n1"]
        .report
        .findings
        .len();
    assert_eq!(kept, FINDINGS_MAX);
    agent.order().await.unwrap();
    agent
        .reports
        .send(report(0, "x".repeat(MESSAGE_BYTES_MAX)))
        .unwrap();
    // Too long: the stream is over.
    assert_eq!(agent.order().await.unwrap(), None);
    stage.connected_are(0).await;
}

#[test]
fn the_longest_report_of_an_agent_is_taken() {
    // As many bytes of copies as an agent lists (`copies.rs` there).
    let copy = Copy {
        path: "x".repeat(1000),
        ..Copy::default()
    };
    let finding = Finding {
        reason: "CertificateExpired".to_owned(),
        message: "x".repeat(FINDING_BYTES_MAX),
    };
    let nic = NodeNic {
        interface: "x".repeat(NAME_BYTES_MAX),
        address: "255.255.255.255".to_owned(),
        mbps: u32::MAX,
        up: true,
    };
    let report = NodeReport {
        control_address: "255.255.255.255:65535".to_owned(),
        data_address: "255.255.255.255".to_owned(),
        copies: vec![copy; 48],
        nics: vec![nic; NICS_MAX],
        findings: vec![finding; FINDINGS_MAX],
        ..NodeReport::default()
    };
    assert!(report.encoded_len() < MESSAGE_BYTES_MAX);
}

#[tokio::test]
async fn a_report_that_nobody_could_dial_is_refused() {
    let good = NodeReport {
        control_address: "10.0.0.1:7400".into(),
        data_address: "10.1.0.1".into(),
        mtu: 9000,
        ready: true,
        ..NodeReport::default()
    };
    let table = [
        (
            "control_address",
            NodeReport {
                control_address: "n7 7400".into(),
                ..good.clone()
            },
        ),
        (
            "control_address",
            NodeReport {
                control_address: String::new(),
                ..good.clone()
            },
        ),
        (
            "data_address",
            NodeReport {
                data_address: "fe80::1".into(),
                ..good.clone()
            },
        ),
        (
            "mtu",
            NodeReport {
                mtu: u32::MAX,
                ..good.clone()
            },
        ),
        (
            "nics",
            NodeReport {
                nics: vec![NodeNic {
                    address: "fe80::1".into(),
                    ..NodeNic::default()
                }],
                ..good.clone()
            },
        ),
        (
            "interface, pcie_root, version",
            NodeReport {
                interface: "x".repeat(300),
                ..good.clone()
            },
        ),
        (
            "pcie_root",
            NodeReport {
                pcie_root: "x".repeat(300),
                ..good.clone()
            },
        ),
        (
            "configuration",
            NodeReport {
                configuration: "x".repeat(300),
                ..good.clone()
            },
        ),
        (
            "devices.reason",
            NodeReport {
                devices: Some(DeviceReport {
                    reason: "two words".into(),
                    ..DeviceReport::default()
                }),
                ..good.clone()
            },
        ),
    ];
    for (field, report) in table {
        let stage = Stage::new().await;
        let mut agent = stage.report("lab", "n1").await.unwrap();
        agent.reports.send(good.clone()).unwrap();
        agent.order().await.unwrap();
        agent.reports.send(report).unwrap();
        let status = agent.order().await.unwrap_err();
        assert_eq!(detail(&status).reason, "BadRequest");
        assert!(status.message().contains(field), "{}", status.message());
    }
}

#[test]
fn a_long_finding_keeps_its_beginning_and_its_remedy() {
    for path in ["p", "ä", "€"] {
        let path = path.repeat(FINDING_BYTES_MAX);
        let mut report = NodeReport {
            findings: vec![Finding {
                reason: "Long".into(),
                message: format!("root {path}: mount it"),
            }],
            ..NodeReport::default()
        };
        validate_report(&mut report).unwrap();
        let message = &report.findings[0].message;
        assert!(message.len() <= FINDING_BYTES_MAX, "{}", message.len());
        assert!(message.starts_with("root ") && message.ends_with(": mount it"));
    }
}

#[tokio::test]
async fn an_agent_learns_which_devices_of_its_node_a_claim_has() {
    let stage = Stage::new().await;
    let find = async |node: Option<&str>, name: &str| {
        let identity = node.map(|node| stage.authority.of_fabric("lab").node(node).unwrap());
        let request = FindClaimRequest {
            namespace: "team-a".to_owned(),
            name: name.to_owned(),
            uid: "5d1e".to_owned(),
        };
        let found = stage.client(identity).await.find_claim(request).await;
        found.map(Response::into_inner)
    };
    let found = find(Some("n1"), "vdev").await.unwrap();
    assert_eq!(
        (&*found.pod, &*found.devices[0].device),
        ("trainer-0", "vdev-7")
    );
    for (node, name, code, reason) in [
        (Some("n2"), "vdev", Code::NotFound, "NoClaim"),
        (Some("n1"), "other", Code::NotFound, "NoClaim"),
        (Some("n1"), "../vdev", Code::InvalidArgument, "BadRequest"),
        (None, "vdev", Code::Unauthenticated, "NoCertificate"),
    ] {
        let before = stage.refusals("FindClaim", reason);
        let status = find(node, name).await.unwrap_err();
        assert_eq!(status.code(), code, "{name}: {status}");
        assert_eq!(stage.refusals("FindClaim", reason), before + 1);
    }
}

/// There are eight turns for all nodes.
#[tokio::test]
async fn a_node_that_asks_on_many_connections_holds_up_no_other() {
    let stage = Stage::new().await;
    let find = async |node: &str, name: &str| {
        let identity = stage.authority.of_fabric("lab").node(node).unwrap();
        let request = FindClaimRequest {
            namespace: "team-a".to_owned(),
            name: name.to_owned(),
            uid: "5d1e".to_owned(),
        };
        stage.client(Some(identity)).await.find_claim(request).await
    };
    let refused = async {
        // All but two are refused at once.
        let mut many: FuturesUnordered<_> = (0..20).map(|_| find("n1", "slow")).collect();
        for _ in 2..20 {
            let status = many.next().await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert_eq!(detail(&status).reason, "TooManyOpenCalls");
        }
        // While these two wait, a question about a job is one too many, and another node is answered.
        let identity = stage.authority.of_fabric("lab").node("n1").unwrap();
        let mut client = stage.client(Some(identity)).await;
        let asked = client.find_job(FindJobRequest::default()).await;
        assert_eq!(asked.unwrap_err().code(), Code::ResourceExhausted);
        find("n2", "vdev").await.unwrap_err()
    };
    let answered = timeout(PATIENCE, refused).await.unwrap();
    assert_eq!(detail(&answered).reason, "NoClaim");
}

#[test]
fn an_answered_call_makes_room_for_the_next() {
    let calls = OpenCalls::default();
    let first = calls.open("n1").unwrap();
    let _second = calls.open("n1").unwrap();
    assert!(calls.open("n1").is_err());
    let other = calls.open("n2").unwrap();
    drop((first, other));
    let _third = calls.open("n1").unwrap();
    assert!(calls.open("n1").is_err());
    assert_eq!(calls.0.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_node_learns_who_may_read_metrics_and_for_how_long_that_counts() {
    let stage = Stage::new().await;
    let identity = stage.authority.of_fabric("lab").node("n1").unwrap();
    let mut client = stage.client(Some(identity)).await;
    let mut review = async |token: &str| {
        let request = ReviewMetricsTokenRequest {
            token: token.to_owned(),
        };
        client
            .review_metrics_token(request)
            .await
            .map(Response::into_inner)
    };
    for (token, user, allowed, problem, life) in [
        ("reader", "reader", true, "", ALLOWED_FOR),
        ("guest", "guest", false, "", REFUSED_FOR),
        ("other", "", false, "expired", REFUSED_FOR),
    ] {
        let response = review(token).await.unwrap();
        assert_eq!(response.user, user);
        assert_eq!((response.allowed, &*response.problem), (allowed, problem));
        let valid_for = Duration::from_millis(response.valid_for_ms.into());
        assert!(valid_for <= life && valid_for > life / 2, "{valid_for:?}");
    }
    let away = review("away").await.unwrap_err();
    assert_eq!(away.code(), Code::Unavailable);
    assert!(away.message().contains("no answer within 10 s"), "{away}");
    // Until the node's turns are used up.
    let refused = loop {
        if let Err(refused) = review("reader").await {
            break refused;
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(stage.refusals("ReviewMetricsToken", "TooManyReviews"), 1);
    // Another node has turns of its own.
    let identity = stage.authority.of_fabric("lab").node("n2").unwrap();
    let request = ReviewMetricsTokenRequest {
        token: "reader".to_owned(),
    };
    let mut other = stage.client(Some(identity)).await;
    let response = other.review_metrics_token(request).await.unwrap();
    assert!(response.into_inner().allowed);
}

#[tokio::test]
async fn who_has_no_nodes_certificate_learns_nothing_about_tokens() {
    let stage = Stage::new().await;
    let stranger = stage.authority.of_fabric("lab").node("n9").unwrap();
    for (identity, reason) in [(None, "NoCertificate"), (Some(stranger), "NotOfFabric")] {
        let request = ReviewMetricsTokenRequest {
            token: "reader".to_owned(),
        };
        let mut client = stage.client(identity).await;
        let refused = client.review_metrics_token(request).await.unwrap_err();
        assert_eq!(detail(&refused).reason, reason);
    }
}
