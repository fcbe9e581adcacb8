//! Which destination reads, where the bytes come from a store.

use super::Job;
use crate::transfer::{Place, Standing};

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
        if ready.contains(&self.spec.source.node) {
            return;
        }
        let is_ready = |reader: &&String| ready.contains(reader);
        // Who has come later stands in no order.
        let chosen = object.readers.iter().find(is_ready).or(ready.first());
        if let Some(node) = chosen.cloned() {
            self.read_at(&node);
        }
    }

    /// Whoever was asked does not answer; another one may.
    pub(super) fn ask_the_next(&mut self) {
        self.ask_the_store();
        self.silent.insert(self.spec.source.node.clone());
        let object = self.spec.object.as_ref();
        let next = object.and_then(|object| object.after(&self.spec.source.node));
        if let Some(node) = next.map(str::to_owned) {
            self.read_at(&node);
        }
    }

    pub(super) fn read_at(&mut self, node: &str) {
        let place = self.spec.destinations.iter().find(|it| it.node == node);
        if let Some(place) = place.cloned() {
            self.ledger.comes_from(&place.node, true);
            self.spec.source = place;
        }
    }

    /// Whose copy was sent in the last attempt need not be there in the next.
    pub(super) fn ask_the_store(&mut self) {
        if let Some(object) = self.store.take() {
            self.ledger.comes_from(&self.spec.source.node, true);
            self.spec.object = Some(object);
            self.manifest = None;
        }
    }

    /// A verified copy of what a store has: while one answers, nobody has to ask the store again.
    pub(super) fn copy_to_send(&self) -> Option<Place> {
        self.spec.object.as_ref()?;
        let is_verified = |node: &str| {
            let there = self.ledger.destinations.get(node);
            !self.silent.contains(node)
                && there.is_some_and(|there| matches!(there.standing, Standing::Verified { .. }))
        };
        let reader = std::iter::once(&self.spec.source);
        let mut places = reader.chain(&self.spec.destinations);
        places.find(|place| is_verified(&place.node)).cloned()
    }

    /// The next attempt is that of a job whose source is that copy.
    pub(super) fn send_files(&mut self, copy: Place) {
        // Whatever has become of that copy since: these bytes, or none.
        let digest = self.ledger.destinations.get(&copy.node);
        let digest = digest.map(|there| there.report.digest.clone());
        self.spec.expect = digest.unwrap_or_default();
        self.ledger.comes_from(&copy.node, false);
        self.spec.source = copy;
        self.store = self.spec.object.take();
        self.manifest = None;
    }
}
