//! Virtual devices: passes the offers of this node's queue pairs to the agents of other nodes, and theirs to this node's
//! engine of devices.
//!
//! The engine believes its own agent only. So the agent answers for the node that an offer comes from: the caller's
//! certificate names it, and the device that offers must be one of that node.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tonic::Status;
use tonic::transport::Channel;
use weft_proto::agent::v1::{OfferQueuePairRequest, QueuePairName, QueuePairOffer};
use weft_proto::engine::v1::engine_client::EngineClient;
use weft_proto::engine::v1::{ReceiveOfferRequest, WatchOffersRequest};

use crate::config::DevicePeer;
use crate::config::values::NodeName;
use crate::fail_fast;
use crate::fault::Fault;
use crate::tls::Tls;
use crate::transfer::agent_client::{Client, PeerAgent};

/// An engine that does not answer is called again after this.
const RECONNECT: Duration = Duration::from_millis(500);
/// Offers that are being passed on at a time. More are dropped; the engine makes them again.
const OFFERS_MAX: usize = 256;

/// The devices of the fabric, and the engine of this node's.
#[derive(Debug)]
pub(crate) struct Devices {
    engine: EngineClient<Channel>,
    peers: BTreeMap<[u8; 16], DevicePeer>,
    /// Clients of other agents, by node, which use the certificate in force.
    clients: Mutex<BTreeMap<NodeName, Client>>,
    tls: watch::Receiver<Tls>,
}

impl Devices {
    /// The engine at this socket, which need not serve yet.
    pub(crate) fn new(socket: &Path, peers: &[DevicePeer], tls: watch::Receiver<Tls>) -> Self {
        let by_gid = |peer: &DevicePeer| (peer.gid.octets(), peer.clone());
        Self {
            engine: weft_proto::engine::client(socket),
            peers: peers.iter().map(by_gid).collect(),
            clients: Mutex::default(),
            tls,
        }
    }

    /// Passes offers of this node's queue pairs on, for ever.
    pub(crate) async fn pass_offers_on(self: Arc<Self>) {
        let places = Arc::new(Semaphore::new(OFFERS_MAX));
        let mut said = String::new();
        loop {
            let mut engine = self.engine.clone();
            let ended = match engine.watch_offers(WatchOffersRequest {}).await {
                Ok(offers) => {
                    said.clear();
                    let mut offers = offers.into_inner();
                    loop {
                        match offers.message().await {
                            Ok(Some(offer)) => self.spawn(offer, &places),
                            Ok(None) => break Status::unavailable("it has ended"),
                            Err(status) => break status,
                        }
                    }
                }
                Err(status) => status,
            };
            let problem = ended.message().to_owned();
            if problem != said {
                tracing::warn!(
                    problem,
                    "the engine of virtual devices does not answer; it is called again"
                );
                said = problem;
            }
            tokio::time::sleep(RECONNECT).await;
        }
    }

    fn spawn(self: &Arc<Self>, offer: QueuePairOffer, places: &Arc<Semaphore>) {
        let Ok(place) = Arc::clone(places).try_acquire_owned() else {
            return;
        };
        let devices = Arc::clone(self);
        fail_fast::spawn("offer", async move {
            let _place = place;
            if let Err(fault) = devices.send(offer).await {
                // The program sees that its queue pair is not connected.
                tracing::debug!(
                    reason = fault.reason(),
                    "an offer was not passed on: {fault}"
                );
            }
        });
    }

    async fn send(&self, offer: QueuePairOffer) -> Result<(), Fault> {
        let peer = self.peer(offer.to.as_ref(), "offer.to")?;
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
        let from = self.peer(offer.from.as_ref(), "offer.from")?;
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
        received.map_err(|status| Fault::engine(status.message()))?;
        Ok(())
    }

    fn peer(&self, name: Option<&QueuePairName>, field: &str) -> Result<&DevicePeer, Fault> {
        let gid = name.and_then(|name| <[u8; 16]>::try_from(name.gid.as_slice()).ok());
        let gid = gid.ok_or_else(|| Fault::bad(field, "must name a GID of 16 bytes"))?;
        let peer = self.peers.get(&gid);
        peer.ok_or_else(|| Fault::bad(field, "has the GID of no device of this fabric"))
    }
}

#[cfg(test)]
mod tests;
