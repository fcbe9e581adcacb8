//! Connect: agrees on a data connection with the parent, and makes the receiver's thread.

use std::sync::Arc;

use crossbeam_channel::unbounded;
use weft_core::units::Key;
use weft_core::wire::VERSION;
use weft_engine::{Region, RemoteEnd};
use weft_identity::ticket;
use weft_proto::agent::v1::{ConnectRequest, ConnectResponse, Role, Slot, Ticket};

use crate::config::values::NodeName;
use crate::control::attempt_handle::AttemptHandle;
use crate::control::attempt_registry::AttemptRegistry;
use crate::convert;
use crate::fault::Fault;
use crate::transfer::attempt::WorkGuard;
use crate::transfer::buffers::BufferReservation;
use crate::transfer::destination_blocks::DestinationBlocks;
use crate::transfer::dial::draw_secret;
use crate::transfer::frame::SLOT_BYTES;
use crate::transfer::peer::Peer;
use crate::transfer::receiver::{Receiver, ReceiverConfig};
use crate::transfer::sender_event::ConnectionGuard;
use crate::transfer::state::Event;

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
        let remote = convert::connection_end(
            parent.as_str(),
            request.endpoint.clone(),
            self.config.engine.settings(),
        )?;
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
            .receive(&handle, worker, &prepared.blocks, parent, remote, buffers)
            .inspect_err(|fault| handle.attempt.fail(fault.clone()))?;
        resources.connected = Some(response.clone());
        Ok(response)
    }

    /// Makes the regions, the connection's end and the receiver's thread.
    fn receive(
        &self,
        handle: &AttemptHandle,
        worker: WorkGuard,
        blocks: &Arc<DestinationBlocks>,
        parent: &NodeName,
        remote: RemoteEnd,
        mut buffers: BufferReservation,
    ) -> Result<ConnectResponse, Fault> {
        let engine = &self.config.engine;
        let secret = draw_secret()?;
        let local = engine.allocate(handle.domain, secret.clone());
        let guard = ConnectionGuard::new(engine.clone(), local.id);
        let (to_receiver, events) = unbounded();
        let peer = Arc::new(Peer::new(parent.to_string(), Role::Parent));
        engine.connect(local.id, remote, to_receiver)?;
        peer.record_opened(local.id);
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
        guard.into_id();
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
