//! The dialer: agrees on a data connection with a child, through the control API of the child's agent.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use weft_core::units::Key;
use weft_core::wire::VERSION;
use weft_engine::{DomainId, Event, LinkInUse};
use weft_proto::agent::v1::link_measurement_client::LinkMeasurementClient;
use weft_proto::agent::v1::{Algorithm, Child, ConnectRequest};

use crate::convert;
use crate::fault::Fault;
use crate::links::{Links, draw_secret};
use crate::tls::Tls;
use crate::transfer::agent_client::{CONTROL_BYTES_MAX, Client, PeerAgent};
use crate::transfer::attempt::Attempt;
use crate::transfer::fanout::ChildIndex;
use crate::transfer::frame::SLOT_BYTES;
use crate::transfer::link_probe::LinkChooser;
use crate::transfer::message::PresentBlocks;
use crate::transfer::peer::Peer;
use crate::transfer::receive_window::WINDOW_MESSAGES;
use crate::transfer::sender_event::{ChildConnection, ConnectionGuard, SenderEvent};
use crate::transfer::state::State;

/// Slots that a child may offer, at most.
const SLOTS_MAX: usize = 64;
const _: () = assert!(SLOTS_MAX <= WINDOW_MESSAGES as usize);
/// What a dialer works with.
#[derive(Debug)]
pub(crate) struct Dialer {
    /// The transport.
    pub links: Arc<Links>,
    /// What it works for.
    pub attempt: Arc<Attempt>,
    /// Whom to call.
    pub child: Child,
    /// Which of the sender's children that is.
    pub index: ChildIndex,
    /// What reports its connection.
    pub peer: Arc<Peer>,
    /// This node's certificate.
    pub tls: Tls,
    /// Of the child's slots: how many to use, at most.
    pub slots: usize,
    /// The manifest that both ends must have.
    pub manifest_digest: [u8; 32],
    /// How blocks are hashed.
    pub algorithm: Algorithm,
    /// The engine's domain of this attempt.
    pub domain: DomainId,
    /// For how long to try.
    pub retry_for: Duration,
    /// Where the engine's events go.
    pub events: Sender<Event>,
    /// Where the result goes.
    pub sender: Sender<SenderEvent>,
}

impl Dialer {
    /// Calls until the child has agreed or refused, or until the time is over. The sender gets the result.
    pub(crate) async fn run(self) {
        let mut watch = self.attempt.watch();
        let result = tokio::select! {
            result = self.connect() => match result {
                Ok(agreed) => SenderEvent::Connected(self.index, agreed),
                Err(fault) => SenderEvent::Refused(self.index, fault),
            },
            // Not when the attempt is verified: a relay still sends to its children then.
            _ = watch.wait_for(|status| status.state == State::Failed) => return,
        };
        // Where the sender has ended, a connection closes with the event.
        let _ = self.sender.send(result);
    }

    async fn connect(&self) -> Result<ChildConnection, Fault> {
        let agent = PeerAgent {
            node: &self.child.node,
            address: &self.child.control_address,
            field: "sends_to.control_address",
        };
        let channel = agent.channel(&self.tls)?;
        let client = Client::new(channel.clone()).max_decoding_message_size(CONTROL_BYTES_MAX);
        let chooser = LinkChooser {
            links: &self.links,
            agent,
            client: LinkMeasurementClient::new(channel),
            ticket: self.child.ticket.clone(),
            domain: self.domain,
            retry_for: self.retry_for,
        };
        let in_use = chooser.choose().await?;
        let opened = self.open(agent, client, in_use).await;
        if opened.is_err() {
            // The child's links may be others now.
            self.links.results.forget(&self.child.node);
        }
        opened
    }

    async fn open(
        &self,
        agent: PeerAgent<'_>,
        client: Client,
        in_use: LinkInUse,
    ) -> Result<ChildConnection, Fault> {
        let engine = self.links.engine(in_use.link);
        let secret = draw_secret()?;
        let local = engine.allocate(self.domain, secret.clone());
        let guard = ConnectionGuard::new(engine.clone(), local.id);
        let request = ConnectRequest {
            ticket: self.child.ticket.clone(),
            wire_version: VERSION.into(),
            endpoint: Some(weft_connection_end::to_proto(&local, &secret)),
            manifest_digest: self.manifest_digest.to_vec(),
            algorithm: self.algorithm.into(),
            link_reason: in_use.reason.clone(),
        };
        let call = || {
            let (mut client, request) = (client.clone(), request.clone());
            async move {
                let response = agent.answer(client.connect(request)).await?;
                Ok(response.into_inner())
            }
        };
        let response = agent.retry(self.retry_for, call).await?;
        let remote =
            convert::connection_end(&self.child.node, response.endpoint, engine.settings())?;
        let faulty = |problem: &str| Fault::faulty(&self.child.node, problem);
        let fits = |slots: &[weft_proto::agent::v1::Slot]| {
            (1..=SLOTS_MAX).contains(&slots.len())
                && slots.iter().all(|slot| slot.bytes as usize >= SLOT_BYTES)
        };
        if !fits(&response.slots) {
            return Err(faulty("slots that are too many, too few or too small"));
        }
        let present = PresentBlocks::new(response.have).map_err(faulty)?;
        let events = self.events.clone();
        self.links.connect(in_use.link, local.id, remote, events)?;
        self.peer.record_opened(in_use, local.id);
        let slots = response
            .slots
            .iter()
            .take(self.slots)
            .map(|slot| Key(slot.key))
            .collect();
        Ok(ChildConnection {
            guard,
            slots,
            present,
        })
    }
}
