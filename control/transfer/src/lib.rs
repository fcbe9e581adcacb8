//! The operator's part of a transfer: what to ask of which agent, and what to make of the answers.
//!
//! [`Job`] is pure: an answer goes in, commands come out; no clock, no network. [`Runner`] carries
//! the commands to the agents, over the connections of [`Channels`], which all jobs share. The order
//! is always
//!
//! ```text
//! Stat at the source → Claim → plan → Prepare at the destinations → Start at them, then at the
//!     source → Progress until nobody can go further → all Verified, or Cancel and the next attempt
//! ```
//!
//! The list of the files stays with the agents: Stat answers its digest and totals, and Prepare says from
//! whom the destination fetches it. An agent that has lost it, as after a restart, refuses that, and the
//! next attempt begins with Stat again.
//!
//! An attempt goes on while any destination in it can still finish. What is left then gets another
//! one: the same job, the next number, planned anew over those that are left, resumed from what they
//! have. A destination that does not answer when an attempt is prepared is late: it is in the next,
//! unless it has never been reached; then it is given up within seconds.

mod agent;
mod asked;
mod attempt;
mod calls;
mod channels;
mod contact;
mod destination;
mod job;
mod ledger;
mod object;
mod pace;
mod refusal;
mod report;
mod runner;
#[cfg(test)]
mod stand_in;
mod tls;

pub use asked::{diagnose, release, stat};
pub use channels::Channels;
pub use destination::{DestinationView, Standing};
pub use job::{Course, End, Job};
pub use object::{Object, Open, Secret, Vault};
pub use refusal::Refusal;
pub use runner::{Contact, Runner};

use std::time::Duration;

use weft_planner::{Part, Strategy, Topology};
use weft_proto::agent::v1::{Algorithm, JobName, Overwrite, ProgressResponse, StatResponse};

/// How long one try to reach a node takes, TLS included: a management network
/// answers within milliseconds, and a SYN that was lost is sent again after 1 s.
const CONTACT_TRY: Duration = Duration::from_millis(1500);

/// Ends the name under which a job knows its source's node as a destination, where it has a second
/// part. No node's name has a slash.
const HERE: &str = "/here";

/// The name under which a job knows its source's node as a destination: it makes that copy itself.
pub fn local(node: &str) -> String {
    format!("{node}{HERE}")
}

/// It is the source's node as a destination.
pub fn is_local(name: &str) -> bool {
    name.ends_with(HERE)
}

/// The node behind a name.
pub fn node_of(name: &str) -> &str {
    name.strip_suffix(HERE).unwrap_or(name)
}

/// Ends the UID under which the source's node knows a job as a destination, where it has a second part.
const UID_HERE: &str = "-here";

/// The UID of a job by which an agent knows it.
pub fn job_uid(known: &str) -> &str {
    known.strip_suffix(UID_HERE).unwrap_or(known)
}

/// A file or directory at a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The node; at a copy that the source's node makes for itself: with a suffix.
    pub node: String,
    /// A root of its configuration.
    pub root: String,
    /// Relative to the root.
    pub path: String,
}

/// What is to be moved, and where.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Names the job to the agents, through all attempts.
    pub uid: String,
    /// Under which agents record its verified copies; `None`: they record none.
    pub name: Option<JobName>,
    /// Where it is; of an object: where the reader's own copy shall be.
    pub source: Place,
    /// Read from a store by the source's node, which is one of the destinations, instead of its files.
    pub object: Option<Object>,
    /// Where it shall be.
    pub destinations: Vec<Place>,
    /// What the plan is made from.
    pub topology: Topology,
    /// Who sends to whom.
    pub strategy: Strategy,
    /// Part of the line rate that is payload, above 0 and at most 1.
    pub payload_share: f64,
    /// What blocks and files are hashed with.
    pub algorithm: Algorithm,
    /// The digest that it must have; "" when not known.
    pub expect: String,
    /// What happens to a file that is there already.
    pub overwrite: Overwrite,
    /// Attempts in a row that may bring nothing before the job is given up.
    pub backoff_limit: u32,
    /// How long is waited, and how often is looked.
    pub tempo: Tempo,
    /// In whose name agents are asked.
    pub mandate: Mandate,
}

impl Spec {
    /// Destinations that receive from others. What the source's node copies for itself, or reads itself
    /// from a store, takes no part in a plan: it is on no link.
    pub fn receivers(&self) -> impl Iterator<Item = &str> {
        let names = self.destinations.iter().map(|place| place.node.as_str());
        names.filter(|name| !is_local(name) && *name != self.source.node)
    }
}

/// Who is to have a copy now: may grow while a job runs, and never shrinks.
#[derive(Debug, Clone, PartialEq)]
pub struct Roster {
    /// All destinations; those that the job has already are no news.
    pub destinations: Vec<Place>,
    /// What the next plan is made from; holds the nodes of all destinations, earlier ones too.
    pub topology: Topology,
    /// Part of the line rate that is payload, above 0 and at most 1.
    pub payload_share: f64,
}

