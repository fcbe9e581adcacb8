//! A node's own view of its fabric, asked of its agent.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weft_crds::{Diagnosis, NodeFacts, Reach, live_api_version};
use weft_proto::agent::v1::{self as agent, DiagnosePeer, DiagnoseRequest};
use weft_transfer::{AgentEndpoint, ConnectionPool, Failure};

use crate::controllers::Neighbours;

/// What every network carries.
const STANDARD_BYTES: u32 = 1500;
/// Peers of one call, as agents grant.
const PEERS: usize = 64;

/// Has a node's agent try to reach the others, as many at a time as it grants.
pub(super) async fn of(
    node: &str,
    neighbours: &Neighbours,
    pool: &ConnectionPool,
    leader_epoch: u64,
) -> Result<Diagnosis, Failure> {
    let pool = pool.of_fabric(&neighbours.fabric);
    let endpoint = AgentEndpoint {
        node: node.to_owned(),
        address: neighbours.control_address.clone(),
    };
    let mut told = Diagnosis {
        api_version: live_api_version(),
        kind: Diagnosis::KIND.to_owned(),
        node: node.to_owned(),
        operator_version: env!("CARGO_PKG_VERSION").to_owned(),
        clock_ahead_ms: 0,
        facts: NodeFacts::default(),
        reaches: Vec::new(),
    };
    for (packet_bytes, peers) in calls(neighbours) {
        let request = DiagnoseRequest {
            leader_epoch,
            peers: peers.iter().copied().cloned().collect(),
            packet_bytes,
        };
        let answer = weft_transfer::diagnose(request, &pool, &endpoint).await?;
        let facts = answer.facts.unwrap_or_default();
        told.clock_ahead_ms = ahead_ms(facts.clock_unix_ms);
        told.facts = found(facts);
        let reaches = answer.reaches.into_iter();
        told.reaches
            .extend(reaches.map(|reach| reached(reach, &peers)));
    }
    Ok(told)
}

/// Which peers are tried together, and by packets of which sizes: what every network carries, and what
/// both ends say that theirs does. One call at least, for there are facts to be told.
fn calls(neighbours: &Neighbours) -> Vec<(Vec<u32>, Vec<&DiagnosePeer>)> {
    let sizes = |mtu: u32| {
        let most = neighbours.mtu.min(mtu);
        let mut sizes = vec![STANDARD_BYTES.min(most), most];
        sizes.dedup();
        sizes
    };
    let mut calls: Vec<(Vec<u32>, Vec<&DiagnosePeer>)> = Vec::new();
    for (peer, mtu) in &neighbours.peers {
        let sizes = sizes(*mtu);
        let call = calls
            .iter_mut()
            .find(|(of, peers)| *of == sizes && peers.len() < PEERS);
        match call {
            Some((_, peers)) => peers.push(peer),
            None => calls.push((sizes, vec![peer])),
        }
    }
    if calls.is_empty() {
        calls.push((Vec::new(), Vec::new()));
    }
    calls
}

fn found(facts: agent::NodeFacts) -> NodeFacts {
    NodeFacts {
        kernel: facts.kernel,
        gso: facts.gso,
        gro: facts.gro,
        receive_buffer_wanted: facts.receive_buffer_wanted,
        receive_buffer_granted: facts.receive_buffer_granted,
        send_buffer_wanted: facts.send_buffer_wanted,
        send_buffer_granted: facts.send_buffer_granted,
        memory_limit: facts.memory_limit,
        memory_budget: facts.memory_budget,
    }
}

fn reached(reach: agent::Reach, peers: &[&DiagnosePeer]) -> Reach {
    let peer = peers.iter().find(|peer| peer.node == reach.node);
    let silent = reach.silent_ports.into_iter();
    Reach {
        node: reach.node,
        packet_bytes: reach.packet_bytes,
        ports: peer.map_or(0, |peer| ports(peer)),
        link: reach.link,
        silent_ports: silent.filter_map(|port| u16::try_from(port).ok()).collect(),
        error: reach.error,
    }
}

/// How many ports of a peer are tried.
fn ports(peer: &DiagnosePeer) -> u16 {
    let count = peer.ports.map_or(0, |ports| ports.count);
    u16::try_from(count).unwrap_or(u16::MAX)
}

fn ahead_ms(clock_unix_ms: u64) -> i64 {
    let signed = |millis| i64::try_from(millis).unwrap_or(i64::MAX);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or(Duration::ZERO).as_millis();
    signed(u128::from(clock_unix_ms)).saturating_sub(signed(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(i: usize, mtu: u32) -> (DiagnosePeer, u32) {
        let peer = DiagnosePeer {
            node: format!("n{i}"),
            address: "10.0.0.1".to_owned(),
            other_addresses: Vec::new(),
            ports: None,
        };
        (peer, mtu)
    }

    #[test]
    fn packets_are_tried_as_large_as_both_ends_say_they_carry() {
        let mut neighbours = Neighbours {
            fabric: "default".to_owned(),
            control_address: "n0:7400".to_owned(),
            mtu: 9000,
            peers: vec![peer(1, 9000), peer(2, 1500), peer(3, 9000), peer(4, 1400)],
        };
        let shape = |neighbours: &Neighbours| {
            let calls = calls(neighbours).into_iter();
            calls
                .map(|(sizes, peers)| (sizes, peers.len()))
                .collect::<Vec<_>>()
        };
        let wanted = [(vec![1500, 9000], 2), (vec![1500], 1), (vec![1400], 1)];
        assert_eq!(shape(&neighbours), wanted);
        neighbours.peers = (0..100).map(|i| peer(i, 9000)).collect();
        assert_eq!(
            shape(&neighbours),
            [(vec![1500, 9000], 64), (vec![1500, 9000], 36)]
        );
        neighbours.peers.clear();
        assert_eq!(shape(&neighbours), [(vec![], 0)]);
    }
}
