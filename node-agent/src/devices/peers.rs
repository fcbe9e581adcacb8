//! Which node a virtual device belongs to.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::config::DevicePeer;
use crate::config::values::NodeName;
use crate::fault::Fault;

type Gid = [u8; 16];

/// What GIDs begin with that an engine draws (`node-engine/src/gid.rs`). The node's data address follows.
const PREFIX: [u8; 8] = [0xfd, b'w', b'e', b'f', b't', 0, 0, 0];
/// The operator is asked again after this, for a node may get another's address. If it does not answer, the earlier answer
/// holds.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(60);
/// And after this where it knew no node: a queue pair whose peer does not exist makes offers again and again.
const REFUSAL_AGE_MAX: Duration = Duration::from_secs(2);
/// Addresses that are kept: more than a fabric has nodes. Programs may name any.
const ADDRESSES_MAX: usize = 16_384;

/// A node that has devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) node: NodeName,
    /// Where its agent serves its control API.
    pub(crate) control: SocketAddr,
}

/// Where it is known which node has a device.
#[derive(Debug)]
pub(crate) enum Peers {
    /// In the agent's configuration, as of a small fabric.
    Listed(BTreeMap<Gid, Peer>),
    /// At the operator, by the address that a GID names.
    OfOperator(OperatorPeers),
}

impl Peers {
    pub(crate) fn listed(peers: &[DevicePeer]) -> Self {
        let by_gid = |peer: &DevicePeer| {
            let (node, control) = (peer.node.clone(), peer.control);
            (peer.gid.octets(), Peer { node, control })
        };
        Self::Listed(peers.iter().map(by_gid).collect())
    }

    /// The node of a device, which `field` names.
    pub(crate) async fn find(&self, gid: Gid, field: &str) -> Result<Peer, Fault> {
        let unknown = || Fault::bad(field, "has the GID of no device of this fabric");
        match self {
            Self::Listed(peers) => peers.get(&gid).cloned().ok_or_else(unknown),
            Self::OfOperator(peers) => {
                let address = address_of(&gid).ok_or_else(unknown)?;
                let found = peers.find(address).await;
                found.map_err(|problem| Fault::bad(field, format!("names {address}: {problem}")))
            }
        }
    }
}

/// The data address of a device's node.
fn address_of(gid: &Gid) -> Option<Ipv4Addr> {
    let rest = gid.strip_prefix(&PREFIX)?;
    let [a, b, c, d, ..] = *rest else {
        return None;
    };
    Some(Ipv4Addr::new(a, b, c, d))
}

/// Asks which node has an address on the data network.
#[tonic::async_trait]
pub(crate) trait FindNode: Debug + Send + Sync {
    async fn find_node(&self, address: Ipv4Addr) -> Result<Peer, FindNodeError>;
}

/// Why no node was found.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum FindNodeError {
    /// Nobody, or more than one node, has the address.
    #[error("{0}")]
    Unknown(String),
    /// Nobody could be asked.
    #[error("{0}")]
    NotAsked(String),
}

/// What the operator has answered.
#[derive(Debug)]
pub(crate) struct OperatorPeers {
    operator: Arc<dyn FindNode>,
    /// Held while the operator is asked: one question at a time, however many devices wait.
    answers: Mutex<BTreeMap<Ipv4Addr, Answer>>,
}

#[derive(Debug, Clone)]
struct Answer {
    found: Result<Peer, FindNodeError>,
    at: Instant,
}

impl Answer {
    fn holds(&self, now: Instant) -> bool {
        let age_max = match self.found {
            Ok(_) => ANSWER_AGE_MAX,
            Err(_) => REFUSAL_AGE_MAX,
        };
        now.saturating_duration_since(self.at) < age_max
    }
}

impl OperatorPeers {
    pub(crate) fn new(operator: Arc<dyn FindNode>) -> Self {
        Self {
            operator,
            answers: Mutex::default(),
        }
    }

    async fn find(&self, address: Ipv4Addr) -> Result<Peer, FindNodeError> {
        let mut answers = self.answers.lock().await;
        let before = answers.get(&address);
        if let Some(before) = before.filter(|answer| answer.holds(Instant::now())) {
            return before.found.clone();
        }
        let found = match self.operator.find_node(address).await {
            // An operator that is away does not part pods whose nodes are known.
            Err(FindNodeError::NotAsked(problem)) => before
                .and_then(|answer| answer.found.clone().ok())
                .ok_or(FindNodeError::NotAsked(problem)),
            found => found,
        };
        if answers.len() >= ADDRESSES_MAX {
            answers.clear();
        }
        let answer = Answer {
            found: found.clone(),
            at: Instant::now(),
        };
        answers.insert(address, answer);
        found
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    /// An operator that answers with what the test has put there.
    #[derive(Debug, Default)]
    struct Operator {
        answer: std::sync::Mutex<Option<Result<Peer, FindNodeError>>>,
        asked: std::sync::atomic::AtomicU32,
    }

    #[tonic::async_trait]
    impl FindNode for Operator {
        async fn find_node(&self, _: Ipv4Addr) -> Result<Peer, FindNodeError> {
            self.asked
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.answer.lock().unwrap().clone().unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_operator_is_asked_again_after_a_minute_and_its_absence_parts_nobody() {
        let operator = Arc::new(Operator::default());
        let peers = OperatorPeers::new(operator.clone());
        let address = Ipv4Addr::new(10, 0, 0, 1);
        let answer = |answer| *operator.answer.lock().unwrap() = Some(answer);
        let asked = || operator.asked.load(std::sync::atomic::Ordering::Relaxed);
        let n1 = Peer {
            node: "n1".parse().unwrap(),
            control: "10.0.0.1:7400".parse().unwrap(),
        };
        answer(Err(FindNodeError::NotAsked("it is away".to_owned())));
        assert!(peers.find(address).await.is_err());
        answer(Ok(n1.clone()));
        assert!(peers.find(address).await.is_err());
        tokio::time::advance(REFUSAL_AGE_MAX).await;
        assert_eq!(peers.find(address).await.unwrap(), n1);
        answer(Err(FindNodeError::NotAsked("it is away".to_owned())));
        tokio::time::advance(ANSWER_AGE_MAX).await;
        assert_eq!(peers.find(address).await.unwrap(), n1);
        assert_eq!(asked(), 3);
        answer(Err(FindNodeError::Unknown("no node has it".to_owned())));
        tokio::time::advance(ANSWER_AGE_MAX).await;
        assert!(peers.find(address).await.is_err());
    }

    #[test]
    fn a_gid_that_an_engine_has_drawn_names_its_node_s_address() {
        let address = |gid: &str| address_of(&gid.parse::<Ipv6Addr>().unwrap().octets());
        let drawn = address("fd77:6566:7400:0:a14:1e28:ab00:1");
        assert_eq!(drawn, Some(Ipv4Addr::new(10, 20, 30, 40)));
        assert_eq!(address("::ffff:10.20.30.40"), None);
    }
}
