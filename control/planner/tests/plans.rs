//! Plans of known fabrics: whole ones as snapshots, and what must come out of each input.

use std::fmt::Write as _;

use weft_planner::{
    CHECK_BYTES_PER_SECOND, HOP_LATENCY_NS, Node, PAYLOAD_SHARE, Plan, PlanError, RECEIVERS_MAX,
    Request, Seconds, Strategy, Topology, TopologyError, Uplink, plan,
};

const GBIT: u64 = 1_000_000_000;

/// `node0…` dealt out over `leaf0…` in runs, every leaf with one link to each of `spine0…`.
fn fabric(nodes: usize, leaves: usize, spines: usize, node_bps: u64, spine_bps: u64) -> Topology {
    let node = |index| Node {
        name: format!("node{index}"),
        address: None,
        leaf: format!("leaf{}", index * leaves / nodes),
        rate_bps: node_bps,
    };
    let uplink = |index| Uplink {
        leaf: format!("leaf{}", index / spines),
        spine: format!("spine{}", index % spines),
        rate_bps: spine_bps,
    };
    Topology {
        nodes: (0..nodes).map(node).collect(),
        uplinks: (0..leaves * spines).map(uplink).collect(),
    }
}

fn to_all(topology: &Topology, bytes: u64) -> Request {
    let others = topology.nodes.iter().skip(1).map(|node| node.name.clone());
    Request::new("node0", others.collect(), bytes)
}

fn with(strategy: Strategy, topology: &Topology, bytes: u64) -> Plan {
    let request = Request {
        strategy,
        ..to_all(topology, bytes)
    };
    plan(&request, topology).expect("the fabric has a path between any two nodes")
}

/// Fixed precision, so that a snapshot shows a changed number and not a changed last bit.
fn shown(plan: &Plan) -> String {
    let mut lines = vec![
        format!(
            "{} of {} bytes by {}",
            plan.strategy, plan.bytes, plan.block_bytes
        ),
        plan.why.clone(),
        format!(
            "estimate {:.6} s, bottleneck {}",
            plan.estimate_seconds, plan.bottleneck.name
        ),
    ];
    for other in &plan.alternatives {
        lines.push(format!(
            "  or {} {:.6} s",
            other.strategy, other.estimate_seconds
        ));
    }
    for part in &plan.assignments {
        let from = part.receives_from.as_deref().unwrap_or("-");
        let to = part.sends_to.join(" ");
        let line = format!("{} {} <- {from}, -> {to}", part.depth, part.node);
        lines.push(line.trim_end().to_owned());
    }
    for link in &plan.links {
        let (name, bytes, rate_bps) = (&link.name, link.bytes, link.rate_bps);
        lines.push(format!(
            "{name}: {bytes} bytes at {rate_bps} bit/s, {:.6} s",
            link.seconds
        ));
    }
    lines.join("\n")
}

#[test]
fn large_data_on_four_nodes_goes_by_chain() {
    let fabric = fabric(4, 2, 4, GBIT, GBIT);
    insta::assert_snapshot!(
        "four_nodes_large",
        shown(&with(Strategy::Auto, &fabric, 256 << 20))
    );
}

#[test]
fn small_data_on_four_nodes_goes_in_few_hops() {
    let fabric = fabric(4, 2, 4, GBIT, GBIT);
    insta::assert_snapshot!(
        "four_nodes_small",
        shown(&with(Strategy::Auto, &fabric, 64))
    );
}

#[test]
fn middling_data_on_eight_nodes_goes_by_binomial_tree() {
    let fabric = fabric(8, 2, 4, GBIT, GBIT);
    let plan = with(Strategy::Auto, &fabric, 256 << 10);
    insta::assert_snapshot!("eight_nodes_middling", shown(&plan));
}

