//! Links between our documents.

use super::{Finding, Rule, Weight};
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "document-links",
    says: "A link from one of our documents to a file here leads to one.",
    why: "Files move and documents are not compiled.",
    weight: Weight::Error,
    check,
};

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree
        .files()
        .iter()
        .filter(|file| file.path.ends_with(".md"))
    {
        for (number, line) in file.lines() {
            for target in targets(line) {
                let path = resolve(&file.path, target);
                let folder = format!("{path}/");
                let exists = tree.paths().any(|it| it == path || it.starts_with(&folder));
                if !exists {
                    let message = format!("({target}) leads nowhere");
                    findings.push(Finding::at(&file.path, number, message));
                }
            }
        }
    }
    findings
}

/// The targets of the links on this line that lead to files.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter_map(|target| {
            let path = target.split('#').next().unwrap_or_default();
            (!path.is_empty() && !path.contains(':')).then_some(path)
        })
}

/// The path from the root that `target` means in the document at `from`.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let tree = Tree::of([
            (
                "docs/a.md",
                "[b](b.md#x) ![p](images/p.svg) [up](../README.md) [dir](images)",
            ),
            (
                "docs/b.md",
                "[web](https://example.org/) [here](#b)\n[gone](c.md)",
            ),
            ("docs/images/p.svg", ""),
            ("README.md", "[docs](docs/)"),
        ]);
        assert_eq!(
            check(&tree),
            [Finding::at("docs/b.md", 2, "(c.md) leads nowhere")]
        );
    }
}
