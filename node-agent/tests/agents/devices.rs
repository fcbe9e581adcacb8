//! Offers between the queue pairs of two nodes, whose engines are played by these tests.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::{BroadcastStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use weft_proto::Message as _;
use weft_proto::agent::v1::{
    ListPodDevicesRequest, PodDevice, QueuePairName, QueuePairOffer, State,
};
use weft_proto::engine::v1::engine_server::{Engine, EngineServer};
use weft_proto::engine::v1::*;
use weft_proto::operator::v1::{DeviceReport, Devices, NodeReport};

use crate::operator::Operator;
use crate::support::{DEADLINE, Lab, eventually, job, noise, write};

/// What an agent tells its engine, and what the engine offers.
struct FakeEngine {
    offers: broadcast::Sender<QueuePairOffer>,
    received: mpsc::UnboundedReceiver<ReceiveOfferRequest>,
    flags: Arc<Mutex<Vec<String>>>,
}

struct Service {
    offers: broadcast::Sender<QueuePairOffer>,
    received: mpsc::UnboundedSender<ReceiveOfferRequest>,
    /// None of them: it is of an earlier release.
    flags: Arc<Mutex<Vec<String>>>,
}

impl FakeEngine {
    fn serve(socket: &Path) -> Self {
        let (offers, _) = broadcast::channel(16_384);
        let (sender, received) = mpsc::unbounded_channel();
        let flags = Arc::new(Mutex::default());
        let service = EngineServer::new(Service {
            offers: offers.clone(),
            received: sender,
            flags: flags.clone(),
        });
        let listener = UnixListener::bind(socket).unwrap();
        let incoming = UnixListenerStream::new(listener);
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(incoming));
        Self {
            offers,
            received,
            flags,
        }
    }

    /// Offers as soon as the agent watches.
    async fn offer(&self, offer: QueuePairOffer) {
        eventually("the agent watches", || async {
            self.offers.send(offer.clone()).ok()
        })
        .await;
    }

    async fn next(&mut self) -> ReceiveOfferRequest {
        let received = tokio::time::timeout(DEADLINE, self.received.recv()).await;
        received.expect("an offer comes").unwrap()
    }
}

#[tonic::async_trait]
impl Engine for Service {
    async fn create_device(
        &self,
        _: Request<CreateDeviceRequest>,
    ) -> Result<Response<CreateDeviceResponse>, Status> {
        Err(Status::unimplemented("no test makes one"))
    }

    async fn destroy_device(
        &self,
        _: Request<DestroyDeviceRequest>,
    ) -> Result<Response<DestroyDeviceResponse>, Status> {
        Err(Status::unimplemented("no test makes one"))
    }

    async fn list_devices(
        &self,
        _: Request<ListDevicesRequest>,
    ) -> Result<Response<ListDevicesResponse>, Status> {
        let device = |name: &str, owner: &str| Device {
            name: name.to_owned(),
            owner: owner.to_owned(),
            bytes_sent: 5,
            refused_offers: 1,
            refused_calls: 2,
            ..Device::default()
        };
        let devices = vec![
            device("vdev-00000", "team-a/a"),
            device("vdev-00001", "team-b/b"),
        ];
        Ok(Response::new(ListDevicesResponse {
            devices,
            ..ListDevicesResponse::default()
        }))
    }

    async fn take_refused_attempts(
        &self,
        _: Request<TakeRefusedAttemptsRequest>,
    ) -> Result<Response<TakeRefusedAttemptsResponse>, Status> {
        Ok(Response::new(TakeRefusedAttemptsResponse {
            attempts: vec![refused_attempt()],
        }))
    }

    async fn get_flags(
        &self,
        _: Request<GetFlagsRequest>,
    ) -> Result<Response<GetFlagsResponse>, Status> {
        let flags = self.flags.lock().unwrap().clone();
        match flags.is_empty() {
            true => Err(Status::unimplemented("there is no such call")),
            false => Ok(Response::new(GetFlagsResponse { flags })),
        }
    }

    type WatchOffersStream = Pin<Box<dyn Stream<Item = Result<QueuePairOffer, Status>> + Send>>;

