//! Who leads: the Lease `weft-operator`, and the epoch that its transitions give a leader.
//!
//! `Candidate` is pure: a Lease goes in, what to write comes out. [`acquire`] waits until this
//! process holds the Lease, [`Leadership::keep`] renews it and returns when it is lost; the process
//! then ends, so nothing of a deposed leader goes on. Until it has ended, agents refuse its commands,
//! because the next leader's epoch is higher. [`Held`] does all that on a thread of its own.
//!
//! Time is measured here and never compared with another machine's: a Lease is free when nobody has
//! renewed it for 30 s while this process was looking.

use std::{future::Future, io, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Config,
    api::{ObjectMeta, PostParams},
};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::NAME;

/// A leader that has not renewed for so long has lost it to whoever asks. Longer than the 20 s that
/// an API server may be away without ending transfers; one that ends in an orderly way gives the Lease back.
const DURATION: Duration = Duration::from_secs(30);
/// Before that the leader has given up: its clock and another's may run apart by a sixth.
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(25);
/// The uninstall's hook, which takes the Lease so that no operator undoes what it does.
const UNINSTALL: &str = "weft-uninstall";
/// Helm ends the operators within seconds of the hook's end; the next installation's waits so long.
const UNINSTALLED: Duration = Duration::from_secs(10);
/// Between two renewals, and between two looks at another's Lease.
const INTERVAL: Duration = Duration::from_secs(2);
/// A leader that renews comes in between once in a while, and not so often in a row.
const SEIZURES: u32 = 5;
/// An API server that answers at all answers within.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Where the Lease is kept.
pub trait LeaseStore: Send + Sync {
    /// The Lease, if there is one.
    fn read(&self) -> impl Future<Output = Result<Option<Lease>, kube::Error>> + Send;
    /// Makes it, or overwrites the version that was read; fails where somebody else was faster.
    fn write(&self, lease: Lease) -> impl Future<Output = Result<Lease, kube::Error>> + Send;
}

/// The Lease in the API server.
pub struct LeaseBoard(Api<Lease>);

impl LeaseBoard {
    /// In the operator's namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self(Api::namespaced(client, namespace))
    }

    /// The same, over a connection of the runtime that this is called in.
    ///
    /// # Errors
    /// Nobody can be asked with this configuration.
    pub fn of(config: Config, namespace: &str) -> Result<Self, kube::Error> {
        Ok(Self::new(Client::try_from(config)?, namespace))
    }
}

impl LeaseStore for LeaseBoard {
    async fn read(&self) -> Result<Option<Lease>, kube::Error> {
        self.0.get_opt(NAME).await
    }

    async fn write(&self, lease: Lease) -> Result<Lease, kube::Error> {
        let params = PostParams::default();
        match &lease.metadata.resource_version {
            Some(_) => self.0.replace(NAME, &params, &lease).await,
            None => self.0.create(&params, &lease).await,
        }
    }
}

/// One that wants to lead, and what it has seen of the Lease.
#[derive(Debug)]
struct Candidate {
    name: String,
    /// Another's Lease, and when it first looked like this.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Candidate {
    /// What to write to take the Lease; `None` while it is another's. `wall` is for people to read.
    fn take(
        &mut self,
        lease: Option<&LeaseSpec>,
        now: Instant,
        wall: Timestamp,
    ) -> Option<LeaseSpec> {
        let transitions = match lease {
            None => first_transitions(wall),
            Some(lease) if self.is_held(lease, now) => return None,
            Some(lease) => lease.lease_transitions.unwrap_or(0).saturating_add(1),
        };
        Some(taken(&self.name, transitions, wall))
    }

    /// Whether another holds it. A Lease in this one's own name is of a process before it in the same
    /// pod, which has ended.
    fn is_held(&mut self, lease: &LeaseSpec, now: Instant) -> bool {
        let holder = lease.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == self.name {
            return false;
        }
        match &self.seen {
            Some((seen, since)) if seen == lease => {
                let duration = match holder {
                    UNINSTALL => UNINSTALLED,
                    _ => DURATION,
                };
                now.duration_since(*since) < duration
            }
            _ => {
                self.seen = Some((lease.clone(), now));
                true
            }
        }
    }
}

fn taken(name: &str, transitions: i32, wall: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(name.to_owned()),
        lease_duration_seconds: Some(seconds(DURATION)),
        acquire_time: Some(MicroTime(wall)),
        renew_time: Some(MicroTime(wall)),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    }
}

fn seconds(span: Duration) -> i32 {
    i32::try_from(span.as_secs()).unwrap_or(i32::MAX)
}

