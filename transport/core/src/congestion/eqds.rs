//! EQDS: receiver-driven credits. "An edge-queued datagram service for all datacenter traffic" (Olteanu et al.,
//! NSDI 2022), as UCCL runs it (section 4.2 and appendix B): requests to send and timeouts in place of trimmed
//! packets.
//!
//! This is the sender's half: it sends within credit, tells the receiver how much it wants to send, and asks again
//! for as long as it lacks credit. A connection begins with one bandwidth-delay product of credit, so the first
//! round trip is not lost. Tail-loss probes wait for no credit but use it. The receiver's half is the pacer of its
//! endpoint. Both ends of a fabric have the same parameters: the receiver counts with the same window and quantum.

use super::{CongestionControl, Limits, Nanos, PathId, Permit, Time};
use crate::wire::RequestToSend;
use serde::{Deserialize, Serialize};

/// The round trip of a fabric where none is configured: between hosts whose threads busy-poll.
pub const ROUND_TRIP: Nanos = Nanos::from_micros(50);
/// The least first window, packets: quarters of it are still packets.
const WINDOW_PACKETS_MIN: u64 = 4;
/// A quantum of credit is this part of the first window, so that credit comes before the last is used up.
const QUANTA_PER_WINDOW: u64 = 4;
/// Demand is told for this many windows ahead at most: a request in sixteen round trips, which also tells the
/// receiver what was lost.
pub(crate) const DEMAND_WINDOWS: u64 = 16;
/// The next demand is told when less than this many windows of the last are not granted yet.
const DEMAND_LOW_WINDOWS: u64 = 2;
/// A sender without credit asks again after so many round trips …
const REQUEST_ROUND_TRIPS: u64 = 4;
/// … at least after this: a request costs the receiver a packet and an answer …
const REQUEST_MIN: Nanos = Nanos::from_millis(1);
/// … and each time after twice as long, up to this.
const REQUEST_MAX: Nanos = Nanos::from_millis(64);

/// How much credit there may be: the same at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CreditLimits {
    /// Bytes granted and not used at most, and granted from the start: one bandwidth-delay product.
    pub window: u64,
    /// Bytes that are granted at a time, and of a chunk at most.
    pub quantum: u64,
    /// Bytes of a full packet.
    pub packet: u64,
}

impl CreditLimits {
    pub(super) fn new(limits: &Limits, receive_bps: u64, round_trip: Nanos) -> CreditLimits {
        let bits = u128::from(receive_bps) * u128::from(round_trip.get()) / 1_000_000_000;
        let product = u64::try_from(bits / 8).unwrap_or(u64::MAX);
        let least = limits.packet * WINDOW_PACKETS_MIN;
        let window = product.clamp(least, limits.max.max(least));
        // Whole packets, so that a chunk uses a quantum up.
        let quarter = (window / QUANTA_PER_WINDOW).clamp(limits.packet, limits.chunk);
        let packets = quarter / limits.packet;
        CreditLimits {
            window,
            quantum: packets * limits.packet,
            packet: limits.packet,
        }
    }
}

/// What waits to be sent, bytes with headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backlog {
    /// For the first time.
    pub new: u64,
    /// Again.
    pub lost: u64,
}

/// The sender's state for one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Eqds {
    credit: CreditLimits,
    max: u64,
    /// Bytes granted since the connection began, as far as this end knows.
    granted: u64,
    /// Bytes sent since then, lost ones included.
    sent: u64,
    /// What the last request told.
    requested: RequestToSend,
    /// The timer has asked for a request.
    request_due: bool,
    /// Something was lost since the last request.
    lost: bool,
    /// Whether the peer has ever sent a credit.
    answered: bool,
    /// When to ask for the first time, and the next time.
    waits: [Nanos; 2],
}

impl Eqds {
    pub(super) fn new(limits: Limits, receive_bps: u64, round_trip: Nanos) -> Eqds {
        let credit = CreditLimits::new(&limits, receive_bps, round_trip);
        let wait = round_trip
            .times(REQUEST_ROUND_TRIPS)
            .clamp(REQUEST_MIN, REQUEST_MAX);
        Eqds {
            credit,
            max: limits.max,
            granted: credit.window,
            sent: 0,
            requested: RequestToSend::default(),
            request_due: false,
            lost: false,
            answered: false,
            waits: [wait; 2],
        }
    }
}

impl CongestionControl for Eqds {
    fn window(&self) -> u64 {
        self.max
    }

    fn chunk_bytes(&self) -> u64 {
        self.credit.quantum
    }

    /// A chunk that was cut anew may be larger than a quantum; what it takes beyond is owed.
    fn may_send(&self, _path: PathId, bytes: u32, _now: Time) -> Permit {
        if self.granted.saturating_sub(self.sent) >= self.credit.quantum.min(bytes.into()) {
            Permit::Yes
        } else {
            Permit::Credit
        }
    }

    fn on_sent(&mut self, _now: Time, _path: PathId, bytes: u32) {
        self.sent += u64::from(bytes);
    }

    fn on_loss(&mut self, _now: Time, _packets: u64) {
        self.lost = true;
    }

