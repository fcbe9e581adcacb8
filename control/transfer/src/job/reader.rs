//! Which destination reads, where the bytes come from a store, and whose copy is sent in its place.

use super::Job;
use crate::{Listing, Object, Place, Standing, attempt::Attempt, ledger::Sends};

/// Most destinations that are asked to read, one after the other, before a store that serves none of them
/// is taken for the one at fault.
const READERS_MAX: usize = 16;

/// What a verified copy is sent in place of.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    object: Object,
    /// What the store said there is.
    pub(super) listing: Listing,
}

/// Who was to blame for the end of an attempt, where another one can send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// Nobody, or one who cannot be replaced.
    None,
    /// The copy that was sent.
    Copy,
    /// The reader, and there is one that has not had its turn.
    Reader,
}

impl Job {
    /// It reads from a store in this attempt.
    pub(super) fn reads(&self, node: &str) -> bool {
        self.spec.object.is_some() && self.spec.source.node == node
    }

    /// The one that reads goes on to do so as long as it can; else the next one that is ready does.
    pub(super) fn choose_reader(&mut self, ready: &[String]) {
        let Some(object) = &self.spec.object else {
            return;
        };
        // Who was passed over reads again where all that are ready were.
        let is_ready = |reader: &&String| ready.contains(*reader);
        let is_fresh = |reader: &&String| is_ready(reader) && !self.passed.contains(*reader);
        // Who has come later stands in no order.
        let order = || object.readers.iter().chain(ready);
        let present = [&self.spec.source.node];
        let in_turn = || present.into_iter().chain(order());
        let chosen = in_turn()
            .find(is_fresh)
            .or_else(|| in_turn().find(is_ready));
        if let Some(node) = chosen.cloned() {
            self.read_at(&node);
        }
    }

    /// Whoever was asked could not ask the store; another one may.
    pub(super) fn ask_the_next(&mut self) {
        let node = self.spec.source.node.clone();
        self.passed.insert(node.clone());
        let object = self.spec.object.as_ref();
        let next = object.and_then(|object| object.after(&node, &self.passed));
        if let Some(node) = next.map(str::to_owned) {
            self.read_at(&node);
        }
    }

    /// Somebody could ask the store who has not tried yet.
    pub(super) fn another_can_ask(&self) -> bool {
        let object = self.spec.object.as_ref();
        let mut readers = object.iter().flat_map(|object| &object.readers);
        self.passed.len() < READERS_MAX && readers.any(|reader| !self.passed.contains(reader))
    }

    fn read_at(&mut self, node: &str) {
        let place = self.spec.destinations.iter().find(|it| it.node == node);
        if let Some(place) = place.cloned() {
            self.ledger.comes_from(&place.node, Sends::Object);
            self.spec.source = place;
        }
    }

    /// Whose copy was sent in the last attempt need not be there in the next.
    pub(super) fn ask_the_store(&mut self) {
        if let Some(Stored { object, listing }) = self.store.take() {
            self.ledger
                .comes_from(&self.spec.source.node, Sends::Object);
            self.spec.object = Some(object);
            self.listing = Some(listing);
            if self.aside.contains(&self.spec.source.node) {
                self.ask_the_next();
            }
        }
    }

    /// A verified copy of what a store has: while one is good, nobody has to ask the store again.
    pub(super) fn copy_to_send(&self) -> Option<Place> {
        if self.spec.object.is_none() || self.listing.is_none() {
            return None;
        }
        let is_verified = |node: &str| {
            let there = self.ledger.destinations.get(node);
            !self.aside.contains(node)
                && there.is_some_and(|there| matches!(there.standing, Standing::Verified { .. }))
        };
        let reader = std::iter::once(&self.spec.source);
        let mut places = reader.chain(&self.spec.destinations);
        places.find(|place| is_verified(&place.node)).cloned()
    }

    /// The next attempt is that of a job whose source is that copy.
    pub(super) fn send_files(&mut self, copy: Place) {
        let (Some(object), Some(listing)) = (self.spec.object.take(), self.listing.take()) else {
            return;
        };
        // Whatever has become of that copy since: these bytes, or none.
        let digest = self.ledger.destinations.get(&copy.node);
        let digest = digest.map(|there| there.report.digest.clone());
        self.spec.expect = digest.unwrap_or_default();
        self.ledger.comes_from(&copy.node, Sends::Copy);
        self.spec.source = copy;
        self.store = Some(Stored { object, listing });
    }

    /// Another copy is sent the next time, or at last what the store has.
    pub(super) fn put_aside(&mut self) {
        self.aside.insert(self.spec.source.node.clone());
    }

    /// Sees to it that another one sends the next time, where whoever sent is to blame for the end.
    pub(super) fn pass_over(&mut self, attempt: &Attempt, is_to_blame: bool) -> Blame {
        if self.ledger.destinations.gained() > self.mark {
            self.passed.clear();
        }
        if !is_to_blame {
            return Blame::None;
        }
        if self.store.is_some() {
            self.put_aside();
            return Blame::Copy;
        }
        // By now they may answer.
        self.aside.clear();
        if self.ledger.destinations.gained() == self.mark {
            self.passed.insert(self.spec.source.node.clone());
        }
        let remaining = self.ledger.destinations.remaining();
        let mut others = attempt.nodes().filter(|node| remaining.contains(*node));
        if self.passed.len() < READERS_MAX && others.any(|node| !self.passed.contains(node)) {
            // Who asks the store is who reads, if it is ready then.
            if self.passed.contains(&self.spec.source.node) {
                self.ask_the_next();
            }
            Blame::Reader
        } else {
            Blame::None
        }
    }
}
