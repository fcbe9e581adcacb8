//! Cancels a work request, and confirms it: from then on no byte of it lands, and its immediate does not count.
//!
//! A write of which nothing was cut is dropped. Of one that was cut, what is not sent is never sent, and a revocation names
//! its chunks until the receiver answers. The receiver marks them on its scoreboard, so that it drops what comes of them as
//! duplicates, and waits for placements under way. A read ends here, for it is placed here: what the peer still sends is
//! acknowledged and forgotten.

use super::transmit::RevocationReason;
use super::{Connection, Event};
use crate::wire::{self, Opcode};

/// Why a work request is not cancelled: it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CancelError {
    /// Nothing with this token is under way.
    #[error(
        "no work request with this name is under way: it has ended, and its event says how, or it was never posted"
    )]
    NotUnderWay,
    /// A send, the report of a write, or an atomic.
    #[error(
        "only writes and reads can be cancelled: the peer counts sends, and an atomic is one step; close the connection \
         to end them"
    )]
    NotCancellable,
    /// The connection places messages in order.
    #[error(
        "nothing can be cancelled on an in-order connection: what was posted after it waits for it; close the connection"
    )]
    InOrder,
    /// The connection has failed or was closed.
    #[error("the connection is closed: its end is the end of all that was under way")]
    Closed,
}

impl CancelError {
    /// A stable label.
    pub const fn reason(self) -> &'static str {
        match self {
            CancelError::NotUnderWay => "NotUnderWay",
            CancelError::NotCancellable => "NotCancellable",
            CancelError::InOrder => "InOrder",
            CancelError::Closed => "Closed",
        }
    }
}

impl Connection {
    /// Cancels a write or a read. Exactly one event follows: [`Event::Cancelled`]; or [`Event::Completed`] when all of it
    /// had arrived before; or [`Event::Refused`] when the peer had refused it before; or the connection's end. The peer
    /// confirms the cancel of a write when no copy of it is under way.
    /// If it does not for [`ConnectionConfig::stall_timeout`](super::ConnectionConfig::stall_timeout), the connection fails
    /// as [`Failure::Stalled`](super::Failure::Stalled), whatever else the peer acknowledges. So it does if the peer knows
    /// no revocations. A second cancel of the same work request changes nothing. If several work requests have this token,
    /// one of them is cancelled.
    ///
    /// # Errors
    /// [`CancelError`]: the work request goes on, or has ended.
    pub fn cancel(&mut self, token: u64) -> Result<(), CancelError> {
        if self.failed.is_some() {
            return Err(CancelError::Closed);
        }
        if self.config.in_order {
            return Err(CancelError::InOrder);
        }
        match self.transmit.find_posted(token) {
            Some((at, Opcode::Write)) => self
                .events
                .extend(self.transmit.revoke(at, RevocationReason::Cancelled)),
            Some(_) => return Err(CancelError::NotCancellable),
            None => self.cancel_read(token)?,
        }
        if !self.transmit.is_busy() {
            // What is posted next has all of the stall timeout.
            self.restart_stall();
        }
        Ok(())
    }

    fn cancel_read(&mut self, token: u64) -> Result<(), CancelError> {
        let requests = self.receive.requests();
        let Some((number, is_read)) = requests.find(token) else {
            return match requests.is_cancelled(token) {
                true => Ok(()),
                false => Err(CancelError::NotUnderWay),
            };
        };
        if !is_read {
            return Err(CancelError::NotCancellable);
        }
        match self.transmit.find_unsent_request(number) {
            Some(at) => {
                self.transmit.drop_unsent(at);
                requests.complete(number);
                self.transmit.set_awaited(requests.len());
                self.events.push_back(Event::Cancelled { token });
            }
            None => {
                requests.cancel(number);
                self.transmit.set_awaited(requests.len());
                self.receive.report_cancelled(&mut self.events);
            }
        }
        Ok(())
    }

    fn restart_stall(&mut self) {
        let timeout = self.config.stall_timeout;
        self.transmit.restart_stall(timeout, &mut self.timers);
    }

    #[cold]
    pub(super) fn handle_revoked(&mut self, revoked: wire::Revoked) {
        let requests = self.receive.requests();
        let ended = self
            .transmit
            .handle_revoked(revoked, requests, &mut self.timers);
        if let Some(event) = ended {
            self.events.push_back(event);
            // The peer is there.
            self.restart_stall();
        }
    }
}
