//! What holds for every plan, whatever the fabric.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use weft_planner::{Node, Plan, Request, Strategy as Tree, Topology, Uplink, plan};

const TREES: [Tree; 4] = [Tree::Auto, Tree::Direct, Tree::Chain, Tree::Binomial];

/// A fabric in which every leaf reaches every spine, so that there is a plan.
fn topologies() -> impl Strategy<Value = Topology> {
    let rates = || prop_oneof![Just(1_000_000_000u64), 1_000_000..400_000_000_000u64];
    (1..5usize, 1..5usize).prop_flat_map(move |(leaves, spines)| {
        let nodes = vec((0..leaves, rates()), 2..14);
        let uplinks = vec(rates(), leaves * spines);
        (nodes, uplinks).prop_map(move |(nodes, uplinks)| Topology {
            nodes: (0..)
                .zip(nodes)
                .map(|(index, (leaf, rate_bps)): (usize, _)| Node {
                    name: format!("node{index}"),
                    address: None,
                    leaf: format!("leaf{leaf}"),
                    rate_bps,
                })
                .collect(),
            uplinks: (0..)
                .zip(uplinks)
                .map(|(index, rate_bps): (usize, _)| Uplink {
                    leaf: format!("leaf{}", index / spines),
                    spine: format!("spine{}", index % spines),
                    rate_bps,
                })
                .collect(),
        })
    })
}

/// The source is `node0`; destinations are all others or some of them.
fn requests() -> impl Strategy<Value = (Topology, Request)> {
    topologies().prop_flat_map(|topology| {
        let others: Vec<String> = topology
            .nodes
            .iter()
            .skip(1)
            .map(|node| node.name.clone())
            .collect();
        let most = others.len();
        (
            Just(topology),
            proptest::sample::subsequence(others, 1..=most),
            prop_oneof![Just(0u64), 1..4096u64, 1..1u64 << 40],
            proptest::sample::select(&TREES[..]),
            prop_oneof![Just(1u64 << 20), 1..1u64 << 30],
            0.01..=1.0f64,
            0..10_000_000u64,
        )
            .prop_map(|(topology, to, bytes, strategy, block, share, latency)| {
                let request = Request {
                    strategy,
                    block_bytes: block,
                    payload_share: share,
                    hop_latency_ns: latency,
                    ..Request::new("node0", to, bytes)
                };
                (topology, request)
            })
    })
}

/// Bytes on the links whose name has this node at the given side of `->`.
fn bytes_at(plan: &Plan, has: impl Fn(&str, &str) -> bool) -> u64 {
    let ends = |name: &str| {
        let (from, to) = name.split_once("->").expect("a link joins two");
        has(from, to)
    };
    plan.links
        .iter()
        .filter(|link| ends(&link.name))
        .map(|link| link.bytes)
        .sum()
}

