//! Which copies go with a job: those that it has brought, but for those that are another's, too.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    ResourceExt as _,
    core::{PartialObjectMeta, Selector, SelectorExt as _},
};
use weft_crds::{DestinationState, TransferJob, TransferJobStatus};
use weft_transfer::{Place, Removal};

use crate::controllers::{
    cache::uid,
    holds::HeldNodes,
    job::{
        origin::{home, origin},
        place,
        snapshot::Snapshot,
    },
    kinds::Cache,
    membership::{Membership, selector},
    models::{Note, key, names, note, noted, said, write_note},
    request::Request,
};

/// Two paths of a root are of the same files, or one lies within the other.
fn overlap(one: &str, other: &str) -> bool {
    let (one, other) = (names(one), names(other));
    one.starts_with(&other) || other.starts_with(&one)
}

/// The copies that a job has brought to its own place, by node: as the nodes say, and, while this process
/// is at it, also those that no node says yet.
pub(crate) fn brought(
    job: &TransferJob,
    cache: &Cache,
    work: Option<&Snapshot>,
) -> BTreeMap<String, Note> {
    let (key, own) = (key(job), uid(job));
    let to = place::destined(job);
    let is_its_own = |note: &Note| {
        note.brought
            && note.job == own
            && (note.root.as_str(), names(&note.path)) == (&*to.0, names(&to.1))
    };
    let noted = cache.nodes.iter().filter_map(|(place, node)| {
        let note = note(node, &key)?;
        Some((place.name.clone(), note))
    });
    let holders = work.iter().flat_map(|work| &work.holders);
    let held = holders.filter_map(|holder| {
        let node = cache.nodes.named(&holder.node)?;
        Some((holder.node.clone(), said(holder, node, &key)))
    });
    let all = noted.chain(held);
    all.filter(|(_, note)| is_its_own(note)).collect()
}

/// Who else has to do with a job's copies.
struct Others<'a> {
    cache: &'a Cache,
    membership: &'a Membership,
    /// Of the job.
    key: String,
    /// The root and the path of its copies.
    place: (String, String),
    claims: Vec<Claim<'a>>,
}

/// A job that is for files of the same place, of one within it or around it: it may have found or brought
/// them without any node's word, which comes later, and where there is no room for it not at all.
struct Claim<'a> {
    /// What is written of it, its destinations above all.
    said: Option<&'a TransferJobStatus>,
    /// The nodes that it is for.
    on: Claimed<'a>,
    /// Nothing of one that is over.
    open: Option<Open<'a>>,
}

/// Of a job that is not over.
struct Open<'a> {
    /// The fabrics that it may be in: that which it was seen in last, and that which its source is in now.
    fabrics: [Option<&'a str>; 2],
    /// The node that it reads those files from.
    source: Option<&'a str>,
}

enum Claimed<'a> {
    Nowhere,
    Named(&'a [String]),
    Selected(Selector),
}

impl<'a> Claim<'a> {
    fn of(
        job: &'a TransferJob,
        is_there: impl Fn((String, String)) -> bool,
        (cache, membership): (&'a Cache, &'a Membership),
    ) -> Option<Self> {
        let to = &job.spec.destinations;
        let on = match &to.nodes {
            _ if !is_there(place::destined(job)) => Claimed::Nowhere,
            Some(nodes) => Claimed::Named(nodes),
            None => {
                let wanted = to.node_selector.clone().unwrap_or_default();
                // With a fault it never begins.
                selector(&wanted).map_or(Claimed::Nowhere, Claimed::Selected)
            }
        };
        let said = job.status.as_ref();
        let open = said.is_none_or(|said| !said.phase.is_over()).then(|| {
            let file = job.spec.source.file.as_ref();
            let file = file.filter(|file| is_there(place::read(job, file)));
            let origin = origin(job).ok();
            let home = origin.and_then(|origin| home(job, origin, cache, membership).ok());
            Open {
                fabrics: [
                    said.map(|said| &*said.fabric),
                    home.map(|(fabric, _)| fabric),
                ],
                source: file.map(|file| file.node.as_str()),
            }
        });
        let reads = open.as_ref().is_some_and(|open| open.source.is_some());
        let is_one = reads || !matches!(on, Claimed::Nowhere);
        is_one.then_some(Self { said, on, open })
    }

