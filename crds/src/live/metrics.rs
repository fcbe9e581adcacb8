//! The metrics of a node's agent.

/// A page of metrics of a node's agent, as OpenMetrics text: a subresource of its FabricNode. The group
/// `live.weft.dev` has `fabricnodes` for these alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeMetrics {
    /// `/metrics` of the agent.
    Agent,
    /// `/metrics/paths`: each path by itself.
    Paths,
}

impl NodeMetrics {
    /// Of what they are subresources.
    pub const RESOURCE: &str = "fabricnodes";
    /// Its kind.
    pub const KIND: &str = "NodeMetrics";
    /// All pages.
    pub const ALL: [Self; 2] = [Self::Agent, Self::Paths];

    /// In paths; in roles behind `fabricnodes/`.
    #[must_use]
    pub const fn subresource(self) -> &'static str {
        match self {
            Self::Agent => "metrics",
            Self::Paths => "pathmetrics",
        }
    }

    /// Where it is: what comes after the group's version.
    #[must_use]
    pub fn path(self, node: &str) -> String {
        format!("{}/{node}/{}", Self::RESOURCE, self.subresource())
    }
}
