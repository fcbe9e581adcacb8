//! What was decided for this process to do is done: transfers begin, are told, and end.

use std::sync::Arc;

use super::{Controllers, job::Order, work::Work, world::Key};

impl Controllers {
    /// Does it, unless the job is left alone for a while.
    pub(super) fn obey(&mut self, key: Key, uid: String, order: Order) {
        let object = ("TransferJob", key);
        let channels = &self.context.channels;
        let changed = Arc::clone(&self.changed);
        let work = match order {
            Order::Begin(_) | Order::Withdraw { .. }
                if self.holds.is_held(&object, self.began.elapsed())
                    || self.stumbles.is_waiting(&uid, self.began.elapsed()) =>
            {
                return;
            }
            Order::Begin(transfer) => {
                let Key { namespace, name } = &object.1;
                let attempts_before = transfer.spec.mandate.attempts_before;
                tracing::info!(
                    namespace,
                    name,
                    fabric = transfer.fabric,
                    attempts_before,
                    "a transfer begins"
                );
                Work::begin(object.1, *transfer, channels, changed)
            }
            Order::Withdraw {
                transfer,
                discard,
                copies,
            } => Work::withdraw(object.1, *transfer, (discard, copies), channels, changed),
            Order::Meet { layout, who } => {
                if let Some(work) = self.works.get_mut(&uid) {
                    work.meet(layout, who);
                }
                // An attempt may be waiting for its permit.
                self.agenda.note(object.1);
                self.changed.notify_one();
                return;
            }
            Order::Look(secret) => return self.look(secret),
            Order::Permit(attempt) => {
                if let Some(work) = self.works.get(&uid) {
                    work.permit(attempt);
                }
                return;
            }
            Order::Stop { discard, copies } => {
                if let Some(work) = self.works.get(&uid) {
                    work.stop(discard, copies);
                }
                return;
            }
            Order::Remove(remove) => {
                if let Some(work) = self.works.get(&uid) {
                    work.remove(remove);
                }
                return;
            }
            Order::Forget => {
                self.works.remove(&uid);
                // What follows from that is decided at once.
                self.agenda.note(object.1);
                self.changed.notify_one();
                return;
            }
        };
        self.works.insert(uid, work);
    }
}
