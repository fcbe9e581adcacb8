//! Grants credit to the peers that send here (EQDS, as UCCL runs it: section 4.2 and appendix B): a quantum at a time,
//! at the rate at which this NIC receives, so that what was granted does not queue before it.
//!
//! Three lists of senders, each in turns: those that have to send something again, those that want to send, and those
//! that want nothing yet and hold less credit than a first window. Each connection keeps its own account; the pacer
//! knows who is in which list and when the next quantum may go. Used by the endpoint only; there is none where the
//! congestion control grants no credit.
//!
//! Credit that a sender held before it asked, its first window at least, was not paced: it comes as soon as the sender
//! asks. The pacer waits for as long as that takes, so that many senders that begin together queue once and not
//! for as long as they send.

use super::{Endpoint, EndpointConfig, PeerName, Slot, touch};
use crate::congestion::CongestionKind;
use crate::connection::{Claim, Connection};
use crate::units::{Nanos, Time};
use std::collections::BTreeMap;

/// Percent of the NIC's rate that is granted. The rest is for control packets, and to empty the queue of what came
/// faster than it was granted.
const GRANTED_PERCENT: u64 = 97;

/// Idle senders hold so many first windows of credit together, or a quantum each: what they may send at once, and
/// nobody has paced.
const IDLE_WINDOWS: u64 = 16;

/// A sender's place.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Its list, and its place there.
    listed: Option<(Claim, u64)>,
    /// It wanted more than was granted when it was last looked at.
    asked: bool,
}

/// The lists, and the clock of the grants.
#[derive(Debug)]
pub(super) struct Pacer {
    receive_bps: u64,
    round_trip: Nanos,
    packet: u64,
    link_header: u64,
    window: u64,
    quantum: u64,
    /// When the next quantum may be granted.
    next_at: Time,
    /// Slots by the order in which they came, for each claim.
    lists: [BTreeMap<u64, u32>; 3],
    order: u64,
    /// The last quantum was for something that is sent again.
    resent: bool,
    /// One account per slot of the endpoint.
    accounts: Vec<Account>,
}

impl Pacer {
    /// The pacer of an endpoint whose congestion control grants credit.
    pub(super) fn new(config: &EndpointConfig) -> Option<Pacer> {
        let CongestionKind::Eqds {
            receive_bps,
            round_trip,
        } = config.congestion
        else {
            return None;
        };
        let limits = config.congestion.credit_limits(&config.settings.limits())?;
        Some(Pacer {
            receive_bps: receive_bps.max(1),
            round_trip,
            packet: limits.packet,
            link_header: config.link_header_bytes.into(),
            window: limits.window,
            quantum: limits.quantum,
            next_at: Time::ZERO,
            lists: Default::default(),
            order: 0,
            resent: false,
            accounts: Vec::new(),
        })
    }

    /// How long the NIC takes to receive `bytes` bytes, at the granted share of its rate.
    fn time_of(&self, bytes: u64) -> Nanos {
        let packets = bytes.div_ceil(self.packet);
        let bits = u128::from(bytes + packets * self.link_header) * 8;
        let nanos = bits * 1_000_000_000 * 100
            / (u128::from(self.receive_bps) * u128::from(GRANTED_PERCENT));
        Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Something has arrived on the connection in `slot`, or it was restored: it takes its place in the lists.
    pub(super) fn update(&mut self, now: Time, slot: u32, connection: &Connection) {
        let at = slot as usize;
        if self.accounts.len() <= at {
            self.accounts.resize(at + 1, Account::default());
        }
        let asked = connection.is_credit_asked();
        if !std::mem::replace(&mut self.accounts[at].asked, asked) && asked {
            // It was not paced, and it fills the pipe for a round trip: what is granted now comes behind it.
            let free = Time::from_nanos(now.as_nanos().saturating_sub(self.round_trip.get()));
            // No sender holds more than a window; many that begin at once are bounded together.
            let unused = connection.unused_credit().min(self.window);
            let latest = now + self.time_of(self.window * IDLE_WINDOWS);
            let next_at = self.next_at.max(free) + self.time_of(unused);
            self.next_at = next_at.min(latest.max(self.next_at));
        }
        if self.next().is_none() {
            // Time in which nobody could be granted anything is not made up for.
            self.next_at = self.next_at.max(now);
        }
        self.list(slot, connection.credit_claim());
    }

    /// The connection in `slot` is gone.
    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(account) = self.accounts.get_mut(slot as usize) {
            let account = std::mem::take(account);
            if let Some((claim, order)) = account.listed {
                self.lists[claim as usize].remove(&order);
            }
        }
    }

    fn list(&mut self, slot: u32, claim: Option<Claim>) {
        let listed = self.accounts[slot as usize].listed;
        if listed.map(|(claim, _)| claim) == claim {
            return;
        }
        if let Some((claim, order)) = listed {
            self.lists[claim as usize].remove(&order);
        }
        self.accounts[slot as usize].listed = claim.map(|claim| {
            self.order += 1;
            self.lists[claim as usize].insert(self.order, slot);
            (claim, self.order)
        });
    }

