//! No test that does not run.

use super::{Finding, Rule, Weight};
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "ignored-test",
    says: "No test is marked `#[ignore]`.",
    why: "A test that does not run shows nothing and looks as if it did.",
    weight: Weight::Error,
    check,
};

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in tree.rust() {
        findings.extend(source.code().match_indices("#[ignore").map(|(at, _)| {
            Finding::at(&file.path, source.line(at), "mend the test or take it out")
        }));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_test_is_found_with_or_without_a_reason() {
        let tree = Tree::of([(
            "a.rs",
            "#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\nfn b() {}",
        )]);
        assert_eq!(check(&tree).len(), 2);
    }
}
