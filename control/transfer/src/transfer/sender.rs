//! Which node sends, where the bytes come from a store: the destination that reads the object, or one that
//! has a verified copy already.

use std::sync::Arc;

use super::Transfer;
use crate::{
    attempt::{Attempt, ParticipantState},
    failure::Failure,
    object::{StoreObject, is_access_error, is_store_error},
    spec::{NodeLocation, SourceListing},
};

/// Most destinations that read, one after the other, before the store is taken for the one at fault.
const READERS_MAX: usize = 16;
/// The reason of a destination that got other bytes than it must have.
const EXPECT_MISMATCH: &str = "ExpectMismatch";

/// An object, while a verified copy of it is sent instead.
#[derive(Debug, Clone)]
pub(super) struct PausedObject {
    object: StoreObject,
    /// The store's answer to Stat.
    listing: SourceListing,
}

impl PausedObject {
    pub(super) fn object(&mut self) -> &mut StoreObject {
        &mut self.object
    }

    /// Names the files of the copy that are the object's.
    pub(super) fn manifest_digest(&self) -> Vec<u8> {
        self.listing.stat.manifest_digest.clone()
    }
}

impl Transfer {
    /// Whether this node reads the object from the store in this attempt.
    pub(super) fn is_reader(&self, node: &str) -> bool {
        self.spec.object.is_some() && self.spec.source.node == node
    }

    /// The bytes come from this location now.
    fn send_from(&mut self, location: NodeLocation) {
        Arc::make_mut(&mut self.spec).source = location;
        self.destinations.source = Default::default();
    }

    fn set_reader(&mut self, node: &str) {
        let location = self.spec.destinations.iter().find(|it| it.node == node);
        if let Some(location) = location.cloned() {
            self.send_from(location);
        }
    }

    /// The reader reads on as long as it can; else the next one that is ready does.
    pub(super) fn choose_reader(&mut self, ready: &[String]) {
        let Some(object) = &self.spec.object else {
            return;
        };
        let present = [&self.spec.source.node];
        // New destinations are in no order.
        let in_order = || present.into_iter().chain(&object.readers).chain(ready);
        let is_ready = |node: &&String| ready.contains(*node);
        let has_not_failed =
            |node: &&String| is_ready(node) && !self.failed_senders.contains(*node);
        let chosen = in_order()
            .find(has_not_failed)
            .or_else(|| in_order().find(is_ready));
        if let Some(node) = chosen.cloned() {
            self.set_reader(&node);
        }
    }

    /// The reader could not ask the store: the next destination in turn does.
    pub(super) fn use_next_reader(&mut self) {
        let Some(object) = &self.spec.object else {
            return;
        };
        let (readers, present) = (&object.readers, &self.spec.source.node);
        let at = readers.iter().position(|reader| reader == present);
        let (before, after) = readers.split_at(at.map_or(0, |at| at + 1));
        let in_turn = || after.iter().chain(before);
        let has_not_failed = |node: &&String| !self.failed_senders.contains(*node);
        let next = in_turn().find(has_not_failed).or_else(|| in_turn().next());
        if let Some(node) = next.cloned() {
            self.set_reader(&node);
        }
    }

    /// Whether at least one of these nodes has not yet failed to read the object.
    pub(super) fn is_reader_left(&self, is_among: impl Fn(&str) -> bool) -> bool {
        let object = self.spec.object.as_ref();
        let mut readers = object.iter().flat_map(|object| &object.readers);
        self.failed_senders.len() < READERS_MAX
            && readers.any(|node| is_among(node) && !self.failed_senders.contains(node))
    }

    /// Takes a verified copy as the source of the next attempt: while there is a good one, no node asks the
    /// store again.
    pub(super) fn choose_copy(&mut self) {
        if let Some(PausedObject { object, listing }) = self.paused_object.take() {
            Arc::make_mut(&mut self.spec).object = Some(object);
            self.listing = Some(listing);
            if self.failed_senders.contains(&self.spec.source.node) {
                self.use_next_reader();
            }
        }
        if self.spec.object.is_none() || self.listing.is_none() {
            return;
        }
        let is_good = |location: &&NodeLocation| {
            let copy = self.destinations.get(&location.node);
            !self.failed_senders.contains(&location.node) && copy.is_some_and(|it| it.is_verified())
        };
        let mut locations = std::iter::once(&self.spec.source).chain(&self.spec.destinations);
        let Some(location) = locations.find(is_good).cloned() else {
            return;
        };
        let copy = self.destinations.get(&location.node);
        // If the copy has changed since, it is not sent.
        let digest = copy.map(|copy| copy.progress.digest.clone());
        let spec = Arc::make_mut(&mut self.spec);
        spec.expect = digest.unwrap_or_default();
        if let (Some(object), Some(listing)) = (spec.object.take(), self.listing.take()) {
            self.paused_object = Some(PausedObject { object, listing });
        }
        self.send_from(location);
    }

    /// Whether the node that sent in an attempt could not, by no fault of its receivers, while another may.
    pub(super) fn has_failed_to_send(&self, attempt: &Attempt) -> bool {
        let is_explained = self
            .destinations
            .source
            .peers
            .iter()
            .any(|peer| peer.failed);
        match attempt.state(attempt.source()) {
            Some(ParticipantState::Stopped(failure)) if !failure.is_cancelled() => {
                self.paused_object.is_some() && !is_explained
                    || self.spec.object.is_some() && is_access_error(&failure.reason)
            }
            _ => false,
        }
    }

    /// What this destination reports is the sender's fault: another sender may give it the bytes.
    pub(super) fn is_sender_error(&self, node: &str, failure: &Failure) -> bool {
        self.paused_object.is_some() && failure.reason == EXPECT_MISMATCH
            || self.is_reader(node) && is_access_error(&failure.reason)
    }

    /// No other attempt could change what the source reports. A failure of one reader, or of one copy, is not
    /// final: another node can send.
    pub(super) fn is_final_for_all(&self, failure: &Failure) -> bool {
        let affects_all = self.spec.object.is_none() || is_store_error(&failure.reason);
        affects_all && self.paused_object.is_none() && !failure.retriable && !failure.is_cancelled()
    }
}
