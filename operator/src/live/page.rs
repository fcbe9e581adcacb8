//! The pages of fabrics: what they show is made once a second while somebody looks at one, and shared.
//!
//! A page of a fabric has one task. It ends 15 s after the last viewer has gone, and so ends all cost. Each viewer gets
//! what their rights let them see of what the task has made.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::StatusCode;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use weft_metrics::Samples;
use weft_page::{Fabric, Figures, Traffic, View, event};
use weft_proto::agent::v1::ReadMetricsRequest;
use weft_transfer::{AgentEndpoint, ConnectionPool};

use super::{leader::Leader, refused::Refused};
use crate::controllers::query;

/// Between two values of a fabric.
const MAKE_INTERVAL: Duration = Duration::from_secs(1);
/// A page without scripts is loaded again every 10 s.
const UNWATCHED: Duration = Duration::from_secs(15);
/// Between the beginnings of two readings of all agents. A reading takes at most a fifth of the time: 5,000 agents with
/// 100 kB each take a second or two.
const READ_INTERVAL: Duration = Duration::from_secs(5);
const READ_SHARE: u32 = 5;
/// Agents that are read at a time, and for how long each.
const AGENTS_AT_A_TIME: usize = 32;
const READ_WITHIN: Duration = Duration::from_secs(3);
/// Of an agent's page: one with 128 peers has some 100 kB.
const METRICS_BYTES_MAX: usize = 1 << 20;
/// Streams of events at a time, over all fabrics: one of 1,000 nodes has some 1 MB each second.
pub(super) const STREAMS_MAX: usize = 32;
/// Then the browser asks again, and so are its user's rights.
const STREAM_LIFETIME: Duration = Duration::from_secs(300);

/// The fabrics that somebody looks at, and the streams of events.
pub(super) struct Pages {
    watched: tokio::sync::Mutex<BTreeMap<String, watch::Receiver<Arc<Fabric>>>>,
    streams: Arc<Semaphore>,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            watched: Default::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        }
    }
}

/// Which jobs a viewer may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VisibleJobs {
    All,
    OfNamespace(String),
    None,
}

impl VisibleJobs {
    /// A fabric without the other jobs.
    pub(super) fn of<'a>(&self, fabric: &'a Fabric) -> Cow<'a, Fabric> {
        if *self == Self::All {
            return Cow::Borrowed(fabric);
        }
        let is_visible = |namespace: &str| matches!(self, Self::OfNamespace(of) if of == namespace);
        let mut seen = fabric.clone();
        seen.jobs.retain(|job| is_visible(&job.namespace));
        seen.hidden_jobs = fabric.jobs.len() - seen.jobs.len();
        let right = "the right to list transferjobs of the group weft.dev";
        seen.notes.push(match self {
            Self::OfNamespace(of) => {
                format!("Jobs of namespaces other than {of} are not shown: that takes {right} in all namespaces.")
            }
            _ => format!(
                "Jobs are not shown: that takes {right} in all namespaces, or in the one that ?namespace= names."
            ),
        });
        Cow::Owned(seen)
    }
}

impl Pages {
    /// A fabric, and each later value of it; nothing where there is no such fabric.
    pub(super) async fn watch(
        self: &Arc<Self>,
        leader: &Leader,
        name: &str,
    ) -> Result<Option<watch::Receiver<Arc<Fabric>>>, Refused> {
        let mut watched = self.watched.lock().await;
        // Its task may have ended by a bug.
        let known = watched.get(name);
        if let Some(fabric) = known.filter(|fabric| fabric.has_changed().is_ok()) {
            return Ok(Some(fabric.clone()));
        }
        let Some(fabric) = make(leader, name).await? else {
            return Ok(None);
        };
        let (sender, receiver) = watch::channel(Arc::new(fabric));
        watched.insert(name.to_owned(), receiver.clone());
        let (pages, leader, name) = (Arc::clone(self), leader.clone(), name.to_owned());
        tokio::spawn(async move { pages.renew(&leader, &name, &sender).await });
        Ok(Some(receiver))
    }

    /// A place among the streams of events.
    pub(super) fn stream_permit(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        permit.map_err(|_| {
            let text = format!(
                "{STREAMS_MAX} viewers get events already; close a page, or load this one again now and then"
            );
            Refused::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", text)
        })
    }

    /// Makes the fabric anew each second until nobody looks at it, or it is gone.
    async fn renew(&self, leader: &Leader, name: &str, sender: &watch::Sender<Arc<Fabric>>) {
        let rates = Mutex::default();
        tokio::select! {
            () = self.make_again(leader, name, sender, &rates) => {}
            never = read_again(leader, name, sender, &rates) => match never {},
        }
    }

