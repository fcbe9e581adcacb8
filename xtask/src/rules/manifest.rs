//! Every crate takes the workspace's lints.

use super::{Finding, Rule, Weight};
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "shared-lints",
    says: "Every crate of the workspace has `[lints] workspace = true`.",
    why: "A crate without it compiles with none of the shared lints, and nothing says so.",
    weight: Weight::Error,
    check,
};

fn check(tree: &Tree) -> Vec<Finding> {
    tree.files()
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
        // A workspace of its own, as fuzz/ is, has lints of its own.
        .filter(|file| !file.text.contains("[workspace]"))
        .filter(|file| !file.text.contains("[lints]\nworkspace = true"))
        .map(|file| Finding::of(&file.path, "add `[lints]` with `workspace = true`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_the_shared_lints_is_found() {
        let tree = Tree::of([
            ("a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n"),
            ("b/Cargo.toml", "[package]\n"),
            ("fuzz/Cargo.toml", "[workspace]\n[package]\n"),
            ("Cargo.toml", "[workspace]\n"),
        ]);
        let places: Vec<String> = check(&tree)
            .into_iter()
            .map(|finding| finding.place)
            .collect();
        assert_eq!(places, ["b/Cargo.toml"]);
    }
}
