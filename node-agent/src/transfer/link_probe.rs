//! Which link carries the data to a child. Both ends join a connection over each link that both have; the parent measures
//! them and keeps the result for the child's node. The connections close before that of the data is agreed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use tokio::time::timeout;
use tonic::transport::Channel;
use weft_core::units::Key;
use weft_core::wire::Secret;
use weft_engine::{
    Access, Arrival, DomainId, Engine, Event, LinkInUse, LinkKind, LocalEnd, MEASURED_BYTES,
    MeasuredLink, Region, TOO_SLOW, WriteRequest, fastest, passing,
};
use weft_proto::agent::v1 as proto;
use weft_proto::agent::v1::link_measurement_client::LinkMeasurementClient;

use crate::convert;
use crate::fail_fast;
use crate::fault::Fault;
use crate::links::{Links, draw_secret};
use crate::transfer::agent_client::PeerAgent;
use crate::transfer::sender_event::ConnectionGuard;

/// How long a joined child waits while others are measured: less than it holds its ends for. A measurement takes some 50 ms,
/// that of a slow link up to a few seconds.
const TURN_MAX: Duration = Duration::from_secs(8);

/// Longest round trip of set-up that is believed: the first message connects too, and a busy agent answers late.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(250);

/// What a child is called with, to measure the links to it.
pub(crate) struct LinkChooser<'a> {
    pub(crate) links: &'a Arc<Links>,
    pub(crate) agent: PeerAgent<'a>,
    pub(crate) client: LinkMeasurementClient<Channel>,
    pub(crate) ticket: Option<proto::SignedTicket>,
    pub(crate) domain: DomainId,
    pub(crate) retry_for: Duration,
}

impl LinkChooser<'_> {
    /// The link to the child: as configured, as measured before, or as measured now.
    pub(crate) async fn choose(&self) -> Result<LinkInUse, Fault> {
        let (links, node) = (self.links, self.agent.node.to_owned());
        if let Some(known) = links.only().or_else(|| links.results.result(&node)) {
            return Ok(known);
        }
        let joined = match self.join().await {
            Ok(joined) => joined,
            Err(Fault::PeerRefused { reason, .. }) if reason == "Unimplemented" => {
                let reason =
                    format!("node {node} measures no links: its release is an earlier one");
                return Ok(over_udp(reason));
            }
            // It would not answer the call to connect either.
            Err(fault @ Fault::PeerUnreachable { .. }) => return Err(fault),
            Err(fault) => return Ok(over_udp(format!("not measured: {fault}"))),
        };
        let Joined {
            probes,
            refused,
            round_trip,
            _held,
        } = joined;
        let [_, _, ..] = &probes[..] else {
            let link = probes.first().map_or(LinkKind::Udp, MeasuredLink::link);
            let none = || format!("node {node} has no other link in common with this one");
            let reason = refused.unwrap_or_else(none);
            return Ok(LinkInUse { link, reason });
        };
        let (passing, silent) = passing(probes, round_trip, Duration::ZERO).await;
        let (result, is_measured) = match &passing[..] {
            // The control call succeeded, so the network may only be slow.
            [] => return Ok(over_udp(silent)),
            [only] => {
                let (link, reason) = (only.link(), silent);
                (LinkInUse { link, reason }, false)
            }
            [first, ..] if links.is_capped() => {
                let reason = "not measured: bandwidth is limited".to_owned();
                let link = first.link();
                return Ok(LinkInUse { link, reason });
            }
            [first, ..] => {
                // Not while it joins: a node that does not answer must not keep the others waiting.
                let Ok(_turn) = timeout(TURN_MAX, links.turn.lock()).await else {
                    let reason = "not measured: other nodes are being measured".to_owned();
                    let link = first.link();
                    return Ok(LinkInUse { link, reason });
                };
                // Another attempt may have measured it meanwhile.
                if let Some(known) = links.results.result(&node) {
                    return Ok(known);
                }
                match fastest(&passing).await {
                    Some(result) => (result, true),
                    None => {
                        let (link, reason) = (first.link(), TOO_SLOW.to_owned());
                        (LinkInUse { link, reason }, false)
                    }
                }
            }
        };
        tracing::info!(child = node, "link {result}");
        links.results.keep(node, &result, is_measured);
        Ok(result)
    }

    /// Joins a connection over each link.
    async fn join(&self) -> Result<Joined, Fault> {
        let ends = self.links.kinds().map(|link| {
            let engine = self.links.engine(link);
            End::allocate(link, engine, self.domain)
        });
        let ends: Vec<End> = ends.collect::<Result<_, _>>()?;
        let request = proto::MeasureRequest {
            ticket: self.ticket.clone(),
            endpoints: ends.iter().map(End::to_proto).collect(),
        };
        let call = || {
            let (mut client, request) = (self.client.clone(), request.clone());
            async move {
                let at = Instant::now();
                let answer = async {
                    let mut held = client.measure(request).await?.into_inner();
                    Ok((held.message().await?.unwrap_or_default(), held))
                };
                let (answer, held) = self.agent.answer(answer).await?;
                Ok((answer, held, at.elapsed().min(ROUND_TRIP_MAX)))
            }
        };
        let (answer, held, round_trip) = self.agent.retry(self.retry_for, call).await?;
        let (mut probes, mut refused) = (Vec::new(), None);
        for end in ends {
            let (link, mut answers) = (end.link, answer.endpoints.iter());
            let Some(endpoint) = answers.find(|endpoint| link_of(endpoint) == Some(link)) else {
                continue;
            };
            // A link that cannot be joined leaves the other one.
            match end.connect(self.agent.node, endpoint.clone()) {
                Ok(events) => probes.push(Probe {
                    events,
                    key: Key(answer.key),
                    source: self.links.source.clone(),
                    round: AtomicU64::new(0),
                    end,
                }),
                Err(fault) => refused = Some(format!("{} cannot be used: {fault}", link.name())),
            }
        }
        Ok(Joined {
            probes,
            refused,
            round_trip,
            _held: held,
        })
    }
}

