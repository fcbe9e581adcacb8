//! What is asked of the API server. Decisions make requests; nothing else does.

use k8s_openapi::api::apps::v1::DaemonSet;
use weft_crds::{FabricNodeStatus, FabricStatus, TransferJobStatus};

use super::{models::Note, world::Key};

/// What keeps a job until nothing of it is left at the agents.
pub(crate) const FINALIZER: &str = "weft.dev/agents";

/// One request. Those that name a UID are refused when the object has been made anew since.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Request {
    /// Writes how a job is.
    JobStatus {
        /// Which.
        key: Key,
        /// Its UID.
        uid: String,
        /// The status.
        status: Box<TransferJobStatus>,
        /// What people shall hear of it.
        news: Vec<News>,
        /// Only bytes have moved: may be dropped.
        is_progress: bool,
    },
    /// Holds a job back from its end, or lets it go.
    Finalizer {
        /// Which.
        key: Key,
        /// Its UID.
        uid: String,
        /// Hold it.
        hold: bool,
        /// What people shall hear of it.
        news: Vec<News>,
    },
    /// Its time is over.
    DeleteJob {
        /// Which.
        key: Key,
        /// Its UID.
        uid: String,
    },
    /// Writes how a fabric is.
    FabricStatus {
        /// Which.
        name: String,
        /// Its UID.
        uid: String,
        /// The status.
        status: Box<FabricStatus>,
    },
    /// Writes how a node is.
    FabricNodeStatus {
        /// Which.
        name: String,
        /// Its UID.
        uid: String,
        /// The status.
        status: Box<FabricNodeStatus>,
        /// What people shall hear of it.
        news: Vec<News>,
    },
    /// Makes a node known as one of a fabric.
    ApplyFabricNode {
        /// Which.
        name: String,
        /// Of which fabric.
        fabric: String,
        /// The UID of the cluster's node, which it ends with.
        owner: String,
    },
    /// Says at a node of which fabric it is: agents run where that stands.
    NodeFabric {
        /// The node.
        node: String,
        /// Its UID.
        uid: String,
        /// Of none any more.
        fabric: Option<String>,
    },
    /// Says at a node that it holds a model, or no longer says so.
    NodeModel {
        /// The node.
        node: String,
        /// Its UID.
        uid: String,
        /// Only if it is at this version still.
        version: Option<String>,
        /// Of label and annotation.
        key: String,
        /// What it holds.
        note: Option<Note>,
    },
    /// A node is of no fabric any more.
    DeleteFabricNode {
        /// Which.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Runs a fabric's agents.
    ApplyDaemonSet(Box<DaemonSet>),
    /// Ends them.
    DeleteDaemonSet {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
}

/// Something that people shall hear of: an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct News {
    /// Something is wrong.
    pub(super) warning: bool,
    /// Stable, UpperCamelCase.
    pub(super) reason: String,
    /// What happened.
    pub(super) note: String,
}

impl Request {
    /// The object that it is about, with its kind.
    pub(super) fn object(&self) -> (&'static str, Key) {
        match self {
            Self::JobStatus { key, .. }
            | Self::Finalizer { key, .. }
            | Self::DeleteJob { key, .. } => ("TransferJob", key.clone()),
            Self::FabricStatus { name, .. } => ("RdmaFabric", Key::cluster(name)),
            Self::FabricNodeStatus { name, .. }
            | Self::ApplyFabricNode { name, .. }
            | Self::DeleteFabricNode { name, .. } => ("FabricNode", Key::cluster(name)),
            Self::NodeFabric { node, .. } | Self::NodeModel { node, .. } => {
                ("Node", Key::cluster(node))
            }
            Self::ApplyDaemonSet(set) => ("DaemonSet", Key::of(&set.metadata)),
            Self::DeleteDaemonSet { name, .. } => ("DaemonSet", Key::cluster(name)),
        }
    }
}
