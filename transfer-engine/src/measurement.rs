//! Which link two engines use. They join their connections over every link that both have. The caller takes shared memory
//! where it passes; else it measures the others, keeps the fastest, and says which it is.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use weft_engine::{Key, LinkKind, Write};

use crate::address::EngineAddress;
use crate::ends::Ends;
use crate::failure::Cause;
use crate::link_choice::{LinkChoice, LinkInUse};
use crate::link_results::{HOLDS_FOR, HOLDS_WITHOUT_OTHERS, WRITE_BYTES};
use crate::operation::{Operation, Options};
use crate::operations::{Part, Place};
use crate::outcome::{Completion, Outcome};
use crate::session::Session;
use crate::shared::Shared;
use crate::work_request::{piece, post};

/// A link passes when so many bytes arrive within this time, or within so many round trips of set-up: TCP takes some to
/// connect and to open its window.
const REACH_BYTES: u64 = 64 << 10;
const REACH_MIN: Duration = Duration::from_millis(250);
const REACH_ROUND_TRIPS: u32 = 8;

/// A round of a measurement: so many writes at once, of [`WRITE_BYTES`] each.
const ROUND_WRITES: usize = 16;
const ROUND_MAX: Duration = Duration::from_secs(1);

/// At least two rounds, for the first one meets small windows; more while they take less than this.
const ROUNDS_MIN: usize = 2;
const ROUNDS_MAX: Duration = Duration::from_millis(20);

/// TCP has to be faster than UDP by a tenth: UDP uses more paths, and leaves one that is slow.
const TCP_AT_LEAST: f64 = 1.1;

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
    if let Some(shm) = candidates.iter().find(is_shm) {
        if !passing(shared, peer, &[shm]).await.is_empty() {
            let reason = "both engines are in one network namespace".to_owned();
            return Ok(because(LinkKind::Shm, reason));
        }
        tracing::warn!(peer = peer.address.name(), "shared memory does not pass");
    }
    let network: Vec<_> = candidates.iter().filter(|it| !is_shm(it)).collect();
    let results = &shared.link_results;
    if let Some(result) = results.result(peer.host)
        && let Some(of_result) = network.iter().find(|it| it.link == result.link)
        && !passing(shared, peer, &[of_result]).await.is_empty()
    {
        return Ok(result);
    }
    let passing = passing(shared, peer, &network).await;
    let (result, holds) = match passing[..] {
        [] => {
            let names: Vec<_> = network.iter().map(|it| it.link.name()).collect();
            let nothing = format!("set-up passes, and nothing over {}", names.join(" and "));
            return Err(Cause::Unreachable(nothing));
        }
        [only] => {
            let result = because(only.link, "the others do not pass".to_owned());
            (result, HOLDS_WITHOUT_OTHERS)
        }
        [first, ..] => {
            let Ok(_turn) = timeout(WAIT_MAX, results.turn.lock()).await else {
                let reason = "not measured: other peers are being measured".to_owned();
                return Ok(because(first.link, reason));
            };
            let mut rates = Vec::new();
            for candidate in passing {
                let rate = measure(shared, peer, &candidate.session).await;
                rates.push((candidate.link, rate));
            }
            (fastest(&rates), HOLDS_FOR)
        }
    };
    results.keep(peer.host, &result, holds);
    Ok(result)
}

/// Those of the candidates that pass bytes.
async fn passing<'a>(
    shared: &Arc<Shared>,
    peer: &Called<'_>,
    candidates: &[&'a Candidate<'a>],
) -> Vec<&'a Candidate<'a>> {
    let reach = REACH_MIN.max(peer.round_trip * REACH_ROUND_TRIPS);
    let end = tokio::time::Instant::now() + reach;
    // All at once: one that passes nothing takes all the time.
    let begin = |it: &&'a Candidate<'a>| {
        let write = write(shared, peer, &it.session, (1, REACH_BYTES), reach);
        (*it, write)
    };
    let begun: Vec<_> = candidates.iter().map(begin).collect();
    let mut passing = Vec::new();
    for (candidate, write) in begun {
        if let Some(write) = write
            && let Ok(Outcome::Done) = tokio::time::timeout_at(end, write).await
        {
            passing.push(candidate);
        }
    }
    passing
}

/// The rate of a session in bytes per second, 0 if it is too slow to be measured.
async fn measure(shared: &Arc<Shared>, peer: &Called<'_>, session: &Session) -> f64 {
    let (begun, mut best) = (Instant::now(), 0.0_f64);
    for round in 0.. {
        if round >= ROUNDS_MIN && begun.elapsed() > ROUNDS_MAX {
            break;
        }
        let at = Instant::now();
        let writes = (ROUND_WRITES, WRITE_BYTES);
        let Some(write) = write(shared, peer, session, writes, ROUND_MAX) else {
            break;
        };
        let Ok(Outcome::Done) = timeout(ROUND_MAX, write).await else {
            break;
        };
        let rate = ROUND_WRITES as f64 * WRITE_BYTES as f64 / at.elapsed().as_secs_f64();
        best = best.max(rate);
    }
    best
}

/// The fastest of links that were measured, in bytes per second.
fn fastest(rates: &[(LinkKind, f64)]) -> LinkInUse {
    let weight = |link| match link {
        LinkKind::Udp | LinkKind::Xdp => TCP_AT_LEAST,
        LinkKind::Tcp | LinkKind::Shm => 1.0,
    };
    let weighed = |(link, rate): &(LinkKind, f64)| rate * weight(*link);
    let faster = |best, it| {
        if weighed(it) > weighed(best) {
            it
        } else {
            best
        }
    };
    let best = rates.iter().reduce(faster);
    let say = |(link, rate): &(LinkKind, f64)| format!("{} {:.2} GB/s", link.name(), rate / 1e9);
    let said: Vec<_> = rates.iter().map(say).collect();
    LinkInUse {
        link: best.map_or(LinkKind::Udp, |(link, _)| *link),
        reason: format!("measured: {}", said.join(", ")),
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
        let pieces = vec![piece(&shared.link_results.source, 0, bytes)];
        shared.post(session, part, post(write, pieces), &session.unordered);
    }
    Some(operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_link_is_chosen_and_udp_where_tcp_is_hardly_faster() {
        use LinkKind::{Tcp, Udp};
        let rates = |udp, tcp| fastest(&[(Udp, udp), (Tcp, tcp)]);
        assert_eq!(rates(4e9, 4.3e9).link, Udp);
        let faster = rates(4e9, 4.5e9);
        assert_eq!(
            faster.to_string(),
            "tcp: measured: udp 4.00 GB/s, tcp 4.50 GB/s"
        );
        assert_eq!(rates(0.0, 0.0).link, Udp);
    }
}
