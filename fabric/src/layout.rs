//! The address plan and the configuration that follows from it, as text for the tools.
//!
//! | what | address |
//! |---|---|
//! | NIC N of node i, the s-th on leaf L (L = i mod leaves, s = i / leaves) | `10.87.L.(10 + nics · s + N)` |
//! | leaf L as seen by its nodes | `10.87.L.1` |
//! | between spine S and leaf L | spine `10.88.S.(2L)`, leaf `10.88.S.(2L + 1)` |
//! | node i, management | `10.254.0.(i + 1)` |
//! | the process that built the fabric, management | `10.254.0.254` |
//!
//! Interfaces are named after the other end (`spine2` on a leaf, `leaf0` on a spine, `node3` on a
//! leaf, and `node3-1` to the second of its NICs); a node has `data0`, `data1`, … and `mgmt0`. Hardware addresses are derived from the same numbers, and
//! every neighbour is entered for good: a first burst is never lost to address resolution, and an
//! idle fabric carries no byte.

use std::{fmt::Write, net::Ipv4Addr};

use crate::Spec;

/// The bridge of the management network.
pub(crate) const MANAGEMENT_BRIDGE: &str = "weft-mgmt";
/// Address of the builder of the fabric on the management network.
pub(crate) const MANAGEMENT_HOST: Ipv4Addr = Ipv4Addr::new(10, 254, 0, 254);
/// A node's port on the management network.
pub(crate) const NODE_MANAGEMENT_PORT: &str = "mgmt0";
/// Covers the token bucket's largest jump at any rate that is allowed.
const TBF: &str = "burst 256kb latency 5ms";
/// A leaf's first node has this in its last byte.
const FIRST_NODE: u8 = 10;

/// All names, addresses and scripts of one fabric.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    spec: Spec,
}

/// A namespace of the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Node(usize),
    Leaf(usize),
    Spine(usize),
}

impl Place {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Node(i) => format!("node{i}"),
            Self::Leaf(i) => format!("leaf{i}"),
            Self::Spine(i) => format!("spine{i}"),
        }
    }
}

/// Which network a link belongs to, and which of its ends a hardware address is for.
#[derive(Clone, Copy)]
enum End {
    Node = 1,
    LeafToNode = 2,
    Spine = 3,
    LeafToSpine = 4,
    Management = 5,
}

/// Of the builder of the fabric, among the hardware addresses of the management network.
const BUILDER: usize = 255;

/// The bounds of [`Spec::validate`] keep every number of the plan within a byte.
fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// A locally administered hardware address.
fn hardware(end: End, major: usize, minor: usize) -> String {
    format!(
        "02:57:46:{:02x}:{:02x}:{:02x}",
        end as u8,
        byte(major),
        byte(minor)
    )
}

impl Layout {
    /// Of a spec that has been validated.
    pub(crate) fn new(spec: Spec) -> Self {
        Self { spec }
    }

    pub(crate) fn spec(&self) -> &Spec {
        &self.spec
    }

    pub(crate) fn leaf_of(&self, node: usize) -> usize {
        node % self.spec.leaves
    }

    /// Of a NIC of a node.
    pub(crate) fn data_address(&self, node: usize, nic: usize) -> Ipv4Addr {
        let slot = byte(node / self.spec.leaves * self.spec.nics + nic);
        Ipv4Addr::new(
            10,
            87,
            byte(self.leaf_of(node)),
            FIRST_NODE.saturating_add(slot),
        )
    }

