//! The receiver's half of credits: what this end has granted to the peer of one connection, and what the peer has
//! used of it.
//!
//! What the peer has used follows from its last request and the packets that have come since, so a data packet costs
//! nothing more. The endpoint's pacer decides when to grant; it reads and writes this through the connection.

use super::Stats;
use crate::congestion::CreditLimits;
use crate::units::{ConnectionId, PathId};
use crate::wire::{Credit, OVERHEAD_BYTES, RequestToSend, Seal};
use serde::{Deserialize, Serialize};

/// Why the peer gets the next credit, the most urgent first (UCCL, appendix B: three lists of senders).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Claim {
    /// It has to send something again.
    Resend,
    /// It wants to send.
    Active,
    /// It wants nothing, and holds less than what it may begin the next message with.
    Idle,
}

/// What has arrived on a connection.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Arrivals {
    /// Bytes placed, headers included.
    bytes: u64,
    /// The newest packet's number.
    newest: u64,
}

impl Arrivals {
    pub(super) fn new(stats: &Stats, newest: u64) -> Arrivals {
        Arrivals {
            bytes: stats.bytes_placed + stats.packets_placed * OVERHEAD_BYTES as u64,
            newest,
        }
    }
}

/// One connection's account at its receiver.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Grants {
    limits: CreditLimits,
    /// Bytes granted since the connection began.
    granted: u64,
    /// The peer's newest request, …
    request: RequestToSend,
    /// … the number of the control packet that brought it, …
    number: u64,
    /// … and what had been placed by then, bytes.
    placed: u64,
    /// The path that something has arrived on last.
    path: PathId,
    /// The peer is to be told of the total.
    unannounced: bool,
}

impl Grants {
    pub(super) fn new(limits: CreditLimits) -> Grants {
        Grants {
            limits,
            granted: limits.window,
            request: RequestToSend::default(),
            number: 0,
            placed: 0,
            path: PathId(0),
            unannounced: false,
        }
    }

    /// Something arrived on `path`: credits go back the same way.
    pub(super) fn note_path(&mut self, path: PathId) {
        self.path = path;
    }

    /// Takes in a request. Each is answered: the credit that the peer lacks may have been lost.
    pub(super) fn handle_request(
        &mut self,
        number: u64,
        request: RequestToSend,
        arrived: Arrivals,
    ) {
        self.unannounced = true;
        if number >= self.number {
            // Nobody sends more than was granted but for one window, whatever it says.
            let most = self.granted.saturating_add(self.limits.window);
            self.number = number;
            self.request = RequestToSend {
                sent: request.sent.min(most),
                resend: request.resend.min(most),
                ..request
            };
            // What was sent after it and has overtaken it counts as placed since.
            let overtook = self.bytes_since_request(arrived);
            self.placed = arrived.bytes.saturating_sub(overtook);
        }
    }

    /// Bytes that the peer has sent. The packets since its last request are counted twice, and the less counts: by
    /// number, which makes short packets long ones, and by what was placed, where some were sent before the request.
    fn used(&self, arrived: Arrivals) -> u64 {
        let by_number = self.bytes_since_request(arrived);
        let since = by_number.min(arrived.bytes - self.placed);
        self.request.sent.saturating_add(since)
    }

    /// Bytes of the packets that were numbered after the last request; short packets count as long ones.
    fn bytes_since_request(&self, arrived: Arrivals) -> u64 {
        let newest = arrived.newest.saturating_add(1);
        let packets = newest.saturating_sub(self.request.packets);
        packets.saturating_mul(self.limits.packet)
    }

    /// Bytes granted that the peer has not used.
    pub(super) fn unused(&self, arrived: Arrivals) -> u64 {
        self.granted.saturating_sub(self.used(arrived))
    }

    /// Whether the peer wants more than was granted.
    pub(super) fn is_asked(&self) -> bool {
        self.request.demand > self.granted
    }

    /// Why the peer may be granted another quantum; `None` when it holds as much as it may.
    pub(super) fn claim(&self, arrived: Arrivals) -> Option<Claim> {
        if self.unused(arrived) + self.limits.quantum > self.limits.window {
            None
        } else if self.request.resend > self.granted {
            Some(Claim::Resend)
        } else if self.is_asked() {
            Some(Claim::Active)
        } else {
            Some(Claim::Idle)
        }
    }

    /// Grants one quantum.
    pub(super) fn grant(&mut self) {
        self.granted = self.granted.saturating_add(self.limits.quantum);
        self.unannounced = true;
    }

