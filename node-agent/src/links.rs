//! `Links`: the agent's engines, one for each link that it has, and which of them carries the data to a peer.
//!
//! Where the configuration names a link there is one engine. With `auto` there is one over UDP and one over TCP, and
//! [`crate::transfer::link_probe`] measures both to a peer. Everything of a connection belongs to one of the engines.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_channel::Sender;
use weft_core::units::{ConnectionId, Host};
use weft_core::wire::Secret;
use weft_engine::{
    Egress, Engine, EngineConfig, EngineError, Event, LinkAddress, LinkInUse, LinkKind,
    LinkResults, MEASURED_BYTES, Region, RemoteEnd, Snapshot,
};

use crate::config;
use crate::fail_fast;
use crate::fault::Fault;

/// The engines of an agent, and what is known of the links to its peers. Shared by all attempts.
#[derive(Debug)]
pub struct Links {
    /// The first is that over UDP, unless the configuration names TCP.
    engines: Vec<(LinkKind, Arc<Engine>)>,
    /// Why there is no choice, where there is none.
    only: Option<String>,
    /// It was to be one of two, and cannot be used on this node.
    has_lost_tcp: bool,
    /// By the node of the peer.
    pub(crate) results: LinkResults<String>,
    /// Held by the call that measures: two at a time would measure each other.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// What is written to measure.
    pub(crate) source: Arc<Region>,
    /// There is a limit of bandwidth, which each engine keeps by itself.
    is_capped: AtomicBool,
    /// The machines to which data has gone or from which it has come, and over what.
    used: Mutex<HashSet<(LinkKind, Host)>>,
}

impl Links {
    /// Starts the engines that a configuration asks for. With `auto`, UDP alone is enough: another program may have the port.
    pub(crate) fn start(
        link: config::LinkKind,
        config: impl Fn(LinkKind) -> EngineConfig,
    ) -> Result<Self, EngineError> {
        let (kinds, mut only) = match link {
            config::LinkKind::Auto => (&[LinkKind::Udp, LinkKind::Tcp][..], None),
            config::LinkKind::Udp => (&[LinkKind::Udp][..], Some("chosen by transport.link")),
            config::LinkKind::Tcp => (&[LinkKind::Tcp][..], Some("chosen by transport.link")),
        };
        let is_capped = config(LinkKind::Udp).egress.cap_bps.is_some();
        let (mut engines, mut has_lost_tcp) = (Vec::new(), false);
        for link in kinds {
            match Engine::start(config(*link)) {
                Ok(engine) => engines.push((*link, Arc::new(engine))),
                Err(error) if engines.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!("jobs use UDP only, for TCP cannot be used: {error}");
                    has_lost_tcp = true;
                    only = Some("TCP cannot be used on this node, as its agent's log says");
                }
            }
        }
        Ok(Self {
            engines,
            only: only.map(str::to_owned),
            has_lost_tcp,
            results: LinkResults::default(),
            turn: tokio::sync::Mutex::default(),
            source: Region::share(vec![0; MEASURED_BYTES as usize]),
            is_capped: is_capped.into(),
            used: Mutex::default(),
        })
    }

    /// The link to every peer, where there is no choice.
    pub(crate) fn only(&self) -> Option<LinkInUse> {
        self.only.clone().map(|reason| LinkInUse {
            link: self.engines[0].0,
            reason,
        })
    }

    /// All of them.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = LinkKind> {
        self.engines.iter().map(|(link, _)| *link)
    }

    /// The engine of a link, or the first one: it says what is wrong with ends of another link.
    pub(crate) fn engine(&self, link: LinkKind) -> &Arc<Engine> {
        let of_link = self.engines.iter().find(|(kind, _)| *kind == link);
        &of_link.unwrap_or(&self.engines[0]).1
    }

    /// The engine of a link, if there is one.
    pub(crate) fn find(&self, link: LinkKind) -> Option<&Arc<Engine>> {
        self.kinds()
            .any(|kind| kind == link)
            .then(|| self.engine(link))
    }

    /// Connects an end of a link's engine for data.
    pub(crate) fn connect(
        &self,
        link: LinkKind,
        local: ConnectionId,
        remote: RemoteEnd,
        events: Sender<Event>,
    ) -> Result<(), EngineError> {
        fail_fast::lock(&self.used).insert((link, remote.address.host()));
        self.engine(link).connect(local, remote, events)
    }

    /// How packets are marked and limited from now on, by each engine.
    pub(crate) fn set_egress(&self, egress: Egress) -> Result<(), EngineError> {
        let is_capped = egress.cap_bps.is_some();
        if self.is_capped.swap(is_capped, Ordering::Relaxed) != is_capped {
            self.results.clear();
        }
        let mut engines = self.engines.iter();
        engines.try_for_each(|(_, engine)| engine.set_egress(egress))
    }

    /// Whether there is a limit of bandwidth. Then nothing is gained by a faster link, and by two links the limit is exceeded.
    pub(crate) fn is_capped(&self) -> bool {
        self.is_capped.load(Ordering::Relaxed)
    }

    /// The nodes to which a link is used because another one does not pass, `*` for all, and that link.
    pub(crate) fn fallbacks(&self) -> Vec<(String, LinkKind)> {
        let mut fallbacks = self.results.fallbacks();
        if self.has_lost_tcp {
            fallbacks.push(("*".to_owned(), self.engines[0].0));
        }
        fallbacks.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        fallbacks
    }

    /// What all engines have counted. The paths of a link to a peer are there once it has carried data: one that was only
    /// measured may be blocked.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut whole = self.engines[0].1.snapshot();
        for (_, engine) in &self.engines[1..] {
            whole.add_engine(engine.snapshot());
        }
        let used = fail_fast::lock(&self.used);
        let is_used = |address: &LinkAddress| used.contains(&(address.kind(), address.host()));
        whole.peers.retain(|peer| is_used(&peer.address));
        whole.past_peers.retain(|(address, _)| is_used(address));
        whole
    }
}

/// A connection's secret for one direction.
pub(crate) fn draw_secret() -> Result<Secret, Fault> {
    use ring::rand::{SecureRandom as _, SystemRandom};
    let mut secret = [0; 32];
    SystemRandom::new()
        .fill(&mut secret)
        .map_err(|_| Fault::engine("the operating system gave no random bytes"))?;
    Ok(Secret(secret))
}