/// Connections to a child, to measure.
struct Joined {
    probes: Vec<Probe>,
    /// Why there is none over another link.
    refused: Option<String>,
    /// Of a message of set-up.
    round_trip: Duration,
    /// The child holds its ends until this is dropped.
    _held: tonic::Streaming<proto::MeasureResponse>,
}

fn over_udp(reason: String) -> LinkInUse {
    let link = LinkKind::Udp;
    LinkInUse { link, reason }
}

/// The link of an end, as a peer describes it.
pub(crate) fn link_of(end: &proto::ConnectionEnd) -> Option<LinkKind> {
    Some(match end.link.as_ref()? {
        proto::connection_end::Link::Udp(_) => LinkKind::Udp,
        proto::connection_end::Link::Tcp(_) => LinkKind::Tcp,
    })
}

/// One end here of a connection to measure with; dropped, it closes.
#[derive(Debug)]
struct End {
    link: LinkKind,
    engine: Arc<Engine>,
    local: LocalEnd,
    secret: Secret,
    _guard: ConnectionGuard,
}

impl End {
    fn allocate(link: LinkKind, engine: &Arc<Engine>, domain: DomainId) -> Result<Self, Fault> {
        let secret = draw_secret()?;
        let local = engine.allocate(domain, secret.clone());
        Ok(Self {
            link,
            engine: engine.clone(),
            _guard: ConnectionGuard::new(engine.clone(), local.id),
            local,
            secret,
        })
    }

    fn to_proto(&self) -> proto::ConnectionEnd {
        weft_connection_end::to_proto(&self.local, &self.secret)
    }

    /// Joins it to an end of another node.
    fn connect(&self, node: &str, remote: proto::ConnectionEnd) -> Result<Receiver<Event>, Fault> {
        let remote = convert::connection_end(node, Some(remote), self.engine.settings())?;
        let (from_engine, events) = unbounded();
        self.engine.connect(self.local.id, remote, from_engine)?;
        Ok(events)
    }
}

/// A connection to a child, over a link that is measured.
#[derive(Debug)]
struct Probe {
    end: End,
    events: Receiver<Event>,
    /// Opens the child's memory.
    key: Key,
    source: Arc<Region>,
    /// Writes begun together have this number.
    round: AtomicU64,
}

impl MeasuredLink for Probe {
    fn link(&self) -> LinkKind {
        self.end.link
    }

    fn write(&self, count: usize, bytes: u64, limit: Duration) -> Arrival {
        let end = Instant::now() + limit;
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let post = |_| {
            let request = WriteRequest {
                connection: self.end.local.id,
                source: self.source.clone().into(),
                source_offset: 0,
                bytes,
                key: self.key,
                offset: 0,
                immediate: None,
                context: round,
            };
            self.end.engine.write(request).is_ok()
        };
        let is_posted = (0..count).all(post);
        let events = self.events.clone();
        let arrived = move || {
            let mut left = count;
            while left > 0 {
                match events.recv_deadline(end) {
                    Ok(Event::Written { context, .. }) if context == round => left -= 1,
                    Ok(Event::Failed { .. } | Event::Closed { .. }) | Err(_) => return false,
                    Ok(_) => {}
                }
            }
            true
        };
        Box::pin(async move { is_posted && fail_fast::spawn_blocking("measure", arrived).await })
    }
}

/// The ends of a child, while its parent measures. Dropped, they close.
#[derive(Debug)]
pub(crate) struct MeasuredEnds {
    ends: Vec<End>,
    key: Key,
}

impl MeasuredEnds {
    /// Joins ends here to those of a parent, over each link that both have.
    pub(crate) fn join(
        links: &Links,
        domain: DomainId,
        parent: &str,
        endpoints: &[proto::ConnectionEnd],
    ) -> Result<(Self, proto::MeasureResponse), Fault> {
        let mut key = [0; 8];
        key.copy_from_slice(&draw_secret()?.0[..8]);
        let mut joined = Self {
            ends: Vec::new(),
            key: Key(u64::from_le_bytes(key)),
        };
        // For these alone, so that no parent disturbs another one; nobody reads it.
        let target = Region::share(vec![0; MEASURED_BYTES as usize]);
        let mut refused = None;
        for endpoint in endpoints {
            let Some(link) = link_of(endpoint) else {
                continue;
            };
            let is_new = joined.ends.iter().all(|end| end.link != link);
            let Some(engine) = links.find(link).filter(|_| is_new) else {
                continue;
            };
            let end = End::allocate(link, engine, domain)?;
            // A link that cannot be joined leaves the other one. Nobody takes the events of an end that only receives.
            if let Err(fault) = end.connect(parent, endpoint.clone()) {
                refused = Some(fault);
                continue;
            }
            engine.register_as(joined.key, domain, Access::WRITE, target.clone());
            joined.ends.push(end);
        }
        if let (true, Some(fault)) = (joined.ends.is_empty(), refused) {
            return Err(fault);
        }
        let response = proto::MeasureResponse {
            endpoints: joined.ends.iter().map(End::to_proto).collect(),
            key: joined.key.0,
        };
        Ok((joined, response))
    }
}

impl Drop for MeasuredEnds {
    fn drop(&mut self) {
        for end in &self.ends {
            end.engine.deregister(self.key);
        }
    }
}
