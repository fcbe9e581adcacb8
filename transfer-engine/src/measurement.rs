//! Which link two engines use. They join their connections over every link that both have. The caller takes shared memory
//! where it passes; else it measures the others, keeps the fastest, and says which it is.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use weft_engine::{
    Arrival, Key, LinkInUse, LinkKind, MeasuredLink, TOO_SLOW, Write, fastest, passing,
};

use crate::address::EngineAddress;
use crate::ends::Ends;
use crate::failure::Cause;
use crate::link_choice::LinkChoice;
use crate::operation::{Operation, Options};
use crate::operations::{Part, Place};
use crate::outcome::{Completion, Outcome};
use crate::session::Session;
use crate::shared::Shared;
use crate::work_request::{piece, post};

/// How long a call waits while others measure.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A peer that is being called.
pub(crate) struct Called<'a> {
    pub(crate) address: &'a EngineAddress,
    /// Where set-up reached it.
    pub(crate) host: IpAddr,
    /// Opens its memory to measure with.
    pub(crate) key: Key,
    /// Of a message of set-up.
    pub(crate) round_trip: Duration,
    /// How long it may stand still.
    pub(crate) timeout: Duration,
}

/// A link that both ends have joined their connections over.
pub(crate) struct Candidate<'a> {
    pub(crate) link: LinkKind,
    pub(crate) ends: Ends<'a>,
    pub(crate) session: Arc<Session>,
}

/// Chooses among the links to a peer. `refused` says why others have not been joined.
pub(crate) async fn choose(
    shared: &Arc<Shared>,
    peer: &Called<'_>,
    candidates: &[Candidate<'_>],
    refused: &[String],
) -> Result<LinkInUse, Cause> {
    let because = |link, reason: String| LinkInUse { link, reason };
    match (candidates, shared.config.link) {
        ([], _) => return Err(Cause::Refused(refused.join("; "))),
        ([only], LinkChoice::Only(_)) => {
            return Ok(because(only.link, "this engine is set to it".to_owned()));
        }
        ([only], _) => return Ok(because(only.link, refused.join("; "))),
        _ => {}
    }
    let is_shm = |it: &&Candidate<'_>| it.link == LinkKind::Shm;
    let measured = |candidate| Measured {
        shared,
        peer,
        candidate,
    };
    let pass = |links, timeout| passing(links, peer.round_trip, timeout);
    let over_shm = || {
        let reason = "both engines are in one network namespace".to_owned();
        because(LinkKind::Shm, reason)
    };
    let mut without_shm = String::new();
    if let Some(shm) = candidates.iter().find(is_shm) {
        let (passing, silent) = pass(vec![measured(shm)], Duration::ZERO).await;
        if !passing.is_empty() {
            return Ok(over_shm());
        }
        tracing::warn!(peer = peer.address.name(), "{silent}");
        without_shm = format!("{silent}; ");
    }
    let after_shm = |result: LinkInUse| because(result.link, without_shm + &result.reason);
    let results = &shared.measured.results;
    if let Some(result) = results.result(&peer.host)
        && let Some(of_result) = candidates.iter().find(|it| it.link == result.link)
        && !pass(vec![measured(of_result)], Duration::ZERO)
            .await
            .0
            .is_empty()
    {
        return Ok(after_shm(result));
    }
    // Where the peer stood still, shared memory may pass now.
    let all = candidates.iter().map(measured).collect();
    let (passing, silent) = pass(all, peer.timeout).await;
    if passing.iter().any(|it| it.link() == LinkKind::Shm) {
        return Ok(over_shm());
    }
    let (result, is_measured) = match &passing[..] {
        [] => {
            let names: Vec<_> = candidates.iter().map(|it| it.link.name()).collect();
            let nothing = format!("set-up passes, and nothing over {}", names.join(" and "));
            return Err(Cause::Unreachable(nothing));
        }
        [only] => (because(only.link(), silent), false),
        [first, ..] => {
            let Ok(_turn) = timeout(WAIT_MAX, shared.measured.turn.lock()).await else {
                let reason = "not measured: other peers are being measured".to_owned();
                return Ok(after_shm(because(first.link(), reason)));
            };
            match fastest(&passing).await {
                Some(result) => (result, true),
                None => (because(first.link(), TOO_SLOW.to_owned()), false),
            }
        }
    };
    results.keep(peer.host, &result, is_measured);
    Ok(after_shm(result))
}

/// What writes over a candidate.
#[derive(Clone, Copy)]
struct Measured<'a> {
    shared: &'a Arc<Shared>,
    peer: &'a Called<'a>,
    candidate: &'a Candidate<'a>,
}

impl MeasuredLink for Measured<'_> {
    fn link(&self) -> LinkKind {
        self.candidate.link
    }

    fn write(&self, count: usize, bytes: u64, limit: Duration) -> Arrival {
        let end = Instant::now() + limit;
        let session = &self.candidate.session;
        let write = write(self.shared, self.peer, session, (count, bytes), limit);
        Box::pin(async move {
            match write {
                Some(write) => matches!(timeout_at(end, write).await, Ok(Outcome::Done)),
                None => false,
            }
        })
    }
}

/// Begins to write `count` times `bytes` bytes over a session.
fn write(
    shared: &Arc<Shared>,
    peer: &Called<'_>,
    session: &Session,
    (count, bytes): (usize, u64),
    deadline: Duration,
) -> Option<Operation> {
    let part = || Part {
        peer: Some(peer.address.clone()),
        place: Place::Waiting,
    };
    let parts = std::iter::repeat_with(part).take(count).collect();
    let options = Options {
        deadline,
        completion: Completion::None,
    };
    let (id, operation) = shared.begin(parts, options).ok()?;
    for part in (id..).take(count) {
        let write = Write {
            token: 0,
            bytes,
            key: peer.key,
            offset: 0,
            immediate: None,
        };
        let pieces = vec![piece(&shared.measured.source, 0, bytes)];
        shared.post(session, part, post(write, pieces), &session.unordered);
    }
    Some(operation)
}
