//! The work requests of a queue pair that are not complete, and how many a device has of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A device has more under way only where each of its queue pairs has few: for a request the engine keeps some hundred bytes,
/// and its list of memory or what it carries inline. What is not taken stays in the ring, which is the program's memory.
const OF_DEVICE_MAX: usize = 1 << 16;
/// So many a queue pair may have whatever the others of its device have, so that none of them waits for another.
const FEW: usize = 16;

/// How many all queue pairs of a device have under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct CountOfDevice(Arc<AtomicUsize>);

impl CountOfDevice {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, more: usize) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn remove(&self, fewer: usize) {
        self.0.fetch_sub(fewer, Ordering::Relaxed);
    }
}

/// Those of one queue pair, in the order of posting.
pub(crate) struct UnderWay<T> {
    requests: VecDeque<T>,
    of_device: CountOfDevice,
}

impl<T> UnderWay<T> {
    pub(crate) fn new(requests: VecDeque<T>, of_device: CountOfDevice) -> Self {
        of_device.add(requests.len());
        Self {
            requests,
            of_device,
        }
    }

    /// Whether one more may begin, where the queue pair may have `most`. Where not, one may when one of these is complete.
    pub(crate) fn has_room(&self, most: usize) -> bool {
        let own = self.requests.len();
        own < most && (own < FEW || self.of_device.get() < OF_DEVICE_MAX)
    }

    pub(crate) fn push(&mut self, request: T) {
        self.of_device.add(1);
        self.requests.push_back(request);
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.requests.front()
    }

    pub(crate) fn pop(&mut self) {
        if self.requests.pop_front().is_some() {
            self.of_device.remove(1);
        }
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.requests.iter_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// All of them: none is under way from here on.
    pub(crate) fn take_all(&mut self) -> VecDeque<T> {
        self.of_device.remove(self.requests.len());
        std::mem::take(&mut self.requests)
    }
}

impl<T> Drop for UnderWay<T> {
    fn drop(&mut self) {
        self.of_device.remove(self.requests.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(requests: usize, of_device: &CountOfDevice) -> UnderWay<usize> {
        UnderWay::new((0..requests).collect(), of_device.clone())
    }

    #[test]
    fn a_queue_pair_has_as_many_under_way_as_it_may() {
        let mut one = filled(0, &CountOfDevice::default());
        while one.has_room(100) {
            one.push(0);
        }
        assert_eq!(one.take_all().len(), 100);
    }

    #[test]
    fn where_a_device_has_many_under_way_each_queue_pair_has_few() {
        let of_device = CountOfDevice::default();
        let mut greedy = filled(OF_DEVICE_MAX, &of_device);
        assert!(!greedy.has_room(2 * OF_DEVICE_MAX));
        let mut other = filled(0, &of_device);
        while other.has_room(100) {
            other.push(0);
        }
        assert_eq!(other.take_all().len(), FEW);
        greedy.pop();
        assert!(greedy.has_room(2 * OF_DEVICE_MAX));
    }

    #[test]
    fn a_queue_pair_that_is_gone_has_none_under_way() {
        let of_device = CountOfDevice::default();
        let mut one = filled(10, &of_device);
        one.pop();
        one.push(10);
        drop(filled(5, &of_device));
        assert_eq!(of_device.get(), 10);
        assert_eq!((one.take_all().len(), of_device.get()), (10, 0));
        drop(one);
        assert_eq!(of_device.get(), 0);
    }
}
