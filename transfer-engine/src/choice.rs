//! Which link two engines use. They join their connections over every link that both have. The caller takes shared memory
//! where it passes; else it measures the others, keeps the fastest, and says which it is.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use weft_engine::{Access, Key, LinkKind, Region, Write};

use crate::address::EngineAddress;
use crate::config::{DOMAIN, LinkEngine, random};
use crate::ends::Ends;
use crate::error::TransferError;
use crate::failure::Cause;
use crate::operation::Options;
use crate::operations::{Part, Place};
use crate::outcome::{Completion, Outcome};
use crate::session::Session;
use crate::shared::Shared;
use crate::work_request::{piece, post};

/// Bytes that are written first: a link that does not pass them in [`REACH_MAX`] is not used.
const REACH_BYTES: u64 = 64 << 10;
const REACH_MAX: Duration = Duration::from_millis(250);

/// A round of a measurement: so many writes at once, of so many bytes each.
const ROUND_WRITES: usize = 16;
const WRITE_BYTES: u64 = 256 << 10;
const ROUND_MAX: Duration = Duration::from_secs(1);

/// Rounds, as long as they take less than this: the first one meets small windows.
const ROUNDS: usize = 4;
const ROUNDS_MAX: Duration = Duration::from_millis(20);

/// TCP has to be faster than UDP by a tenth: UDP uses more paths, and leaves one that is slow.
const TCP_AT_LEAST: f64 = 1.1;

/// So long the result holds for all engines of a host.
const HOLDS_FOR: Duration = Duration::from_secs(600);

/// A call waits so long until others have measured.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Which link an engine uses to its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkChoice {
    /// Memory between processes of a node, where both are in one network namespace. Else the faster of UDP and TCP: it is
    /// measured when they connect.
    #[default]
    Auto,
    /// As `Auto`, without shared memory.
    Network,
    /// This one. A peer that does not have it is an error.
    Only(LinkKind),
}

impl LinkChoice {
    /// The links that an engine starts.
    pub(crate) fn kinds(self) -> Vec<LinkKind> {
        match self {
            Self::Auto => vec![LinkKind::Shm, LinkKind::Udp, LinkKind::Tcp],
            Self::Network => vec![LinkKind::Udp, LinkKind::Tcp],
            Self::Only(kind) => vec![kind],
        }
    }
}

impl fmt::Display for LinkChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Network => "network",
            Self::Only(kind) => kind.name(),
        })
    }
}

impl FromStr for LinkChoice {
    type Err = TransferError;

    fn from_str(name: &str) -> Result<Self, TransferError> {
        match name {
            "auto" => Ok(Self::Auto),
            "network" => Ok(Self::Network),
            name => name
                .parse()
                .map(Self::Only)
                .map_err(|_| TransferError::Invalid {
                    field: "link",
                    problem: "must be auto, network, udp, tcp or shm",
                }),
        }
    }
}

/// Names the network namespace of the calling thread, among all machines: processes with the same share memory.
pub(crate) fn place() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/thread-self/ns/net")?;
    Ok(format!("{} {}", boot.trim(), namespace.display()))
}

/// The link to a peer, and why it is that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkInUse {
    /// Which.
    pub link: LinkKind,
    /// For people.
    pub reason: String,
}

impl fmt::Display for LinkInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.link.name(), self.reason)
    }
}

/// What engines measure links with: memory that peers may write to, and the results.
pub(crate) struct Measurements {
    region: Arc<Region>,
    pub(crate) key: Key,
    /// By the host of the peers. Locked while one is measured: two at a time would measure each other.
    results: tokio::sync::Mutex<HashMap<IpAddr, (Instant, LinkInUse)>>,
}

impl Measurements {
    /// Opens the memory at all engines.
    pub(crate) fn new(engines: &[LinkEngine]) -> Result<Self, TransferError> {
        let region = Arc::new(Region::memfd("weft-measure", WRITE_BYTES)?);
        let key = Key(u64::from_le_bytes(random()?));
        for it in engines {
            let region = Arc::clone(&region);
            it.engine.register_as(key, DOMAIN, Access::WRITE, region);
        }
        Ok(Self {
            region,
            key,
            results: tokio::sync::Mutex::default(),
        })
    }
}

/// A link that both ends have joined their connections over.
pub(crate) struct Candidate<'a> {
    pub(crate) link: LinkKind,
    pub(crate) ends: Ends<'a>,
    pub(crate) session: Arc<Session>,
}

