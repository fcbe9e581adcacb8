//! Receiver credits of a connection: both halves, between wire, congestion control and the endpoint's pacer.

use super::grants::{Arrivals, Grants};
use super::timer::Timer;
use super::{Claim, Connection, ControlPacket, PathOwner};
use crate::congestion::CongestionControl;
use crate::path::PathSet;
use crate::wire;

impl Connection {
    /// Writes the credit that the peer is owed, or the request for what this end lacks.
    #[inline(never)]
    pub(super) fn write_credit(
        &mut self,
        paths: &PathSet,
        out: &mut [u8],
    ) -> Option<ControlPacket> {
        let (seal, remote, number) = (self.keys.seal(), self.config.remote, self.controls.next());
        let grants = self.grants.as_mut()?;
        if let Some((path, bytes)) = grants.poll_credit(out, seal, remote, number) {
            return Some(ControlPacket {
                path,
                owner: PathOwner::Remote,
                bytes,
            });
        }
        if !self.transmit.is_busy() {
            return None;
        }
        let (packets, settings) = (self.transmit.next_number(), &self.config.settings);
        let backlog = |most| self.transmit.backlog(most, settings);
        let request = self.congestion.poll_request(packets, backlog)?;
        // Each on another path: one that carries nothing does not hold the next up.
        let path = paths.for_control(number);
        Some(ControlPacket {
            path,
            owner: PathOwner::Local,
            bytes: request.emit(out, seal, path, remote, number),
        })
    }

    pub(super) fn handle_credit(&mut self, credit: wire::Credit) {
        if !self.congestion.on_credit(credit.bytes) {
            return;
        }
        self.timers.stop(Timer::Credit);
        if self.transmit.outstanding() == 0 {
            // The peer is there, and others go first.
            let timeout = self.config.stall_timeout;
            self.transmit.restart_stall(timeout, &mut self.timers);
        }
    }

    pub(super) fn arrivals(&self) -> Arrivals {
        Arrivals::new(&self.stats, self.receive.newest_packet())
    }

    /// Why the peer may be granted more credit, if it may: for the endpoint's pacer.
    pub fn credit_claim(&self) -> Option<Claim> {
        let grants = self.grants.as_ref().filter(|_| self.failed.is_none())?;
        grants.claim(self.arrivals())
    }

    /// Whether the peer wants more credit than was granted.
    pub fn is_credit_asked(&self) -> bool {
        self.grants.as_ref().is_some_and(Grants::is_asked)
    }

    /// Bytes granted to the peer that it has not used.
    pub fn unused_credit(&self) -> u64 {
        let grants = self.grants.as_ref();
        grants.map_or(0, |grants| grants.unused(self.arrivals()))
    }

    /// Grants the peer one quantum of credit; [`Connection::poll_control`] tells it.
    pub fn grant_credit(&mut self) {
        if let Some(grants) = &mut self.grants {
            grants.grant();
        }
    }
}