/// Where the transitions of a Lease begin that is made anew: at the minutes since 1970. Were it 0,
/// agents that have heard from a leader would take the next one, after somebody deleted the Lease,
/// for one that was deposed long ago.
fn first_transitions(wall: Timestamp) -> i32 {
    i32::try_from(wall.as_second() / 60).unwrap_or(0).max(0)
}

/// The Lease, held by this process.
pub struct Leadership<B> {
    board: B,
    lease: Lease,
    /// Before the last request that renewed it was sent.
    renewed: watch::Sender<Instant>,
}

/// Somebody else leads, or may.
#[derive(Debug, thiserror::Error)]
#[error("the lead is lost: {why}; this process ends, and the next one begins as a candidate")]
pub struct Lost {
    why: String,
}

impl Lost {
    fn ended() -> Self {
        Self {
            why: "the thread that renews it has ended, which is a bug".to_owned(),
        }
    }
}

/// Waits until this process leads, under a name that no other process has; `looked` is called after
/// every look at the Lease.
pub async fn acquire<B: LeaseStore>(board: B, name: &str, looked: impl Fn()) -> Leadership<B> {
    let mut candidate = Candidate {
        name: name.to_owned(),
        seen: None,
    };
    let mut wrong: Option<String> = None;
    loop {
        let found = match attempt(&board, &mut candidate).await {
            Ok(Some((lease, renewed))) => {
                return Leadership {
                    board,
                    lease,
                    renewed: watch::Sender::new(renewed),
                };
            }
            Ok(None) => {
                looked();
                None
            }
            Err(problem) => Some(problem),
        };
        if let Some(problem) = found.as_ref().filter(|found| wrong.as_ref() != Some(found)) {
            tracing::warn!("the Lease {NAME} cannot be read or taken: {problem}; trying on");
        }
        wrong = found;
        sleep(INTERVAL).await;
    }
}

async fn attempt<B: LeaseStore>(
    board: &B,
    candidate: &mut Candidate,
) -> Result<Option<(Lease, Instant)>, String> {
    let found = answer(board.read()).await?;
    let now = Instant::now();
    let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
    let Some(spec) = candidate.take(spec, now, Timestamp::now()) else {
        return Ok(None);
    };
    let metadata = found.map_or_else(
        || ObjectMeta {
            name: Some(NAME.to_owned()),
            ..ObjectMeta::default()
        },
        |lease| lease.metadata,
    );
    let lease = Lease {
        metadata,
        spec: Some(spec),
    };
    match answer(board.write(lease)).await {
        Ok(lease) => Ok(Some((lease, now))),
        Err(problem) => Err(problem),
    }
}

/// Takes the Lease from whoever holds it, for the uninstall: the leader learns of it at its next renewal,
/// and nobody leads as long as this is kept. Nothing where no operator has ever led.
///
/// # Errors
/// The API server does not answer, or somebody renews it whenever it is written.
pub async fn seize<B: LeaseStore>(board: B) -> Result<Option<Leadership<B>>, String> {
    let mut problem = String::new();
    for _ in 0..SEIZURES {
        let now = Instant::now();
        let Some(mut lease) = answer(board.read()).await? else {
            return Ok(None);
        };
        let before = lease.spec.take().unwrap_or_default();
        let transitions = before.lease_transitions.unwrap_or(0).saturating_add(1);
        lease.spec = Some(LeaseSpec {
            lease_duration_seconds: Some(seconds(UNINSTALLED)),
            ..taken(UNINSTALL, transitions, Timestamp::now())
        });
        match answer(board.write(lease)).await {
            Ok(lease) => {
                return Ok(Some(Leadership {
                    board,
                    lease,
                    renewed: watch::Sender::new(now),
                }));
            }
            Err(refused) => problem = refused,
        }
    }
    Err(problem)
}

async fn answer<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match timeout(ANSWER_WITHIN, call).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {ANSWER_WITHIN:?}")),
    }
}

impl<B: LeaseStore> Leadership<B> {
    /// What this leader's commands carry: higher than any leader's before it.
    pub fn epoch(&self) -> u64 {
        let spec = self.lease.spec.as_ref();
        let transitions = spec.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        u64::try_from(transitions).unwrap_or(0) + 1
    }

    /// Renews it until it is lost. May be dropped at any time.
    pub async fn keep(&mut self) -> Lost {
        loop {
            let until = *self.renewed.borrow() + RENEW_DEADLINE;
            let renewal = async {
                sleep(INTERVAL).await;
                self.renew().await
            };
            match timeout_at(until, renewal).await {
                Ok(Ok(())) => {}
                Ok(Err(Renewal::Lost(lost))) => return lost,
                Ok(Err(Renewal::Failed(problem))) => {
                    tracing::warn!("the Lease {NAME} was not renewed: {problem}; trying on");
                }
                Err(_) => {
                    let why =
                        format!("it was not renewed for {RENEW_DEADLINE:?}; see the API server");
                    return Lost { why };
                }
            }
        }
    }