proptest! {
    #[test]
    fn every_destination_receives_exactly_once_from_a_tree_rooted_at_the_source(
        (topology, request) in requests()
    ) {
        let plan = plan(&request, &topology).unwrap();
        prop_assert_ne!(plan.strategy, Tree::Auto);
        prop_assert_eq!(&plan.assignments[0].node, &request.source);
        prop_assert_eq!(&plan.assignments[0].receives_from, &None);

        let mut depths = BTreeMap::new();
        for part in &plan.assignments {
            // The sender stands before its receivers, so there is no cycle.
            let depth = match &part.receives_from {
                None => 0,
                Some(from) => *depths.get(from.as_str()).expect("a sender comes first") + 1,
            };
            prop_assert_eq!(part.depth, depth);
            prop_assert_eq!(depths.insert(part.node.as_str(), depth), None);
        }
        let reached: BTreeSet<&str> = depths.keys().copied().collect();
        let wanted: BTreeSet<&str> = request
            .destinations
            .iter()
            .map(String::as_str)
            .chain([request.source.as_str()])
            .collect();
        prop_assert_eq!(reached, wanted);

        let sent: BTreeSet<(&str, &str)> = plan
            .assignments
            .iter()
            .flat_map(|part| part.sends_to.iter().map(|to| (part.node.as_str(), to.as_str())))
            .collect();
        let received: BTreeSet<(&str, &str)> = plan
            .assignments
            .iter()
            .filter_map(|part| Some((part.receives_from.as_deref()?, part.node.as_str())))
            .collect();
        prop_assert_eq!(sent, received);
    }

    #[test]
    fn bytes_on_links_add_up((topology, request) in requests()) {
        let plan = plan(&request, &topology).unwrap();
        let leaf = |node: &str| topology.node(node).unwrap().leaf.clone();
        let mut crossing = BTreeMap::<String, u64>::new();
        let mut entering = BTreeMap::<String, u64>::new();
        for part in &plan.assignments {
            let out = bytes_at(&plan, |from, _| from == part.node);
            prop_assert_eq!(out, request.bytes * part.sends_to.len() as u64);
            let into = bytes_at(&plan, |_, to| to == part.node);
            prop_assert_eq!(into, if part.depth == 0 { 0 } else { request.bytes });
            for to in part.sends_to.iter().filter(|to| leaf(to) != leaf(&part.node)) {
                *crossing.entry(leaf(&part.node)).or_default() += request.bytes;
                *entering.entry(leaf(to)).or_default() += request.bytes;
            }
        }
        for node in &topology.nodes {
            let up = bytes_at(&plan, |from, to| from == node.leaf && to.starts_with("spine"));
            prop_assert_eq!(up, crossing.get(&node.leaf).copied().unwrap_or(0));
            let down = bytes_at(&plan, |from, to| from.starts_with("spine") && to == node.leaf);
            prop_assert_eq!(down, entering.get(&node.leaf).copied().unwrap_or(0));
        }
    }

    #[test]
    fn a_leafs_uplinks_are_loaded_evenly((topology, request) in requests()) {
        let plan = plan(&request, &topology).unwrap();
        for node in &topology.nodes {
            let up = plan.links.iter().filter(|link| {
                link.name.starts_with(&format!("{}->spine", node.leaf))
            });
            let loads: Vec<u64> = up.map(|link| link.bytes).collect();
            let most = loads.iter().max().copied().unwrap_or(0);
            let least = loads.iter().min().copied().unwrap_or(0);
            // What cannot be divided goes to the first, once for each leaf at the other end.
            prop_assert!(most - least <= 4, "{:?}", loads);
        }
    }

    #[test]
    fn the_estimate_is_at_least_what_each_link_and_each_hop_takes((topology, request) in requests()) {
        let plan = plan(&request, &topology).unwrap();
        let hops = plan.assignments.iter().map(|part| part.depth).max().unwrap();
        let latency = f64::from(hops) * request.hop_latency_ns as f64 / 1e9;
        prop_assert!(plan.estimate_seconds >= latency * (1.0 - 1e-12));
        for link in &plan.links {
            let bits = link.bytes as f64 * 8.0;
            let expected = bits / (link.rate_bps as f64 * request.payload_share);
            prop_assert!((link.seconds - expected).abs() <= expected * 1e-12);
            prop_assert!(plan.estimate_seconds >= link.seconds);
        }
        prop_assert!(plan.links.is_sorted_by(|a, b| a.seconds >= b.seconds));
        prop_assert_eq!(&plan.bottleneck, &plan.links[0]);
    }

    #[test]
    fn the_order_of_the_lists_changes_nothing(
        (topology, request) in requests(),
        seed in any::<u64>(),
    ) {
        fn shuffle<T>(list: &mut [T], mut seed: u64) {
            for end in (1..list.len()).rev() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                list.swap(end, (seed >> 33) as usize % (end + 1));
            }
        }
        let (mut shuffled, mut again) = (topology.clone(), request.clone());
        shuffle(&mut shuffled.nodes, seed);
        shuffle(&mut shuffled.uplinks, seed);
        shuffle(&mut again.destinations, seed);
        prop_assert_eq!(plan(&request, &topology).unwrap(), plan(&again, &shuffled).unwrap());
    }

    #[test]
    fn auto_is_never_beaten((topology, request) in requests()) {
        let auto = plan(&Request { strategy: Tree::Auto, ..request.clone() }, &topology).unwrap();
        prop_assert_eq!(auto.alternatives.len(), 2);
        for tree in [Tree::Direct, Tree::Chain, Tree::Binomial] {
            let asked = Request { strategy: tree, ..request.clone() };
            let asked = plan(&asked, &topology).unwrap();
            prop_assert_eq!(asked.strategy, tree);
            prop_assert!(auto.estimate_seconds <= asked.estimate_seconds * (1.0 + 1e-9));
        }
    }

    #[test]
    fn a_chain_enters_every_other_leaf_once((topology, request) in requests()) {
        let plan = plan(&Request { strategy: Tree::Chain, ..request }, &topology).unwrap();
        let leaves: Vec<&str> =
            plan.assignments.iter().map(|part| topology.node(&part.node).unwrap().leaf.as_str()).collect();
        let crossings = leaves.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let distinct: BTreeSet<&str> = leaves.iter().copied().collect();
        prop_assert_eq!(crossings, distinct.len() - 1);
    }

    #[test]
    fn a_binomial_tree_takes_as_many_rounds_as_the_nodes_have_doublings(
        (topology, request) in requests()
    ) {
        let plan = plan(&Request { strategy: Tree::Binomial, ..request }, &topology).unwrap();
        let rounds = plan.assignments.len().next_power_of_two().trailing_zeros();
        prop_assert_eq!(plan.assignments[0].sends_to.len(), rounds as usize);
        for part in &plan.assignments {
            prop_assert!(part.depth <= rounds);
            prop_assert!(part.sends_to.len() <= rounds as usize);
        }
    }

    #[test]
    fn a_plan_survives_json((topology, request) in requests()) {
        let plan = plan(&request, &topology).unwrap();
        let text = serde_json::to_string(&plan).unwrap();
        let back: Plan = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(back.assignments, plan.assignments);
        prop_assert_eq!(back.links.len(), plan.links.len());
        prop_assert!((back.estimate_seconds - plan.estimate_seconds).abs() <= plan.estimate_seconds * 1e-12);
    }
}
