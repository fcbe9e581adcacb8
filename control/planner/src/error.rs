//! Why there is no plan.

use thiserror::Error;

use crate::{
    request::{BLOCK_BYTES, PAYLOAD_SHARE_MIN, RECEIVERS_MAX},
    strategy::Strategy,
    topology::TopologyError,
};

/// Why there is no plan. Every text names the field or the node and what to do.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// The topology itself is wrong.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// There is nobody to send to.
    #[error("destinations is empty: name at least one node other than the source")]
    NoDestinations,
    /// A name that no node has.
    #[error("{field} names {name:?}, which is not a node: use one of {known}")]
    UnknownNode {
        /// Which field, as `destinations[2]`.
        field: String,
        /// The name as given.
        name: String,
        /// The nodes there are.
        known: String,
    },
    /// The source is asked to send to itself.
    #[error("destinations[{index}] {name:?} is the source: leave it out")]
    SourceIsDestination {
        /// Index of the destination.
        index: usize,
        /// The source.
        name: String,
    },
    /// A destination is named twice.
    #[error("destinations[{index}] {name:?} is named twice: name it once")]
    DuplicateDestination {
        /// Index of the second mention.
        index: usize,
        /// The destination.
        name: String,
    },
    /// A block of no bytes.
    #[error("block_bytes is 0: give at least 1, {BLOCK_BYTES} is usual")]
    ZeroBlock,
    /// A share that is none.
    #[error("payload_share is {value}: give a number from {PAYLOAD_SHARE_MIN} to 1")]
    BadPayloadShare {
        /// The value as given.
        value: f64,
    },
    /// The bytes of all copies do not fit 64 bits.
    #[error("bytes is {bytes}, and {destinations} copies of that exceed 2^64: check the size")]
    TooManyBytes {
        /// Bytes per destination.
        bytes: u64,
        /// How many destinations.
        destinations: usize,
    },
    /// Two leaves that must talk have no spine in common.
    #[error(
        "no spine joins leaf {from:?} (node {from_node:?}) and leaf {to:?} (node {to_node:?}): add uplinks of both to one spine"
    )]
    NoPath {
        /// Leaf of the sender.
        from: String,
        /// The sender.
        from_node: String,
        /// Leaf of the receiver.
        to: String,
        /// The receiver.
        to_node: String,
    },
    /// A node would send to more nodes than an agent does.
    #[error(
        "strategy {strategy} has one node send to {receivers}, and an agent sends to {RECEIVERS_MAX} at most: take auto, binomial or chain, or fewer destinations"
    )]
    TooManyReceivers {
        /// The strategy that was asked for.
        strategy: Strategy,
        /// Nodes that one node would send to.
        receivers: usize,
    },
}

impl PlanError {
    /// A short stable name, for conditions, events and metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Topology(error) => error.reason(),
            Self::NoDestinations => "PlanNoDestinations",
            Self::UnknownNode { .. } => "PlanUnknownNode",
            Self::SourceIsDestination { .. } => "PlanSourceIsDestination",
            Self::DuplicateDestination { .. } => "PlanDuplicateDestination",
            Self::ZeroBlock => "PlanZeroBlock",
            Self::BadPayloadShare { .. } => "PlanBadPayloadShare",
            Self::TooManyBytes { .. } => "PlanTooManyBytes",
            Self::NoPath { .. } => "PlanNoPath",
            Self::TooManyReceivers { .. } => "PlanTooManyReceivers",
        }
    }
}