/// How long is waited, and how often is looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tempo {
    /// Wait before the next attempt; doubles with every attempt that brought nothing.
    pub backoff: Duration,
    /// The doubling stops at `backoff` × 2 to the power of this.
    pub doublings: u32,
    /// A node that has not answered for so long since it was first asked is given up.
    pub first_contact: Duration,
    /// Between two reports of an agent; 50 ms is the shortest that agents grant.
    pub report: Duration,
}

impl Tempo {
    /// A person is watching: the longest backoff is 2 s, and two tries to reach a node, with the
    /// first backoff between them, tell that it is not there.
    pub const PERSON: Self = Self {
        backoff: Duration::from_millis(250),
        doublings: 3,
        first_contact: Duration::from_secs(3),
        report: Duration::from_millis(50),
    };
    /// Nodes are known to be there, and their agents are restarted within a minute: with the usual
    /// six attempts, 63 s are waited. One that was never reached is waited for as long as any other:
    /// it may be down, and the job's backoff limit is what its author said.
    pub const CLUSTER: Self = Self {
        backoff: Duration::from_secs(1),
        doublings: 5,
        first_contact: Duration::MAX,
        report: Duration::from_secs(1),
    };
}

/// In whose name agents are asked: they obey the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mandate {
    /// Transitions of the operator's lease.
    pub leader_epoch: u64,
    /// Of the job's description.
    pub generation: u64,
    /// Attempts that were made before, by this operator or an earlier one.
    pub attempts_before: u32,
}

impl Mandate {
    /// Of an operator that has no rival, for a description that does not change.
    pub const ONLY: Self = Self {
        leader_epoch: 1,
        generation: 1,
        attempts_before: 0,
    };
}

/// What an agent has listed for a job; it has the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The agent's node.
    pub node: String,
    /// What it found.
    pub found: StatResponse,
}

/// What shall be done. Every command has one answer; [`Command::Follow`] has many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Ask the source what there is.
    Stat {
        /// Of a verified copy: the digest of the manifest that names what counts.
        named: Option<Vec<u8>>,
    },
    /// Write down that an attempt of this number begins, where a successor finds it.
    Claim {
        /// The number.
        attempt: u32,
    },
    /// Make a destination ready.
    Prepare {
        /// Where.
        node: String,
        /// For which attempt.
        attempt: u32,
    },
    /// Give a node its part.
    Start {
        /// Which attempt.
        attempt: u32,
        /// The part; it names the node.
        part: Part,
    },
    /// Open a progress stream.
    Follow {
        /// Of which node.
        node: String,
        /// Of which attempt.
        attempt: u32,
    },
    /// End an attempt at a node, and every earlier one of the job. The agent's answer is the
    /// confirmation that nothing of it lands there any more; an attempt that it does not know counts
    /// as ended.
    ///
    /// A node that it does not reach holds up no other: the next attempt begins and overtakes what is
    /// going on there, by its own Prepare or Start, or by a Cancel where the node has no part in it. A
    /// job that ends asks again, a few times in its tempo, until the node confirms, has no agent in
    /// the fabric any more, or is given up; where the job ends because nothing but vain attempts were
    /// made, once. What then still goes on the agent ends by itself, when its lease is over; partial
    /// files stay there.
    Cancel {
        /// Where.
        node: String,
        /// Which.
        attempt: u32,
        /// What goes there.
        cleanup: Cleanup,
    },
}

/// What an agent removes when a job ends. Each removes what the ones before it remove, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cleanup {
    /// Nothing: a later attempt resumes from the partial files.
    Nothing,
    /// Partial files.
    Partials,
    /// The job's verified copies, too, unless they are other jobs' as well.
    Copies,
}

/// What came of it.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Of Stat.
    Stat(Result<StatResponse, Refusal>),
    /// Of Claim: it is written down.
    Claimed {
        /// The number.
        attempt: u32,
    },
    /// Of Prepare.
    Prepared {
        /// Where.
        node: String,
        /// For which attempt.
        attempt: u32,
        /// Whether it is ready.
        result: Result<(), Refusal>,
    },
    /// Of Start.
    Started {
        /// Where.
        node: String,
        /// Which attempt.
        attempt: u32,
        /// Whether it was taken.
        result: Result<(), Refusal>,
    },
    /// One message of a progress stream.
    Progress {
        /// From where.
        node: String,
        /// Of which attempt.
        attempt: u32,
        /// The message.
        report: Box<ProgressResponse>,
    },
    /// A progress stream is over.
    FollowEnded {
        /// From where.
        node: String,
        /// Of which attempt.
        attempt: u32,
        /// An end, or what broke it.
        result: Result<(), Refusal>,
    },
    /// Of Cancel.
    Cancelled {
        /// Where.
        node: String,
        /// Which attempt.
        attempt: u32,
        /// Whether it is confirmed.
        result: Result<(), Refusal>,
    },
    /// The time of [`Job::wake_at`] has come.
    Woken,
    /// Somebody may have come to be a destination.
    Roster(Box<Roster>),
    /// Nobody wants it any more.
    Stop(Cleanup),
}
