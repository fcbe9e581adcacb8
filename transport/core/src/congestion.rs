//! How many bytes may be in flight, and when the next ones may go.
//!
//! One [`Congestion`] per connection, shared by all its paths (STELLAR, section 7: one window). The
//! connection reports what was sent, acknowledged, marked and lost; the controller answers with a window, a
//! permit for each chunk, and the size of the chunks. A connection saves its controller whole.

use crate::path::PathSample;
use crate::units::{Nanos, OneWay, PathId, Time};
use crate::wire::RequestToSend;
use serde::{Deserialize, Serialize};

mod ecn_rtt;
mod eqds;
mod fixed;
mod swift;

pub use ecn_rtt::TARGET_QUEUEING;
pub use eqds::{Backlog, CreditLimits, ROUND_TRIP};
pub use swift::BASE_TARGET;

/// Below this many full chunks in the window, chunks shrink so that the window still holds as many
/// (UCCL, section 3.3: a small chunk size when the window is small).
const CHUNKS_PER_WINDOW: u64 = 4;

/// What one acknowledgement says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AckSample {
    /// Bytes newly acknowledged, headers included.
    pub bytes: u64,
    /// Bytes that were in flight when it arrived: a window that is not used does not grow.
    pub in_flight: u64,
    /// The most bytes in flight, of all chunks, when one of the chunks that it names was sent. `None` where it
    /// names no chunk: packets that come too late to be news, or whose placement is still under way, are echoed only.
    pub tx_in_flight: Option<u64>,
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
    /// Bytes of a full chunk.
    pub chunk: u64,
    /// No window above this: the receive window in full chunks.
    pub max: u64,
    /// How many paths the connection has.
    pub paths: u16,
}

impl Limits {
    /// The size of the next chunk where so many bytes may be in flight.
    #[inline]
    pub fn chunk_bytes(&self, window: u64) -> u64 {
        if window >= CHUNKS_PER_WINDOW * self.chunk {
            return self.chunk;
        }
        // Where fewer chunks may be under way, smaller ones would leave the window unused, and it would never grow.
        let chunks = CHUNKS_PER_WINDOW.min(self.max / self.chunk.max(1)).max(1);
        (window / chunks).clamp(self.packet, self.chunk)
    }
}

/// Whether a chunk may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permit {
    /// Now.
    Yes,
    /// At this moment: the connection is paced.
    At(Time),
    /// When the receiver has given more credit ([`CongestionControl::on_credit`]).
    Credit,
}

/// Decides the window. One file per algorithm; listed in [`CongestionKind`].
pub trait CongestionControl {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;

    /// Most bytes of the next chunk, headers included.
    fn chunk_bytes(&self) -> u64;

    /// Whether `bytes` may be sent on `path`, given that the window has room for them.
    #[inline]
    fn may_send(&self, path: PathId, bytes: u32, now: Time) -> Permit {
        let _ = (path, bytes, now);
        Permit::Yes
    }

    /// The same for `bytes` that were declared lost and are to be sent again (UCCL's `onTxRtxChunk`).
    #[inline]
    fn may_resend(&self, path: PathId, bytes: u32, now: Time) -> Permit {
        self.may_send(path, bytes, now)
    }

    /// `bytes` were sent on `path`, for the first time or again.
    #[inline]
    fn on_sent(&mut self, now: Time, path: PathId, bytes: u32) {
        let _ = (now, path, bytes);
    }

    /// What an acknowledgement says of one path that data of this connection took, before
    /// [`CongestionControl::on_ack`]; probes' answers are left out. `in_flight` bytes were when it arrived.
    #[inline]
    fn on_path_sample(&mut self, now: Time, sample: &PathSample, in_flight: u64) {
        let _ = (now, sample, in_flight);
    }

    /// An acknowledgement arrived: all that it says together, without probes' answers.
    #[inline]
    fn on_ack(&mut self, now: Time, sample: &AckSample) {
        let _ = (now, sample);
    }

    /// `packets` packets are declared lost.
    fn on_loss(&mut self, now: Time, packets: u64);

    /// A timeout passed in which nothing at all came back.
    fn on_timeout(&mut self, now: Time);

    /// The last timeout was spurious: what it took is given back.
    fn on_spurious_timeout(&mut self, now: Time) {
        let _ = now;
    }

    /// The receiver has granted so many bytes since the connection began. Answers whether that is more than before.
    fn on_credit(&mut self, total: u64) -> bool {
        let _ = total;
        false
    }

    /// Whether the receiver has ever granted credit.
    fn was_granted(&self) -> bool {
        true
    }

    /// After which time without credit the receiver is asked again.
    fn credit_wait(&self) -> Nanos {
        Nanos::ZERO
    }

    /// That time is over.
    fn on_credit_timeout(&mut self) {}

    /// The request that is to be sent to the receiver now, if any. `packets` data packets were sent; `backlog` counts
    /// what waits, and need not count further than the bytes that it is given.
    #[inline]
    fn poll_request(
        &mut self,
        packets: u64,
        backlog: impl FnOnce(u64) -> Backlog,
    ) -> Option<RequestToSend> {
        let _ = (packets, backlog);
        None
    }

    /// The connection was restored. In between nothing was measured: moments and one-way delays that were noted mean nothing any
    /// more.
    fn rebase(&mut self, now: Time);

    /// Heap memory, bytes.
    fn heap_bytes(&self) -> usize {
        0
    }
}

