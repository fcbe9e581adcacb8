//! Where devices that are limited in work requests give them to queue pairs that wait: to the programs of a device in
//! turn, and to the queue pairs of each program in turn.

use std::collections::{BTreeMap, Bound};
use std::num::NonZeroU32;
use std::time::Duration;

use super::datagrams::of_device;
use super::{ContextId, Devices};
use crate::context::Context;
use crate::operation_rate::OperationRate;

/// The limit of one device.
#[derive(Debug)]
pub(super) struct OperationLimit {
    rate: OperationRate,
    /// The context that had the last one.
    last: ContextId,
}

impl OperationLimit {
    /// Most that begin per second.
    pub(super) fn per_second(&self) -> NonZeroU32 {
        self.rate.per_second()
    }
}

/// The next context of the device, after this one, in which a queue pair waits.
fn next_waiting(contexts: &BTreeMap<ContextId, Context>, last: ContextId) -> Option<ContextId> {
    let all = of_device(last.gid);
    let after = (Bound::Excluded(last), Bound::Included(*all.end()));
    let mut in_turn = contexts.range(after).chain(contexts.range(all));
    let next = in_turn.find(|(_, context)| context.operations.is_awaited());
    next.map(|(id, _)| *id)
}

impl Devices {
    /// A context of a device that may be limited.
    pub(super) fn limit_operations(
        &mut self,
        gid: [u8; 16],
        per_second: Option<NonZeroU32>,
        context: &mut Context,
    ) {
        let Some(per_second) = per_second else {
            return;
        };
        context.operations.limit();
        let limit = self.operation_limits.entry(gid);
        limit.or_insert_with(|| OperationLimit {
            rate: OperationRate::new(per_second),
            last: ContextId { gid, index: 0 },
        });
    }

    /// Takes entries of queue pairs that have waited, as many as their devices may begin. Answers whether there was one.
    pub(super) fn take_operations(&mut self, now: Duration) -> bool {
        let mut is_busy = false;
        for limit in self.operation_limits.values_mut() {
            limit.rate.fill(now);
            while limit.rate.has_one() {
                let next = next_waiting(&self.contexts, limit.last);
                let Some(context) = next.and_then(|id| self.contexts.get_mut(&id)) else {
                    break;
                };
                limit.last = next.unwrap_or(limit.last);
                if let Some(number) = context.operations.give() {
                    context.take(number, &self.engine);
                    // Where it is one for datagrams.
                    let gid = limit.last.gid;
                    context.take_datagrams(gid, now, &self.engine, &mut self.datagrams);
                    if context.operations.take_back() {
                        limit.rate.spend();
                        is_busy = true;
                    }
                }
            }
        }
        is_busy
    }

    /// How long this may wait, where queue pairs wait for their devices.
    pub(super) fn wait_for_operations(&self, wait: Duration) -> Duration {
        let awaited = self.operation_limits.values().filter(|limit| {
            let waits = |(_, context): (_, &Context)| context.operations.is_awaited();
            self.contexts.range(of_device(limit.last.gid)).any(waits)
        });
        awaited.fold(wait, |wait, limit| wait.min(limit.rate.wait()))
    }
}