    /// Writes the credit that is owed; answers its path and its length.
    pub(super) fn poll_credit(
        &mut self,
        out: &mut [u8],
        seal: &Seal,
        remote: ConnectionId,
        number: u64,
    ) -> Option<(PathId, usize)> {
        if !std::mem::take(&mut self.unannounced) {
            return None;
        }
        let credit = Credit {
            bytes: self.granted,
        };
        Some((self.path, credit.emit(out, seal, self.path, remote, number)))
    }

    /// After a restore the peer is told of the total again: the credit may not have left.
    pub(super) fn rebase(&mut self) {
        self.unannounced = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CreditLimits = CreditLimits {
        window: 40_000,
        quantum: 10_000,
        packet: 1_000,
    };

    fn arrived(bytes: u64, newest: u64) -> Arrivals {
        Arrivals { bytes, newest }
    }

    fn request(demand: u64, resend: u64, sent: u64) -> RequestToSend {
        RequestToSend {
            demand,
            resend,
            sent,
            packets: sent / 1_000,
        }
    }

    #[test]
    fn uc6_unused_credit_is_one_bandwidth_delay_product_at_most() {
        let mut grants = Grants::new(LIMITS);
        grants.handle_request(1, request(1_000_000, 0, 0), arrived(0, 0));
        assert_eq!(grants.claim(arrived(0, 0)), None);
        // Ten packets have come, and make room for one quantum.
        assert_eq!(grants.claim(arrived(10_000, 9)), Some(Claim::Active));
        grants.grant();
        assert_eq!(grants.claim(arrived(10_000, 9)), None);
    }

    #[test]
    fn uc6_a_sender_with_losses_is_in_the_rtx_list_and_one_that_has_enough_in_the_idle_list() {
        let mut grants = Grants::new(LIMITS);
        let arrived = arrived(40_000, 39);
        assert_eq!(grants.claim(arrived), Some(Claim::Idle));
        grants.handle_request(1, request(60_000, 45_000, 40_000), arrived);
        assert_eq!(grants.claim(arrived), Some(Claim::Resend));
        grants.grant();
        assert_eq!(grants.claim(arrived), Some(Claim::Active));
        grants.grant();
        assert_eq!(grants.claim(arrived), Some(Claim::Idle));
    }

    #[test]
    fn data_that_overtakes_a_request_counts_as_used() {
        let mut grants = Grants::new(LIMITS);
        // The request says that ten packets were sent; twenty are here before it.
        grants.handle_request(1, request(1_000_000, 0, 10_000), arrived(20_000, 19));
        assert_eq!(grants.unused(arrived(20_000, 19)), 20_000);
        assert_eq!(grants.claim(arrived(20_000, 19)), Some(Claim::Active));
    }

    #[test]
    fn a_peer_has_sent_no_more_than_its_credit_whatever_it_says() {
        let mut grants = Grants::new(LIMITS);
        let boast = request(u64::MAX, u64::MAX, u64::MAX);
        grants.handle_request(1, boast, arrived(0, u64::MAX));
        let mut quanta = 0;
        while grants.claim(arrived(0, u64::MAX)).is_some() && quanta < 100 {
            grants.grant();
            quanta += 1;
        }
        assert_eq!(quanta, 8, "what it may hold, and one window");
    }

    #[test]
    fn uc6_a_request_tells_of_what_was_lost_and_an_overtaken_one_changes_nothing() {
        let mut grants = Grants::new(LIMITS);
        // The last twenty packets are lost: nothing that came later tells of them.
        assert_eq!(grants.unused(arrived(20_000, 19)), 20_000);
        grants.handle_request(7, request(90_000, 60_000, 40_000), arrived(20_000, 19));
        assert_eq!(grants.unused(arrived(20_000, 19)), 0);
        grants.handle_request(6, request(50_000, 0, 30_000), arrived(20_000, 19));
        assert_eq!(grants.unused(arrived(20_000, 19)), 0);
        // What was sent before the request and arrives behind it is not counted again.
        assert_eq!(grants.unused(arrived(25_000, 39)), 0);
        grants.grant();
        assert_eq!(grants.unused(arrived(25_000, 39)), 10_000);
        assert_eq!(grants.unused(arrived(29_000, 43)), 6_000);
    }

    #[test]
    fn uc6_short_packets_use_what_they_hold() {
        let grants = Grants::new(LIMITS);
        assert_eq!(grants.unused(arrived(1_000, 9)), 39_000);
    }
}
