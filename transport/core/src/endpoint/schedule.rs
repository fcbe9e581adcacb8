//! Which connection sends next: deficit round robin in two levels, tenants first and then the connections
//! of a tenant (Shreedhar and Varghese, 1995; with surplus instead of deficit, since a chunk is never cut).
//!
//! A tenant with a thousand connections gets the same bytes per second as a tenant with one. Used by the
//! endpoint only.

use crate::memory::DomainId;
use std::collections::{BTreeMap, VecDeque};

/// Bytes that a tenant, and a connection of it, may send in one turn: one chunk of full size.
pub(super) const QUANTUM: i64 = 65_536;

#[derive(Debug)]
struct Tenant {
    domain: DomainId,
    /// Connections that exist, whether they have something to send or not.
    connections: u32,
    /// Those that may have something to send.
    queue: VecDeque<u32>,
    credit: i64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Index of its tenant.
    tenant: u32,
    queued: bool,
    credit: i64,
}

/// The connections that may have something to send, in the order of their turns.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    tenants: Vec<Option<Tenant>>,
    by_domain: BTreeMap<DomainId, u32>,
    /// Tenants with a queue that is not empty.
    active: VecDeque<u32>,
    /// One account per slot of the endpoint.
    accounts: Vec<Account>,
}

impl Schedule {
    /// The connection in `slot` belongs to `domain`.
    pub(super) fn add(&mut self, slot: u32, domain: DomainId) {
        let tenant = match self.by_domain.get(&domain) {
            Some(&tenant) => tenant,
            None => self.add_tenant(domain),
        };
        if let Some(Some(entry)) = self.tenants.get_mut(tenant as usize) {
            entry.connections += 1;
        }
        let slots = slot as usize + 1;
        if self.accounts.len() < slots {
            self.accounts.resize(slots, Account::default());
        }
        self.accounts[slot as usize] = Account {
            tenant,
            ..Account::default()
        };
    }

    fn add_tenant(&mut self, domain: DomainId) -> u32 {
        let tenant = Some(Tenant {
            domain,
            connections: 0,
            queue: VecDeque::new(),
            credit: 0,
        });
        let index = match self.tenants.iter().position(Option::is_none) {
            Some(free) => {
                self.tenants[free] = tenant;
                free
            }
            None => {
                self.tenants.push(tenant);
                self.tenants.len() - 1
            }
        } as u32;
        self.by_domain.insert(domain, index);
        index
    }

    /// The connection in `slot` is gone.
    pub(super) fn remove(&mut self, slot: u32) {
        let index = self.accounts[slot as usize].tenant;
        let Some(Some(tenant)) = self.tenants.get_mut(index as usize) else {
            return;
        };
        if std::mem::take(&mut self.accounts[slot as usize].queued) {
            tenant.queue.retain(|queued| *queued != slot);
            if tenant.queue.is_empty() {
                self.active.retain(|active| *active != index);
            }
        }
        tenant.connections -= 1;
        if tenant.connections == 0 {
            self.by_domain.remove(&tenant.domain);
            self.tenants[index as usize] = None;
        }
    }

    /// The connection may have something to send: it waits behind the others, unless it waits already.
    #[inline]
    pub(super) fn join(&mut self, slot: u32) {
        let account = &mut self.accounts[slot as usize];
        if std::mem::replace(&mut account.queued, true) {
            return;
        }
        let index = account.tenant;
        account.credit = (account.credit + QUANTUM).min(QUANTUM);
        if let Some(Some(tenant)) = self.tenants.get_mut(index as usize) {
            if tenant.queue.is_empty() {
                self.active.push_back(index);
                tenant.credit = (tenant.credit + QUANTUM).min(QUANTUM);
            }
            tenant.queue.push_back(slot);
        }
    }

    /// Whether no connection waits.
    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// The connection whose turn it is.
    #[inline]
    pub(super) fn current(&self) -> Option<u32> {
        let &index = self.active.front()?;
        let tenant = self.tenants[index as usize].as_ref()?;
        tenant.queue.front().copied()
    }

