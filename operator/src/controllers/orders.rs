//! What was decided for this process to do is done: transfers begin, are told, and end.

use std::sync::Arc;

use kube::Resource as _;
use weft_crds::TransferJob;

use super::{Controllers, job::Order, request::Object, work::Work, world::Key};

impl Controllers {
    /// Does it, unless requests for the job fail.
    pub(super) fn obey(&mut self, key: Key, uid: String, order: Order) {
        let object = Object {
            kind: TransferJob::kind(&()).into_owned(),
            key,
        };
        let channels = &self.context.channels;
        let changed = Arc::clone(&self.changed);
        let work = match order {
            Order::Begin(_) | Order::Withdraw { .. }
                if self.writer.is_backing_off(&object)
                    || self.crashes.until(&uid, self.began.elapsed()).is_some() =>
            {
                return;
            }
            Order::Begin(transfer) => {
                let Key { namespace, name } = &object.key;
                let attempts_before = transfer.spec.mandate.attempts_before;
                tracing::info!(
                    namespace,
                    name,
                    fabric = transfer.fabric,
                    attempts_before,
                    "a transfer begins"
                );
                Work::begin(object.key, *transfer, channels, changed)
            }
            Order::Withdraw {
                transfer,
                discard,
                copies,
            } => Work::withdraw(object.key, *transfer, (discard, copies), channels, changed),
            Order::Meet { layout, who } => {
                if let Some(work) = self.works.get_mut(&uid) {
                    work.meet(layout, who);
                }
                // An attempt may be waiting for its permit.
                self.work_queue.add(object.key);
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
                self.work_queue.add(object.key);
                self.changed.notify_one();
                return;
            }
        };
        self.works.insert(uid, work);
    }
}
