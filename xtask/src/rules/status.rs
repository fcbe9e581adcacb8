//! docs/status.md: one line for each promise.

use std::collections::BTreeMap;

use super::{Finding, Rule, Weight};
use crate::source::words;
use crate::tree::Tree;

pub(super) const RULE: Rule = Rule {
    id: "status",
    says: "docs/status.md has each promise once, as done, partly or not yet; done and partly name a \
           test or a file that is here.",
    why: "A promise without a line is forgotten; a line without evidence is a claim.",
    weight: Weight::Error,
    check,
};

const FILE: &str = "docs/status.md";

/// How many promises each system has.
const PROMISES: &[(&str, u32)] = &[
    ("ST", 8),
    ("HP", 6),
    ("TE", 8),
    ("CE", 8),
    ("UC", 9),
    ("K", 2),
];

fn check(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(FILE) else {
        return vec![Finding::of(FILE, "is missing")];
    };
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    let mut findings = Vec::new();
    for (number, line) in file.lines() {
        let Some(row) = Row::parse(line) else {
            continue;
        };
        if rows.insert(row.id, number).is_some() {
            findings.push(Finding::at(
                FILE,
                number,
                format!("{} stands here twice", row.id),
            ));
        }
        findings.extend(
            row.fault(tree)
                .map(|fault| Finding::at(FILE, number, fault)),
        );
    }
    let ids = PROMISES
        .iter()
        .flat_map(|(system, count)| (1..=*count).map(move |number| format!("{system}{number}")));
    findings.extend(
        ids.filter(|id| !rows.contains_key(id.as_str()))
            .map(|id| Finding::of(FILE, format!("{id} is missing"))),
    );
    findings
}

/// One line of the table: which promise, how far, and what shows it or what is missing.
struct Row<'a> {
    id: &'a str,
    state: &'a str,
    evidence: &'a str,
}

impl<'a> Row<'a> {
    /// A line of a table whose first cell is a promise's id.
    fn parse(line: &'a str) -> Option<Self> {
        let mut cells = line
            .strip_prefix('|')?
            .strip_suffix('|')?
            .split('|')
            .map(str::trim);
        let (id, _promise) = (cells.next()?, cells.next()?);
        let (state, evidence) = (cells.next()?, cells.next()?);
        let system = id.trim_end_matches(|c: char| c.is_ascii_digit());
        let known = system.len() < id.len() && PROMISES.iter().any(|(name, _)| *name == system);
        known.then_some(Self {
            id,
            state,
            evidence,
        })
    }

    fn fault(&self, tree: &Tree) -> Option<String> {
        match self.state {
            "not yet" => None,
            "done" | "partly" => {
                let mut named = self.evidence.split('`').skip(1).step_by(2).peekable();
                if named.peek().is_none() {
                    return Some(format!("{} is {} but names no test", self.id, self.state));
                }
                named
                    .find(|name| !is_here(tree, name))
                    .map(|name| format!("{}: `{name}` is neither a file nor a test here", self.id))
            }
            other => Some(format!(
                "{}: {other:?} is not one of done, partly, not yet",
                self.id
            )),
        }
    }
}

/// Whether this is a file, or a function by its whole name.
fn is_here(tree: &Tree, name: &str) -> bool {
    tree.file(name).is_some()
        || tree.rust().any(|(_, source)| {
            words(source.code(), name).any(|at| source.code()[..at].trim_end().ends_with("fn"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(skip: &str, extra: &str) -> String {
        let ids = PROMISES.iter().flat_map(|(system, count)| {
            (1..=*count).map(move |number| format!("{system}{number}"))
        });
        let kept = ids
            .filter(|id| id != skip)
            .map(|id| format!("| {id} | x | not yet | y |\n"));
        kept.collect::<String>() + extra
    }

    fn faults(document: &str) -> Vec<String> {
        let tree = Tree::of([(FILE, document), ("a.rs", "#[test]\nfn st6_sprays() {}")]);
        check(&tree)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn every_promise_stands_there_once() {
        assert_eq!(faults(&rows("", "")), [""; 0]);
        assert_eq!(faults(&rows("UC9", "")), ["UC9 is missing"]);
        assert_eq!(
            faults(&rows("", "| K1 | x | not yet | y |")),
            ["K1 stands here twice"]
        );
    }

    #[test]
    fn a_state_is_one_of_three() {
        let found = faults(&rows("K1", "| K1 | x | soon | y |"));
        assert_eq!(found, ["K1: \"soon\" is not one of done, partly, not yet"]);
    }

    #[test]
    fn a_claim_names_a_test_that_is_here() {
        let row =
            |evidence: &str| faults(&rows("ST6", &format!("| ST6 | x | partly | {evidence} |")));
        assert_eq!(row("`st6_sprays`; no RTT yet"), [""; 0]);
        assert_eq!(row("it works"), ["ST6 is partly but names no test"]);
        assert_eq!(
            row("`st6_gone`"),
            ["ST6: `st6_gone` is neither a file nor a test here"]
        );
    }
}
