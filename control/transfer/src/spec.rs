//! What a transfer moves, between which nodes, and by which limits.

use std::{collections::BTreeSet, time::Duration};

use backon::ExponentialBuilder;
use weft_planner::{Strategy, Topology};
use weft_proto::agent::v1::{Algorithm, JobName, Overwrite, StatResponse, Symlinks};

use crate::object::StoreObject;

/// Ends the name of the source's node as a destination, where it makes a second copy. No node's name
/// has a slash.
const LOCAL: &str = "/here";
/// Ends the UID of a job at the source's node, for the copy that this node makes itself.
const LOCAL_UID: &str = "-here";

/// The name of the source's node as a destination: it makes that copy itself.
pub fn local_copy_name(node: &str) -> String {
    format!("{node}{LOCAL}")
}

/// It is the source's node as a destination.
pub fn is_local(name: &str) -> bool {
    name.ends_with(LOCAL)
}

/// The node behind a name.
pub fn node_of(name: &str) -> &str {
    name.strip_suffix(LOCAL).unwrap_or(name)
}

/// The UID by which the agent of the destination `name` knows a job.
pub(crate) fn uid_at(name: &str, uid: &str) -> String {
    match is_local(name) {
        true => format!("{uid}{LOCAL_UID}"),
        false => uid.to_owned(),
    }
}

/// The job's own UID, from the one by which an agent knows it.
pub fn job_uid(known: &str) -> &str {
    known.strip_suffix(LOCAL_UID).unwrap_or(known)
}

/// The UIDs by which agents know a job.
pub fn known_uids(uid: &str) -> [String; 2] {
    [uid.to_owned(), format!("{uid}{LOCAL_UID}")]
}

/// A file or directory at a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLocation {
    /// The node; with a suffix ([`local_copy_name`]) for a copy that the source's node makes itself.
    pub node: String,
    /// A root of its configuration.
    pub root: String,
    /// Relative to the root.
    pub path: String,
}

/// What a transfer moves, and where.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Names the job to the agents, through all attempts.
    pub uid: String,
    /// The name under which agents record the verified copies; `None`: they record none.
    pub name: Option<JobName>,
    /// Where the data is; for an object: where the reader puts its own copy.
    pub source: NodeLocation,
    /// What is done with the symbolic links of the source.
    pub symlinks: Symlinks,
    /// What the source's node, which is one of the destinations, reads from a store instead of its files.
    pub object: Option<StoreObject>,
    /// Where the data goes.
    pub destinations: Vec<NodeLocation>,
    /// What the plan is made from.
    pub topology: Topology,
    /// Who sends to whom.
    pub strategy: Strategy,
    /// Part of the line rate that is payload, above 0 and at most 1.
    pub payload_share: f64,
    /// What blocks and files are hashed with.
    pub algorithm: Algorithm,
    /// The digest that the data must have; "" when not known.
    pub expect: String,
    /// What happens to a file that is there already.
    pub overwrite: Overwrite,
    /// How many attempts, or Stats that fail, in a row may neither bring a byte nor end a destination (Verified or given up)
    /// before the job fails.
    pub backoff_limit: u32,
    /// How long the transfer waits between attempts, and how often agents send progress.
    pub timing: Timing,
    /// Which operator sends the commands.
    pub leader: LeaderContext,
}

impl Spec {
    /// Destinations that receive from other nodes. What the source's node copies for itself, or reads
    /// itself from a store, takes no part in a plan: it uses no link.
    pub fn receivers(&self) -> impl Iterator<Item = &str> {
        let names = self
            .destinations
            .iter()
            .map(|location| location.node.as_str());
        names.filter(|name| !is_local(name) && *name != self.source.node)
    }
}

/// An update of the destinations: nodes may come and go while a transfer runs.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationsUpdate {
    /// All destinations. One that the transfer has, and that is not among these, gets no copy unless it has it already.
    pub destinations: Vec<NodeLocation>,
    /// What the next plan is made from; holds the nodes of `destinations`, and of those that the transfer has until this
    /// update.
    pub topology: Topology,
    /// Part of the line rate that is payload, above 0 and at most 1.
    pub payload_share: f64,
    /// Nodes of the transfer whose agents still work with an earlier configuration. An attempt that fails only because
    /// these agents refuse it for their configuration does not count towards the backoff limit.
    pub configuration_pending: BTreeSet<String>,
}

/// How long the transfer waits between attempts, and how often agents send progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Wait before the next attempt; doubles with every attempt without progress.
    pub backoff: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
    /// A node that two tries in a row have not reached is given up, if it was never reached.
    pub gives_up_unreached: bool,
    /// Between two progress messages of an agent; 50 ms is the shortest that agents grant.
    pub progress_interval: Duration,
}

impl Timing {
    /// A person is watching: the longest backoff is 2 s, and two tries to reach a node, with the
    /// first backoff between them, show that it is not there.
    pub const INTERACTIVE: Self = Self {
        backoff: Duration::from_millis(250),
        backoff_max: Duration::from_secs(2),
        gives_up_unreached: true,
        progress_interval: Duration::from_millis(50),
    };
    /// Nodes are known to be there, and their agents are restarted within a minute: with the usual
    /// backoff limit of 6, the job waits for 63 s. The same holds for a node that was never reached: it may be
    /// down, and the author of the job has set its backoff limit.
    pub const CLUSTER: Self = Self {
        backoff: Duration::from_secs(1),
        backoff_max: Duration::from_secs(32),
        gives_up_unreached: false,
        progress_interval: Duration::from_secs(1),
    };

    /// The waits between tries, `times` of them.
    pub(crate) fn backoffs(&self, times: usize) -> ExponentialBuilder {
        ExponentialBuilder::new()
            .with_factor(2.0)
            .with_min_delay(self.backoff)
            .with_max_delay(self.backoff_max)
            .with_max_times(times)
    }
}

/// Which operator sends the commands: agents obey the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderContext {
    /// The epoch of the leader that sends: one more than the Lease's leaseTransitions, higher than that of any leader
    /// before it.
    pub leader_epoch: u64,
    /// Of the job's description.
    pub generation: u64,
    /// Attempts that were made before, by this operator or an earlier one.
    pub attempts_before: u32,
}

impl LeaderContext {
    /// Of the only operator, for a description that does not change.
    pub const ONLY: Self = Self {
        leader_epoch: 1,
        generation: 1,
        attempts_before: 0,
    };
}

/// What the agent of the source has listed; the agent has the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceListing {
    /// The node from whose agent destinations fetch the manifest.
    pub holder: String,
    /// The answer to Stat.
    pub stat: StatResponse,
}