    async fn make_again(
        &self,
        leader: &Leader,
        name: &str,
        sender: &watch::Sender<Arc<Fabric>>,
        rates: &Mutex<Rates>,
    ) {
        let mut every = interval(MAKE_INTERVAL);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watched_at = Instant::now();
        loop {
            every.tick().await;
            // One receiver is kept here for the next viewer.
            if sender.receiver_count() > 1 {
                watched_at = Instant::now();
            } else if watched_at.elapsed() >= UNWATCHED {
                let mut watched = self.watched.lock().await;
                if sender.receiver_count() == 1 {
                    watched.remove(name);
                    return;
                }
            }
            match make(leader, name).await {
                Ok(Some(mut fabric)) => {
                    rates
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .write(&mut fabric);
                    sender.send_replace(Arc::new(fabric));
                }
                Ok(None) => {
                    self.watched.lock().await.remove(name);
                    return;
                }
                // The page says of when its figures are.
                Err(_) => {}
            }
        }
    }
}

/// What objects and jobs say now.
async fn make(leader: &Leader, name: &str) -> Result<Option<Fabric>, Refused> {
    let name = name.to_owned();
    leader
        .ask(move |view| query::page::fabric(view, &name))
        .await
}

/// What agents count.
#[derive(Default)]
struct Rates {
    figures: Figures,
    /// Agents that did not answer, of how many.
    silent: (usize, usize),
}

impl Rates {
    fn write(&self, fabric: &mut Fabric) {
        self.figures.write(fabric);
        let has_leaves = fabric.leaves.len() > 1;
        let mut note = |text: String| fabric.notes.push(text);
        if has_leaves {
            let text = "The traffic of a leaf is what agents count to its nodes from other leaves; switches are not \
                        asked.";
            note(text.to_owned());
        }
        if let (silent @ 1.., all) = self.silent {
            note(format!(
                "Rates of some nodes are unknown: {silent} of {all} agents did not answer."
            ));
        }
    }
}

/// Reads all agents again and again.
async fn read_again(
    leader: &Leader,
    name: &str,
    sender: &watch::Sender<Arc<Fabric>>,
    rates: &Mutex<Rates>,
) -> Infallible {
    let mut traffic = Traffic::default();
    let pool = leader.pool.of_fabric(name);
    loop {
        let begun = Instant::now();
        let of = name.to_owned();
        let agents = leader.ask(move |view| query::page::agents(view, &of)).await;
        if let Ok(agents) = agents {
            let all = agents.endpoints.len();
            let reads = agents.endpoints.into_iter().map(|endpoint| {
                let pool = &pool;
                async move {
                    let read = timeout(READ_WITHIN, read(leader.epoch, pool, &endpoint));
                    (endpoint.node.clone(), read.await.ok().flatten())
                }
            });
            let mut pages = stream::iter(reads).buffer_unordered(AGENTS_AT_A_TIME);
            while let Some((node, page)) = pages.next().await {
                if let Some(page) = page {
                    traffic.note(&node, &page, Instant::now().into_std());
                }
            }
            traffic.forget_before(begun.into_std());
            let fabric = Arc::clone(&sender.borrow());
            let known = Rates {
                figures: traffic.figures(&fabric, &agents.names),
                silent: (all.saturating_sub(traffic.nodes()), all),
            };
            *rates.lock().unwrap_or_else(PoisonError::into_inner) = known;
        }
        let pause = READ_INTERVAL.saturating_sub(begun.elapsed());
        sleep(pause.max(begun.elapsed() * (READ_SHARE - 1))).await;
    }
}

/// An agent's page; nothing where it does not answer, or says what is no page.
async fn read(epoch: u64, pool: &ConnectionPool, endpoint: &AgentEndpoint) -> Option<Samples> {
    let request = ReadMetricsRequest {
        leader_epoch: epoch,
        paths: false,
    };
    let parts = weft_transfer::read_metrics(request, pool, endpoint).await;
    let parts = parts.ok()?;
    tokio::pin!(parts);
    let mut text = Vec::new();
    while let Some(part) = parts.try_next().await.ok()? {
        text.extend(part);
        if text.len() > METRICS_BYTES_MAX {
            return None;
        }
    }
    Samples::parse(&String::from_utf8_lossy(&text)).ok()
}

/// The events of a viewer: the first one at once. Ends after a time, or with the fabric.
pub(super) fn events(
    fabric: watch::Receiver<Arc<Fabric>>,
    jobs: VisibleJobs,
    view: View,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<String, Infallible>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        // Also for a viewer who reads nothing: then nobody asks the stream for its next event.
        let sent = timeout(STREAM_LIFETIME, send_events(fabric, &jobs, &view, &sender));
        let _ = sent.await;
        drop(permit);
    });
    ReceiverStream::new(receiver).map(Ok)
}

/// Until the viewer has gone, or the fabric.
async fn send_events(
    mut fabric: watch::Receiver<Arc<Fabric>>,
    jobs: &VisibleJobs,
    view: &View,
    sender: &mpsc::Sender<String>,
) {
    let mut text = format!("retry: {}\n", MAKE_INTERVAL.as_millis());
    loop {
        let now = Arc::clone(&fabric.borrow_and_update());
        text += &event(&jobs.of(&now), view);
        if sender.send(std::mem::take(&mut text)).await.is_err() {
            return;
        }
        tokio::select! {
            () = sender.closed() => return,
            changed = fabric.changed() => if changed.is_err() {
                return;
            },
        }
    }
}
