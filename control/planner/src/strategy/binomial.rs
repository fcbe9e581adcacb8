//! In every round each node that has the data sends it to one that has not: `⌈log2(nodes)⌉` rounds,
//! and as many copies through the source's NIC.
//!
//! The line is halved again and again, and the head of a half sends to the head of the other. As the
//! line has the nodes of a leaf side by side, the first copies cross leaves and the later ones stay
//! within.

/// See [`super::Tree`].
pub(super) fn tree(nodes: usize) -> Vec<Vec<usize>> {
    let mut sends_to = vec![Vec::new(); nodes];
    let mut parts = vec![(0, nodes)];
    while let Some((head, mut end)) = parts.pop() {
        // The far half first: it has the most nodes to reach after this one.
        while end - head > 1 {
            let middle = head + (end - head).div_ceil(2);
            sends_to[head].push(middle);
            parts.push((middle, end));
            end = middle;
        }
    }
    sends_to
}
