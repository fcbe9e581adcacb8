//! The source sends to everybody: one hop, and `destinations × bytes` through the source's NIC.

/// See [`super::Tree`].
pub(super) fn tree(nodes: usize) -> Vec<Vec<usize>> {
    (0..nodes)
        .map(|node| {
            if node == 0 {
                (1..nodes).collect()
            } else {
                Vec::new()
            }
        })
        .collect()
}
