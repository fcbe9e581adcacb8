//! Long files, reported.

use super::{Finding, Rule, Weight};
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "long-file",
    says: "A Rust file beyond 700 lines is reported.",
    why: "It usually holds a second noun that wants a file of its own.",
    weight: Weight::Report,
    check,
};

const MOST_LINES: usize = 700;

fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .map(|(file, _)| (file, file.lines().count()))
        .filter(|(_, lines)| *lines > MOST_LINES)
        .map(|(file, lines)| Finding::of(&file.path, format!("{lines} lines")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_long_beyond_the_limit_only() {
        let (just, beyond) = ("\n".repeat(MOST_LINES), "\n".repeat(MOST_LINES + 1));
        let tree = Tree::of([("a.rs", &just), ("b.rs", &beyond), ("b.md", &beyond)]);
        assert_eq!(check(&tree), [Finding::of("b.rs", "701 lines")]);
    }
}
