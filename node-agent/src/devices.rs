//! Virtual devices: passes the offers of this node's queue pairs to the agents of other nodes, and theirs to this node's
//! engine of devices.
//!
//! The engine believes its own agent only. So the agent answers for the node that an offer comes from: the caller's
//! certificate names it, and the device that offers must be one of that node.

pub(crate) mod claims;
pub(crate) mod engine_flags;
pub(crate) mod health;
pub(crate) mod listing;
pub(crate) mod peers;
pub(crate) mod programs;
pub(crate) mod refused_attempts;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;
use weft_metrics::table;
use weft_proto::agent::v1::{
    ListPodDevicesRequest, ListPodDevicesResponse, OfferQueuePairRequest, QueuePairName,
    QueuePairOffer,
};
use weft_proto::engine::v1::engine_client::EngineClient;
use weft_proto::engine::v1::{ListDevicesRequest, ReceiveOfferRequest, WatchOffersRequest};

use crate::config::values::NodeName;
use crate::devices::health::NodeDevices;
use crate::devices::peers::{Peer, Peers};
use crate::fail_fast;
use crate::fault::Fault;
use crate::tls::Tls;
use crate::transfer::agent_client::{Client, PeerAgent};

/// An engine that does not answer is called again after this.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);
/// Calls of one node's agent under way. Each takes up to five seconds where the agent does not answer, and delays offers
/// to that node only.
const CALLS_PER_NODE_MAX: usize = 16;
/// Offers that wait for one node's agent: more than a job connects at once. Further ones are dropped; the engine makes them
/// again.
const QUEUED_PER_NODE_MAX: usize = 4096;
/// An offer that has waited longer is dropped: its queue pair may be gone, and if it is not, the engine makes it again.
const QUEUE_TIME_MAX: Duration = Duration::from_secs(1);

/// An offer that waits for the agent of another node, since that time.
#[derive(Debug)]
struct QueuedOffer {
    offer: QueuePairOffer,
    since: Instant,
}

/// How many offers were dropped.
#[derive(Debug, Default)]
pub(crate) struct DroppedOffers(Counter);

impl DroppedOffers {
    /// Exports it.
    pub(crate) fn register(&self, registry: &mut Registry) {
        weft_metrics::register(registry, &table::OFFERS_DROPPED, self.0.clone());
    }
}

/// The queues of offers, by node.
type Queues = BTreeMap<NodeName, mpsc::Sender<QueuedOffer>>;

/// The devices of the fabric, and the engine of this node's.
#[derive(Debug)]
pub(crate) struct Devices {
    engine: EngineClient<Channel>,
    peers: Peers,
    /// Clients of other agents, by node, which use the certificate in force.
    clients: Mutex<BTreeMap<NodeName, Client>>,
    tls: watch::Receiver<Tls>,
    pub(crate) dropped: DroppedOffers,
    /// How they are; written by a [`health::HealthWatcher`].
    pub(crate) health: watch::Sender<NodeDevices>,
}

impl Devices {
    /// The engine at this socket, which need not serve yet.
    pub(crate) fn new(socket: &Path, peers: Peers, tls: watch::Receiver<Tls>) -> Self {
        Self {
            engine: weft_proto::engine::client(socket),
            peers,
            clients: Mutex::default(),
            tls,
            dropped: DroppedOffers::default(),
            health: watch::Sender::default(),
        }
    }

    /// Its engine.
    pub(crate) fn engine(&self) -> EngineClient<Channel> {
        self.engine.clone()
    }

    /// The devices of this node's pods.
    pub(crate) async fn of_pods(
        &self,
        request: &ListPodDevicesRequest,
    ) -> Result<ListPodDevicesResponse, Fault> {
        let mut engine = self.engine.clone();
        let listed = engine.list_devices(ListDevicesRequest {}).await;
        let listed = listed.map_err(|status| Fault::device_engine(&status))?;
        let devices = listed.into_inner().devices;
        let health = &self.health.borrow().health;
        Ok(listing::of_pods(devices, health, request))
    }

    /// Passes offers of this node's queue pairs on, for ever.
    pub(crate) async fn pass_offers_on(self: Arc<Self>) {
        let mut queues = BTreeMap::new();
        let mut last_problem = String::new();
        loop {
            let mut engine = self.engine.clone();
            let ended = match engine.watch_offers(WatchOffersRequest {}).await {
                Ok(offers) => {
                    last_problem.clear();
                    let mut offers = offers.into_inner();
                    loop {
                        match offers.message().await {
                            Ok(Some(offer)) => self.queue(offer, &mut queues).await,
                            Ok(None) => break Status::unavailable("it has ended"),
                            Err(status) => break status,
                        }
                    }
                }
                Err(status) => status,
            };
            let problem = ended.message().to_owned();
            if problem != last_problem {
                tracing::warn!(
                    problem,
                    "the engine of virtual devices does not answer; it is called again"
                );
                last_problem = problem;
            }
            tokio::time::sleep(RECONNECT_INTERVAL).await;
        }
    }

