//! What was decided is written, as far as there is room for it, and said to people.

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::Resource as _;
use tokio::time::Instant;

use super::{
    Controllers,
    bucket::Rank,
    holds::Consequence,
    request::{News, Request},
    world::Key,
};

/// How much it matters.
pub(super) fn rank(request: &Request) -> Rank {
    match request {
        // Only bytes have moved.
        Request::JobStatus {
            is_progress: true, ..
        } => Rank::Progress,
        Request::NodeModel { .. } => Rank::Label,
        _ => Rank::Change,
    }
}

impl Controllers {
    /// Makes a request; false where there is no room for it now.
    pub(super) async fn carry_out(&mut self, request: &Request, now: Timestamp) -> bool {
        let object = request.object();
        if self.holds.is_held(&object, self.began.elapsed()) {
            return true;
        }
        if !self.lead.may_write(Instant::now()) {
            return false;
        }
        let rank = rank(request);
        if !self.bucket.take(self.began.elapsed(), rank) {
            let is_progress = rank == Rank::Progress;
            if is_progress {
                self.context.tally.dropped.inc();
            }
            return is_progress;
        }
        self.context.tally.writes.inc();
        self.context.pulse.beat(Instant::now());
        // A job that is let go may be gone then.
        let let_go = match request {
            Request::Finalizer { key, .. } => self.world.jobs.get(key),
            _ => None,
        };
        let let_go = let_go.map(|job| job.object_ref(&()));
        match self.cluster.carry_out(request, &mut self.world).await {
            Ok(()) => {
                self.holds.clear(&object);
                match request {
                    Request::Finalizer { news, .. } => self.tell(let_go, "Transfer", news).await,
                    Request::JobStatus { key, uid, news, .. } => {
                        self.written.insert(uid.clone(), now);
                        let job = self.world.jobs.get(key).map(|job| job.object_ref(&()));
                        self.tell(job, "Transfer", news).await;
                    }
                    Request::FabricNodeStatus { name, news, .. } => {
                        let node = self.world.fabric_nodes.named(name);
                        let node = node.map(|node| node.object_ref(&()));
                        self.tell(node, "Report", news).await;
                    }
                    _ => {}
                }
                // It may be followed by the next, at once.
                self.changed.notify_one();
                true
            }
            Err(error) => {
                let (kind, Key { namespace, name }) = &object;
                if error.is_stale() {
                    tracing::debug!(kind, namespace, name, %error, "the object has changed");
                } else {
                    tracing::warn!(kind, namespace, name, %error, "a write failed; it is repeated");
                    self.context.tally.failed.inc();
                }
                let elapsed = self.began.elapsed();
                match error.consequence(request) {
                    Consequence::LeaveOut { node, key } => {
                        self.holds.leave_out(node, key, elapsed);
                        self.holds.clear(&object);
                    }
                    Consequence::Hold(failure) => self.holds.hold(object, failure, elapsed),
                }
                true
            }
        }
    }

    /// Says it of an object, unless that is gone.
    pub(super) async fn tell(
        &mut self,
        object: Option<ObjectReference>,
        action: &str,
        news: &[News],
    ) {
        let Some(object) = object else {
            return;
        };
        for news in news {
            if self.bucket.take(self.began.elapsed(), Rank::Progress) {
                self.context.tally.writes.inc();
                self.context.pulse.beat(Instant::now());
                self.cluster.tell(&object, action, news).await;
            } else {
                self.context.tally.dropped.inc();
            }
        }
    }
}