#[test]
fn large_data_on_eight_nodes_with_thin_spines_is_held_up_there() {
    let fabric = fabric(8, 2, 2, 10 * GBIT, GBIT);
    let plan = with(Strategy::Direct, &fabric, 1 << 30);
    insta::assert_snapshot!("eight_nodes_thin_spines_direct", shown(&plan));
    let plan = with(Strategy::Auto, &fabric, 1 << 30);
    insta::assert_snapshot!("eight_nodes_thin_spines", shown(&plan));
}

#[test]
fn estimates_over_sizes_and_groups() {
    let mut table = "nodes bytes direct binomial chain auto\n".to_owned();
    for nodes in [2, 4, 8, 64, 512] {
        let fabric = fabric(nodes, nodes.div_ceil(16), 8, 100 * GBIT, 100 * GBIT);
        for bytes in [64, 64 << 10, 1 << 20, 16 << 20, 512 << 20, 16 << 30] {
            let seconds = |strategy| {
                if strategy == Strategy::Direct && nodes > RECEIVERS_MAX + 1 {
                    return "-".to_owned();
                }
                Seconds(with(strategy, &fabric, bytes).estimate_seconds).to_string()
            };
            writeln!(
                table,
                "{nodes} {bytes} {} | {} | {} | {}",
                seconds(Strategy::Direct),
                seconds(Strategy::Binomial),
                seconds(Strategy::Chain),
                with(Strategy::Auto, &fabric, bytes).strategy,
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!("estimates_over_sizes_and_groups", table);
}

#[test]
fn the_known_formulas_come_out_for_one_rate() {
    let bytes = 64 << 20;
    let rate = GBIT as f64 * PAYLOAD_SHARE / 8.0;
    let whole = bytes as f64 / rate;
    let block = weft_planner::BLOCK_BYTES as f64;
    let hop = HOP_LATENCY_NS as f64 / 1e9 + block / CHECK_BYTES_PER_SECOND;
    for nodes in [2usize, 3, 8, 13, 64] {
        let fabric = fabric(nodes, 1, 0, GBIT, GBIT);
        let near = |strategy, expected: f64| {
            let estimate = with(strategy, &fabric, bytes).estimate_seconds;
            assert!(
                (estimate - expected).abs() < expected * 1e-9,
                "{strategy}: {estimate}"
            );
        };
        let n = (nodes - 1) as f64;
        near(Strategy::Direct, n * whole + hop);
        near(Strategy::Chain, whole + (n - 1.0) * block / rate + n * hop);
        if nodes.is_power_of_two() {
            let rounds = f64::from(nodes.trailing_zeros());
            near(Strategy::Binomial, rounds * whole + rounds * hop);
        }
    }
}

#[test]
fn a_chain_over_many_nodes_takes_little_longer_than_one_copy() {
    let fabric = fabric(8, 2, 4, 300_000_000, GBIT);
    let plan = with(Strategy::Chain, &fabric, 256 << 20);
    let one_copy = plan.bottleneck.seconds;
    assert!(
        plan.estimate_seconds < one_copy * 1.05,
        "{} of {one_copy}",
        plan.estimate_seconds
    );
}

#[test]
fn equal_estimates_go_to_fewer_hops() {
    let fabric = fabric(2, 1, 0, GBIT, GBIT);
    let plan = with(Strategy::Auto, &fabric, 1 << 30);
    assert_eq!(plan.strategy, Strategy::Direct);
    assert!(
        plan.why
            .starts_with("direct has the lowest estimate and the fewest hops: ")
    );
}

#[test]
fn nothing_to_send_takes_one_hop() {
    let plan = with(Strategy::Auto, &fabric(4, 2, 2, GBIT, GBIT), 0);
    assert_eq!(plan.strategy, Strategy::Direct);
    assert!((plan.estimate_seconds - HOP_LATENCY_NS as f64 / 1e9).abs() < 1e-12);
}

#[test]
fn the_last_block_may_be_short_and_the_data_shorter_than_one() {
    let fabric = fabric(3, 1, 0, GBIT, GBIT);
    let whole = |bytes: u64| bytes as f64 * 8.0 / (GBIT as f64 * PAYLOAD_SHARE);
    let plan = with(Strategy::Chain, &fabric, 1000);
    let hops = 2.0 * (HOP_LATENCY_NS as f64 / 1e9 + 1000.0 / CHECK_BYTES_PER_SECOND);
    assert!((plan.estimate_seconds - (2.0 * whole(1000) + hops)).abs() < 1e-12);
}

#[test]
fn a_strategy_without_a_path_is_passed_over_by_auto_and_refused_when_asked_for() {
    let node = |name: &str, leaf: &str| Node {
        name: name.to_owned(),
        address: None,
        leaf: leaf.to_owned(),
        rate_bps: GBIT,
    };
    let uplink = |leaf: &str, spine: &str| Uplink {
        leaf: leaf.to_owned(),
        spine: spine.to_owned(),
        rate_bps: GBIT,
    };
    // Leaves 1 and 2 meet leaf 0, but not each other.
    let topology = Topology {
        nodes: vec![
            node("node0", "leaf0"),
            node("node1", "leaf1"),
            node("node2", "leaf2"),
        ],
        uplinks: vec![
            uplink("leaf0", "spine0"),
            uplink("leaf0", "spine1"),
            uplink("leaf1", "spine0"),
            uplink("leaf2", "spine1"),
        ],
    };
    let auto = with(Strategy::Auto, &topology, 1 << 30);
    assert_eq!(auto.strategy, Strategy::Direct);
    let chain = Request {
        strategy: Strategy::Chain,
        ..to_all(&topology, 1)
    };
    let error = plan(&chain, &topology).unwrap_err();
    assert_eq!(error.reason(), "PlanNoPath");
    assert_eq!(
        error.to_string(),
        "no spine joins leaf \"leaf1\" (node \"node1\") and leaf \"leaf2\" (node \"node2\"): \
         add uplinks of both to one spine"
    );
}

#[test]
fn bad_requests_name_the_field_and_the_remedy() {
    let fabric = fabric(3, 1, 0, GBIT, GBIT);
    let good = to_all(&fabric, 1);
    let to = |names: &[&str]| {
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>()
    };
    let refused = |request: Request| plan(&request, &fabric).unwrap_err().to_string();
    assert_eq!(
        refused(Request {
            source: "node7".to_owned(),
            ..good.clone()
        }),
        "source names \"node7\", which is not a node: use one of node0, node1, node2"
    );
    assert_eq!(
        refused(Request {
            destinations: to(&["node1", "nod2"]),
            ..good.clone()
        }),
        "destinations[1] names \"nod2\", which is not a node: use one of node0, node1, node2"
    );
    assert_eq!(
        refused(Request {
            destinations: to(&["node1", "node0"]),
            ..good.clone()
        }),
        "destinations[1] \"node0\" is the source: leave it out"
    );
    assert_eq!(
        refused(Request {
            destinations: to(&["node1", "node1"]),
            ..good.clone()
        }),
        "destinations[1] \"node1\" is named twice: name it once"
    );
    assert_eq!(
        refused(Request {
            destinations: Vec::new(),
            ..good.clone()
        }),
        "destinations is empty: name at least one node other than the source"
    );
    assert_eq!(
        refused(Request {
            block_bytes: 0,
            ..good.clone()
        }),
        "block_bytes is 0: give at least 1, 1048576 is usual"
    );
    for share in [0.0, -1.0, 1.01, f64::NAN, f64::INFINITY] {
        let error = plan(
            &Request {
                payload_share: share,
                ..good.clone()
            },
            &fabric,
        );
        assert_eq!(error.unwrap_err().reason(), "PlanBadPayloadShare");
    }
    assert_eq!(
        plan(
            &Request {
                bytes: u64::MAX / 2 + 1,
                ..good
            },
            &fabric
        ),
        Err(PlanError::TooManyBytes {
            bytes: u64::MAX / 2 + 1,
            destinations: 2
        })
    );
}

#[test]
fn bad_topologies_name_the_field_and_the_remedy() {
    let refused = |change: &dyn Fn(&mut Topology)| {
        let mut topology = fabric(4, 2, 2, GBIT, GBIT);
        change(&mut topology);
        let error = topology.validate().unwrap_err();
        assert_eq!(
            plan(&to_all(&fabric(4, 2, 2, GBIT, GBIT), 1), &topology),
            Err(PlanError::Topology(error.clone()))
        );
        error.to_string()
    };
    assert_eq!(
        refused(&|t| t.nodes[2].leaf.clear()),
        "nodes[2].leaf is \"\": give a name without blanks or control characters"
    );
    assert_eq!(
        refused(&|t| t.nodes[1].name = "node 1".to_owned()),
        "nodes[1].name is \"node 1\": give a name without blanks or control characters"
    );
    assert_eq!(
        refused(&|t| t.nodes[3].name = "node0".to_owned()),
        "nodes[3].name \"node0\" is also the name of nodes[0]: give every node its own"
    );
    assert_eq!(
        refused(&|t| {
            t.nodes[0].address = Some("10.0.0.1:7400".to_owned());
            t.nodes[1].address = Some("10.0.0.1:7400".to_owned());
        }),
        "nodes[1].address \"10.0.0.1:7400\" is also the address of nodes[0]: give every node its own"
    );
    assert_eq!(
        refused(&|t| t.nodes[0].rate_bps = 0),
        "nodes[0].rate_bps is 0: give the line rate in bits per second, 1000000000 for 1 Gbit/s"
    );
    assert_eq!(
        refused(&|t| t.uplinks[3].rate_bps = 0),
        "uplinks[3].rate_bps is 0: give the line rate in bits per second, 1000000000 for 1 Gbit/s"
    );
    assert_eq!(
        refused(&|t| t.uplinks[1].spine = "spine0".to_owned()),
        "uplinks[1] joins \"leaf0\" and \"spine0\", as uplinks[0] does: \
         write parallel links as one entry with the sum of their rates"
    );
    assert_eq!(Topology::default().validate(), Err(TopologyError::NoNodes));
}

#[test]
fn seconds_are_shown_with_three_digits() {
    for (seconds, text) in [
        (0.0, "0 s"),
        (64e-9, "0.06 µs"),
        (50e-6, "50.0 µs"),
        (0.000_999_6, "1.00 ms"),
        (0.1234, "123 ms"),
        (0.9996, "1.00 s"),
        (2.346, "2.35 s"),
        (99.96, "100 s"),
        (3600.0, "3600 s"),
    ] {
        assert_eq!(Seconds(seconds).to_string(), text);
    }
}

#[test]
fn no_node_sends_to_more_nodes_than_an_agent_does() {
    for nodes in [RECEIVERS_MAX + 1, RECEIVERS_MAX + 2, 5000] {
        let topology = fabric(nodes, 1, 1, GBIT, GBIT);
        let plan = with(Strategy::Auto, &topology, 1000);
        let receivers = plan.assignments.iter().map(|one| one.sends_to.len());
        assert!(receivers.max().unwrap() <= RECEIVERS_MAX, "{nodes} nodes");
    }
    let topology = fabric(RECEIVERS_MAX + 1, 1, 1, GBIT, GBIT);
    let all = with(Strategy::Direct, &topology, 1000);
    assert_eq!(all.assignments[0].sends_to.len(), RECEIVERS_MAX);
    let topology = fabric(80, 1, 1, GBIT, GBIT);
    let request = Request {
        strategy: Strategy::Direct,
        ..to_all(&topology, 1000)
    };
    let error = plan(&request, &topology).unwrap_err();
    assert_eq!(error.reason(), "PlanTooManyReceivers");
    assert!(
        error
            .to_string()
            .contains("send to 79, and an agent sends to 64 at most"),
        "{error}"
    );
}
