//! Carries a transfer out: which commands go to which agent, and what follows from the answers.
//!
//! A transfer moves the data of one TransferJob, or of one `weft play`. A job that another operator takes over has
//! another transfer there.
//!
//! [`Transfer`] is pure: an [`Input`] goes in, commands come out; no clock, no network. [`Runner`] sends the
//! commands to the agents, over the connections of a [`ConnectionPool`], which all transfers share. The order
//! is always
//!
//! ```text
//! Stat at the source → a plan to show → RecordAttempt → Prepare at the destinations → the plan for those that
//!     are ready → Start at them, then at the source → Progress until no destination can finish any more → all
//!     Verified, or Cancel and the next attempt
//! ```
//!
//! The list of the files stays with the agents: Stat answers its digest and totals, and Prepare says from
//! which agent the destination fetches it. An agent that has lost the list, as after a restart, refuses
//! the fetch, and the next attempt begins with Stat again.
//!
//! An attempt goes on while any destination in it can still finish. The destinations that are left then
//! get another attempt: the same transfer, the next number, a new plan, resumed from what they have. A
//! destination that does not answer Prepare is not in this attempt; it is asked again in the next one.

mod agent;
mod attempt;
mod calls;
mod certificates;
mod command;
mod destinations;
mod endpoint;
mod excerpt;
mod failure;
mod object;
mod phase;
mod pool;
mod runner;
mod single_call;
mod spec;
#[cfg(test)]
mod tests;
mod tls;
mod transfer;

pub use command::{Call, Cleanup, Command, Input};
pub use destinations::{Destination, DestinationPhase};
pub use endpoint::AgentEndpoint;
pub use excerpt::excerpt;
pub use failure::Failure;
pub use object::{ReadSecret, Secret, StoreObject};
pub use phase::{End, TransferPhase};
pub use pool::ConnectionPool;
pub use runner::Runner;
pub use single_call::{
    PAGE_UNDER_WAY, diagnose, list_pod_devices, read_metrics, release_copies, stat,
};
pub use spec::{
    DestinationsUpdate, LeaderContext, NodeLocation, SourceListing, Spec, Timing, is_local,
    job_uid, known_uids, local_copy_name, node_of,
};
pub use transfer::Transfer;
