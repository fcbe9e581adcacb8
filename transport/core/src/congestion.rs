//! How many bytes may be in flight.
//!
//! One [`Congestion`] per connection, shared by all its paths (STELLAR, section 7: one window). The
//! connection reports what was acknowledged, marked and lost; the controller answers with a window.

use crate::units::{Nanos, OneWay, Time};
use serde::{Deserialize, Serialize};

mod ecn_rtt;
mod fixed;

/// What one acknowledgement says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AckSample {
    /// Bytes newly acknowledged, headers included.
    pub bytes: u64,
    /// Bytes that were in flight when it arrived: a window that is not used does not grow.
    pub in_flight: u64,
    /// Packets that its echoes count.
    pub packets: u64,
    /// Those of them with Congestion Experienced.
    pub ce: u64,
    /// The lowest round-trip time among its echoes.
    pub rtt: Option<Nanos>,
    /// The shortest way there among its echoes.
    pub one_way: Option<OneWay>,
}

/// What a controller must know of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of a full packet, headers included: the smallest useful step.
    pub packet: u64,
    /// Bytes of a full chunk: what is added per round trip.
    pub chunk: u64,
    /// No window above this: the receive window in full chunks.
    pub max: u64,
}

/// Decides the window. One file per algorithm; listed in [`CongestionKind`].
pub trait Congestion: core::fmt::Debug + Send {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;
    /// An acknowledgement arrived.
    fn on_ack(&mut self, now: Time, sample: AckSample);
    /// `packets` packets are taken for lost.
    fn on_loss(&mut self, now: Time, packets: u64);
    /// A timeout passed in which nothing at all came back.
    fn on_timeout(&mut self, now: Time);
    /// The last timeout was spurious: what it took is given back.
    fn on_spurious_timeout(&mut self);
}

/// The congestion controls there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CongestionKind {
    /// DCTCP's α on marks, and a decrease when the lowest round trip exceeds its target.
    EcnRtt,
    /// A window that never moves: for tests.
    Fixed {
        /// The window.
        bytes: u32,
    },
}

impl CongestionKind {
    /// A controller that starts from `window` bytes, or from its own start.
    pub fn build(self, limits: Limits, window: Option<u64>) -> Box<dyn Congestion> {
        match self {
            CongestionKind::EcnRtt => Box::new(ecn_rtt::EcnRtt::new(limits, window)),
            CongestionKind::Fixed { bytes } => Box::new(fixed::Fixed::new(limits, bytes)),
        }
    }
}