    async fn watch_offers(
        &self,
        _: Request<WatchOffersRequest>,
    ) -> Result<Response<Self::WatchOffersStream>, Status> {
        let offers = BroadcastStream::new(self.offers.subscribe());
        let offers = offers.map(|offer| Ok(offer.expect("the agent takes them fast")));
        Ok(Response::new(Box::pin(offers)))
    }

    async fn receive_offer(
        &self,
        request: Request<ReceiveOfferRequest>,
    ) -> Result<Response<ReceiveOfferResponse>, Status> {
        let _ = self.received.send(request.into_inner());
        Ok(Response::new(ReceiveOfferResponse {}))
    }
}

fn refused_attempt() -> RefusedAttempt {
    RefusedAttempt {
        kind: refused_attempt::Kind::Connection.into(),
        from: "team-b/b".to_owned(),
        to: "team-a/a".to_owned(),
    }
}

fn name(node: usize, number: u32) -> Option<QueuePairName> {
    let mut gid = vec![0; 16];
    gid[15] = u8::try_from(node + 1).unwrap();
    Some(QueuePairName { gid, number })
}

fn offer(from: usize, to: usize, number: u32) -> QueuePairOffer {
    QueuePairOffer {
        from: name(from, number),
        to: name(to, 7),
        ..QueuePairOffer::default()
    }
}