/// Chooses among the links to `peer`, which takes writes under `key`. `refused` says why others have not been joined.
pub(crate) async fn choose(
    shared: &Arc<Shared>,
    peer: &EngineAddress,
    key: Key,
    candidates: &[Candidate<'_>],
    refused: &[String],
) -> Result<LinkInUse, Cause> {
    let because = |link, reason: String| LinkInUse { link, reason };
    match (candidates, shared.config.link) {
        ([], _) => Err(Cause::Refused(refused.join("; "))),
        ([only], LinkChoice::Only(_)) => {
            Ok(because(only.link, "this engine is set to it".to_owned()))
        }
        ([only], _) => Ok(because(only.link, refused.join("; "))),
        (several, _) => {
            if let Some(shm) = several.iter().find(|it| it.link == LinkKind::Shm) {
                let one = (1, REACH_BYTES);
                if let Some(()) = write(shared, peer, key, &shm.session, one, REACH_MAX).await {
                    let reason = "both engines are in one network namespace";
                    return Ok(because(LinkKind::Shm, reason.to_owned()));
                }
                tracing::warn!(peer = peer.name(), "shared memory does not pass");
            }
            let results = &shared.measurements.results;
            let Ok(mut results) = timeout(WAIT_MAX, results.lock()).await else {
                let reason = "not measured: other peers are being measured".to_owned();
                return Ok(because(several[0].link, reason));
            };
            let host = peer.endpoints.first().map(|it| it.ip());
            if let Some((at, result)) = host.and_then(|host| results.get(&host))
                && at.elapsed() < HOLDS_FOR
                && several.iter().any(|it| it.link == result.link)
            {
                return Ok(result.clone());
            }
            let mut rates = Vec::new();
            for candidate in several.iter().filter(|it| it.link != LinkKind::Shm) {
                let rate = measure(shared, peer, key, &candidate.session).await;
                rates.push((candidate.link, rate));
            }
            let result = fastest(&rates);
            if let Some(host) = host {
                results.retain(|_, (at, _)| at.elapsed() < HOLDS_FOR);
                results.insert(host, (Instant::now(), result.clone()));
            }
            Ok(result)
        }
    }
}

/// The fastest of links that were measured, in bytes per second; `None` for one that passes nothing.
fn fastest(rates: &[(LinkKind, Option<f64>)]) -> LinkInUse {
    let weight = |link| match link {
        LinkKind::Udp => TCP_AT_LEAST,
        LinkKind::Tcp | LinkKind::Shm => 1.0,
    };
    let weighed = |(link, rate): &(LinkKind, Option<f64>)| rate.unwrap_or(0.0) * weight(*link);
    let best = rates
        .iter()
        .reduce(|best, it| match weighed(it) > weighed(best) {
            true => it,
            false => best,
        });
    let say = |(link, rate): &(LinkKind, Option<f64>)| match rate {
        Some(rate) => format!("{} {:.2} GB/s", link.name(), rate / 1e9),
        None => format!("{} does not pass", link.name()),
    };
    let said: Vec<_> = rates.iter().map(say).collect();
    LinkInUse {
        link: best.map_or(LinkKind::Udp, |(link, _)| *link),
        reason: format!("measured: {}", said.join(", ")),
    }
}

/// The rate of a session in bytes per second; `None` if it passes nothing.
async fn measure(
    shared: &Arc<Shared>,
    peer: &EngineAddress,
    key: Key,
    session: &Session,
) -> Option<f64> {
    write(shared, peer, key, session, (1, REACH_BYTES), REACH_MAX).await?;
    let (begun, mut best) = (Instant::now(), None);
    for _ in 0..ROUNDS {
        let at = Instant::now();
        let writes = (ROUND_WRITES, WRITE_BYTES);
        let Some(()) = write(shared, peer, key, session, writes, ROUND_MAX).await else {
            break;
        };
        let rate = ROUND_WRITES as f64 * WRITE_BYTES as f64 / at.elapsed().as_secs_f64();
        best = Some(rate.max(best.unwrap_or(0.0)));
        if begun.elapsed() > ROUNDS_MAX {
            break;
        }
    }
    // It passes, but slowly.
    best.or(Some(REACH_BYTES as f64 / REACH_MAX.as_secs_f64()))
}

/// Writes `count` times `bytes` bytes at once over a session.
async fn write(
    shared: &Arc<Shared>,
    peer: &EngineAddress,
    key: Key,
    session: &Session,
    (count, bytes): (usize, u64),
    deadline: Duration,
) -> Option<()> {
    let part = || Part {
        peer: Some(peer.clone()),
        place: Place::Waiting,
    };
    let parts = std::iter::repeat_with(part).take(count).collect();
    let options = Options {
        deadline,
        completion: Completion::None,
    };
    let (id, operation) = shared.begin(parts, None, options).ok()?;
    for part in (id..).take(count) {
        let write = Write {
            token: 0,
            bytes,
            key,
            offset: 0,
            immediate: None,
        };
        let pieces = vec![piece(&shared.measurements.region, 0, bytes)];
        shared.post(session, part, post(write, pieces), session.next_link(bytes));
    }
    (operation.await == Outcome::Done).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_link_is_chosen_and_udp_where_tcp_is_hardly_faster() {
        use LinkKind::{Tcp, Udp};
        let rates = |udp, tcp| fastest(&[(Udp, udp), (Tcp, tcp)]);
        assert_eq!(rates(Some(4e9), Some(4.3e9)).link, Udp);
        assert_eq!(rates(Some(4e9), Some(4.5e9)).link, Tcp);
        let blocked = rates(None, Some(1e8));
        assert_eq!(blocked.link, Tcp);
        assert_eq!(blocked.reason, "measured: udp does not pass, tcp 0.10 GB/s");
        assert_eq!(rates(None, None).link, Udp);
    }

    #[test]
    fn a_choice_is_parsed_from_what_it_prints() {
        for name in ["auto", "network", "udp", "tcp", "shm"] {
            let choice: LinkChoice = name.parse().unwrap();
            assert_eq!(choice.to_string(), name);
        }
        let error = "rdma".parse::<LinkChoice>().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("link must be auto, network, udp, tcp or shm"),
            "{error}"
        );
    }
}
