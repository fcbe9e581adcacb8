//! Offers between the queue pairs of two nodes, whose engines are played by these tests.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::{BroadcastStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use weft_proto::agent::v1::{QueuePairName, QueuePairOffer};
use weft_proto::engine::v1::engine_server::{Engine, EngineServer};
use weft_proto::engine::v1::*;

use crate::support::{DEADLINE, Lab, eventually};

/// What an agent tells its engine, and what the engine offers.
struct FakeEngine {
    offers: broadcast::Sender<QueuePairOffer>,
    received: mpsc::UnboundedReceiver<ReceiveOfferRequest>,
}

struct Service {
    offers: broadcast::Sender<QueuePairOffer>,
    received: mpsc::UnboundedSender<ReceiveOfferRequest>,
}

impl FakeEngine {
    fn serve(socket: &Path) -> Self {
        let (offers, _) = broadcast::channel(16_384);
        let (sender, received) = mpsc::unbounded_channel();
        let service = EngineServer::new(Service {
            offers: offers.clone(),
            received: sender,
        });
        let listener = UnixListener::bind(socket).unwrap();
        let incoming = UnixListenerStream::new(listener);
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(incoming));
        Self { offers, received }
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
        Err(Status::unimplemented("no test makes one"))
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
