//! One connection to each agent, shared by all jobs and requests of this process that call it.
//!
//! A connection costs its two ends some 90 KiB and a handshake; a thousand jobs of a few nodes each
//! would have thousands of them to the same agents. HTTP/2 carries as many calls over one as the
//! agent takes at a time, and a call that is given up ends alone. The first call makes the connection,
//! which stays while anything holds its [`AgentHandle`].
//!
//! Calls after two thirds of a certificate's life use a new certificate and a new connection; calls under
//! way end over the connection that they began on. Another authority is used only after a restart of the
//! process.
//!
//! The pool never decides what is called, nor when a call is repeated.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use weft_identity::authority::Authority;

use crate::{
    agent::{AgentHandle, Connector},
    certificates::Certificates,
    endpoint::AgentEndpoint,
};

/// Names an agent: fabric, node, address.
type Key = (String, String, String);

/// The connections of this process, for the agents of one fabric. Clones and the pools of other fabrics
/// share them.
#[derive(Clone)]
pub struct ConnectionPool {
    authority: Arc<Authority>,
    certificates: Arc<Certificates>,
    connectors: Arc<Mutex<BTreeMap<Key, Weak<Connector>>>>,
}

impl ConnectionPool {
    /// No connection yet. The authority makes certificates and signs tickets for its fabric.
    pub fn new(authority: Arc<Authority>) -> Self {
        Self::with(authority, Certificates::default())
    }

    fn with(authority: Arc<Authority>, certificates: Certificates) -> Self {
        Self {
            authority,
            certificates: Arc::new(certificates),
            connectors: Arc::default(),
        }
    }

    /// The same connections for another fabric.
    #[must_use]
    pub fn of_fabric(&self, fabric: &str) -> Self {
        Self {
            authority: Arc::new(self.authority.of_fabric(fabric)),
            ..self.clone()
        }
    }

    /// Signs tickets for this fabric.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// An agent of this fabric. No connection is made yet.
    pub(crate) fn agent(&self, endpoint: &AgentEndpoint) -> AgentHandle {
        let mut agents = self.agents(std::slice::from_ref(endpoint));
        let (_, agent) = agents.pop_first().expect("one endpoint is one agent");
        agent
    }

    /// Agents of this fabric, by node.
    pub(crate) fn agents(&self, endpoints: &[AgentEndpoint]) -> BTreeMap<String, AgentHandle> {
        let mut connectors = self
            .connectors
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connectors.retain(|_, connector| connector.strong_count() > 0);
        let agent = |endpoint: &AgentEndpoint| {
            let AgentEndpoint { node, address } = endpoint.clone();
            let key = (self.authority.fabric().to_owned(), node.clone(), address);
            let connector = connectors.get(&key).and_then(Weak::upgrade);
            let connector = connector.unwrap_or_else(|| {
                let connector = Arc::new(Connector::new(endpoint));
                connectors.insert(key, Arc::downgrade(&connector));
                connector
            });
            let (authority, certificates) = (&self.authority, &self.certificates);
            let agent =
                AgentHandle::new(connector, Arc::clone(authority), Arc::clone(certificates));
            (node, agent)
        };
        endpoints.iter().map(agent).collect()
    }
}

#[cfg(test)]
mod tests;
