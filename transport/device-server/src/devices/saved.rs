//! The open contexts of a device on their way to the next engine.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_engine::{ConnectionId, Engine, EngineConfig, Piece, Progress, SavedConnection};

use super::operations::OperationLimit;
use super::{ConnectedPair, ContextId, Devices};
use crate::context::SavedContext;
use crate::queue_pair::SavedEnd;
use crate::regions::{KeysByMemory, SavedPiece};
use crate::saved::{Descriptors, HandOverError};

/// What [`Devices`] have open, and the connections of their queue pairs. Connections for datagrams are made again.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedDevices {
    incarnation: u64,
    next_domain: u32,
    cap_bps: Option<u64>,
    ops_per_s: Option<NonZeroU32>,
    contexts: Vec<(ContextId, SavedContext)>,
    connections: Vec<(ContextId, SavedConnection<SavedPiece>)>,
}

impl SavedDevices {
    /// Whether nobody has it open.
    pub(crate) fn is_empty(&self) -> bool {
        self.contexts.is_empty()
    }

    /// Most that the device sends, bits per second.
    pub(crate) fn cap_bps(&self) -> Option<u64> {
        self.cap_bps
    }
}

impl Devices {
    /// Ends the engine, whose connections go on in the next one.
    ///
    /// # Errors
    /// Nothing can go on.
    pub(crate) fn save(
        mut self,
        now: Duration,
    ) -> Result<(SavedDevices, Vec<OwnedFd>), HandOverError> {
        // No packet is taken any more, so this comes to an end.
        while self.engine.report()? || !self.events.is_empty() {
            while let Ok(event) = self.events.try_recv() {
                if !self.on_datagram_event(&event, now) {
                    self.on_event(event, now);
                }
            }
        }
        // The next engine knows nothing of these connections.
        self.take_failures(Duration::MAX);
        let cap_bps = self.engine.config().egress.cap_bps;
        let mut limits = self.operation_limits.values();
        let ops_per_s = limits.next().map(OperationLimit::per_second);
        let saved = self.engine.save()?;
        let contexts = self.contexts.iter();
        let keys = contexts.map(|(id, context)| (*id, context.keys_by_memory()));
        let keys: BTreeMap<ContextId, KeysByMemory> = keys.collect();
        let mut connections = Vec::new();
        for connection in saved.connections {
            let of = self.by_connection.get(&connection.id);
            // Nothing of one with a piece that another process cannot find.
            if let Some(&ConnectedPair { context: id, .. }) = of
                && let Some(keys) = keys.get(&id)
                && let Some(connection) = connection.map_pieces(|it: Piece| keys.save_piece(&it))
            {
                connections.push((id, connection));
            }
        }
        let (mut contexts, mut descriptors) = (Vec::new(), Vec::new());
        for (id, context) in self.contexts {
            contexts.push((id, context.save(&mut descriptors)?));
        }
        let saved = SavedDevices {
            incarnation: saved.incarnation,
            next_domain: self.next_domain,
            cap_bps,
            ops_per_s,
            contexts,
            connections,
        };
        Ok((saved, descriptors))
    }

    /// Goes on with what was saved, in an engine with the same configuration. It touches no memory of a program, which may
    /// hold up an access: what came meanwhile is found by the doorbells in the first turn.
    ///
    /// # Errors
    /// Nothing goes on. A connection that does not is an error of its queue pair.
    pub(crate) fn restore(
        config: EngineConfig,
        saved: SavedDevices,
        descriptors: &mut Descriptors,
        now: Duration,
    ) -> Result<Self, HandOverError> {
        let config = EngineConfig {
            progress: Progress::Inline,
            ..config
        };
        let mut devices = Self::of(Engine::start_as(config, saved.incarnation)?);
        devices.next_domain = saved.next_domain;
        let mut ends: Vec<(ContextId, u32, SavedEnd)> = Vec::new();
        for (id, context) in saved.contexts {
            ends.extend(context.ends().map(|(number, end)| (id, number, end)));
            let under_way = devices.under_way.clone();
            let context =
                context.restore(&devices.engine, &mut devices.files, under_way, descriptors);
            let mut context = context?;
            devices.limit_operations(id.gid, saved.ops_per_s, &mut context);
            devices.engine.add_waker(context.waker().as_fd())?;
            devices.contexts.insert(id, context);
        }
        let mut restored = BTreeSet::new();
        for (id, connection) in saved.connections {
            let (connection_id, context) = (connection.id, devices.contexts.get(&id));
            let Some(connection) = context.and_then(|it| it.restore_pieces(connection)) else {
                continue;
            };
            match devices.engine.restore(connection, devices.sender.clone()) {
                Ok(()) => drop(restored.insert(connection_id)),
                Err(error) => tracing::warn!("a connection does not go on: {error}"),
            }
        }
        for (id, number, end) in ends {
            devices.restore_end(id, number, end, &restored, now);
        }
        Ok(devices)
    }

    /// The contexts that are open.
    pub(crate) fn ids(&self) -> Vec<ContextId> {
        self.contexts.keys().copied().collect()
    }

    fn restore_end(
        &mut self,
        id: ContextId,
        number: u32,
        end: SavedEnd,
        restored: &BTreeSet<ConnectionId>,
        now: Duration,
    ) {
        let Some(context) = self.contexts.get_mut(&id) else {
            return;
        };
        let found = context.objects().queue_pair(number).copied();
        let Some((found, domain)) = found.and_then(|found| {
            let domain = context.domain(found.made.domain).ok()?;
            Some((found, domain))
        }) else {
            return;
        };
        let is_connected = end.is_connected();
        let goes_on = match is_connected {
            true => restored.contains(&end.id),
            false => {
                let allocated = self
                    .engine
                    .allocate_as(end.id, domain.id, end.secret.clone());
                allocated.is_ok()
            }
        };
        if !goes_on {
            context.lose_end(number, &self.engine);
            return;
        }
        let pair = ConnectedPair {
            context: id,
            number,
            shared_receive_queue: found.made.shared_receive_queue,
            is_connected,
        };
        self.by_connection.insert(end.id, pair);
        context.restore_end(number, end, &self.engine, now);
    }
}