    /// The connection whose turn it is has nothing to send: the next one's turn begins.
    pub(super) fn leave(&mut self) {
        let Some(&index) = self.active.front() else {
            return;
        };
        let Some(tenant) = &mut self.tenants[index as usize] else {
            return;
        };
        if let Some(slot) = tenant.queue.pop_front() {
            self.accounts[slot as usize].queued = false;
        }
        if tenant.queue.is_empty() {
            self.active.pop_front();
        }
    }

    /// The connection in `slot`, whose turn it is, has sent `bytes`. Its turn, and then its tenant's, ends when the
    /// quantum is used up; what was sent beyond it counts against the next turn.
    #[inline]
    pub(super) fn charge(&mut self, slot: u32, bytes: i64) {
        debug_assert_eq!(self.current(), Some(slot));
        let account = &mut self.accounts[slot as usize];
        let Some(tenant) = &mut self.tenants[account.tenant as usize] else {
            return;
        };
        account.credit -= bytes;
        if account.credit <= 0 {
            account.credit += QUANTUM;
            tenant.queue.rotate_left(1);
        }
        tenant.credit -= bytes;
        if tenant.credit <= 0 {
            tenant.credit += QUANTUM;
            self.active.rotate_left(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `rounds` chunks; the connection in slot i sends chunks of `bytes[i]`. Returns bytes by slot.
    fn send(schedule: &mut Schedule, bytes: &[i64], rounds: usize) -> Vec<i64> {
        let mut sent = vec![0; bytes.len()];
        for _ in 0..rounds {
            let slot = schedule.current().unwrap();
            sent[slot as usize] += bytes[slot as usize];
            schedule.charge(slot, bytes[slot as usize]);
        }
        sent
    }

    #[test]
    fn chunks_of_any_size_get_the_same_bytes() {
        let bytes = [64_768, 1_472, 30_000];
        let mut schedule = Schedule::default();
        for slot in 0..3 {
            schedule.add(slot, DomainId(1));
            schedule.join(slot);
            schedule.join(slot);
        }
        let sent = send(&mut schedule, &bytes, 10_000);
        let spread = sent.iter().max().unwrap() - sent.iter().min().unwrap();
        assert!(spread <= 2 * QUANTUM, "{sent:?}");
    }

    #[test]
    fn a_tenant_with_many_connections_gets_no_more_than_one_with_a_single_connection() {
        let mut schedule = Schedule::default();
        schedule.add(0, DomainId(1));
        schedule.join(0);
        for slot in 1..101 {
            schedule.add(slot, DomainId(2));
            schedule.join(slot);
        }
        let sent = send(&mut schedule, &[10_000; 101], 20_000);
        let others: i64 = sent[1..].iter().sum();
        assert!((sent[0] - others).abs() <= 2 * QUANTUM, "{}", sent[0]);
        let spread = sent[1..].iter().max().unwrap() - sent[1..].iter().min().unwrap();
        assert!(spread <= 2 * QUANTUM, "{sent:?}");
    }

    #[test]
    fn a_connection_that_leaves_and_joins_again_keeps_its_surplus_as_a_debt() {
        let mut schedule = Schedule::default();
        for slot in 0..2 {
            schedule.add(slot, DomainId(slot));
            schedule.join(slot);
        }
        let mut sent = [0i64; 2];
        for _ in 0..4_000 {
            let slot = schedule.current().unwrap();
            let bytes = if slot == 0 { 65_000 } else { 1_000 };
            sent[slot as usize] += bytes;
            schedule.charge(slot, bytes);
            if schedule.current() == Some(0) {
                schedule.leave();
                schedule.join(0);
            }
        }
        assert!(sent[0] <= sent[1] + 2 * QUANTUM, "{sent:?}");
    }

    #[test]
    fn a_removed_connection_has_no_turn_and_its_tenant_goes_with_the_last() {
        let mut schedule = Schedule::default();
        for slot in 0..3 {
            schedule.add(slot, DomainId(1));
            schedule.join(slot);
        }
        schedule.remove(0);
        schedule.remove(2);
        assert_eq!(schedule.current(), Some(1));
        schedule.remove(1);
        assert!(schedule.is_empty() && schedule.by_domain.is_empty());
        schedule.add(1, DomainId(7));
        schedule.join(1);
        assert_eq!(schedule.current(), Some(1));
    }
}
