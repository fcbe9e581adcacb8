//! Everybody sends to the next: every NIC carries the data once, and the last node is as many hops
//! away as there are destinations.

/// See [`super::Tree`].
pub(super) fn tree(nodes: usize) -> Vec<Vec<usize>> {
    (0..nodes)
        .map(|node| (node + 1..nodes).take(1).collect())
        .collect()
}
