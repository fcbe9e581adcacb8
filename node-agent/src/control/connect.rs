//! Connect: agrees on a data connection with the parent, and makes the receiver's thread.

use std::sync::Arc;

use crossbeam_channel::unbounded;
use weft_core::units::Key;
use weft_core::wire::VERSION;
use weft_engine::{LinkInUse, LinkKind, Region, RemoteEnd};
use weft_identity::ticket;
use weft_proto::agent::v1::{
    ConnectRequest, ConnectResponse, MeasureRequest, MeasureResponse, Role, Slot, Ticket,
};

use crate::config::values::NodeName;
use crate::control::attempt_handle::AttemptHandle;
use crate::control::attempt_registry::AttemptRegistry;
use crate::convert;
use crate::fault::Fault;
use crate::links::{Links, draw_secret};
use crate::transfer::attempt::WorkGuard;
use crate::transfer::buffers::BufferReservation;
use crate::transfer::destination_blocks::DestinationBlocks;
use crate::transfer::frame::SLOT_BYTES;
use crate::transfer::link_probe::{MeasuredEnds, link_of};
use crate::transfer::peer::Peer;
use crate::transfer::receiver::{Receiver, ReceiverConfig};
use crate::transfer::sender_event::ConnectionGuard;
use crate::transfer::state::Event;

/// Of the reason that a parent gives for a link.
const REASON_CHARS_MAX: usize = 200;

impl AttemptRegistry {
    /// Agrees on a connection with the parent.
    pub fn connect(
        &self,
        parent: &NodeName,
        ticket: &Ticket,
        request: &ConnectRequest,
    ) -> Result<ConnectResponse, Fault> {
        let attempt_ref = convert::attempt_ref(ticket.attempt.clone())?;
        let handle = self.find(&attempt_ref)?;
        let worker = handle.begin_work()?;
        let prepared = handle.prepared()?;
        let layout = &prepared.blocks.layout;
        ticket::matches_destination(ticket, &handle.attempt.attempt_ref, &prepared.location)?;
        if request.wire_version != u32::from(VERSION) {
            let (theirs, ours) = (request.wire_version, u32::from(VERSION));
            return Err(Fault::WireVersion { theirs, ours });
        }
        if request.manifest_digest != layout.manifest.digest() {
            return Err(Fault::ManifestDiffers { what: "manifests" });
        }
        if request.algorithm() != convert::algorithm_to_proto(layout.algorithm) {
            return Err(Fault::ManifestDiffers {
                what: "hash algorithms",
            });
        }
        let links = &self.config.links;
        let in_use = link_in_use(links, request);
        let engine = links.engine(in_use.link);
        let endpoint = request.endpoint.clone();
        let remote = convert::connection_end(parent.as_str(), endpoint, engine.settings())?;
        handle.register_request("Connect", request)?;
        // Locked until the end: a repetition must find what the first call has made.
        let mut resources = handle.resources();
        if let Some(response) = &resources.connected {
            return Ok(response.clone());
        }
        handle.apply(Event::Connect)?;
        let buffers = resources.take_buffers(&self.config.memory)?;
        // An attempt that has failed to receive accepts no other connection.
        let response = self
            .receive(
                &handle,
                worker,
                &prepared.blocks,
                (parent, in_use, remote),
                buffers,
            )
            .inspect_err(|fault| handle.attempt.fail(fault.clone()))?;
        resources.connected = Some(response.clone());
        Ok(response)
    }

    /// Joins ends for the parent, which measures the links to this node. Dropping the `MeasuredEnds` closes them.
    pub(crate) fn measure(
        &self,
        parent: &NodeName,
        ticket: &Ticket,
        request: &MeasureRequest,
    ) -> Result<(MeasuredEnds, MeasureResponse), Fault> {
        let attempt_ref = convert::attempt_ref(ticket.attempt.clone())?;
        let handle = self.find(&attempt_ref)?;
        let prepared = handle.prepared()?;
        ticket::matches_destination(ticket, &handle.attempt.attempt_ref, &prepared.location)?;
        let (links, endpoints) = (&self.config.links, &request.endpoints);
        MeasuredEnds::join(links, handle.domain, parent.as_str(), endpoints)
    }

    /// Makes the regions, the connection's end and the receiver's thread.
    fn receive(
        &self,
        handle: &AttemptHandle,
        worker: WorkGuard,
        blocks: &Arc<DestinationBlocks>,
        (parent, in_use, remote): (&NodeName, LinkInUse, RemoteEnd),
        mut buffers: BufferReservation,
    ) -> Result<ConnectResponse, Fault> {
        let links = &self.config.links;
        let engine = links.engine(in_use.link);
        let secret = draw_secret()?;
        let local = engine.allocate(handle.domain, secret.clone());
        let guard = ConnectionGuard::new(engine.clone(), local.id);
        let (to_receiver, events) = unbounded();
        let peer = Arc::new(Peer::new(parent.to_string(), Role::Parent));
        links.connect(in_use.link, local.id, remote, to_receiver)?;
        peer.record_opened(in_use, local.id);
        handle.attempt.add_peer(peer.clone());
        buffers.grow(usize::from(self.config.slots));
        let region = || Region::share(vec![0; SLOT_BYTES]);
        let slots: Vec<Key> = (0..buffers.buffers())
            .map(|_| engine.register(handle.domain, region()))
            .collect();
        let receiver = Receiver::new(ReceiverConfig {
            engine: engine.clone(),
            attempt: handle.attempt.clone(),
            peer,
            connection: local.id,
            slots: slots.clone(),
            buffers,
            blocks: blocks.clone(),
            events,
        });
        let spawned = worker.spawn("weft-receiver", move || receiver.run());
        if let Err(fault) = spawned {
            for key in slots {
                engine.deregister(key);
            }
            return Err(fault);
        }
        guard.into_parts();
        let slot = |key: &Key| Slot {
            key: key.0,
            bytes: SLOT_BYTES as u32,
        };
        Ok(ConnectResponse {
            endpoint: Some(weft_connection_end::to_proto(&local, &secret)),
            slots: slots.iter().map(slot).collect(),
            have: blocks.present.clone(),
        })
    }
}

/// The link that a parent asks for, and why, as this node says it.
fn link_in_use(links: &Links, request: &ConnectRequest) -> LinkInUse {
    let asked = || LinkInUse {
        link: request
            .endpoint
            .as_ref()
            .and_then(link_of)
            .unwrap_or(LinkKind::Udp),
        reason: match request.link_reason.as_str() {
            "" => "chosen by the node that sends".to_owned(),
            reason => reason.chars().take(REASON_CHARS_MAX).collect(),
        },
    };
    links.only().unwrap_or_else(asked)
}
