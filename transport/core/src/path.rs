//! The paths between two NICs: their state, whether they are alive, and which one is next.
//!
//! A [`PathSet`] belongs to a pair of NICs and is shared by the connections between them, which
//! report what they sent and what came back. It decides nothing but liveness. Each connection has a
//! [`Policy`], which chooses among the live paths of a [`PathView`].

use crate::units::{Nanos, PathId, Rng, Time};

mod best_rtt;
mod hopper;
mod kind;
mod oblivious;
mod policy;
mod reps;
mod round_robin;
mod rtt;
mod set;
mod single;
mod two_choices;

pub use hopper::HopperParameters;
pub use kind::{Policy, PolicyKind, UnknownPolicy};
pub use policy::{PathPolicy, PathSample};
pub(crate) use rtt::BASE_PERIOD;
use rtt::LowestRtt;
pub use rtt::RttEstimator;
pub use set::{
    BASE_PACKET_BYTES, Capacity, PathReport, PathSet, PathSetConfig, PathState, PathView,
};

/// A path is suspended at this many timeouts with no acknowledgement since.
pub const TIMEOUTS_UNTIL_SUSPENDED: u8 = 3;

/// A suspended path is probed for the first time after this long.
pub const PROBE_AFTER: Nanos = Nanos::from_millis(10);

/// The interval between probes doubles up to this.
pub const PROBE_INTERVAL_MAX: Nanos = Nanos::from_secs(1);

/// Paths of a set at most: one byte on the wire.
pub const PATHS_MAX: u16 = 256;