    async fn renew(&mut self) -> Result<(), Renewal> {
        let found = answer(self.board.read()).await.map_err(Renewal::Failed)?;
        let holder = |lease: &Lease| lease.spec.as_ref()?.holder_identity.clone();
        let transitions = |lease: &Lease| lease.spec.as_ref()?.lease_transitions;
        let Some(mut lease) = found else {
            let why = "the Lease is gone".to_owned();
            return Err(Renewal::Lost(Lost { why }));
        };
        if holder(&lease) != holder(&self.lease) || transitions(&lease) != transitions(&self.lease)
        {
            let why = match holder(&lease) {
                Some(holder) if !holder.is_empty() => format!("{holder} has taken it"),
                _ => "somebody has taken it away".to_owned(),
            };
            return Err(Renewal::Lost(Lost { why }));
        }
        let now = Instant::now();
        if let Some(spec) = &mut lease.spec {
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        self.lease = answer(self.board.write(lease))
            .await
            .map_err(Renewal::Failed)?;
        self.renewed.send_replace(now);
        Ok(())
    }

    /// Gives it back, so that the next leader need not wait.
    pub async fn release(mut self) {
        if let Some(spec) = &mut self.lease.spec {
            spec.holder_identity = Some(String::new());
        }
        if let Err(problem) = answer(self.board.write(self.lease)).await {
            tracing::warn!(
                "the Lease {NAME} was not given back: {problem}; the next leader waits for it"
            );
        }
    }
}

enum Renewal {
    Failed(String),
    Lost(Lost),
}

/// The lead, as the rest of the process sees it: a thread of its own renews the Lease, so that nothing which
/// this process is at delays that. The thread has its own runtime and therefore its own connection. It ends
/// when the lead is lost or given back, or when its `Held` is dropped.
pub struct Held {
    /// What this leader's commands carry: higher than any leader's before it.
    pub epoch: u64,
    /// When the last successful renewal of the Lease was sent.
    pub renewals: watch::Receiver<Instant>,
    /// Closed once the thread has ended.
    lost: oneshot::Receiver<Lost>,
    give_back: oneshot::Sender<()>,
}

impl Held {
    /// Waits until this process leads, under a name that no other process has; `looked` is called after
    /// every look at another's Lease. The board is made in the thread: what it is made of may belong to its
    /// runtime.
    ///
    /// # Errors
    /// Nobody can be asked for it, or there are no more threads.
    pub async fn acquire<B: LeaseStore + 'static>(
        board: impl FnOnce() -> Result<B, kube::Error> + Send + 'static,
        name: String,
        looked: impl Fn() + Send + 'static,
    ) -> Result<Self, Lost> {
        let no_thread = |error: io::Error| Lost {
            why: format!(
                "the thread that keeps it cannot be started: {error}; raise the limit on threads"
            ),
        };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().map_err(no_thread)?;
        let (tell, led) = oneshot::channel();
        std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || runtime.block_on(lead(board, name, looked, tell)))
            .map_err(no_thread)?;
        led.await.unwrap_or_else(|_| Err(Lost::ended()))
    }

    /// Until it is lost. May be dropped at any time.
    pub async fn lost(&mut self) -> Lost {
        (&mut self.lost).await.unwrap_or_else(|_| Lost::ended())
    }

    /// Gives it back, so that the next leader need not wait; returns when that is done.
    pub async fn release(self) {
        if self.give_back.send(()).is_ok() {
            // The thread's end is what is waited for.
            let _ = self.lost.await;
        }
    }
}

/// What the thread does.
async fn lead<B: LeaseStore>(
    board: impl FnOnce() -> Result<B, kube::Error>,
    name: String,
    looked: impl Fn(),
    mut tell: oneshot::Sender<Result<Held, Lost>>,
) {
    let board = match board() {
        Ok(board) => board,
        Err(error) => {
            let why = format!("the API server cannot be asked for it: {error}");
            // The receiver is gone when the process is ending.
            return drop(tell.send(Err(Lost { why })));
        }
    };
    let mut leadership = tokio::select! {
        leadership = acquire(board, &name, looked) => leadership,
        // Nobody waits for it any more.
        () = tell.closed() => return,
    };
    let (lose, lost) = oneshot::channel();
    let (give_back, given_back) = oneshot::channel();
    let held = Held {
        epoch: leadership.epoch(),
        renewals: leadership.renewed.subscribe(),
        lost,
        give_back,
    };
    if tell.send(Ok(held)).is_err() {
        return leadership.release().await;
    }
    tokio::select! {
        why = leadership.keep() => drop(lose.send(why)),
        told = given_back => {
            if told.is_ok() {
                leadership.release().await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
