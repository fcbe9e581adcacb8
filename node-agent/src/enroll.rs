//! Enrolment: how the agent of a cluster's node gets its certificate and configuration, and keeps them.
//!
//! The node's administrator, here a DaemonSet, gives a token and the operator's address; the operator gives
//! everything else. `keys` has the private key and what the operator certified, `operator` the calls to the
//! operator, `interface` the data interface, `affinity` where it is in the machine, `assigned` the configuration made of both, `report` the stream of
//! reports, and `member` starts the agent and applies changes. It never speaks to Kubernetes.

mod affinity;
mod assigned;
mod error;
mod find_claim;
mod find_job;
mod find_node;
mod interface;
mod keys;
mod member;
mod operator;
mod queries;
mod report;
mod retry;
mod review_token;
mod settings;

pub use error::{EnrollError, OperatorError};
pub use member::run;
pub use settings::{Settings, Timing};
