//! Connections that this end makes, one for a path: made by what is sent, and not soon again when they break.

use std::net::SocketAddr;

use weft_core::units::{Nanos, Time};

use super::TcpLink;
use super::stream::{Role, Stream};
use crate::address::LinkAddress;
use crate::link::{Link as _, PathChange, PathCondition};
use crate::outgoing::{Outgoing, Way};
use crate::preamble::{PREAMBLE_BYTES, Preamble};

/// Who has connected says what for within this, and who is connected to answers.
const HANDSHAKE_MAX: Nanos = Nanos::from_secs(3);

/// The rest of a frame has to come within this, counted from the first check after its beginning: then its buffer is given
/// back. An honest sender gives a connection up sooner on which nothing is taken.
pub(super) const HALF_FRAME_MAX: Nanos = Nanos::from_secs(20);

/// A connection that nothing was sent or received on for so long is closed by the end that made it. The next chunk makes it
/// again.
const IDLE_MAX: Nanos = Nanos::from_secs(60);

impl TcpLink {
    /// Closes a connection. A path that it was of is broken.
    pub(super) fn close(&mut self, slot: usize) {
        let Some(stream) = self.streams.try_remove(slot) else {
            return;
        };
        match stream.role {
            Role::Outgoing { way, failures, .. } => self.set_broken(way, failures + 1),
            Role::Unfinished { .. } => self.unfinished.retain(|&other| other != slot),
            Role::Incoming { way } => {
                self.incoming.remove(&way, slot);
            }
        }
    }

    fn set_broken(&mut self, way: Way, failures: u32) {
        let ready_at = self.outgoing.set_broken(self.now, way, failures);
        self.changes
            .push_back(PathChange::new(way, PathCondition::Broken));
        self.counters.broken_paths += 1;
        self.check_by(ready_at);
    }

    /// The connection of a path, made if there is none. `None`: its peer is not to be reached now.
    pub(super) fn outgoing(&mut self, way: Way) -> Option<usize> {
        let failures = match self.outgoing.get(&way) {
            Outgoing::Open(slot) => return Some(slot),
            Outgoing::ToMake(failures) => failures,
            Outgoing::Broken => return None,
        };
        let LinkAddress::Tcp { ports, token, .. } = way.0 else {
            return None;
        };
        let (from, to) = self.address().nics_of_path(&way.0, way.1);
        let nic = self.config.nics.iter().position(|nic| *nic == from);
        let device = nic.and_then(|nic| self.devices[nic].as_deref());
        let to = SocketAddr::new(to, ports.first);
        let connect_by = self.now + HANDSHAKE_MAX;
        let made = Stream::connect(from, device, to, self.config.dscp);
        let made = made.and_then(|socket| {
            let role = Role::Outgoing {
                way,
                failures,
                connect_by,
                is_blocked: false,
            };
            let mut stream = Stream::new(socket, role, self.now);
            let preamble = Preamble {
                token,
                path: way.1,
                from: self.address().with_nic(from),
            };
            stream.put(PREAMBLE_BYTES, &mut self.spare, |room| {
                room.copy_from_slice(&preamble.emit());
                PREAMBLE_BYTES
            });
            self.insert(stream)
        });
        let Ok(slot) = made else {
            self.set_broken(way, failures + 1);
            return None;
        };
        self.sendable.push(slot);
        self.outgoing.open(way, slot);
        self.check_by(connect_by);
        Some(slot)
    }

    /// Ends what has waited for too long, and finds out when to look again.
    pub(super) fn check(&mut self) {
        let now = self.now;
        self.is_listener_readable = true;
        let mut next: Option<Time> = None;
        let mut due = |at: Time| {
            if at > now {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
            at <= now
        };
        let mut over = Vec::new();
        for (slot, stream) in &mut self.streams {
            let is_half = stream.is_half();
            let is_over = match &mut stream.role {
                Role::Outgoing { connect_by, .. } => match stream.has_sent {
                    false => due(*connect_by),
                    true if is_half && !stream.is_readable => {
                        due(*stream.half_by.get_or_insert(now + HALF_FRAME_MAX))
                    }
                    true => due(stream.used_at + IDLE_MAX),
                },
                Role::Unfinished { finish_by, .. } => {
                    due(*finish_by.get_or_insert(now + HANDSHAKE_MAX))
                }
                // What has come and was not read yet may be the rest.
                Role::Incoming { .. } => {
                    is_half
                        && due(*stream.half_by.get_or_insert(now + HALF_FRAME_MAX))
                        && !stream.is_readable
                }
            };
            if is_over {
                over.push(slot);
            }
        }
        self.outgoing.check(due, &mut self.changes);
        self.check_at = next;
        for slot in over {
            self.end(slot);
        }
    }

    /// Ends a connection whose time is over.
    fn end(&mut self, slot: usize) {
        let Some(stream) = self.streams.get(slot) else {
            return;
        };
        match stream.role {
            Role::Unfinished { .. } => {
                self.refuse(slot);
            }
            Role::Incoming { .. } => {
                self.counters.bad_frames += 1;
                self.close(slot);
            }
            // Nothing is under way on it: nothing is lost.
            Role::Outgoing { way, .. }
                if stream.has_sent && stream.waiting() == 0 && !stream.is_half() =>
            {
                self.outgoing.forget(&way);
                self.streams.remove(slot);
            }
            _ => self.close(slot),
        }
    }
}
