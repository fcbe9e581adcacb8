//! The queue pairs for datagrams of a context.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weft_device::objects::{Objects, QueuePairState};
use weft_device::state::State;
use weft_engine::Engine;

use super::Context;
use crate::datagram::Datagram;
use crate::datagram_queue_pair::{DatagramQueuePair, Fault, Outbound};
use crate::datagrams::{DatagramDrops, Datagrams};
use crate::kept_bytes::KeptBytes;
use crate::offer::QueuePairName;
use crate::queue_pair::Surroundings;

/// They are looked at in turns of [`Context::take_datagrams`], for what they send goes to connections that all contexts
/// share.
#[derive(Default)]
pub(super) struct DatagramQueuePairs {
    by_number: BTreeMap<u32, DatagramQueuePair>,
    /// Those with something new in their rings, or in a new state.
    due: BTreeSet<u32>,
}

impl DatagramQueuePairs {
    /// Adds one, which is looked at in the next turn.
    pub(super) fn add(&mut self, pair: DatagramQueuePair) {
        self.due.insert(pair.number);
        self.by_number.insert(pair.number, pair);
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = &u32> {
        self.by_number.keys()
    }

    pub(super) fn into_pairs(self) -> impl Iterator<Item = DatagramQueuePair> {
        self.by_number.into_values()
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.by_number.remove(&number);
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Has a queue pair looked at. Answers whether it is one of these.
    pub(super) fn set_due(&mut self, number: u32) -> bool {
        let is_known = self.by_number.contains_key(&number);
        if is_known {
            self.due.insert(number);
        }
        is_known
    }

    /// The program has changed a queue pair. Answers whether it is one of these.
    pub(super) fn modified(&mut self, number: u32, state: State) -> bool {
        if state == State::Reset
            && let Some(pair) = self.by_number.get_mut(&number)
        {
            pair.reset();
        }
        self.set_due(number)
    }
}

impl Context {
    /// Whether a queue pair receives datagrams.
    pub(crate) fn receives_datagrams(&self) -> bool {
        let mut numbers = self.datagrams.by_number.keys();
        !self.has_failed
            && numbers.any(|number| {
                let found = self.objects.queue_pair(*number);
                found.is_some_and(|found| DatagramQueuePair::receives_in(found.state))
            })
    }

    /// Takes what is new in the rings of those that are due. Answers whether one was.
    pub(crate) fn take_datagrams(
        &mut self,
        gid: [u8; 16],
        now: Duration,
        engine: &Engine,
        datagrams: &mut Datagrams,
    ) -> bool {
        let due = std::mem::take(&mut self.datagrams.due);
        if self.has_failed {
            return false;
        }
        for number in &due {
            let mut outbound = Outbound {
                from: QueuePairName {
                    gid,
                    number: *number,
                },
                now,
                datagrams,
            };
            self.with_datagrams(*number, engine, |pair, found, objects, around| {
                pair.take(found, objects, around, &mut outbound)
            });
            let pair = self.datagrams.by_number.get(number);
            if pair.is_some_and(DatagramQueuePair::has_more) {
                self.datagrams.set_due(*number);
            }
        }
        !due.is_empty()
    }

    /// Puts a datagram into a receive of the queue pair that it names, has it kept there, or counts it as dropped.
    pub(crate) fn deliver(
        &mut self,
        datagram: &Datagram<'_>,
        kept: &KeptBytes,
        drops: &mut DatagramDrops,
        engine: &Engine,
    ) {
        let number = datagram.header.destination;
        if self.has_failed || !self.datagrams.by_number.contains_key(&number) {
            drops.no_queue_pair += 1;
            return;
        }
        self.with_datagrams(number, engine, |pair, found, _, around| {
            pair.deliver(found, datagram, around, kept, drops)
        });
    }

    /// Does something with a queue pair, which may fail by it.
    fn with_datagrams(
        &mut self,
        number: u32,
        engine: &Engine,
        act: impl FnOnce(
            &mut DatagramQueuePair,
            &QueuePairState,
            &Objects,
            &mut Surroundings<'_>,
        ) -> Fault,
    ) {
        if self.has_failed {
            return;
        }
        let found = self.objects.queue_pair(number).copied();
        let pair = self.datagrams.by_number.get_mut(&number);
        let Some((found, pair)) = found.zip(pair) else {
            return;
        };
        let mut around = Surroundings {
            engine,
            regions: &mut self.regions,
            shared_receive_queues: &mut self.shared_receive_queues,
            completion_queues: &mut self.completion_queues,
            operations: &mut self.operations,
            overflowed: None,
            is_unreported: false,
        };
        match act(pair, &found, &self.objects, &mut around) {
            Fault::None => self.objects.sends_complete(number),
            Fault::OfSend => {
                self.objects.fail_send_queue(number);
                pair.flush_sends(&mut around);
            }
            Fault::OfQueuePair => {
                self.objects.fail_queue_pair(number, !around.is_unreported);
                pair.flush(&mut around);
            }
        }
        if let Some(queue) = around.overflowed {
            self.fail(queue, engine);
        }
        self.tell_program();
    }
}