    fn is_on(&self, node: &str, there: &PartialObjectMeta<Node>, fabric: Option<&str>) -> bool {
        let is_for_it = !matches!(self.on, Claimed::Nowhere);
        let mut listed = self.said.iter().flat_map(|said| &said.destinations);
        let listed = listed.find(|one| is_for_it && one.node == node);
        match (&self.open, listed) {
            (_, Some(listed)) if listed.state == DestinationState::Verified => true,
            (Some(open), _) => {
                let is_in_it = open.fabrics.contains(&fabric);
                let is_named = self.on.has(node, there) || open.source == Some(node);
                (is_in_it && is_named) || listed.is_some()
            }
            // What is neither is not known: it was at work there to the end.
            (None, Some(listed)) => listed.state != DestinationState::Failed,
            (None, None) => {
                let is_some_only = self.said.is_some_and(|said| said.destinations_truncated);
                is_some_only && self.on.has(node, there)
            }
        }
    }
}

impl Claimed<'_> {
    fn has(&self, node: &str, there: &PartialObjectMeta<Node>) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Named(nodes) => nodes.iter().any(|one| one == node),
            Self::Selected(wanted) => wanted.matches(there.labels()),
        }
    }
}

impl<'a> Others<'a> {
    fn of(job: &TransferJob, cache: &'a Cache, membership: &'a Membership) -> Self {
        let (root, path) = place::destined(job);
        let is_there = |(of, at): (String, String)| of == root && overlap(&at, &path);
        let others = cache.jobs.iter().map(|(_, other)| other);
        let others = others
            .filter(|other| uid(*other) != uid(job) && other.metadata.deletion_timestamp.is_none());
        let claims = others.filter_map(|other| Claim::of(other, is_there, (cache, membership)));
        Self {
            cache,
            membership,
            key: key(job),
            claims: claims.collect(),
            place: (root, path),
        }
    }

    /// The copy on that node is another's, too: by another job, or by the node's word on another model.
    fn have(&self, node: &str) -> bool {
        // With the node its files have gone.
        let Some(there) = self.cache.nodes.named(node) else {
            return false;
        };
        let fabric = self.membership.fabric(node);
        let mut claims = self.claims.iter();
        if claims.any(|claim| claim.is_on(node, there, fabric)) {
            return true;
        }
        let (root, path) = &self.place;
        noted(there).any(|(key, note)| {
            key != self.key
                && note.is_some_and(|note| note.root == *root && overlap(&note.path, path))
        })
    }
}

/// A job's copies as its deletion finds them.
pub(crate) struct Parting<'a> {
    others: Others<'a>,
    /// Those that go with it.
    pub(crate) going: Vec<Removal>,
    /// To take away the word of the next node whose copy stays, because it is another's, too: so that the
    /// copy goes with the last of them.
    pub(crate) unsay: Option<Request>,
}

impl<'a> Parting<'a> {
    /// Of what a job has brought, as nodes say and the work that this process is at.
    pub(crate) fn of(
        job: &TransferJob,
        (cache, membership): (&'a Cache, &'a Membership),
        work: Option<&Snapshot>,
        (held, waited): (&HeldNodes, Option<Duration>),
    ) -> Self {
        let others = Others::of(job, cache, membership);
        let (mut going, mut staying) = (Vec::new(), Vec::new());
        for (node, copy) in brought(job, cache, work) {
            if others.have(&node) {
                staying.push((node, copy.job));
            } else {
                going.push(Removal {
                    place: Place {
                        node,
                        root: copy.root,
                        path: copy.path,
                    },
                    fingerprint: copy.fingerprint,
                });
            }
        }
        let to_unsay = staying.iter();
        let to_unsay = to_unsay.filter_map(|(node, job)| others.unsay(node, job, (held, waited)));
        let unsay = held.pick(to_unsay);
        Self {
            others,
            going,
            unsay,
        }
    }

    /// Those that go now, also of copies that are known of from before.
    pub(crate) fn with(mut self, known: &[Removal]) -> Vec<Removal> {
        for copy in known {
            let is_new = self.going.iter().all(|one| one.place != copy.place);
            if is_new && !self.others.have(&copy.place.node) {
                self.going.push(copy.clone());
            }
        }
        self.going
    }
}

impl Others<'_> {
    /// The node does not say any more that it has a copy of that job.
    fn unsay(
        &self,
        name: &str,
        job: &str,
        (held, waited): (&HeldNodes, Option<Duration>),
    ) -> Option<Request> {
        let node = self.cache.nodes.named(name)?;
        let is_said = note(node, &self.key).is_some_and(|note| note.job == job);
        let may_be = is_said && held.may_say(name, &self.key, waited);
        // The other may go at the same time: then one of the two is refused, and looks again.
        may_be.then(|| Request {
            version: node.resource_version(),
            ..write_note(node, &self.key, None)
        })
    }
}

#[cfg(test)]
mod tests;
