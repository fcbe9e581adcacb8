//! Which node a virtual device belongs to.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use weft_device::node_gid;

use crate::config::DevicePeer;
use crate::config::values::NodeName;
use crate::fail_fast;
use crate::fault::Fault;

type Gid = [u8; 16];

/// The operator is asked again after this, for a node may get another's address. If it does not answer, the earlier answer
/// holds.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(60);
/// And after this where it knew no node: a queue pair whose peer does not exist makes offers again and again.
const REFUSAL_AGE_MAX: Duration = Duration::from_secs(2);
/// An operator that has not answered by then is away. An offer that waits longer is dropped in any case.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// An operator that is away is not asked again for this time: each question would hold up offers to other nodes.
const AWAY_INTERVAL: Duration = Duration::from_secs(10);
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
                let address = node_gid::address(&gid).ok_or_else(unknown)?;
                let found = peers.find(address).await;
                found.map_err(|problem| Fault::bad(field, format!("names {address}: {problem}")))
            }
        }
    }
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
    /// Never held while the operator is asked.
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    answers: BTreeMap<Ipv4Addr, Answer>,
    /// The operator is not asked before.
    away_until: Option<Instant>,
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

impl Known {
    /// The node that was found last. An operator that is away does not part pods whose nodes are known.
    fn last(&self, address: Ipv4Addr) -> Result<Peer, FindNodeError> {
        let last = self.answers.get(&address);
        let last = last.and_then(|answer| answer.found.clone().ok());
        last.ok_or_else(|| FindNodeError::NotAsked("the operator does not answer".to_owned()))
    }
}

impl OperatorPeers {
    pub(crate) fn new(operator: Arc<dyn FindNode>) -> Self {
        Self {
            operator,
            known: Mutex::default(),
        }
    }

    async fn find(&self, address: Ipv4Addr) -> Result<Peer, FindNodeError> {
        {
            let known = fail_fast::lock(&self.known);
            let now = Instant::now();
            if let Some(answer) = known.answers.get(&address).filter(|it| it.holds(now)) {
                return answer.found.clone();
            }
            if known.away_until.is_some_and(|until| now < until) {
                return known.last(address);
            }
        }
        let late = |_| Err(FindNodeError::NotAsked("it has not answered".to_owned()));
        let asked = timeout(ANSWER_TIMEOUT, self.operator.find_node(address)).await;
        let asked = asked.unwrap_or_else(late);
        let mut known = fail_fast::lock(&self.known);
        let now = Instant::now();
        if let Err(FindNodeError::NotAsked(problem)) = &asked {
            tracing::debug!("the operator is away: {problem}");
            known.away_until = Some(now + AWAY_INTERVAL);
            return known.last(address);
        }
        known.away_until = None;
        if known.answers.len() >= ADDRESSES_MAX {
            known.answers.clear();
        }
        let answer = Answer {
            found: asked.clone(),
            at: now,
        };
        known.answers.insert(address, answer);
        asked
    }
}

#[cfg(test)]
mod tests {
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
        let away = || Err(FindNodeError::NotAsked("it is away".to_owned()));
        let n1 = Peer {
            node: "n1".parse().unwrap(),
            control: "10.0.0.1:7400".parse().unwrap(),
        };
        answer(away());
        assert!(peers.find(address).await.is_err());
        answer(Ok(n1.clone()));
        assert!(peers.find(address).await.is_err());
        assert_eq!(asked(), 1);
        tokio::time::advance(AWAY_INTERVAL).await;
        assert_eq!(peers.find(address).await.unwrap(), n1);
        answer(away());
        tokio::time::advance(ANSWER_AGE_MAX).await;
        for _ in 0..3 {
            assert_eq!(peers.find(address).await.unwrap(), n1);
        }
        assert_eq!(asked(), 3);
        answer(Err(FindNodeError::Unknown("no node has it".to_owned())));
        tokio::time::advance(ANSWER_AGE_MAX).await;
        assert!(peers.find(address).await.is_err());
        assert!(peers.find(address).await.is_err());
        assert_eq!(asked(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_that_does_not_answer_holds_up_a_question_for_a_second() {
        let peers = OperatorPeers::new(Arc::new(Silent));
        let begun = Instant::now();
        for _ in 0..3 {
            assert!(peers.find(Ipv4Addr::new(10, 0, 0, 1)).await.is_err());
        }
        assert_eq!(begun.elapsed(), ANSWER_TIMEOUT);
    }

    /// It never answers.
    #[derive(Debug)]
    struct Silent;

    #[tonic::async_trait]
    impl FindNode for Silent {
        async fn find_node(&self, _: Ipv4Addr) -> Result<Peer, FindNodeError> {
            std::future::pending().await
        }
    }
}
