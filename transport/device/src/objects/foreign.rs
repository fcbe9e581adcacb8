//! Requests for objects that are not the program's to use.

use super::{Objects, Table};
use crate::control::{QueuePair, Request};

impl<T> Table<T> {
    fn lacks(&self, handle: u32) -> bool {
        !self.objects.contains_key(&handle)
    }
}

impl Objects {
    /// Whether a request names an object that this program has not, or objects of two protection domains: what a library
    /// does not ask by itself. The request was refused, or is going to be.
    #[must_use]
    pub fn names_foreign(&self, request: &Request) -> bool {
        match *request {
            Request::Open { .. } | Request::CreateDomain | Request::CreateChannel => false,
            Request::DestroyDomain(domain)
            | Request::CreateSharedReceiveQueue { domain, .. }
            | Request::CreateAddressHandle { domain, .. } => self.domains.lacks(domain),
            Request::RegisterRegion(region) => self.domains.lacks(region.domain),
            Request::ReregisterRegion { key, .. } | Request::DeregisterRegion(key) => {
                !self.regions.contains_key(&key)
            }
            Request::DestroyChannel(channel) => self.channels.lacks(channel),
            Request::CreateCompletionQueue { channel, .. } => {
                channel.is_some_and(|channel| self.channels.lacks(channel))
            }
            Request::ResizeCompletionQueue { queue, .. }
            | Request::DestroyCompletionQueue(queue) => self.completion_queues.lacks(queue),
            Request::ModifySharedReceiveQueue { queue, .. }
            | Request::QuerySharedReceiveQueue(queue)
            | Request::DestroySharedReceiveQueue(queue) => self.shared_receive_queues.lacks(queue),
            Request::CreateQueuePair(made) => self.is_of_others(&made),
            Request::ModifyQueuePair { queue_pair, .. }
            | Request::QueryQueuePair(queue_pair)
            | Request::DestroyQueuePair(queue_pair) => self.queue_pairs.lacks(queue_pair),
            Request::DestroyAddressHandle(handle) => self.address_handles.lacks(handle),
        }
    }

    fn is_of_others(&self, made: &QueuePair) -> bool {
        let queues = [made.send_completions, made.receive_completions];
        let is_of_other_domain = |queue: u32| {
            let found = self.shared_receive_queues.objects.get(&queue);
            found.is_none_or(|found| found.domain != made.domain)
        };
        self.domains.lacks(made.domain)
            || queues
                .iter()
                .any(|queue| self.completion_queues.lacks(*queue))
            || made.shared_receive_queue.is_some_and(is_of_other_domain)
    }
}