/// The part of an agent's configuration that names its engine, and the devices of three nodes.
fn devices(lab: &Lab, node: usize) -> String {
    let socket = lab.dir.path().join(format!("engine{node}.sock"));
    let mut text = format!("devices:\n  socket: {}\n  peers:\n", socket.display());
    for peer in 0..3 {
        let control = lab.control(peer);
        let gid = peer + 1;
        text += &format!("    - {{gid: '::{gid}', node: n{peer}, control: '{control}'}}\n");
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_comes_to_the_engine_of_the_other_node_with_the_name_of_the_callers_certificate() {
    let lab = Lab::new();
    let socket = |node: usize| lab.dir.path().join(format!("engine{node}.sock"));
    let (of_a, mut of_b) = (FakeEngine::serve(&socket(0)), FakeEngine::serve(&socket(1)));
    let agents = [0, 1].map(|node| devices(&lab, node));
    let a = lab.agent(0, &agents[0]).await;
    let b = lab.agent(1, &agents[1]).await;
    let sent = QueuePairOffer {
        key_prefix: 3,
        answers: Some(4),
        ..offer(0, 1, 5)
    };
    of_a.offer(sent.clone()).await;
    let received = of_b.next().await;
    assert_eq!(received.node, "n0");
    assert_eq!(received.offer, Some(sent));
    a.stop().await;
    b.stop().await;
}

/// Of a fabric.
fn eight_devices() -> Option<Devices> {
    Some(Devices {
        first_port: 16_000,
        open: 4,
        per_node: 8,
        ..Devices::default()
    })
}

/// As where the chart has no devices any more, and the fabric has.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_an_engine_socket_says_so_and_moves_files() {
    let operator = Operator::new(Lab::new());
    operator.set_engine("1", |engine| engine.devices = eight_devices());
    let running = operator.serve().await;
    let mut members = Vec::new();
    for node in 0..2 {
        let member = operator.join_with(node, |settings| settings.engine_socket = None);
        members.push(member.await);
        let report = operator.ready(node).await;
        let findings = report.findings.iter().map(|it| (&*it.reason, &*it.message));
        let findings: Vec<(&str, &str)> = findings.collect();
        assert!(
            matches!(findings[..], [("DevicesNotServed", told)] if told.contains("devices.enabled")),
            "{findings:?}"
        );
        assert_eq!(report.devices, None);
    }
    let lab = operator.lab().await;
    write(&lab.root(0).join("model"), &noise(3 << 20, 1));
    for end in lab.run(&job("first", 1), &[(0, 1)]).await {
        assert_eq!(end.state(), State::Verified, "{end:?}");
    }
    drop(lab);
    for member in members {
        member.stop().await;
    }
    operator.set_engine("2", |engine| engine.devices = None);
    let member = operator.join_with(0, |settings| settings.engine_socket = None);
    let member = member.await;
    let report = operator.ready(0).await;
    assert_eq!((report.findings, report.devices), (Vec::new(), None));
    member.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_keep_and_are_counted_with_devices_that_their_fabric_has_no_more() {
    let operator = Operator::new(Lab::new());
    operator.set_engine("1", |engine| engine.devices = eight_devices());
    let running = operator.serve().await;
    let home = operator.lab().await.dir.path().to_owned();
    let socket = home.join("engine.sock");
    let flags = |file: &str, allowed: &[&str]| {
        let word = format!("@{}", home.join(file).display());
        weft_argument_file::expand([word.into()], allowed).unwrap()
    };
    let of_plugin = || {
        flags(
            "device-plugin.args",
            weft_argument_file::DEVICE_PLUGIN_FLAGS,
        )
    };
    let of_engine = || flags("engine.args", weft_argument_file::ENGINE_FLAGS);
    let have = |in_use| {
        let health = DeviceHealth {
            in_use,
            ..DeviceHealth::default()
        };
        let file = weft_proto::engine::health_file(&socket);
        std::fs::write(file, health.encode_to_vec()).unwrap();
    };
    have(2);
    let member = operator.join(0).await;
    let report = operator.ready(0).await.devices.unwrap();
    assert_eq!((report.total, report.in_use), (8, 2));
    assert_eq!(of_plugin(), ["--count=8"]);
    let before = of_engine();
    operator.set_engine("2", |engine| engine.devices = None);
    // As Kubernetes replaces it.
    member.stop().await;
    let _engine = FakeEngine::serve(&socket);
    let member = operator.join(0).await;
    let left = DeviceReport {
        in_use: 2,
        ..DeviceReport::default()
    };
    assert_eq!(operator.ready(0).await.devices, Some(left));
    assert_eq!(of_plugin(), ["--count=0"]);
    // An engine that is replaced goes on with them.
    assert_eq!(of_engine(), before);
    have(0);
    let has_none = |report: &NodeReport| report.ready && report.devices.is_none();
    operator.report("no pod has a device", has_none).await;
    member.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_runs_with_earlier_flags_is_a_finding_until_it_is_replaced() {
    let operator = Operator::new(Lab::new());
    operator.set_engine("1", |engine| engine.devices = eight_devices());
    let running = operator.serve().await;
    let home = operator.lab().await.dir.path().to_owned();
    let written = || {
        let text = std::fs::read_to_string(home.join("engine.args")).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<String>>()
    };
    let engine = FakeEngine::serve(&home.join("engine.sock"));
    let member = operator.join(0).await;
    assert_eq!(operator.ready(0).await.findings, Vec::new());
    let before = written();
    *engine.flags.lock().unwrap() = before.clone();
    operator.set_engine("2", |engine| {
        engine.devices = Some(Devices {
            first_port: 17_000,
            ..eight_devices().unwrap()
        });
    });
    // Kubernetes replaces the agent, and not the engine.
    member.stop().await;
    let member = operator.join(0).await;
    let is_outdated = |report: &NodeReport| {
        let mut findings = report.findings.iter();
        let found = findings.find(|finding| finding.reason == "EngineOutdated");
        found.is_some_and(|it| it.message.contains(": --first-port; delete the node's"))
    };
    let report = operator.report("it is told", is_outdated).await;
    assert!(report.ready, "{report:?}");
    assert_ne!(written(), before);
    *engine.flags.lock().unwrap() = written();
    let is_well = |report: &NodeReport| report.ready && report.findings.is_empty();
    operator.report("the engine is replaced", is_well).await;
    member.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn how_the_device_plugin_says_that_devices_are_is_reported_exported_and_listed() {
    let operator = Operator::new(Lab::new());
    operator.set_engine("1", |engine| engine.devices = eight_devices());
    let running = operator.serve().await;
    let lab = operator.lab().await;
    let socket = lab.dir.path().join("engine.sock");
    let _engine = FakeEngine::serve(&socket);
    let health = DeviceHealth {
        in_use: 2,
        ..DeviceHealth::default()
    };
    let file = weft_proto::engine::health_file(&socket);
    std::fs::write(&file, health.encode_to_vec()).unwrap();
    let member = operator.join(0).await;
    let report = operator.ready(0).await;
    let well = DeviceReport {
        total: 8,
        in_use: 2,
        ..DeviceReport::default()
    };
    assert_eq!(report.devices, Some(well));
    let lost = DeviceFault {
        reason: "DeviceLost".to_owned(),
        message: "restart the container".to_owned(),
        device: "vdev-00002".to_owned(),
        pod: "team-a/c".to_owned(),
    };
    let health = DeviceHealth {
        devices: vec![lost],
        ..health
    };
    std::fs::write(&file, health.encode_to_vec()).unwrap();
    let is_lost = |report: &NodeReport| {
        let devices = report.devices.as_ref();
        devices.is_some_and(|devices| devices.reason == "DeviceLost")
    };
    let report = operator.report("the device is reported", is_lost).await;
    let devices = report.devices.unwrap();
    assert_eq!((devices.total, devices.unhealthy), (8, 1));
    assert_eq!(
        devices.message,
        "vdev-00002 of pod team-a/c: restart the container"
    );
    let tells = |report: &NodeReport| !report.refused_attempts.is_empty();
    let told = operator.report("the refused attempt is reported", tells);
    assert_eq!(told.await.refused_attempts, [refused_attempt()]);
    let metrics = lab.get(0, "/metrics").await;
    for line in [
        "weft_devices{} 8",
        "weft_devices_in_use{} 2",
        r#"weft_devices_unhealthy{reason="DeviceLost"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in:\n{metrics}");
    }
    let request = ListPodDevicesRequest {
        leader_epoch: 1,
        namespace: "team-a".to_owned(),
        after: String::new(),
    };
    let mut client = lab.operator(0).await;
    let listed = client.list_pod_devices(request).await.unwrap();
    let listed = listed.into_inner().devices;
    let shown = listed.iter().map(|device| {
        let PodDevice {
            device,
            pod,
            bytes_sent,
            reason,
            ..
        } = device;
        (device.as_str(), pod.as_str(), *bytes_sent, reason.as_str())
    });
    let shown: Vec<_> = shown.collect();
    assert_eq!(
        shown,
        [
            ("vdev-00000", "a", 5, ""),
            ("vdev-00002", "c", 0, "DeviceLost")
        ]
    );
    drop(lab);
    member.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_agent_does_not_answer_delays_no_offer_to_another_and_holds_so_many() {
    let lab = Lab::new();
    let socket = |node: usize| lab.dir.path().join(format!("engine{node}.sock"));
    let (of_a, mut of_b) = (FakeEngine::serve(&socket(0)), FakeEngine::serve(&socket(1)));
    // It takes connections and says nothing.
    let silent = TcpListener::bind(lab.control(2)).await.unwrap();
    let a = lab.agent(0, &devices(&lab, 0)).await;
    let b = lab.agent(1, &devices(&lab, 1)).await;
    of_a.offer(offer(0, 2, 0)).await;
    for number in 1..5000 {
        of_a.offer(offer(0, 2, number)).await;
    }
    of_a.offer(offer(0, 1, 5000)).await;
    let received = tokio::time::timeout(Duration::from_secs(4), of_b.received.recv());
    let received = received.await.expect("it waits for no other").unwrap();
    assert_eq!(received.offer, Some(offer(0, 1, 5000)));
    // 16 are under way, 4,096 wait, and the task that takes them out of the queue holds at most one more.
    let metrics = lab.get(0, "/metrics").await;
    let dropped = metrics.lines().find_map(|line| {
        let count = line.strip_prefix("weft_offers_dropped_total ")?;
        count.parse::<usize>().ok()
    });
    let dropped = dropped.expect("it is exported");
    assert!(
        (5000 - 4096 - 17..=5000 - 4096).contains(&dropped),
        "{dropped}"
    );
    drop(silent);
    a.stop().await;
    b.stop().await;
}