    /// When the next quantum is due, if anybody waits for one.
    pub(super) fn next(&self) -> Option<Time> {
        let waits = self.lists.iter().any(|list| !list.is_empty());
        waits.then_some(self.next_at)
    }

    /// Takes the sender whose turn it is out of its list, when a quantum is due.
    fn poll(&mut self, now: Time) -> Option<u32> {
        if self.next_at > now {
            return None;
        }
        // Every other quantum at least is for those that send for the first time: a peer that always has something to
        // send again does not take all.
        let order = match std::mem::take(&mut self.resent) {
            true => [Claim::Active, Claim::Resend, Claim::Idle],
            false => [Claim::Resend, Claim::Active, Claim::Idle],
        };
        let pop = |claim: Claim| Some((claim, self.lists[claim as usize].pop_first()?.1));
        let (claim, slot) = order.into_iter().find_map(pop)?;
        self.resent = claim == Claim::Resend;
        self.accounts[slot as usize].listed = None;
        Some(slot)
    }

    /// Whether an idle sender may hold another quantum.
    fn has_room_for_idle(&self, senders: usize, unused: u64) -> bool {
        let each = (self.window * IDLE_WINDOWS / senders.max(1) as u64).min(self.window);
        unused + self.quantum <= each.max(self.quantum)
    }

    /// A quantum was granted. A turn that came late makes up for one round trip at most.
    fn charge(&mut self, now: Time) {
        let free = Time::from_nanos(now.as_nanos().saturating_sub(self.round_trip.get()));
        self.next_at = self.next_at.max(free) + self.time_of(self.quantum);
    }
}

impl<P: PeerName> Endpoint<P> {
    /// Grants what is due; the credits leave with the other control packets of this turn.
    #[inline]
    pub(super) fn grant_credit(&mut self, now: Time) {
        if self.pacer.is_some() {
            self.grant_due(now);
        }
    }

    #[inline(never)]
    fn grant_due(&mut self, now: Time) {
        let Some(pacer) = &mut self.pacer else { return };
        while let Some(slot) = pacer.poll(now) {
            let Slot::Open(open) = &mut self.slots[slot as usize] else {
                continue;
            };
            let connection = &mut open.connection;
            let claim = connection.credit_claim();
            let idle = claim == Some(Claim::Idle);
            if claim.is_none()
                || idle && !pacer.has_room_for_idle(self.by_id.len(), connection.unused_credit())
            {
                continue;
            }
            connection.grant_credit();
            pacer.charge(now);
            pacer.list(slot, connection.credit_claim());
            touch(&mut self.touched, &mut self.eventful, slot, open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer() -> Pacer {
        Pacer {
            receive_bps: 10_000_000_000,
            round_trip: Nanos::from_micros(50),
            packet: 1_472,
            link_header: 28,
            window: 62_500,
            quantum: 4 * 1_472,
            next_at: Time::ZERO,
            lists: Default::default(),
            order: 0,
            resent: false,
            accounts: vec![Account::default(); 8],
        }
    }

    #[test]
    fn uc6_senders_with_losses_go_first_then_active_ones_in_turns_then_idle_ones() {
        let mut pacer = pacer();
        for (slot, claim) in [
            (0, Claim::Idle),
            (1, Claim::Active),
            (2, Claim::Active),
            (3, Claim::Resend),
        ] {
            pacer.list(slot, Some(claim));
        }
        let mut order = Vec::new();
        for slot in [3, 1, 2, 1] {
            order.push(pacer.poll(Time::ZERO));
            pacer.list(slot, (slot != 3).then_some(Claim::Active));
        }
        assert_eq!(order, [3, 1, 2, 1].map(Some));
        pacer.remove(1);
        pacer.remove(2);
        assert_eq!(pacer.poll(Time::ZERO), Some(0));
        assert_eq!(pacer.next(), None);
    }

    #[test]
    fn uc6_quanta_are_granted_at_a_constant_rate_below_that_of_the_nic() {
        // 6,000 bytes with the link's headers are 4.8 us at 10 Gbit/s.
        let mut pacer = pacer();
        let now = Time::from_nanos(1_000_000);
        pacer.next_at = now;
        pacer.charge(now);
        assert_eq!(pacer.next_at - now, Nanos::new(4_800 * 100 / 97));
        assert_eq!(pacer.poll(now), None);
        // A turn that comes a millisecond late makes up for one round trip.
        let late = now + Nanos::from_millis(1);
        pacer.charge(late);
        assert!(pacer.next_at < late && late - pacer.next_at <= pacer.round_trip);
    }

    #[test]
    fn uc6_idle_senders_hold_sixteen_windows_together_or_a_quantum_each() {
        let pacer = pacer();
        assert!(pacer.has_room_for_idle(16, pacer.window - pacer.quantum));
        assert!(!pacer.has_room_for_idle(32, pacer.window - pacer.quantum));
        assert!(pacer.has_room_for_idle(10_000, 0));
    }
}