    pub(crate) fn management_address(node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 254, 0, byte(node + 1))
    }

    fn gateway(leaf: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 87, byte(leaf), 1)
    }

    fn spine_address(spine: usize, leaf: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, byte(spine), byte(2 * leaf))
    }

    fn uplink_address(spine: usize, leaf: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, byte(spine), byte(2 * leaf + 1))
    }

    fn subnet(leaf: usize) -> String {
        format!("10.87.{leaf}.0/24")
    }

    fn nodes_on(&self, leaf: usize) -> impl Iterator<Item = usize> {
        (leaf..self.spec.nodes).step_by(self.spec.leaves)
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        (0..self.spec.nodes)
            .map(Place::Node)
            .chain((0..self.spec.leaves).map(Place::Leaf))
            .chain((0..self.spec.spines).map(Place::Spine))
            .collect()
    }

    /// A node's port on the data network.
    pub(crate) fn node_port(nic: usize) -> String {
        format!("data{nic}")
    }

    /// The leaf's port towards it.
    pub(crate) fn leaf_port(node: usize, nic: usize) -> String {
        match nic {
            0 => Place::Node(node).name(),
            nic => format!("{}-{nic}", Place::Node(node).name()),
        }
    }

    /// The leaf's ports towards all NICs of a node.
    pub(crate) fn leaf_ports(&self, node: usize) -> impl Iterator<Item = String> {
        (0..self.spec.nics).map(move |nic| Self::leaf_port(node, nic))
    }

    /// The data ports of a namespace, each with the rate of what it sends.
    pub(crate) fn ports(&self, place: Place) -> Vec<(String, Option<u64>)> {
        let spec = &self.spec;
        match place {
            Place::Node(_) => (0..spec.nics)
                .map(|nic| (Self::node_port(nic), spec.node_rate))
                .collect(),
            Place::Leaf(leaf) => self
                .nodes_on(leaf)
                .flat_map(|node| self.leaf_ports(node))
                .map(|port| (port, spec.node_rate))
                .chain((0..spec.spines).map(|spine| (Place::Spine(spine).name(), None)))
                .collect(),
            Place::Spine(_) => (0..spec.leaves)
                .map(|leaf| (Place::Leaf(leaf).name(), spec.rate))
                .collect(),
        }
    }

    /// All ports of a namespace, of both networks.
    pub(crate) fn links_of(&self, place: Place) -> Vec<String> {
        let management = matches!(place, Place::Node(_)).then(|| NODE_MANAGEMENT_PORT.to_owned());
        self.ports(place)
            .into_iter()
            .map(|(port, _)| port)
            .chain(management)
            .collect()
    }

    /// The builder's own ports.
    pub(crate) fn management_links(&self) -> Vec<String> {
        let ports = (0..self.spec.nodes).map(Self::management_port);
        ports.chain([MANAGEMENT_BRIDGE.to_owned()]).collect()
    }

    /// All links, for `ip -batch` in the builder's own namespace.
    pub(crate) fn links(&self) -> String {
        let mtu = self.spec.mtu;
        let mut script = format!(
            "link set lo up\n\
             link add {MANAGEMENT_BRIDGE} address {} type bridge\n\
             addr add {MANAGEMENT_HOST}/24 dev {MANAGEMENT_BRIDGE}\n\
             link set {MANAGEMENT_BRIDGE} up\n",
            hardware(End::Management, 0, BUILDER)
        );
        let mut veth = |port: &str, at: Place, mac: String, peer: &str, of: Place, its: String| {
            let (at, of) = (at.name(), of.name());
            writeln!(
                script,
                "link add name {port} netns {at} mtu {mtu} address {mac} type veth \
                 peer name {peer} netns {of} mtu {mtu} address {its}"
            )
        };
        for node in 0..self.spec.nodes {
            let (from, to) = (Place::Node(node), Place::Leaf(self.leaf_of(node)));
            for nic in 0..self.spec.nics {
                let (port, peer) = (Self::node_port(nic), Self::leaf_port(node, nic));
                let mac = hardware(End::Node, nic, node);
                let its = hardware(End::LeafToNode, nic, node);
                infallible(veth(&port, from, mac, &peer, to, its));
            }
        }
        for spine in 0..self.spec.spines {
            for leaf in 0..self.spec.leaves {
                let (from, to) = (Place::Spine(spine), Place::Leaf(leaf));
                let mac = hardware(End::Spine, spine, leaf);
                let its = hardware(End::LeafToSpine, spine, leaf);
                infallible(veth(&to.name(), from, mac, &from.name(), to, its));
            }
        }
        for node in 0..self.spec.nodes {
            let (port, name) = (Self::management_port(node), Place::Node(node).name());
            let mac = hardware(End::Management, 0, node);
            infallible(writeln!(
                script,
                "link add name {port} type veth \
                 peer name {NODE_MANAGEMENT_PORT} netns {name} address {mac}\n\
                 link set {port} master {MANAGEMENT_BRIDGE} up\n\
                 neigh add {} lladdr {mac} dev {MANAGEMENT_BRIDGE} nud permanent",
                Self::management_address(node)
            ));
        }
        script
    }

    /// The bridge's port towards a node.
    pub(crate) fn management_port(node: usize) -> String {
        format!("mgmt-{}", Place::Node(node).name())
    }

    /// Addresses and routes of one namespace, for `ip -batch` there.
    pub(crate) fn addresses(&self, place: Place) -> String {
        let mut script = String::from("link set lo up\n");
        for (port, _) in self.ports(place) {
            infallible(writeln!(script, "link set {port} up"));
        }
        infallible(match place {
            Place::Node(node) => self.node_addresses(&mut script, node),
            Place::Leaf(leaf) => self.leaf_addresses(&mut script, leaf),
            Place::Spine(spine) => self.spine_addresses(&mut script, spine),
        });
        script
    }

    fn node_addresses(&self, script: &mut String, node: usize) -> std::fmt::Result {
        let gateway = Self::gateway(self.leaf_of(node));
        for nic in 0..self.spec.nics {
            script.push_str(&self.way_from_node(node, nic, gateway));
        }
        let management = Self::management_address(node);
        writeln!(
            script,
            "addr add {management}/24 dev {NODE_MANAGEMENT_PORT}\n\
             link set {NODE_MANAGEMENT_PORT} up"
        )?;
        // The table of neighbours that are not entered for good is one for the whole machine, and has room for 1,024.
        let others = (0..self.spec.nodes).filter(|other| *other != node);
        let others = others.map(|other| (Self::management_address(other), other));
        for (address, number) in others.chain([(MANAGEMENT_HOST, BUILDER)]) {
            let mac = hardware(End::Management, 0, number);
            writeln!(
                script,
                "neigh add {address} lladdr {mac} dev {NODE_MANAGEMENT_PORT} nud permanent"
            )?;
        }
        Ok(())
    }

    fn leaf_addresses(&self, script: &mut String, leaf: usize) -> std::fmt::Result {
        writeln!(script, "addr add {}/32 dev lo", Self::gateway(leaf))?;
        for node in self.nodes_on(leaf) {
            for nic in 0..self.spec.nics {
                script.push_str(&self.way_to_node(node, nic));
            }
        }
        for spine in 0..self.spec.spines {
            let (own, via) = (
                Self::uplink_address(spine, leaf),
                Self::spine_address(spine, leaf),
            );
            let mac = hardware(End::Spine, spine, leaf);
            writeln!(script, "addr add {own}/31 dev spine{spine}")?;
            writeln!(
                script,
                "neigh add {via} lladdr {mac} dev spine{spine} nud permanent"
            )?;
        }
        for other in (0..self.spec.leaves).filter(|other| *other != leaf) {
            // In the same order on every leaf: the hash of a port pair is the same in both
            // directions and picks the n-th next hop, which then is the same spine.
            write!(script, "route add {}", Self::subnet(other))?;
            for spine in 0..self.spec.spines {
                write!(script, " nexthop via {}", Self::spine_address(spine, leaf))?;
                write!(script, " dev spine{spine}")?;
            }
            writeln!(script)?;
        }
        Ok(())
    }

    /// Of a NIC of a node, for `ip -batch` there. Each has a route of its own, which a socket takes that is bound to its port.
    fn way_from_node(&self, node: usize, nic: usize, gateway: Ipv4Addr) -> String {
        let (address, port) = (self.data_address(node, nic), Self::node_port(nic));
        let mac = hardware(End::LeafToNode, nic, node);
        format!(
            "addr add {address}/32 dev {port}\n\
             neigh add {gateway} lladdr {mac} dev {port} nud permanent\n\
             route add {gateway}/32 dev {port} scope link metric {nic}\n\
             route add 10.87.0.0/16 via {gateway} dev {port} src {address} metric {nic}\n"
        )
    }

    /// To a NIC of a node from its leaf, for `ip -batch` there. The kernel forgets it when the port goes down.
    pub(crate) fn way_to_node(&self, node: usize, nic: usize) -> String {
        let (address, port) = (self.data_address(node, nic), Self::leaf_port(node, nic));
        let mac = hardware(End::Node, nic, node);
        format!(
            "route replace {address}/32 dev {port}\n\
             neigh replace {address} lladdr {mac} dev {port} nud permanent\n"
        )
    }

    fn spine_addresses(&self, script: &mut String, spine: usize) -> std::fmt::Result {
        for leaf in 0..self.spec.leaves {
            let (own, via) = (
                Self::spine_address(spine, leaf),
                Self::uplink_address(spine, leaf),
            );
            let mac = hardware(End::LeafToSpine, spine, leaf);
            writeln!(script, "addr add {own}/31 dev leaf{leaf}")?;
            writeln!(
                script,
                "neigh add {via} lladdr {mac} dev leaf{leaf} nud permanent"
            )?;
            writeln!(
                script,
                "route add {} via {via} dev leaf{leaf}",
                Self::subnet(leaf)
            )?;
        }
        Ok(())
    }

    /// Rates of one namespace's ports, for `tc -batch` there; empty where nothing is shaped.
    pub(crate) fn rates(&self, place: Place) -> String {
        let mut script = String::new();
        for (port, rate) in self.ports(place) {
            if let Some(rate) = rate {
                infallible(writeln!(
                    script,
                    "qdisc add dev {port} root tbf rate {rate}bit {TBF}"
                ));
            }
        }
        script
    }
}