macro_rules! controls {
    ($($(#[$doc:meta])* $kind:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),+ } = $name:literal => $control:ty,)*) => {
        /// The congestion controls there are, with their parameters.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum CongestionKind { $($(#[$doc])* $kind { $($(#[$field_doc])* $field: $type),+ },)* }

        /// One connection's congestion control with its state.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub enum Congestion { $($(#[$doc])* $kind($control),)* }

        impl CongestionKind {
            /// Its name on the command line and in YAML.
            pub const fn name(self) -> &'static str {
                match self { $(CongestionKind::$kind { .. } => $name,)* }
            }

            /// A control that has seen nothing.
            pub fn build(self, limits: Limits) -> Congestion {
                match self {
                    $(CongestionKind::$kind { $($field),+ } => Congestion::$kind(<$control>::new(limits, $($field),+)),)*
                }
            }
        }

        impl CongestionControl for Congestion {
            #[inline]
            fn window(&self) -> u64 {
                match self { $(Congestion::$kind(control) => control.window(),)* }
            }
            #[inline]
            fn chunk_bytes(&self) -> u64 {
                match self { $(Congestion::$kind(control) => control.chunk_bytes(),)* }
            }
            #[inline]
            fn may_send(&self, path: PathId, bytes: u32, now: Time) -> Permit {
                match self { $(Congestion::$kind(control) => control.may_send(path, bytes, now),)* }
            }
            #[inline]
            fn may_resend(&self, path: PathId, bytes: u32, now: Time) -> Permit {
                match self { $(Congestion::$kind(control) => control.may_resend(path, bytes, now),)* }
            }
            #[inline]
            fn on_sent(&mut self, now: Time, path: PathId, bytes: u32) {
                match self { $(Congestion::$kind(control) => control.on_sent(now, path, bytes),)* }
            }
            #[inline]
            fn on_path_sample(&mut self, now: Time, sample: &PathSample, in_flight: u64) {
                match self { $(Congestion::$kind(control) => control.on_path_sample(now, sample, in_flight),)* }
            }
            #[inline]
            fn on_ack(&mut self, now: Time, sample: &AckSample) {
                match self { $(Congestion::$kind(control) => control.on_ack(now, sample),)* }
            }
            fn on_loss(&mut self, now: Time, packets: u64) {
                match self { $(Congestion::$kind(control) => control.on_loss(now, packets),)* }
            }
            fn on_timeout(&mut self, now: Time) {
                match self { $(Congestion::$kind(control) => control.on_timeout(now),)* }
            }
            fn on_spurious_timeout(&mut self, now: Time) {
                match self { $(Congestion::$kind(control) => control.on_spurious_timeout(now),)* }
            }
            fn on_credit(&mut self, total: u64) -> bool {
                match self { $(Congestion::$kind(control) => control.on_credit(total),)* }
            }
            fn was_granted(&self) -> bool {
                match self { $(Congestion::$kind(control) => control.was_granted(),)* }
            }
            fn credit_wait(&self) -> Nanos {
                match self { $(Congestion::$kind(control) => control.credit_wait(),)* }
            }
            fn on_credit_timeout(&mut self) {
                match self { $(Congestion::$kind(control) => control.on_credit_timeout(),)* }
            }
            #[inline]
            fn poll_request(
                &mut self,
                packets: u64,
                backlog: impl FnOnce(u64) -> Backlog,
            ) -> Option<RequestToSend> {
                match self { $(Congestion::$kind(control) => control.poll_request(packets, backlog),)* }
            }
            fn rebase(&mut self, now: Time) {
                match self { $(Congestion::$kind(control) => control.rebase(now),)* }
            }
            fn heap_bytes(&self) -> usize {
                match self { $(Congestion::$kind(control) => control.heap_bytes(),)* }
            }
        }
    };
}

controls! {
    /// DCTCP's α on marks, a decrease when the lowest round trip exceeds its target, and TCP's on loss with
    /// queueing (STELLAR's window, in our reading).
    EcnRtt {
        /// Queueing allowed on the least loaded path, at least.
        target_queueing: Nanos
    } = "ecn-rtt" => ecn_rtt::EcnRtt,
    /// A target for the round trip, paced below one packet in a round trip (Swift).
    Swift {
        /// What a large window may queue.
        base_target: Nanos
    } = "swift" => swift::Swift,
    /// Credits that the receiver's pacer grants (EQDS). Both ends of a fabric have the same values.
    Eqds {
        /// What a receiver's NIC takes, bits per second with all headers: its pacer's rate.
        receive_bps: u64,
        /// The longest round trip without queueing: with the rate, the first window and the most unused credit.
        round_trip: Nanos
    } = "eqds" => eqds::Eqds,
    /// A window that never moves: for tests.
    Fixed {
        /// The window.
        bytes: u32
    } = "fixed" => fixed::Fixed,
}

impl CongestionKind {
    /// `ecn_rtt` with its default target.
    pub const ECN_RTT: CongestionKind = CongestionKind::EcnRtt {
        target_queueing: TARGET_QUEUEING,
    };

    /// Swift with its default target.
    pub const SWIFT: CongestionKind = CongestionKind::Swift {
        base_target: BASE_TARGET,
    };

    /// What a connection that is alone on a path queues there, about.
    pub fn queueing(self) -> Nanos {
        match self {
            // That of the least delayed packet of a round is held at the target; the most delayed one has as much again.
            CongestionKind::EcnRtt { target_queueing } => target_queueing.times(2),
            CongestionKind::Swift { base_target } => base_target,
            CongestionKind::Eqds { round_trip, .. } => round_trip,
            CongestionKind::Fixed { .. } => Nanos::ZERO,
        }
    }

    /// How much credit an end with this control grants and uses; `None` where it grants none.
    pub fn credit_limits(self, limits: &Limits) -> Option<CreditLimits> {
        match self {
            CongestionKind::Eqds {
                receive_bps,
                round_trip,
            } => Some(CreditLimits::new(limits, receive_bps, round_trip)),
            _ => None,
        }
    }
}
