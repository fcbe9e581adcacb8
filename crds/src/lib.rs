//! The API of the group `weft.dev`, version `v1alpha1`: its types, and the YAML made from them.
//!
//! A type's doc comments become the descriptions that `kubectl explain` prints. Rules that the API
//! server checks (CEL) stand at the fields they are about; [`documents`] are what the chart installs.
//! Nothing here talks to a cluster.

mod bounds;
pub mod doctor;
mod fabric;
mod fabric_node;
mod live;
mod transfer_job;
mod values;
mod yaml;

pub use fabric::{
    CongestionControl, Devices, Encryption, FabricStatus, Link, Nics, NodeCount, Objects,
    PathPolicy, Ports, RdmaFabric, RdmaFabricSpec, Root, RootAccess, RootScope, Topology,
    Transport,
};
pub use fabric_node::{
    FabricNode, FabricNodeSpec, FabricNodeStatus, Finding, NodeDevices, NodeNic, NodePorts,
};
pub use live::{
    AvailableRoot, AvailableRootList, CopyJob, CopyRemoval, CopyRemovalRequest, Diagnosis,
    DiagnosisRequest, FabricPage, KeptCopy, LIVE_GROUP, LIVE_VERSION, NodeCopy, NodeCopyList,
    NodeFacts, NodeMetrics, Obstacle, PodDevice, PodDeviceList, Reach, SilentNode, TransferPlan,
    TransferProgress, TransferProgressList, live_api_version,
};
pub use transfer_job::{
    Algorithm, Counts, DESTINATIONS_SHOWN, DeletionPolicy, DestinationState, DestinationStatus,
    Destinations, FileSource, LinkInUse, ManifestSummary, ObjectExpect, ObjectSource, Overwrite,
    Phase, PlanSummary, SecretReference, Source, Strategy, Symlinks, TransferJob, TransferJobSpec,
    TransferJobStatus, Verification,
};
pub use yaml::{Document, documents};

/// The API group.
pub const GROUP: &str = "weft.dev";
/// The API version.
pub const VERSION: &str = "v1alpha1";

/// A number that nothing is said by.
fn unsaid<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}
