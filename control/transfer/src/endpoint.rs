//! Where an agent serves its control API.

/// The control API of one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEndpoint {
    /// The node.
    pub node: String,
    /// `HOST:PORT`.
    pub address: String,
}