/// Writing to a `String` cannot fail.
fn infallible(result: std::fmt::Result) {
    debug_assert!(result.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_leaves_list_the_spines_in_the_same_order() {
        let layout = Layout::new(Spec {
            spines: 2,
            ..Spec::default()
        });
        assert!(layout.addresses(Place::Leaf(0)).ends_with(
            "route add 10.87.1.0/24 nexthop via 10.88.0.0 dev spine0 \
             nexthop via 10.88.1.0 dev spine1\n"
        ));
        assert!(layout.addresses(Place::Leaf(1)).ends_with(
            "route add 10.87.0.0/24 nexthop via 10.88.0.2 dev spine0 \
             nexthop via 10.88.1.2 dev spine1\n"
        ));
    }

    #[test]
    fn nodes_take_turns_on_the_leaves() {
        let layout = Layout::new(Spec::default());
        let addresses: Vec<_> = (0..4)
            .map(|i| layout.data_address(i, 0).to_string())
            .collect();
        assert_eq!(
            addresses,
            ["10.87.0.10", "10.87.1.10", "10.87.0.11", "10.87.1.11"]
        );
    }

    #[test]
    fn every_address_of_the_largest_fabric_is_its_own() {
        let (nodes, leaves) = (crate::MAX_NODES, crate::MAX_LEAVES);
        for leaves in [1, leaves] {
            let layout = Layout::new(Spec {
                nodes,
                leaves,
                ..Spec::default()
            });
            let mut seen: Vec<_> = (0..nodes).map(|i| layout.data_address(i, 0)).collect();
            seen.extend((0..nodes).map(Layout::management_address));
            seen.extend((0..leaves).map(Layout::gateway));
            seen.push(MANAGEMENT_HOST);
            let all = seen.len();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), all);
        }
    }

    #[test]
    fn every_nic_has_an_address_ports_and_a_route_of_its_own() {
        let layout = Layout::new(Spec {
            nics: 2,
            ..Spec::default()
        });
        let addresses = [(0, 0), (0, 1), (2, 0)].map(|(node, nic)| layout.data_address(node, nic));
        assert_eq!(
            addresses.map(|it| it.to_string()),
            ["10.87.0.10", "10.87.0.11", "10.87.0.12"]
        );
        let ports = layout.ports(Place::Leaf(1)).into_iter();
        let ports: Vec<_> = ports.map(|(port, _)| port).take(4).collect();
        assert_eq!(ports, ["node1", "node1-1", "node3", "node3-1"]);
        let script = layout.addresses(Place::Node(0));
        let route = "route add 10.87.0.0/16 via 10.87.0.1 dev data1 src 10.87.0.11 metric 1\n";
        assert!(script.contains(route), "{script}");
    }

    #[test]
    fn no_node_asks_for_the_hardware_address_of_another() {
        let layout = Layout::new(Spec::default());
        let of_builder = layout.links();
        for node in 0..4 {
            let at_node = layout.addresses(Place::Node(node));
            for other in (0..4).filter(|other| *other != node) {
                let address = Layout::management_address(other);
                assert!(at_node.contains(&format!("neigh add {address} lladdr 02:57:46:05:00:")));
            }
            assert!(at_node.contains("neigh add 10.254.0.254 lladdr 02:57:46:05:00:ff dev mgmt0"));
            let address = Layout::management_address(node);
            assert!(of_builder.contains(&format!("neigh add {address} lladdr 02:57:46:05:00:")));
        }
    }

    #[test]
    fn only_spines_send_at_the_spine_rate_and_both_ends_of_a_node_link_at_the_node_rate() {
        let spec = Spec {
            rate: Some(5),
            node_rate: Some(7),
            nodes: 2,
            spines: 1,
            ..Spec::default()
        };
        let layout = Layout::new(spec);
        let tbf = "burst 256kb latency 5ms";
        assert_eq!(
            layout.rates(Place::Spine(0)),
            format!(
                "qdisc add dev leaf0 root tbf rate 5bit {tbf}\n\
                 qdisc add dev leaf1 root tbf rate 5bit {tbf}\n"
            )
        );
        let node = |port| format!("qdisc add dev {port} root tbf rate 7bit {tbf}\n");
        assert_eq!(layout.rates(Place::Leaf(1)), node("node1"));
        assert_eq!(layout.rates(Place::Node(1)), node("data0"));
    }
}
