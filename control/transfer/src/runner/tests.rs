use std::collections::BTreeSet;

use weft_identity::authority::Authority;
use weft_planner::{Node, Topology};

use super::*;
use crate::{destinations::DestinationPhase, spec::Timing, tests::stand_in};

#[tokio::test]
async fn an_agent_that_takes_calls_and_says_nothing_is_given_up_within_seconds() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let name = |i: usize| format!("n{i}");
    let node = |i: usize| Node {
        name: name(i),
        address: None,
        leaf: "leaf0".into(),
        rate_bps: 1_000_000_000,
    };
    let topology = Topology {
        nodes: (0..2).map(node).collect(),
        uplinks: Vec::new(),
    };
    let spec = stand_in::spec(topology, Timing::INTERACTIVE);
    let endpoints: Vec<_> = (0..2)
        .map(|i| AgentEndpoint {
            node: name(i),
            address: address.clone(),
        })
        .collect();
    let pool = ConnectionPool::new(Arc::new(Authority::new("play").unwrap()));
    let mut runner = Runner::begin(spec, pool, &endpoints);
    while !runner.transfer().is_over() {
        runner.run_once().await;
    }
    // Stat alone would be waited for for 2 minutes.
    assert!(runner.now() < Duration::from_secs(10), "{:?}", runner.now());
    let phase = runner
        .transfer()
        .destinations()
        .next()
        .unwrap()
        .phase
        .clone();
    let DestinationPhase::Failed(failure) = phase else {
        panic!("{phase:?}");
    };
    assert_eq!(failure.reason, "NodeNeverReached");
    assert_eq!(
        failure.message,
        format!(
            "node n0 at {address} does not answer (no connection within 1.5s): check that \
             its agent runs and that the management network lets this port through"
        )
    );
}

#[tokio::test]
async fn a_former_destination_can_still_be_called() {
    let endpoint = |node: &str| AgentEndpoint {
        node: node.to_owned(),
        address: "127.0.0.1:1".to_owned(),
    };
    let topology = Topology {
        nodes: Vec::new(),
        uplinks: Vec::new(),
    };
    let spec = stand_in::spec(topology.clone(), Timing::INTERACTIVE);
    let update = DestinationsUpdate {
        destinations: Vec::new(),
        topology,
        payload_share: 1.0,
        configuration_pending: BTreeSet::new(),
    };
    let pool = ConnectionPool::new(Arc::new(Authority::new("play").unwrap()));
    let mut runner = Runner::begin(spec, pool, &[endpoint("n0"), endpoint("n1")]);
    for _ in 0..2 {
        runner.update_destinations(update.clone(), &[endpoint("n0")]);
        let agents: Vec<&String> = runner.context.agents.keys().collect();
        assert_eq!(agents, ["n0", "n1"]);
    }
}
