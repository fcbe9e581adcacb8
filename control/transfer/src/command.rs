//! The commands of a transfer, and its inputs: the answers to them, and other events.

use weft_planner::Assignment;
use weft_proto::agent::v1::{ProgressResponse, StatResponse};

use crate::{failure::Failure, spec::DestinationsUpdate};

/// What is to be done. Every command has one answer; [`Call::WatchProgress`] has many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Ask the source for a listing: the RPC Stat lists a tree, or the objects of a store.
    Stat {
        /// For a verified copy: the digest of the manifest that names the files to list.
        manifest_digest: Option<Vec<u8>>,
    },
    /// Record that an attempt of this number begins, where the next operator finds it: in the status of the
    /// TransferJob. The attempt begins with [`Input::AttemptRecorded`]; `weft play`, which no operator
    /// succeeds, records nothing.
    RecordAttempt {
        /// The number.
        attempt: u32,
    },
    /// Call the agent of a node.
    Call {
        /// The node.
        node: String,
        /// For which attempt.
        attempt: u32,
        /// What is called.
        call: Call,
    },
}

/// A call to the agent of one node, for one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Make a destination ready.
    Prepare,
    /// Give a node its assignment, as a task.
    Start(Assignment),
    /// Open a progress stream.
    WatchProgress,
    /// End an attempt at a node, and every earlier one of the job. The agent's answer confirms that
    /// nothing of these attempts is written there any more; an attempt that the agent does not know
    /// counts as ended.
    ///
    /// Other nodes do not wait for a node that a Cancel does not reach: the next attempt begins, and its
    /// own Prepare or Start overtakes what is going on there. Without a command the agent ends the
    /// attempt by itself when its lease is over; partial files stay there.
    Cancel {
        /// What the agent removes.
        cleanup: Cleanup,
        /// A node that does not answer is called again a few times.
        is_repeated: bool,
    },
}

/// What an agent removes when a transfer ends. Each removes what the ones before it remove, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cleanup {
    /// Nothing: a later attempt resumes from the partial files.
    Nothing,
    /// Partial files.
    Partials,
    /// The job's verified copies, too, unless they are also recorded for other jobs.
    Copies,
}

/// The result of a command, or another event of the transfer.
#[derive(Debug, Clone)]
pub enum Input {
    /// Of Stat.
    Stat(Result<StatResponse, Failure>),
    /// Of RecordAttempt: it is recorded.
    AttemptRecorded {
        /// The number.
        attempt: u32,
    },
    /// Of a call; of [`Call::WatchProgress`]: the progress stream has ended.
    Called {
        /// Of which node.
        node: String,
        /// For which attempt.
        attempt: u32,
        /// What was called.
        call: Call,
        /// Whether the agent accepted it.
        result: Result<(), Failure>,
    },
    /// One message of a progress stream.
    Progress {
        /// Of which node.
        node: String,
        /// Of which attempt.
        attempt: u32,
        /// The message.
        progress: Box<ProgressResponse>,
    },
    /// The time of [`Transfer::wake_at`](crate::Transfer::wake_at) has come.
    Woken,
    /// The destinations or the topology may have changed.
    Destinations(Box<DestinationsUpdate>),
    /// The transfer is cancelled.
    Cancel(Cleanup),
}