    /// Puts an offer into the queue of its node, which is made with the first offer.
    async fn queue(self: &Arc<Self>, offer: QueuePairOffer, queues: &mut Queues) {
        let peer = match self.peer(offer.to.as_ref(), "offer.to").await {
            Ok(peer) => peer,
            Err(fault) => {
                tracing::debug!(reason = fault.reason(), "an offer is dropped: {fault}");
                return;
            }
        };
        let node = peer.node.clone();
        let queue = queues.entry(node).or_insert_with(|| self.spawn_queue());
        let since = Instant::now();
        if queue.try_send(QueuedOffer { offer, since }).is_err() {
            self.dropped.0.inc();
        }
    }

    /// Passes the offers to one node on, until the queue's sender is dropped.
    fn spawn_queue(self: &Arc<Self>) -> mpsc::Sender<QueuedOffer> {
        let (queue, offers) = mpsc::channel(QUEUED_PER_NODE_MAX);
        let devices = Arc::clone(self);
        fail_fast::spawn("offers of a node", async move {
            let offers = ReceiverStream::new(offers);
            let pass_on = |queued| devices.pass_on(queued);
            offers
                .for_each_concurrent(CALLS_PER_NODE_MAX, pass_on)
                .await;
        });
        queue
    }

    async fn pass_on(&self, queued: QueuedOffer) {
        if queued.since.elapsed() > QUEUE_TIME_MAX {
            self.dropped.0.inc();
            return;
        }
        if let Err(fault) = self.send(queued.offer).await {
            // The program sees that its queue pair is not connected.
            tracing::debug!(
                reason = fault.reason(),
                "an offer was not passed on: {fault}"
            );
        }
    }

    async fn send(&self, offer: QueuePairOffer) -> Result<(), Fault> {
        let peer = self.peer(offer.to.as_ref(), "offer.to").await?;
        let address = peer.control.to_string();
        let agent = PeerAgent {
            node: peer.node.as_str(),
            address: &address,
            field: "devices.peers.control",
        };
        let mut client = self.client(&peer.node, agent)?;
        let request = OfferQueuePairRequest { offer: Some(offer) };
        agent.answer(client.offer_queue_pair(request)).await?;
        Ok(())
    }

    fn client(&self, node: &NodeName, agent: PeerAgent<'_>) -> Result<Client, Fault> {
        let mut clients = fail_fast::lock(&self.clients);
        if let Some(client) = clients.get(node) {
            return Ok(client.clone());
        }
        let client = agent.client(&self.tls.borrow())?;
        clients.insert(node.clone(), client.clone());
        Ok(client)
    }

    /// Drops the clients whenever there is another certificate, for ever.
    pub(crate) async fn follow_certificates(self: Arc<Self>) {
        let mut tls = self.tls.clone();
        while tls.changed().await.is_ok() {
            fail_fast::lock(&self.clients).clear();
        }
    }

    /// An offer has come from the agent of a node.
    pub(crate) async fn receive(
        &self,
        caller: &NodeName,
        offer: Option<QueuePairOffer>,
    ) -> Result<(), Fault> {
        let offer = offer.ok_or_else(|| Fault::bad("offer", "is missing"))?;
        let from = self.peer(offer.from.as_ref(), "offer.from").await?;
        if from.node != *caller {
            return Err(Fault::NotAllowed {
                call: "OfferQueuePair of this device".to_owned(),
                allowed: "the device's node",
                caller: caller.to_string(),
            });
        }
        let request = ReceiveOfferRequest {
            node: caller.to_string(),
            offer: Some(offer),
        };
        let received = self.engine.clone().receive_offer(request).await;
        received.map_err(|status| Fault::device_engine(&status))?;
        Ok(())
    }

    async fn peer(&self, name: Option<&QueuePairName>, field: &str) -> Result<Peer, Fault> {
        let gid = name.and_then(|name| <[u8; 16]>::try_from(name.gid.as_slice()).ok());
        let gid = gid.ok_or_else(|| Fault::bad(field, "must name a GID of 16 bytes"))?;
        self.peers.find(gid, field).await
    }
}

#[cfg(test)]
mod tests;