    fn on_timeout(&mut self, _now: Time) {}

    fn on_credit(&mut self, total: u64) -> bool {
        self.answered = true;
        let more = total > self.granted;
        if more {
            self.granted = total;
            self.waits[1] = self.waits[0];
        }
        more
    }

    fn was_granted(&self) -> bool {
        self.answered
    }

    fn credit_wait(&self) -> Nanos {
        self.waits[1]
    }

    fn on_credit_timeout(&mut self) {
        self.request_due = true;
        self.waits[1] = self.waits[1].times(2).min(REQUEST_MAX);
    }

    fn poll_request(
        &mut self,
        packets: u64,
        backlog: impl FnOnce(u64) -> Backlog,
    ) -> Option<RequestToSend> {
        let low = self
            .granted
            .saturating_add(self.credit.window * DEMAND_LOW_WINDOWS);
        if !self.request_due && !self.lost && self.requested.demand >= low {
            return None;
        }
        let most = self.credit.window * DEMAND_WINDOWS;
        let Backlog { new, lost } = backlog(most);
        let resend = if lost > 0 { self.sent + lost } else { 0 };
        let demand = self.sent + (new + lost).min(most);
        let lacks = demand > self.granted && demand > self.requested.demand
            || std::mem::take(&mut self.lost) && resend > self.granted;
        if !std::mem::take(&mut self.request_due) && !lacks {
            return None;
        }
        self.requested = RequestToSend {
            demand,
            resend,
            sent: self.sent,
            packets,
        };
        Some(self.requested)
    }

    fn rebase(&mut self, _now: Time) {
        self.request_due = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        packet: 1_500,
        chunk: 64_500,
        max: 64_000_000,
        paths: 128,
    };
    const PATH: PathId = PathId(0);

    /// 10 Gbit/s and 100 us: 125 kB.
    fn eqds() -> Eqds {
        Eqds::new(LIMITS, 10_000_000_000, Nanos::from_micros(100))
    }

    fn send(eqds: &mut Eqds, bytes: u32) -> bool {
        let yes = eqds.may_send(PATH, bytes, Time::ZERO) == Permit::Yes;
        if yes {
            eqds.on_sent(Time::ZERO, PATH, bytes);
        }
        yes
    }

    fn wants(new: u64, lost: u64) -> impl FnOnce(u64) -> Backlog {
        move |_| Backlog { new, lost }
    }

    #[test]
    fn uc6_a_sender_starts_with_one_bandwidth_delay_product_and_then_sends_within_credit() {
        let mut eqds = eqds();
        assert_eq!(eqds.credit.window, 125_000);
        assert_eq!(eqds.chunk_bytes(), 30_000);
        for _ in 0..4 {
            assert!(send(&mut eqds, 31_250));
        }
        assert!(!send(&mut eqds, 1));
        assert!(eqds.on_credit(125_000 + 31_250));
        assert!(send(&mut eqds, 31_250));
        assert!(!send(&mut eqds, 1));
    }

    #[test]
    fn uc6_credits_that_are_lost_doubled_or_out_of_order_are_made_up_for_by_the_next_total() {
        let mut eqds = eqds();
        assert!(eqds.on_credit(300_000));
        assert!(!eqds.on_credit(300_000));
        assert!(!eqds.on_credit(200_000));
        assert_eq!(eqds.granted, 300_000);
    }

    #[test]
    fn uc6_a_sender_tells_its_demand_before_the_last_is_granted_and_asks_again_without_credit() {
        let mut eqds = eqds();
        assert_eq!(
            eqds.poll_request(0, wants(100_000, 0)),
            None,
            "it has credit"
        );
        let request = eqds.poll_request(0, wants(10_000_000, 0));
        let told = 16 * 125_000;
        assert_eq!(request.map(|r| r.demand), Some(told));
        assert_eq!(eqds.poll_request(0, wants(10_000_000, 0)), None);
        send(&mut eqds, 30_000);
        eqds.on_credit(told - 250_000 + 1);
        let request = eqds.poll_request(20, wants(9_970_000, 0)).unwrap();
        assert_eq!(
            (request.demand, request.sent, request.packets),
            (30_000 + told, 30_000, 20)
        );
        // Appendix B: "UCCL uses timeout + RTS as a replacement": a lost request or credit is made up for.
        let wait = eqds.credit_wait();
        eqds.on_credit_timeout();
        assert!(eqds.poll_request(20, wants(9_970_000, 0)).is_some());
        assert_eq!(eqds.credit_wait(), wait.times(2));
    }

    #[test]
    fn uc6_what_was_lost_is_asked_for_at_once_and_takes_credit() {
        let mut eqds = eqds();
        for _ in 0..4 {
            send(&mut eqds, 31_250);
        }
        assert_eq!(eqds.poll_request(84, wants(0, 0)), None);
        eqds.on_loss(Time::ZERO, 2);
        let request = eqds.poll_request(84, wants(0, 3_000)).unwrap();
        assert_eq!((request.resend, request.demand), (128_000, 128_000));
        assert!(!send(&mut eqds, 3_000));
    }
}
